// Calls that return probes have seen entered, and whose stack is whose.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"

namespace probed::tracer {

class Calls : public Room {
 public:
  using Room::Room;

  // At a SIGTRAP's stop: does what a detour asks for. nullopt: the trap is none of theirs.
  std::optional<Act> on_call_trap(Tracee& tracee, ptrace::Registers& regs);
  // At a hit: runs the return probes of its site that are enabled.
  void run_return_probes(const HitRecorder::Hit& hit, Site& site);
  // What calls of this probe are known by in detours. nullopt: all numbers have been used.
  std::optional<std::uint32_t> tag_of_calls(const std::shared_ptr<ReturnProbe>& probe);

  // Takes over all calls that a stopped thread keeps itself: it is about to have a copy of its memory made.
  void take_all_calls(Tracee& tracee);
  // At a stop: if the thread's stack has been found not to be its own alone, it keeps no calls there any more.
  void limit_kept_calls(Tracee& tracee);
  // The thread has ended, or runs another program: the calls that it keeps are counted as abandoned.
  void abandon_calls(const Tracee& tracee);
  // The program's return probe is about to miss calls: what is known of its calls is forgotten. No-op for exits.
  void forget_calls(const ProbeProgram& program);

 private:
  using OwnStacks = std::map<std::uint64_t, Optimisation::OwnStack>;
  void run_call(Tracee& tracee, const ptrace::Registers& regs);
  Tracee* keeper_of_calls(Tracee& tracee, const ptrace::Registers& regs);
  void take_calls(Tracee& tracee, const ptrace::Registers& regs, const StackPlace& place);
  void take_call(AddressSpace& space, pid_t tid, const events::ChannelCall& call, bool left);
  void mark_call(Tracee& tracee, const ptrace::Registers& regs, const StackPlace& place);
  StackPlace stack_place(Tracee& tracee, const ptrace::Registers& regs, bool is_go);
  void claim_stack(Tracee& tracee);
  void settle_dispute(const Tracee& tracee, const StackPlace& place);
  void limit_stack(AddressSpace& space, OwnStacks::const_iterator stack, const arch::CodeRange& rest);
  void run_return_probe(const HitRecorder::Hit& hit, const Site& site, ProbeProgram& program);

  std::unordered_map<std::uint32_t, std::weak_ptr<ReturnProbe>> calls_by_tag_;
  std::uint32_t last_tag_ = 0;
  std::array<std::byte, events::kMaxArgumentBytes> kept_;
};

}  // namespace probed::tracer
