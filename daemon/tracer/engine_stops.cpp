// Stops of threads: signals, breakpoints, steps, interrupts.
//
// Every path through here ends with the thread resumed, listening, deliberately held, released or gone.
#include "daemon/tracer/engine_stops.hpp"

#include <signal.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>

#include "daemon/base/check.hpp"
#include "daemon/tracer/coarse_clock.hpp"
#include "daemon/tracer/engine.hpp"
#include "daemon/tracer/engine_remote.hpp"
#include "daemon/tracer/interrupted_calls.hpp"
#include "daemon/tracer/left_calls.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using arch::CopyPoint;
using ptrace::Outcome;
using Kind = WaitStatus::Kind;

constexpr std::uint8_t kMostPutOff = 100;
constexpr auto kFilterAge = std::chrono::milliseconds(100);
constexpr auto kAskAgainAfter = std::chrono::milliseconds(10);


// Whether an asynchronous signal must not wait for the instruction: it may take for ever, or can't be stepped.
bool must_not_wait(const arch::Insn& insn) { return insn.may_block || insn.repeats || insn.sees_trap_flag; }

// A handler may run into probes and be interrupted in their slots itself, so executions that are to be continued nest.
// Handlers that are left by a jump leave theirs behind: the oldest go when there are too many.
void note_rehit(Tracee& tracee, const Slot& slot, const ptrace::Registers& regs) {
  constexpr std::size_t kDeepest = 16;
  if (tracee.rehits.size() == kDeepest) tracee.rehits.erase(tracee.rehits.begin());
  tracee.rehits.push_back({slot.original, regs});
}

// Whether a hit continues an execution that was counted before a signal came.
bool take_rehit(Tracee& tracee, const ptrace::Registers& regs) {
  const auto same = [&](const Rehit& r) { return r.site.value == regs.pc() && native::same_execution(r.regs, regs); };
  const auto found = std::find_if(tracee.rehits.rbegin(), tracee.rehits.rend(), same);
  if (found == tracee.rehits.rend()) return false;
  tracee.rehits.erase(std::prev(found.base()), tracee.rehits.end());
  return true;
}

// Back in front of the probed instruction, as if nothing had happened.
void undo(const CopyPoint* point, const Slot& slot, RemoteAddr base, ptrace::Registers& regs) {
  if (point) {
    regs.set_sp(regs.sp() + static_cast<std::uint64_t>(std::int64_t{point->undo_sp}));
    // A system call that the kernel restarts has left its return address, in the copy, behind.
    const bool stale = regs.link() >= base.value && regs.link() < base.value + kSlotSize;
    if (point->link != 0 && stale) regs.set_link(point->link);
  }
  regs.set_pc(slot.original.value);
}

}  // namespace

void Engine::handle(const Stop& stop) {
  const auto it = tracees_.find(stop.tid);
  if (it == tracees_.end()) {
    on_unknown(stop);
  } else {
    Tracee& tracee = it->second;
    if (tracee.borrowed && give_back(tracee, stop.status)) return;
    tracee.stop = stop.status.kind();
    tracee.group_stopped = false;
    note_mask(tracee, stop.status);
    if (tracee.stop == Kind::interrupt || tracee.stop == Kind::group_stop) ptrace::note_event_stop(stop.tid);
    if (tracee.hidden && stop.status.stopped()) show_again(tracee);
    switch (stop.status.kind()) {
      case Kind::exited:
      case Kind::killed: on_end(tracee, stop.status); break;
      case Kind::signal:
        if (std::exchange(tracee.interrupt_again, false) || ptrace::is_interrupted(stop.tid))
          ptrace::interrupt(stop.tid);
        on_signal(tracee, stop.status.signal());
        break;
      case Kind::group_stop: on_interrupt(tracee, true); break;
      case Kind::interrupt: on_interrupt(tracee, false); break;
      case Kind::clone:
      case Kind::fork:
      case Kind::vfork: on_new_task(tracee); break;
      case Kind::vfork_done: on_vfork_done(tracee); break;
      case Kind::exec: on_exec(tracee); break;
      case Kind::syscall:
        if (tracee.leaving && tracee.leaving->masked) {
          call_while_leaving(tracee);
          break;
        }
        if (ptrace::is_interrupted(stop.tid)) ptrace::interrupt(stop.tid);
        show_filtered_call(tracee);
        resume(tracee);
        break;
      case Kind::other: resume(tracee); break;
    }
  }
  while (!ended_meanwhile_.empty()) {
    const Stop ended = ended_meanwhile_.back();
    ended_meanwhile_.pop_back();
    handle(ended);
  }
}

// A thread that took too long over a system call for us. True: the stop was on the way back, and is dealt with.
bool Engine::give_back(Tracee& tracee, const WaitStatus& status) {
  const Kind kind = status.kind();
  if (!status.stopped() || kind == Kind::exec) {
    tracee.borrowed.reset();
    return false;
  }
  if (kind == Kind::interrupt || kind == Kind::group_stop) {
    std::exchange(tracee.borrowed, std::nullopt)->give_back(tracee.tid);
    return false;
  }
  // What can arrive with everything blocked is SIGSTOP.
  const bool stops = kind == Kind::signal && status.signal() == SIGSTOP;
  tracee.borrowed->go_on_to_event_stop(tracee.tid, stops ? SIGSTOP : 0);
  return true;
}

// ---- letting go on --------------------------------------------------------------------------------------------------

void Engine::resume(Tracee& tracee, int signal) {
  if (tracee.interrupted_at && !tracee.stepping) {
    note_pause(tracee);
    tracee.interrupted_at.reset();
  }
  tracee.loader_ticket = 0;
  if (signal != 0 && would_dump_core(tracee.tid, signal)) hide_from_core_dump(tracee);
  // Gone is fine everywhere here: the exit status follows.
  if (tracee.group_stopped) {
    tracee.state = Tracee::State::listening;
    ptrace::listen(tracee.tid);
    return;
  }
  tracee.state = Tracee::State::running;
  if (tracee.stepping) return void(ptrace::step(tracee.tid, signal));
  if (tracee.leaving && tracee.leaving->masked) return void(ptrace::resume_to_syscall(tracee.tid, signal));
  const bool watched = watches(tracee);
  if (!watched && !tracee.filtered_call) return void(ptrace::resume(tracee.tid, signal));
  if (watched && signal != 0) ptrace::interrupt(tracee.tid);  // stops it at its handler's first instruction
  ptrace::resume_to_syscall(tracee.tid, signal);
}

// A core dump is to hold the program's own text. The other threads may run through it for some microseconds until the
// dying one has had them killed; what they do then can't be of consequence to anybody but themselves.
void Engine::hide_from_core_dump(Tracee& tracee) {
  AddressSpace* space = tracee.process->space.get();
  // Others that share the memory outlive the dump (fs/coredump.c, zap_threads: one thread group).
  if (!space || tracees_sharing(*space) != tracee.process->threads.size()) return;
  const Layout layout = Layout::of(space->memory());
  for (const auto& [address, site] : space->sites_in_order()) space->set_armed(*site, false, layout);
  tracee.hidden = true;
}

// It lives: init of a pid namespace, which such signals don't end, or a handler set at the last moment.
void Engine::show_again(Tracee& tracee) {
  AddressSpace* space = tracee.process->space.get();
  if (!std::exchange(tracee.hidden, false) || !space) return;
  const Layout layout = Layout::of(space->memory());
  for (const auto& [address, site] : space->sites_in_order()) update_arming(*space, *site, layout);
}

void Engine::enter_slot(Tracee& tracee, RemoteAddr slot) {
  leave_slot(tracee);
  tracee.process->space->xol().enter(slot);
  tracee.slot = slot;
}

void Engine::leave_slot(Tracee& tracee) {
  if (!tracee.slot) return;
  if (tracee.process && tracee.process->space) tracee.process->space->xol().leave(tracee.slot);
  tracee.slot = {};
  tracee.filtered_call.reset();
}

bool Engine::has_filter(const Tracee& tracee) {
  Process& process = *tracee.process;
  if (process.filtered) return true;
  const auto now = coarse_now();
  if (now - process.filter_looked_for < kFilterAge) return false;
  process.filter_looked_for = now;
  return process.filtered = under_seccomp(tracee.tid);
}

// At the entry or exit of a system call. A seccomp filter may judge by the instruction pointer, and runs after the
// tracer has seen the entry (kernel/entry/common.c, syscall_trace_enter): the call is moved there to the program's own
// instruction. Should it have to be made again, then by the slot: where the program has it there is a breakpoint.
void Engine::show_filtered_call(Tracee& tracee) {
  if (!tracee.filtered_call) return;
  Tracee::FilteredCall& call = *tracee.filtered_call;
  ptrace::Registers regs;
  RemoteAddr base;
  const Slot* slot = tracee.process->space->xol().find(tracee.slot, base);
  if (!slot || ptrace::get_registers(tracee.tid, regs) != Outcome::ok) return leave_slot(tracee);
  const std::uint64_t behind = slot->original.value + slot->insn.length;
  if (!call.entered) {
    const CopyPoint* point = slot->copy.at(regs.pc() - base.value);
    if (!point || point->meaning != CopyPoint::Meaning::after) return;
    call = {RemoteAddr{regs.pc()}, true};
    apply(*point, regs);
    ptrace::set_registers(tracee.tid, regs);
  } else if (regs.pc() == behind && is_to_be_restarted(regs)) {
    call.entered = false;
    regs.set_pc(call.at.value);
    ptrace::set_registers(tracee.tid, regs);
  } else {
    leave_slot(tracee);
  }
}

// Translates a pc inside a slot to the original program, by undoing what is half done. Only right when the original
// instruction is (or is about to be) what the thread will execute, i.e. when its breakpoint is out. True: regs changed.
bool Engine::move_out_of_slot(Tracee& tracee, ptrace::Registers& regs) {
  RemoteAddr base;
  const Slot* slot = tracee.process->space ? tracee.process->space->xol().find(RemoteAddr{regs.pc()}, base) : nullptr;
  if (slot) {
    const CopyPoint* point = slot->copy.at(regs.pc() - base.value);
    if (point && point->meaning == CopyPoint::Meaning::after)
      apply(*point, regs);
    else
      undo(point, *slot, base, regs);
  }
  leave_slot(tracee);  // only now: a retired slot ends with its last thread
  return slot != nullptr;
}

// The last act for a thread of a process that is being detached. `signal`: the one it was about to get.
void Engine::release(Tracee& tracee, int signal) {
  Process& process = *tracee.process;
  if (tracee.leaving && !tracee.leaving->masked) {  // more signals of its are to follow this one
    ptrace::interrupt(tracee.tid);
    return resume(tracee, signal);
  }
  ptrace::Registers regs;
  if (ptrace::get_registers(tracee.tid, regs) != Outcome::ok) return;  // dying: its exit status follows
  if (process.space) {
    const DetourSpace& detours = process.space->detours();
    if (const auto site = detours.site_of_island(RemoteAddr{regs.pc()})) {
      regs.set_pc(site->value);
      ptrace::set_registers(tracee.tid, regs);
    } else if (const auto place = detours.find(RemoteAddr{regs.pc()})) {
      if (place->capture && is_job_control(tracee.tid, signal)) {
        ptrace::interrupt(tracee.tid);
        return resume(tracee, signal);
      }
      if (place->capture) return tracee.stepping ? resume(tracee) : start_leaving(tracee, signal);
      leave_tail(tracee, regs, *place);
      ptrace::set_registers(tracee.tid, regs);
    }
  }
  if (move_out_of_slot(tracee, regs)) ptrace::set_registers(tracee.tid, regs);
  if (tracee.stepping) {
    if (tracee.stepping->masked) let_signals(tracee, tracee.stepping->mask);
    if (tracee.stepping->held_signal != 0) {
      if (signal == 0 && tracee.stop == Kind::signal) {
        signal = tracee.stepping->held_signal;
        waiter_.take_report(tracee.tid);
        ptrace::set_siginfo(tracee.tid, tracee.stepping->held_info);
      }
    }
    tracee.stepping.reset();
  }
  AddressSpace* space = process.space.get();
  const bool last = space && space->touched() && tracees_sharing(*space) == 1;
  const bool owes = must_leave_actions(process);
  const bool clean =
      tracee.stop == Kind::interrupt || tracee.stop == Kind::group_stop || tracee.state == Tracee::State::held;
  // With the first thread that goes everybody else still stands still, or will in a moment.
  const bool gives_back = space && space->touched() && !process.asked_to_give_back && !space->copies_given_back();
  if ((last || owes || gives_back || process.leave_together_until) && !clean) {
    // The injected code goes with the last thread. It can't make calls for us in the middle of a signal's delivery or
    // of its own fork; the interrupt stops it again before it executes anything else.
    ptrace::interrupt(tracee.tid);
    return resume(tracee, signal);
  }
  if (wait_for_the_others(tracee)) return;
  if (gives_back) {
    for (Process* member : family_of(process.root)) member->asked_to_give_back = true;
    if (!give_back_copies(tracee, *space)) return;
  }
  if (owes && !leave_actions(tracee)) return;
  if (last && !leave_no_trace(tracee, *space)) return;
  ptrace::detach(tracee.tid, signal);
  forget_tracee(tracee.tid);
  finish_detach_if_empty(process);
}

// ---- signals --------------------------------------------------------------------------------------------------------

void Engine::on_signal(Tracee& tracee, int reported) {
  const auto unmarked = unmark(tracee, reported);
  if (!unmarked) return;
  const int signal = *unmarked;
  if ((signal == SIGSEGV || signal == SIGBUS) && skip_absent_load(tracee, signal)) return;
  if (signal == SIGSEGV && stand_in_for_clock(tracee, signal)) return;
  if (turn_back(tracee, signal)) return;
  if (leave_moved_jump(tracee, signal)) return;
  if (tracee.stepping) return on_step(tracee, signal);
  if (signal == SIGTRAP && on_trap(tracee)) return;
  deliver(tracee, signal);
}

// Whether the signals that a thread gets in our code may wait until it has been stepped: not where a step's trap would
// unblock SIGTRAP, reset its action, or be merged with one that is pending.
bool Engine::may_hold_signals(Tracee& tracee, std::uint64_t mask) {
  if ((mask & signal_bit(SIGTRAP)) != 0) return false;
  const auto now = actions_now(tracee);
  return now && (*now)[forced_index(SIGTRAP)] != Disposition::ignored;
}

// `ours`: what the thread is to block until it has left our code; `mask`: what it blocks itself. Whoever cleans up when
// this daemon has been killed finds both in the journal.
void Engine::hold_signals(const Tracee& tracee, std::uint64_t mask, std::uint64_t ours) {
  if (Journal* journal = journal_of(tracee)) journal->note_mask(tracee.tid, mask, ours);
  ptrace::set_sigmask(tracee.tid, ours);
}

// A signal that the thread, whose others are held, goes on without for now; 0: none.
void Engine::note_taken(const Tracee& tracee, int signal, const siginfo_t& info) {
  if (Journal* journal = journal_of(tracee); journal && signal != 0) journal->note_taken(tracee.tid, signal, info);
}

void Engine::let_signals(const Tracee& tracee, std::uint64_t mask) {
  ptrace::set_sigmask(tracee.tid, mask);
  if (Journal* journal = journal_of(tracee)) journal->forget_mask(tracee.tid);
}

Journal* Engine::journal_of(const Tracee& tracee) {
  return tracee.process && tracee.process->space ? tracee.process->space->journal() : nullptr;
}

// Where a fault of the program's own happened, or its step ended, as its handler is to see it. `from`: the pc in our
// code that it was reported with.
void Engine::move_fault(const Tracee& tracee, siginfo_t& info, std::uint64_t from, std::uint64_t to) {
  if (reinterpret_cast<std::uint64_t>(info.si_addr) != from || info.si_code <= 0) return;
  info.si_addr = reinterpret_cast<void*>(to);
  ptrace::set_siginfo(tracee.tid, info);
}

// Hands a signal that is the program's own on to it.
void Engine::deliver(Tracee& tracee, int signal) {
  if (is_forced_signal(signal) && before_own_signal(tracee, signal)) return;
  ptrace::Registers regs;
  if (ptrace::get_registers(tracee.tid, regs) != Outcome::ok) return;
  if (was_only_interrupted(tracee.tid, regs) && would_be_ignored(tracee.tid, signal)) {
    if (make_again(tracee.tid, regs)) ptrace::set_registers(tracee.tid, regs);
  } else if (tracee.made_again && !would_be_ignored(tracee.tid, signal) && unmake(tracee.made_again, regs)) {
    ptrace::set_registers(tracee.tid, regs);
  }
  if (tracee.process->detaching) return release(tracee, signal);
  if (is_job_control(tracee.tid, signal)) return resume(tracee, signal);  // wherever it is
  const DetourSpace& detours = tracee.process->space->detours();
  if (const auto place = detours.find(RemoteAddr{regs.pc()})) return deliver_in_detour(tracee, signal, regs, *place);
  if (const auto site = detours.site_of_island(RemoteAddr{regs.pc()})) {
    regs.set_pc(site->value);
    ptrace::set_registers(tracee.tid, regs);
  }
  RemoteAddr base;
  Slot* slot = tracee.process->space->xol().find(RemoteAddr{regs.pc()}, base);
  if (slot) return deliver_in_slot(tracee, signal, regs, *slot, base);
  leave_slot(tracee);
  resume(tracee, signal);
}

// A signal for a thread whose pc is in injected code: the handler must see the original program.
void Engine::deliver_in_slot(Tracee& tracee, int signal, ptrace::Registers& regs, const Slot& slot, RemoteAddr base) {
  siginfo_t info{};
  if (ptrace::get_siginfo(tracee.tid, info) != Outcome::ok) return;
  const CopyPoint* point = slot.copy.at(regs.pc() - base.value);
  const bool fault = is_fault(signal, info);
  const std::uint64_t was_at = regs.pc();
  const bool at_pc = reinterpret_cast<std::uint64_t>(info.si_addr) == was_at;
  const Slot was = slot;  // may be forgotten
  std::uint64_t mask = 0;
  if (ptrace::get_sigmask(tracee.tid, mask) != Outcome::ok) return;
  if (fault && signal == SIGSEGV && at_pc && injected_code_gone(*tracee.process, RemoteAddr{regs.pc()})) {
    undo(was.copy.at(regs.pc() - base.value), was, base, regs);
    ptrace::set_registers(tracee.tid, regs);
    leave_slot(tracee);
    return resume(tracee);
  }
  const bool its_step = native::steps_itself(regs);
  if (point && point->meaning == CopyPoint::Meaning::after) {
    apply(*point, regs);
    move_fault(tracee, info, was_at, regs.pc());
  } else if (fault || its_step || must_not_wait(slot.insn) || !may_hold_signals(tracee, mask)) {
    undo(point, slot, base, regs);
    if (fault) move_fault(tracee, info, was_at, slot.original.value);
    // A fault that is repaired executes the instruction again, and that is a hit again; a signal is no second
    // execution, nor is a step between two rounds of a repeated instruction.
    if (!fault || is_step_trap(info)) note_rehit(tracee, slot, regs);
  } else {
    // Let the instruction complete first; nothing else may come in between.
    hold_signals(tracee, mask, mask | ~kSynchronous);
    note_taken(tracee, signal, info);
    tracee.stepping = Stepping{base, signal, info, true, mask};
    return resume(tracee);
  }
  ptrace::set_registers(tracee.tid, regs);
  leave_slot(tracee);
  resume(tracee, signal);
}

// ---- breakpoints ----------------------------------------------------------------------------------------------------

// Waiter::Guardian. A thread that is seen to have run into a breakpoint is put back in front of it, so that it runs
// into it again should nobody live to let it go on otherwise; if its SIGTRAP comes, too, the landing leaves it alone. A
// thread that has been stepped gets on as it is.
bool Engine::secure(pid_t tid, int signal) {
  const auto it = tracees_.find(tid);
  if (signal != SIGTRAP || it == tracees_.end()) return false;
  Tracee& tracee = it->second;
  const bool ordinary = tracee.process && tracee.process->space && !tracee.borrowed && !tracee.leaving;
  Tracee::Trapped trapped;
  if (!ordinary || ptrace::get_siginfo(tid, trapped.info) != Outcome::ok) return false;
  if (tracee.stepping) return is_step_trap(trapped.info);
  if (!is_breakpoint_trap(trapped.info)) return false;
  if (!native::kTrapMovesPc) return true;
  if (ptrace::get_registers(tid, trapped.regs) != Outcome::ok) return false;
  AddressSpace& space = *tracee.process->space;
  const RemoteAddr address{native::breakpoint_address(trapped.regs.pc())};
  if (space.detours().call_trap(address)) return true;  // behind it a nop leads to where the landing would
  const bool entry = space.entry() && space.entry()->address == address;
  if (!entry && !space.find(address) && !space.former_site(address)) return false;
  ptrace::Registers in_front = trapped.regs;
  in_front.set_pc(address.value);
  native::mark_dealt_with(in_front);
  if (ptrace::set_registers(tid, in_front) != Outcome::ok) return false;
  tracee.trapped = trapped;
  return true;
}

// How a thread stands that has got a SIGTRAP, or stood before secure(). False: it has gone.
bool Engine::take_trapped(Tracee& tracee, Tracee::Trapped& trapped) {
  if (const auto before = std::exchange(tracee.trapped, std::nullopt)) {
    trapped = *before;
    return true;
  }
  return ptrace::get_registers(tracee.tid, trapped.regs) == Outcome::ok &&
         ptrace::get_siginfo(tracee.tid, trapped.info) == Outcome::ok;
}

// True: the trap was ours and has been dealt with.
bool Engine::on_trap(Tracee& tracee) {
  const bool secured = tracee.trapped.has_value();
  Tracee::Trapped trapped;
  if (!take_trapped(tracee, trapped)) return true;
  if (deal_with_trap(tracee, trapped)) return true;
  if (secured) ptrace::set_registers(tracee.tid, trapped.regs);
  return false;
}

bool Engine::deal_with_trap(Tracee& tracee, const Tracee::Trapped& trapped) {
  ptrace::Registers regs = trapped.regs;
  if (on_call_trap(tracee, regs)) return true;
  if (is_step_trap(trapped.info)) return is_step_of_copy(tracee, regs);
  Process& process = *tracee.process;
  const RemoteAddr address{native::breakpoint_address(regs.pc())};
  const bool entry = process.space->entry() && process.space->entry()->address == address;
  Site* site = process.space->find(address);
  const SitePlan* former = process.space->former_site(address);
  if (!entry && !site && !former) {
    if (!trapped_in_moved_code(process, address)) return false;
    former = process.space->former_site(address);
  }
  // A SIGTRAP that was pending already swallows ours, which then comes with the program's siginfo (kernel/signal.c,
  // legacy_queue).
  const bool merged = !is_breakpoint_trap(trapped.info);
  const bool in_place = site && site->armed;
  if (merged && (entry || !ran_into(tracee, regs, site ? site->plan : *former, in_place))) return false;
  const bool armed = entry || (site && site->armed);
  if (!armed) {
    // It trapped before we took the breakpoint out; unless the program has one of its own there by now.
    std::array<std::uint8_t, arch::kMaxInsnLength> now{};
    process.space->memory().read_some(address, std::as_writable_bytes(std::span(now)));
    if (native::is_breakpoint(now) && !trapped_in_moved_code(process, address)) return false;
    site = nullptr;  // may be gone
  }
  const AfterTrap after = mend_after_trap(tracee, regs, SIGTRAP, merged);
  if (!after.alive) return true;
  if (after.program_first) {
    leave_slot(tracee);
    regs.set_pc(address.value);
    native::mark_dealt_with(regs);
    ptrace::set_registers(tracee.tid, regs);
    tracee.stands = regs;
    deliver(tracee, SIGTRAP);
  } else if (entry) {
    if (after.signal != 0 && !queue_trap_again(tracee, address)) return true;
    on_entry_breakpoint(tracee, regs);
  } else if (armed && !process.detaching) {
    on_hit(tracee, *site, regs, after);
  } else {
    leave_slot(tracee);
    regs.set_pc(address.value);
    native::mark_dealt_with(regs);
    ptrace::set_registers(tracee.tid, regs);
    if (process.detaching)
      release(tracee, after.signal);
    else
      resume(tracee, after.signal);
  }
  return true;
}

// A step that the program makes itself. True: it was none of the program's instructions; the thread goes on. That is so
// behind a popf that has set the trap flag: the jump that ends its copy comes before the instruction that the first step
// is to end behind.
bool Engine::is_step_of_copy(Tracee& tracee, const ptrace::Registers& regs) {
  RemoteAddr base;
  const Slot* slot = tracee.slot ? tracee.process->space->xol().find(tracee.slot, base) : nullptr;
  if (!slot || !slot->insn.sees_trap_flag || regs.pc() != slot->original.value + slot->insn.length) return false;
  leave_slot(tracee);
  if (tracee.process->detaching)
    release(tracee, 0);
  else
    resume(tracee);
  return true;
}

// A SIGTRAP that somebody has sent comes while the pc is behind a breakpoint of ours: whether the thread got there by
// executing it. In the middle of an instruction it can't have come otherwise, nor where SIGTRAP is blocked. Behind one
// of the breakpoint's size it may stand because we emulated that, or sent it there; it is unlikely to be seen there by
// chance.
bool Engine::ran_into(const Tracee& tracee, const ptrace::Registers& regs, const SitePlan& plan, bool armed) const {
  // About to execute it is as good: then it is executed now.
  if (!native::kTrapMovesPc) return armed;
  if (plan.insn.length > native::kBreakpointSize) return true;
  std::uint64_t mask = 0;
  if (const auto known = known_mask(tracee); known && (*known & signal_bit(SIGTRAP)) != 0) return true;
  if (ptrace::get_sigmask(tracee.tid, mask) == Outcome::ok && blocked_with_all_others(mask, SIGTRAP)) return true;
  return armed && !(tracee.stands && native::same_execution(*tracee.stands, regs));
}

void Engine::on_hit(Tracee& tracee, Site& site, ptrace::Registers& regs, const AfterTrap& after) {
  leave_slot(tracee);
  if (tracee.lanes.size() < tracee.process->space->detours().lines().size()) give_lanes(tracee, regs);
  regs.set_pc(site.plan.address.value);
  if (!follow_rewriting(tracee, site)) {
    native::mark_dealt_with(regs);
    ptrace::set_registers(tracee.tid, regs);
    return resume(tracee, after.signal);
  }
  const bool again = take_rehit(tracee, regs);
  bool step = false, hold = false;
  if (!again && site.wanted()) {
    want_pun(*tracee.process->space, site);
    const HitRecorder::Hit hit = recorder_.begin(tracee, regs, tracee.process->space->memory());
    bool returns = false;
    for (const ProgramPtr& program : site.programs) {
      if (!program->enabled) continue;
      if (program->role != ProbeProgram::Role::plain) {
        returns = true;
        continue;
      }
      if (program->watches_loader) {
        hold |= loader_has_report(tracee, *program);
        continue;
      }
      step |= program->force_step;
      if (recorder_.run(hit, *program)) listener_.limit_reached(program->limit->probes);
    }
    if (returns) run_return_probes(hit, site);
  }
  // It sees one step an instruction, whatever a copy makes of that.
  if (native::steps_itself(regs)) {
    if (!tracee.process->space->optimisation().refused) refuse_all(*tracee.process->space, kStepsItself);
    step = true;
  }
  continue_past(tracee, site, regs, step && after.may_step, after.signal, hold);
}

// Boosted: the thread goes on by itself, at the relocated copy or behind the emulated instruction.
// `hold`: it waits there until loader_may_go_on(), unless it has a signal to take.
void Engine::continue_past(Tracee& tracee, Site& site, ptrace::Registers& regs, bool step, int signal, bool hold) {
  if (site.jump) {
    regs.set_pc(site.jump->tail.value);
  } else if (site.plan.insn.emulable && !step) {
    const bool done = native::emulate(site.plan.code(), site.plan.insn, regs);
    PROBED_CHECK(done, "what is said to be emulable is");
    if (native::kTrapMovesPc && site.plan.insn.length == native::kBreakpointSize) tracee.stands = regs;
  } else {
    regs.set_pc(site.slot.value);
    enter_slot(tracee, site.slot);
    if (site.plan.insn.flow == arch::Flow::syscall && has_filter(tracee)) tracee.filtered_call.emplace();
    if (step && !must_not_wait(site.plan.insn))
      tracee.stepping = Stepping{.slot = site.slot, .own = native::steps_itself(regs)};
  }
  native::mark_dealt_with(regs);
  if (ptrace::set_registers(tracee.tid, regs) == Outcome::gone) return;
  if (hold && signal == 0 && !tracee.process->detaching) return hold_for_loader(tracee);
  resume(tracee, signal);
}

// ---- steps ----------------------------------------------------------------------------------------------------------

void Engine::on_step(Tracee& tracee, int signal) {
  ptrace::Registers regs;
  siginfo_t info{};
  if (ptrace::get_registers(tracee.tid, regs) != Outcome::ok) return;
  if (signal == SIGTRAP && on_call_trap(tracee, regs)) return;
  if (ptrace::get_siginfo(tracee.tid, info) != Outcome::ok) return;
  RemoteAddr base;
  Slot* slot = tracee.process->space->xol().find(RemoteAddr{regs.pc()}, base);
  const auto detour = tracee.process->space->detours().find(RemoteAddr{regs.pc()});
  const CopyPoint* point = detour ? detour->point : slot ? slot->copy.at(regs.pc() - base.value) : nullptr;
  if (signal == SIGTRAP && is_step_trap(info)) {
    if ((slot || detour) && !(point && point->meaning == CopyPoint::Meaning::after))
      return resume(tracee);  // another step
    if (tracee.stepping->own) {
      const std::uint64_t was_at = regs.pc();
      tracee.stepping.reset();
      if (point) apply(*point, regs);
      ptrace::set_registers(tracee.tid, regs);
      move_fault(tracee, info, was_at, regs.pc());
      return deliver(tracee, signal);
    }
    // A signal we hold can only be delivered from this very stop; nothing was reset then, see may_hold_signals().
    if (tracee.stepping->held_signal == 0 && !mend_after_trap(tracee, regs, SIGTRAP, false).alive) return;
    if (point) apply(*point, regs);
    return finish_step(tracee, regs);
  }
  if (is_job_control(tracee.tid, signal)) return resume(tracee, signal);
  // A fault of the stepped instruction, or (on the stepped tier, where nothing is masked) any other signal.
  const Stepping stepping = *std::exchange(tracee.stepping, std::nullopt);
  if (stepping.held_signal == 0) {
    if (stepping.masked) let_signals(tracee, stepping.mask);
    return deliver(tracee, signal);
  }
  // The held signal goes first, as it came first; the fault comes again when the instruction does.
  if (detour) leave_tail(tracee, regs, *detour);
  if (slot) undo(point, *slot, base, regs);
  if (slot) note_rehit(tracee, *slot, regs);
  tracee.stepping = stepping;
  finish_step(tracee, regs);
}

void Engine::finish_step(Tracee& tracee, ptrace::Registers& regs) {
  const Stepping stepping = *std::exchange(tracee.stepping, std::nullopt);
  leave_slot(tracee);
  ptrace::set_registers(tracee.tid, regs);
  if (stepping.held_signal != 0) {
    waiter_.take_report(tracee.tid);
    ptrace::set_siginfo(tracee.tid, stepping.held_info);
  }
  if (stepping.masked) let_signals(tracee, stepping.mask);  // last: from here on the signal is in the journal no more
  if (tracee.process->detaching) return release(tracee, stepping.held_signal);
  resume(tracee, stepping.held_signal);
}

// ---- interrupts -----------------------------------------------------------------------------------------------------

// Our interrupt made a call return EINTR although nothing happened to the program: it is made again.
void Engine::put_back_interrupted_call(Tracee& tracee) {
  ptrace::Registers regs;
  if (ptrace::get_registers(tracee.tid, regs) != Outcome::ok) return;
  RemoteAddr base;
  const bool in_slot = tracee.process->space && tracee.process->space->xol().find(RemoteAddr{regs.pc()}, base);
  if (!in_slot) leave_slot(tracee);
  if (!was_only_interrupted(tracee.tid, regs) || !make_again(tracee.tid, regs)) return;
  ptrace::set_registers(tracee.tid, regs);
  if (!native::kRegistersTellCall) tracee.made_again = regs;
}

void Engine::on_interrupt(Tracee& tracee, bool group_stop) {
  const pid_t tid = tracee.tid;
  tracee.group_stopped = group_stop;
  if (tracee.process->copy_of) return adopt_child(tracee, *tracee.process);
  if (!group_stop) put_back_interrupted_call(tracee);
  give_up_load(tracee);
  if (waits_to_leave(tracee)) return;
  limit_kept_calls(tracee);
  meet(tracee);
  looked_at(tracee);
  // Stopped for the sake of the page copies; its turn to be let go comes later.
  if (std::ranges::find(tracee.process->to_ask, tid) != tracee.process->to_ask.end()) return resume(tracee);
  const bool wanted = tracee.process->detaching || !tracee.process->jobs.empty();
  const bool holds_signal = tracee.stepping && tracee.stepping->held_signal != 0;
  if (wanted && (holds_signal || synchronous_signal_pending(tid)) && tracee.interrupts_put_off < kMostPutOff) {
    // It has just run into a breakpoint or a fault, or is to complete an instruction before a signal that we hold: that
    // comes first, then we ask again; also when it doesn't come.
    ++tracee.interrupts_put_off;
    tracee.group_stopped = false;
    tracee.interrupt_again = true;
    tracee.process->ask_again = Waiter::Clock::now() + kAskAgainAfter;
    return resume(tracee);
  }
  tracee.interrupts_put_off = 0;
  if (tracee.process->detaching) return release(tracee, 0);
  if (!tracee.process->jobs.empty()) run_jobs(tracee);
  const auto it = tracees_.find(tid);
  if (it == tracees_.end() || !ended_meanwhile_.empty()) return;
  // A job may have answered a request that led to a detach.
  if (it->second.process->detaching) return release(it->second, 0);
  resume(it->second);
}

// ---- entry hold -----------------------------------------------------------------------------------------------------

void Engine::on_entry_breakpoint(Tracee& tracee, ptrace::Registers& regs) {
  Process& process = *tracee.process;
  regs.set_pc(process.space->entry()->address.value);
  process.space->remove_entry();
  native::mark_dealt_with(regs);
  ptrace::set_registers(tracee.tid, regs);
  if (!process.detaching && process.hold_at_entry && loader_is_at_work(tracee, regs)) return resume(tracee);
  mend_entry_mask(tracee);
  if (process.detaching) return release(tracee, 0);
  if (!std::exchange(process.hold_at_entry, false)) return resume(tracee);  // nobody waits for it any more
  tracee.state = Tracee::State::held;
  listener_.process_ready(process.id.pid);
}

}  // namespace probed::tracer
