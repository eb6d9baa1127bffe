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
  void know_code(pid_t pid, std::uint32_t execs, std::span<const SiteCode> code);
  void set_optimize(bool optimize);
  void refresh_modes(std::span<const ProbeId> ids);

  void wake_optimiser(AddressSpace& space, Waiter::Clock::duration in);
  bool eligible(const AddressSpace& space, const Site& site);
  void consider(AddressSpace& space, Site& site);
  void note_waiting(AddressSpace& space, Site& site);
  void when_fast(std::vector<Process*> touched, std::function<void()> done);
  void answer_fast(AddressSpace& space, bool all);
  void learn_code(AddressSpace& space, Site& site, const SiteCode& known);
  void give_up(AddressSpace& space, RemoteAddr site, const char* why, Waiter::Clock::duration again);
  bool refuse_all(AddressSpace& space, const char* why);
  void note_other_code(AddressSpace& space);
  void optimise(AddressSpace& space);

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
