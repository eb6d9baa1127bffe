// Threads in detours: signals for them, and how they get out.
//
// No signal is ever delivered while a thread's pc is in generated code: it is held back until the thread, stepping, has
// left, as for slots. So no signal frame refers to a detour, a handler never sees anything but the program's own
// registers, and a handler that jumps away leaves no reservation behind. What is delivered at once are faults of the
// program's own instructions in the tail, and those only after the jump has been taken out if they happened behind the
// first of them: the handler may come back there.
#include "daemon/tracer/places/detour_threads.hpp"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "daemon/base/process.hpp"
#include "daemon/tracer/kernel/coarse_clock.hpp"
#include "daemon/tracer/kernel/interrupted_calls.hpp"
#include "daemon/tracer/rooms.hpp"
#include "daemon/tracer/stops.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using arch::CopyPoint;
using ptrace::Outcome;
using namespace std::chrono_literals;

constexpr auto kTimeToLeave = 50us;
constexpr std::uint8_t kMostSetBacks = 3;
constexpr auto kAfterSetBack = 1s;
constexpr unsigned kMostAbsent = 1000;  // within a second
constexpr auto kAfterAbsent = 10s, kAfterNoRoom = 10s;

}  // namespace

// ---- signals --------------------------------------------------------------------------------------------------------

std::optional<Act> DetourThreads::skip_absent_load(Tracee& tracee, int signal) {
  const DetourSpace& detours = tracee.process->space->detours();
  if (detours.areas_empty()) return std::nullopt;
  ptrace::Registers regs;
  siginfo_t info{};
  if (ptrace::get_registers(tracee.tid, regs) != Outcome::ok) return std::nullopt;
  const auto place = detours.find(native_place(regs));
  if (!place || !place->resume) return std::nullopt;
  if (ptrace::get_siginfo(tracee.tid, info) != Outcome::ok) return std::nullopt;
  // One that was sent and is blocked swallows ours: the fault unblocks it (kernel/signal.c, legacy_queue).
  const AfterTrap after = rooms_.actions.mend_after_trap(tracee, regs, signal, !is_fault(signal, info));
  if (!after.alive) return Act::away();
  if (after.program_first) return std::nullopt;
  regs.set_pc(place->resume->value);
  ptrace::set_registers(tracee.tid, regs);
  if (place->detour) note_absent_load(*tracee.process->space, place->detour->site);
  return Act::go_on("behind a detour's load of what isn't there", after.signal);
}

std::optional<Act> DetourThreads::stand_in_for_clock(Tracee& tracee, int signal) {
  AddressSpace& space = *tracee.process->space;
  if (space.detours().areas_empty()) return std::nullopt;
  ptrace::Registers regs;
  if (ptrace::get_registers(tracee.tid, regs) != Outcome::ok) return std::nullopt;
  const auto place = space.detours().find(native_place(regs));
  std::array<std::uint8_t, 2> code{};
  if (!place || !place->capture || !space.memory().read(RemoteAddr{regs.pc()}, std::as_writable_bytes(std::span(code))))
    return std::nullopt;
  siginfo_t info{};
  ptrace::Registers after_it = regs;
  if (!native::stand_in_for_clock(after_it, code, native::record_clock())) return std::nullopt;
  if (ptrace::get_siginfo(tracee.tid, info) != Outcome::ok) return std::nullopt;
  const AfterTrap after = rooms_.actions.mend_after_trap(tracee, regs, signal, !is_fault(signal, info));
  if (!after.alive) return Act::away();
  if (after.program_first) return std::nullopt;
  ptrace::set_registers(tracee.tid, after_it);
  rooms_.optimiser.refuse_all(space, "the process has switched the time stamp counter off");
  return Act::go_on("behind a detour's look at the clock, which it may not read", after.signal);
}

// A compartment inside of the program (pkeys(7)). The thread gets the rights until it has left the detour, which it
// leaves stepping.
std::optional<Act> DetourThreads::pass_key(Tracee& tracee, int signal) {
  AddressSpace& space = *tracee.process->space;
  ptrace::Registers regs;
  siginfo_t info{};
  if (space.detours().areas_empty() || ptrace::get_registers(tracee.tid, regs) != Outcome::ok) return std::nullopt;
  const auto place = space.detours().find(native_place(regs));
  if (!place || !place->capture || ptrace::get_siginfo(tracee.tid, info) != Outcome::ok) return std::nullopt;
  if (!is_fault(signal, info) || info.si_code != SEGV_PKUERR) return std::nullopt;
  const auto rights = ptrace::lift_key_rights(tracee.tid);
  if (!rights) return std::nullopt;
  tracee.key_rights = *rights;  // also when it is late with the call that follows: it loses them as it comes back
  const AfterTrap after = rooms_.actions.mend_after_trap(tracee, regs, signal, false);
  if (!after.alive) return Act::away();
  rooms_.optimiser.refuse_all(space,
                              "a thread of it may not use memory without a protection key of its own (pkeys(7))");
  const bool leaves_anyhow = !tracee.is_itself() || after.signal != 0;
  if (!leaves_anyhow) return start_leaving(tracee, 0);
  return Act::go_on("in a detour, with the right to our memory", after.signal);
}

void DetourThreads::give_keys_back(Tracee& tracee) {
  ptrace::Registers regs;
  if (!tracee.key_rights || ptrace::get_registers(tracee.tid, regs) != Outcome::ok) return;
  if (tracee.process && tracee.process->space && tracee.process->space->detours().in_code(native_place(regs))) return;
  ptrace::put_key_rights(tracee.tid, *std::exchange(tracee.key_rights, std::nullopt));
}

// The thread's stack has no room for what a detour saves, or the program steps itself by the trap flag, and would see a
// step of ours. Nothing is done yet, and a breakpoint needs no stack and is no step.
std::optional<Act> DetourThreads::turn_back(Tracee& tracee, int signal) {
  AddressSpace& space = *tracee.process->space;
  const DetourSpace& detours = space.detours();
  const bool steps = signal == SIGTRAP;
  if (detours.areas_empty() || tracee.stepping() || (!steps && signal != SIGSEGV && signal != SIGBUS))
    return std::nullopt;
  ptrace::Registers regs;
  siginfo_t info{};
  if (ptrace::get_registers(tracee.tid, regs) != Outcome::ok) return std::nullopt;
  const RemoteAddr pc = native_place(regs);
  std::optional<RemoteAddr> site = detours.site_of_island(pc);
  const bool in_padding = site.has_value();
  if (const auto place = detours.find(pc); place && place->detour && place->base == pc) site = place->detour->site;
  if (!site || ptrace::get_siginfo(tracee.tid, info) != Outcome::ok) return std::nullopt;
  const bool fault = is_fault(signal, info);
  if (steps && (!fault || !is_step_trap(info))) return std::nullopt;
  if (!steps && (in_padding || (fault && reinterpret_cast<std::uint64_t>(info.si_addr) == pc.value)))
    return std::nullopt;
  const AfterTrap after = rooms_.actions.mend_after_trap(tracee, regs, signal, !fault);
  if (!after.alive) return Act::away();
  if (after.program_first) return std::nullopt;
  regs.set_pc(site->value);
  ptrace::set_registers(tracee.tid, regs);
  if (steps) {
    rooms_.optimiser.refuse_all(space, kStepsItself);
  } else if (Site* jumped = space.find(*site); jumped && jumped->jump) {
    space.drop_jump(*jumped);
    rooms_.optimiser.give_up(space, *site, "a thread's stack had no room for what a jump saves", kAfterNoRoom);
  }
  return Act::go_on("back in front of a jump that it can't take", after.signal);
}

// One that faults at most hits is cheaper as a breakpoint.
void DetourThreads::note_absent_load(AddressSpace& space, RemoteAddr address) {
  Site* site = space.find(address);
  if (!site || !site->jump) return;
  const auto now = coarse_now();
  if (now - site->absent_since > 1s) {
    site->absent_since = now;
    site->absent = 0;
  }
  if (++site->absent < kMostAbsent) return;
  site->absent = 0;
  space.drop_jump(*site);
  rooms_.optimiser.give_up(space, address, "its arguments can't be read at most hits, which takes longer in a detour",
                           kAfterAbsent);
}

Act DetourThreads::deliver_in_detour(Tracee& tracee, int signal, ptrace::Registers& regs, const DetourPlace& place) {
  siginfo_t info{};
  if (ptrace::get_siginfo(tracee.tid, info) != Outcome::ok) return Act::dying();
  const bool at_exit = place.point && place.point->meaning == CopyPoint::Meaning::after;
  if (at_exit) {
    const std::uint64_t was_at = regs.pc();
    apply(*place.point, regs);
    rooms_.delivery.move_fault(tracee, info, was_at, regs.pc());
  } else if (is_fault(signal, info)) {
    if (place.capture && !std::exchange(tracee.process->said_damaged, true))
      spdlog::error("process {}: the code or the channel of its optimised probes was changed or unmapped by it",
                    tracee.process->id.pid);
    const std::uint64_t pc = regs.pc();
    const bool at_pc = reinterpret_cast<std::uint64_t>(info.si_addr) == pc;
    if (signal == SIGSEGV && at_pc && place.point &&
        rooms_.code_changes.generated_code_gone(*tracee.process, RemoteAddr{pc})) {
      leave_tail(tracee, regs, place);
      ptrace::set_registers(tracee.tid, regs);
      return Act::go_on("the program has unmapped the detours");
    }
    leave_tail(tracee, regs, place, true);
    rooms_.delivery.move_fault(tracee, info, pc, regs.pc());
  } else {
    return start_leaving(tracee, signal);
  }
  ptrace::set_registers(tracee.tid, regs);
  return go_on_with_own_mask(tracee, signal, "a signal of its own, out of a detour");
}

// The signal comes before those that are held back, and its handler is to find the program's mask. Those follow in
// front of the handler.
Act DetourThreads::go_on_with_own_mask(Tracee& tracee, int signal, const char* why) {
  siginfo_t info{};
  Leaving* const leaving = tracee.leaving();
  if (leaving && leaving->masked && ptrace::get_siginfo(tracee.tid, info) == Outcome::ok) {
    // One that the program blocks and has raised all the same is to end it.
    const bool forced = info.si_code > 0;
    rooms_.delivery.let_signals(tracee, leaving->mask & ~(forced ? signal_bit(signal) : 0));
    leaving->masked = false;
    ptrace::interrupt(tracee.tid);
  }
  return Act::go_on(why, signal);
}

// A thread that is to go on behind the first instruction of the region must find it there; so must one that faults, and
// whose handler may skip the instruction.
void DetourThreads::leave_tail(Tracee& tracee, ptrace::Registers& regs, const DetourPlace& place, bool fault) {
  if (!place.point) return;
  if (place.point->meaning == CopyPoint::Meaning::after) return apply(*place.point, regs);
  regs.set_sp(regs.sp() + static_cast<std::uint64_t>(std::int64_t{place.point->undo_sp}));
  regs.set_pc(place.point->original_pc);
  const RemoteAddr address = place.detour->site;
  if (RemoteAddr{regs.pc()} == address && !fault) return;
  AddressSpace& space = *tracee.process->space;
  if (Site* site = space.find(address)) keep_from_jump(space, *site);
}

// Nothing is done where a jump replaces nothing but the first instruction.
void DetourThreads::keep_from_jump(AddressSpace& space, Site& site) {
  const std::size_t head = site.jump ? site.jump->head.size : native::kDetourJumpSize;
  if (site.plan.insn.length >= head) return;
  space.drop_jump(site);
  if (++site.set_backs < kMostSetBacks) {
    site.no_jump_before = Waiter::Clock::now() + kAfterSetBack;
    space.optimisation().later.emplace_back(site.no_jump_before, site.plan.address);
  } else {
    site.set_backs = kMostSetBacks;
    site.no_jump_before = Waiter::Clock::time_point::max();
    rooms_.optimiser.give_up(space, site.plan.address,
                             "instructions that the jump would replace have faults of their own", {});
  }
  rooms_.optimiser.wake_optimiser(space, kAfterSetBack);
}

// It steps, or, where a step's trap would do harm, goes on by itself (let_leave()).
Act DetourThreads::start_leaving(Tracee& tracee, int signal) {
  Stepping stepping;
  stepping.held_signal = signal;
  if (signal != 0 && ptrace::get_siginfo(tracee.tid, stepping.held_info) != Outcome::ok) return Act::dying();
  if (ptrace::get_sigmask(tracee.tid, stepping.mask) != Outcome::ok) return Act::dying();
  tracee.group_stopped = false;
  if (tracee.leaving() || !rooms_.delivery.may_hold_signals(tracee, stepping.mask)) {
    if (!tracee.leaving()) tracee.way_out = Leaving{stepping.mask, {}, 0, true};
    if (signal != 0) tracee.leaving()->held.push_back({signal, stepping.held_info});
    rooms_.delivery.hold_signals(tracee, stepping.mask, stepping.mask | ~kSynchronous);
    rooms_.delivery.note_taken(tracee, signal, stepping.held_info);
    return let_leave(tracee, "to get out of a detour by itself");
  }
  stepping.masked = true;
  rooms_.delivery.hold_signals(tracee, stepping.mask, stepping.mask | ~kSynchronous);
  rooms_.delivery.note_taken(tracee, signal, stepping.held_info);
  tracee.way_out = stepping;
  return Act::go_on("stepping out of a detour");
}

// A detour takes some ten nanoseconds: the thread is let go on, and asked to stop again soon. Asked at once, it would
// stop before its first instruction.
Act DetourThreads::let_leave(Tracee& tracee, const char* why) {
  Process& process = *tracee.process;
  const auto soon = Waiter::Clock::now() + kTimeToLeave;
  tracee.group_stopped = false;
  tracee.interrupt_again = true;
  process.ask_again = process.ask_again ? std::min(*process.ask_again, soon) : soon;
  waiter_.wake();  // a deadline that a stop sets is else looked at by the tick only
  return Act::go_on(why);
}

// The mask that it has meanwhile is not for the program to see: the call that it is at the entry of isn't made
// (Loop::let_go_on()), and comes again when it has the program's. What we have it do before that begins at a stop
// outside of any call.
Act DetourThreads::call_while_leaving(Tracee& tracee) {
  ptrace::Registers regs;
  if (ptrace::get_registers(tracee.tid, regs) != Outcome::ok) return Act::dying();
  ptrace::interrupt(tracee.tid);
  native::rewind_syscall(regs);
  native::skip_syscall(regs);
  ptrace::set_registers(tracee.tid, regs);
  return Act::go_on("its call is made when it has its own mask again");
}

std::optional<Act> DetourThreads::waits_to_leave(Tracee& tracee) {
  Leaving* const leaving = tracee.leaving();
  if (!leaving) return std::nullopt;
  ptrace::Registers regs;
  if (ptrace::get_registers(tracee.tid, regs) != Outcome::ok) return Act::dying();
  if (!std::exchange(leaving->masked, true)) {  // in front of the last one's handler
    if (ptrace::get_sigmask(tracee.tid, leaving->mask) != Outcome::ok) return Act::dying();
    rooms_.delivery.hold_signals(tracee, leaving->mask, leaving->mask | ~kSynchronous);
    if (!leaving->held.empty())
      rooms_.delivery.note_taken(tracee, leaving->held.front().signal, leaving->held.front().info);
  }
  // One that has run into a breakpoint or a fault meanwhile must be seen to do so first: its mask, with the bit that
  // the kernel has cleared for it, would keep that from it.
  if (leaving->mark != 0 || tracee.process->space->detours().in_code(native_place(regs)) ||
      synchronous_signal_pending(tracee.tid))
    return let_leave(tracee, "it has yet to get out of a detour, to the mark or to a signal of an instruction");
  if (leaving->held.empty()) {
    rooms_.delivery.let_signals(tracee, leaving->mask);
    tracee.way_out = std::monostate();
    return std::nullopt;
  }
  leaving->mark = send_mark(tracee);
  if (leaving->mark == 0) return let_leave(tracee, "no signal is free to be the mark");
  rooms_.delivery.hold_signals(tracee, leaving->mask, ~signal_bit(leaving->mark));
  tracee.group_stopped = false;
  return Act::go_on("to the mark, in whose place it gets the first signal that was held back");
}

// A signal can only be injected at a stop that reports one. Returns which; 0: all of them are pending, and would come
// first.
int DetourThreads::send_mark(const Tracee& tracee) {
  siginfo_t info{};
  info.si_code = SI_QUEUE;
  info.si_pid = getpid();
  info.si_value.sival_ptr = const_cast<Tracee*>(&tracee);
  // One that is ignored does no harm if this daemon dies before it is taken back. (It is reported to us all the same:
  // kernel/signal.c, sig_ignored.) At RLIMIT_SIGPENDING a real-time signal is refused, and another one comes without
  // its siginfo (__send_signal_locked).
  for (const SignalKind kind : {SignalKind::ignored, SignalKind::real_time, SignalKind::standard}) {
    const auto mark = unused_signal(tracee.tid, kind);
    if (mark && syscall(SYS_rt_tgsigqueueinfo, tracee.process->id.pid, tracee.tid, *mark, &info) == 0) return *mark;
  }
  return 0;
}

std::optional<Act> DetourThreads::unmark(Tracee& tracee, int& signal) {
  if (!tracee.leaving() || tracee.leaving()->mark != signal) return std::nullopt;
  Leaving& leaving = *tracee.leaving();
  siginfo_t info{};
  if (ptrace::get_siginfo(tracee.tid, info) != Outcome::ok) return Act::dying();
  const bool is_ours = info.si_code == SI_QUEUE && info.si_pid == getpid() && info.si_value.sival_ptr == &tracee;
  const bool is_bare = info.si_code == SI_USER && info.si_pid == 0 && signal < kFirstRealTime;
  if (!is_ours && !is_bare) {
    leaving.held.push_back({signal, info});  // the program's own, sent at this very moment; ours is behind it
    rooms_.delivery.note_taken(tracee, signal, info);
    return Act::go_on("its own signal, of the mark's number, waits for its turn");
  }
  const Leaving::Held first = leaving.held.front();
  leaving.held.pop_front();
  waiter_.take_report(tracee.tid);
  ptrace::set_siginfo(tracee.tid, first.info);
  rooms_.delivery.let_signals(tracee, leaving.mask);
  // More of them: with the mask that it has when it stops again, in front of the first one's handler.
  leaving.mark = 0;
  leaving.masked = false;
  if (leaving.held.empty())
    tracee.way_out = std::monostate();
  else
    ptrace::interrupt(tracee.tid);
  signal = first.signal;
  return std::nullopt;
}

}  // namespace probed::tracer
