// From breakpoints to jumps and back, in the background, one state (optimisation.hpp) for each address space.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"

namespace probed::tracer {

class Optimiser : public Room {
 public:
  using Room::Room;

  // Commands: engine.hpp says what they do.
  void set_optimize(bool optimize);
  void know_code(pid_t pid, std::uint32_t execs, std::span<const SiteCode> code);
  void refresh_modes(std::span<const ProbeId> ids);

  // Goes on with whatever can be gone on with now; sets when to come back.
  void optimise(AddressSpace& space);
  // optimise() is due after that time at the latest.
  void wake_optimiser(AddressSpace& space, Waiter::Clock::duration in);

  // Whether a jump may lead there; if not, the site's programs know why.
  bool eligible(const AddressSpace& space, const Site& site);
  // Queues a site that may become a jump.
  void consider(AddressSpace& space, Site& site);
  // What is known of the code around a site, which consider() needs.
  void learn_code(AddressSpace& space, Site& site, const SiteCode& known);
  // At a hit, while a site waits: one that is hit often is the next to get its jump.
  void note_waiting(AddressSpace& space, Site& site);

  // The site gets no jump. `again`: after which time it is considered again; 0: not by itself.
  void give_up(AddressSpace& space, RemoteAddr site, const char* why, Waiter::Clock::duration again);
  // Nothing is optimised in this address space any more.
  void refuse_all(AddressSpace& space, const char* why);
  // Some thread executes 32-bit code: there are jumps only where that can't be any more.
  void note_other_code(AddressSpace& space);

  // Calls `done` when what is hit all the time in these processes has jumps, or when that has taken long enough.
  void when_fast(std::vector<Process*> touched, std::function<void()> done);
  // Answers those who wait for that, as far as it is so. `all`: whether it is or not.
  void answer_fast(AddressSpace& space, bool all);

 private:
  using Phase = Optimisation::Phase;
  // Of a site that is to be built: there is more to do; it is built or given up; it waits for memory.
  enum class Turn : std::uint8_t { goes_on, over, waits };
  struct JumpPlan;
  struct DetourRoom;
  bool wants_jump(const AddressSpace& space, const Site& site);
  void gather_batch(AddressSpace& space);
  void put_off_rest(AddressSpace& space);
  bool start_batch(AddressSpace& space);
  void build_some(AddressSpace& space);
  void take_back(AddressSpace& space, std::size_t from);
  bool connect_taps(AddressSpace& space, Site& site, std::vector<arch::CapturedProbe>& probes,
                    std::vector<Listener::Tap>& taps);
  bool describe_call(const ProbeProgram& program, arch::CapturedProbe& probe);
  Turn choose_region(AddressSpace& space, Site& site, JumpPlan& plan);
  static std::optional<std::size_t> line_for(const DetourSpace& detours, const Site& site);
  Turn build_detour(AddressSpace& space, arch::DetourRequest request, DetourRoom& room);
  Jump make_jump(const Site& site, const JumpPlan& plan, RemoteAddr at) const;
  static std::size_t left_to_build(const AddressSpace& space);
  bool build_one(AddressSpace& space, Site& site, std::vector<Listener::Tap>& taps);
  void write_tails(AddressSpace& space);
  void write_heads(AddressSpace& space);

  std::vector<std::uint8_t> code_;  // of detours on their way into a target
  arch::Detour detour_;
};

}  // namespace probed::tracer
