// The calls that threads keep themselves: detours push and pop them (arch/<cpu>/detour_runtime.cpp, enter() and
// leave()) as long as each is the one on top, on the stack that its thread began on. What else there is to do they ask
// for, by a breakpoint in their routines; then, and at breakpoints of return probes, the tracer takes over what the
// thread has kept as far as it concerns the place where it stands, and goes on as if all had been breakpoints
// (return_stacks.hpp). So there is one truth about a call at any time: a call lies either in its thread's memory or
// here, and the later one at a place in the thread's.
//
//   a stack that the thread hasn't begun on, or isn't known yet; no lane, no room     the call is kept here
//   calls below on the stack that haven't returned: exceptions, longjmp               they are abandoned
//   an exit whose call isn't on top: it was entered at a breakpoint, or unseen        it is looked for here
//
// Where a call is kept here a mark is left in the thread's memory, so that it comes back to us at that place.
//
// Owning thread: the tracer thread. A thread's memory is touched while it is stopped outside of the capture part of
// detours, or in front of call_done.
#include "daemon/tracer/calls/calls.hpp"

#include <algorithm>

#include "daemon/tracer/rooms.hpp"
#include "daemon/tracer/stops.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using Role = ProbeProgram::Role;
using ptrace::Outcome;

std::uint64_t word_at(TargetMemory& memory, std::uint64_t address) {
  std::uint64_t word = 0;
  if (!memory.read(RemoteAddr{address}, std::as_writable_bytes(std::span(&word, 1)))) return 0;
  return word;
}

bool is_on_own_stack(const StackPlace& place) { return place.stack == 0 && place.lowest < place.slot; }

}  // namespace

// ---- what detours ask for -------------------------------------------------------------------------------------------

std::optional<Act> Calls::on_call_trap(Tracee& tracee, ptrace::Registers& regs) {
  const RemoteAddr address{native::breakpoint_address(regs.pc())};
  const auto trap = tracee.process->space->detours().call_trap(address);
  if (!trap) return std::nullopt;
  siginfo_t info{};
  if (ptrace::get_siginfo(tracee.tid, info) != Outcome::ok) return Act::dying();
  // Nobody is sent behind that breakpoint: a SIGTRAP with another siginfo has swallowed ours (kernel/signal.c,
  // legacy_queue).
  const bool merged = !is_breakpoint_trap(info);
  if (tracee.stepping()) {  // out of the detour, with SIGTRAP neither blocked nor ignored: nothing has been reset
    if (merged) return std::nullopt;
    run_call(tracee, regs);
    regs.set_pc(trap->done.value);
    ptrace::set_registers(tracee.tid, regs);
    return Act::go_on("a detour has asked for a call of ours, in the middle of a step");
  }
  const AfterTrap after = rooms_.actions.mend_after_trap(tracee, regs, SIGTRAP, merged);
  if (!after.alive) return Act::away();
  regs.set_pc(after.program_first ? address.value : trap->done.value);
  native::mark_dealt_with(regs);
  if (!after.program_first) run_call(tracee, regs);
  ptrace::set_registers(tracee.tid, regs);
  if (after.program_first || after.signal != 0) return rooms_.delivery.deliver(tracee, SIGTRAP);
  return rooms_.detacher.go_on_or_leave(tracee, "a detour has asked for a call of ours");
}

// regs: in front of call_done, or at the trap.
void Calls::run_call(Tracee& tracee, const ptrace::Registers& regs) {
  rooms_.slot_threads.leave_slot(tracee);
  if (tracee.process->detaching()) return;
  AddressSpace& space = *tracee.process->space;
  if (tracee.lanes.size() < space.detours().lines().size()) rooms_.lanes.give_lanes(tracee, regs);
  TargetMemory& memory = space.memory();
  const auto wanted = native::detour_call(regs, word_at(memory, regs.sp()));
  const auto known = calls_by_tag_.find(wanted.tag);
  const auto place = space.detours().find(RemoteAddr{wanted.from});
  if (known == calls_by_tag_.end() || !place || !place->detour) return;
  const auto probe = known->second.lock();
  const Site* site = space.find(place->detour->site);
  if (!probe || !site || !rooms_.armed) return;
  ptrace::Registers in_block = regs;
  if constexpr (native::kCallPushesReturnAddress) in_block.set_sp(regs.sp() + native::kWordSize);
  const ptrace::Registers program_regs =
      native::program_registers(in_block, place->detour->facts.saves, place->detour->site.value,
                                [&](std::uint64_t address) { return word_at(memory, address); });
  const Role role = wanted.is_exit ? Role::exit : Role::entry;
  const auto program = std::ranges::find_if(
      site->programs, [&](const ProgramPtr& p) { return p->returns == probe && p->role == role && p->enabled; });
  if (program == site->programs.end()) return;
  run_return_probe(rooms_.recorder.begin(tracee, program_regs, memory), *site, **program);
}

// A mark has 0.
std::optional<std::uint32_t> Calls::tag_of_calls(const std::shared_ptr<ReturnProbe>& probe) {
  if (probe->tag == 0 && last_tag_ + 1 < arch::channel::kCallTags) {
    probe->tag = ++last_tag_;
    calls_by_tag_.emplace(probe->tag, probe);
  }
  return probe->tag == 0 ? std::nullopt : std::optional(probe->tag);
}

// ---- what threads keep ----------------------------------------------------------------------------------------------

// Whose lanes the thread uses: a vfork child has its creator's thread pointer, and its creator sleeps.
Tracee* Calls::keeper_of_calls(Tracee& tracee, const ptrace::Registers& regs) {
  const auto has_own = [](const Tracee& t) {
    return std::ranges::any_of(t.lanes, [](events::LaneId id) { return id != events::LaneId::shared; });
  };
  if (has_own(tracee)) return &tracee;
  const auto& pointers = tracee.process->space->optimisation().thread_pointers;
  const auto owner = pointers.find(ptrace::thread_pointer(tracee.tid, regs));
  if (!tracee.vforked || owner == pointers.end()) return nullptr;
  const auto it = targets_.tracees.find(owner->second);
  return it == targets_.tracees.end() || !has_own(it->second) ? nullptr : &it->second;
}

// Those that were entered where the thread stands, or have been left on the way there.
void Calls::take_calls(Tracee& tracee, const ptrace::Registers& regs, const StackPlace& place) {
  AddressSpace& space = *tracee.process->space;
  if (space.detours().lines().empty() || !is_on_own_stack(place)) return;
  const Tracee* keeper = keeper_of_calls(tracee, regs);
  if (!keeper) return;
  for (std::size_t i = 0; i < keeper->lanes.size(); ++i) {
    const events::LaneId lane = keeper->lanes[i];
    if (lane == events::LaneId::shared) continue;
    events::Channel& channel = *space.detours().lines()[i].feed->channel;
    channel.set_stack(lane, tracee.own_stack->begin, tracee.own_stack->end);
    const auto take = [&](const events::ChannelCall& call) {
      take_call(space, tracee.tid, call, call.slot < place.slot);
    };
    channel.take_calls(lane, place.slot, take);
  }
}

void Calls::take_call(AddressSpace& space, pid_t tid, const events::ChannelCall& call, bool left) {
  const auto known = calls_by_tag_.find(call.tag);
  const auto probe = known == calls_by_tag_.end() ? nullptr : known->second.lock();
  if (!probe) return;  // a mark; or it has been forgotten
  Activation activation;
  activation.kind = call.silent ? Activation::Kind::filtered : Activation::Kind::going_on;
  activation.probe = probe;
  activation.tid = tid;
  activation.return_address = call.return_address;
  if (!call.silent) {
    activation.time = rooms_.ticks.time_of(call.time);
    const auto it = targets_.tracees.find(tid);
    values::CommonFields common;
    if (it != targets_.tracees.end()) common.comm = it->second.comm;
    const std::size_t size = events::unpack(probe->detours->entry, call.words, common, kept_);
    activation.kept.assign(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(size));
  }
  space.returns().take_over(call.slot, std::move(activation), left);
}

void Calls::take_all_calls(Tracee& tracee) {
  AddressSpace* space = tracee.process->space.get();
  for (std::size_t i = 0; space && i < tracee.lanes.size(); ++i) {
    if (tracee.lanes[i] == events::LaneId::shared) continue;
    events::Channel& channel = *space->detours().lines()[i].feed->channel;
    std::uint64_t lowest = ~0ull;
    const auto take = [&](const events::ChannelCall& call) {
      lowest = std::min(lowest, call.slot);
      take_call(*space, tracee.tid, call, false);
    };
    channel.take_calls(tracee.lanes[i], ~0ull, take);
    if (lowest != ~0ull) channel.mark_call(tracee.lanes[i], lowest);
  }
}

// Where it stands in the capture part of a detour, or runs, that has to wait for its next stop.
void Calls::limit_kept_calls(Tracee& tracee) {
  ptrace::Registers regs;
  if (!tracee.stack_limited || ptrace::get_registers(tracee.tid, regs) != Outcome::ok) return;
  AddressSpace& space = *tracee.process->space;
  if (const auto place = space.detours().find(native_place(regs)); place && place->capture) return;
  tracee.stack_limited = false;
  take_all_calls(tracee);
  for (std::size_t i = 0; i < tracee.lanes.size(); ++i)
    if (tracee.lanes[i] != events::LaneId::shared)
      space.detours().lines()[i].feed->channel->limit_stack(tracee.lanes[i], tracee.own_stack->begin,
                                                            tracee.own_stack->end);
}

// A call that is kept here, in every channel: whichever probe sees next that it has been left, we are to hear of it.
void Calls::mark_call(Tracee& tracee, const ptrace::Registers& regs, const StackPlace& place) {
  const Tracee* keeper = is_on_own_stack(place) ? keeper_of_calls(tracee, regs) : nullptr;
  if (!keeper) return;
  const auto& lines = tracee.process->space->detours().lines();
  for (std::size_t i = 0; i < keeper->lanes.size(); ++i)
    if (keeper->lanes[i] != events::LaneId::shared) lines[i].feed->channel->mark_call(keeper->lanes[i], place.slot);
}

void Calls::abandon_calls(const Tracee& tracee) {
  DetourSpace& detours = tracee.process->space->detours();
  for (std::size_t i = 0; i < tracee.lanes.size() && i < detours.lines().size(); ++i) {
    if (tracee.lanes[i] == events::LaneId::shared) continue;
    const auto abandon = [&](const events::ChannelCall& call) {
      const auto known = calls_by_tag_.find(call.tag);
      const auto probe = known == calls_by_tag_.end() ? nullptr : known->second.lock();
      if (probe && !call.silent) probe->abandoned.fetch_add(1, std::memory_order_relaxed);
    };
    detours.lines()[i].feed->channel->take_calls(tracee.lanes[i], ~0ull, abandon);
  }
}

}  // namespace probed::tracer
