// Threads in slots, the out-of-line copies of probed instructions: on their way in, signals there, steps, and out.
#include "daemon/tracer/places/slot_threads.hpp"

#include <signal.h>

#include "daemon/tracer/kernel/coarse_clock.hpp"
#include "daemon/tracer/kernel/interrupted_calls.hpp"
#include "daemon/tracer/rooms.hpp"
#include "daemon/tracer/stops.hpp"
#include "proto/base/check.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using arch::CopyPoint;
using ptrace::Outcome;

constexpr auto kFilterAge = std::chrono::milliseconds(100);

// Whether an asynchronous signal must not wait for the instruction: it may take for ever, or can't be stepped.
bool must_not_wait(const arch::Insn& insn) { return insn.may_block || insn.repeats || insn.sees_trap_flag; }

// A handler may run into probes and be interrupted in their slots itself, so executions that are to be continued nest.
// Handlers that are left by a jump leave theirs behind: the oldest go when there are too many.
void note_rehit(Tracee& tracee, const Slot& slot, const ptrace::Registers& regs) {
  constexpr std::size_t kDeepest = 16;
  if (tracee.rehits.size() == kDeepest) tracee.rehits.erase(tracee.rehits.begin());
  tracee.rehits.push_back({slot.original, regs});
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

// Where a thread that steps stands: in a copy, in a detour, or out of both.
struct SlotThreads::InCopy {
  InCopy(AddressSpace& space, const ptrace::Registers& regs)
      : slot(space.xol().find(native_place(regs), base)), detour(space.detours().find(native_place(regs))) {
    point = detour ? detour->point : slot ? slot->copy.at(regs.pc() - base.value) : nullptr;
  }
  // The instruction has been executed.
  bool is_over() const { return (!slot && !detour) || (point && point->meaning == CopyPoint::Meaning::after); }

  RemoteAddr base;
  const Slot* slot = nullptr;
  std::optional<DetourPlace> detour;
  const CopyPoint* point = nullptr;
};

// ---- in and out -----------------------------------------------------------------------------------------------------

void SlotThreads::enter_slot(Tracee& tracee, RemoteAddr slot) {
  leave_slot(tracee);
  tracee.process->space->xol().enter(slot);
  tracee.in_slot = Tracee::InSlot{slot, {}};
}

void SlotThreads::leave_slot(Tracee& tracee) {
  if (!tracee.in_slot) return;
  if (tracee.process && tracee.process->space) tracee.process->space->xol().leave(tracee.in_slot->base);
  tracee.in_slot.reset();
}

bool SlotThreads::has_filter(const Tracee& tracee) {
  Process& process = *tracee.process;
  if (process.filtered) return true;
  const auto now = coarse_now();
  if (now - process.filter_looked_for < kFilterAge) return false;
  process.filter_looked_for = now;
  return process.filtered = under_seccomp(tracee.tid);
}

// A seccomp filter may judge by the instruction pointer, and runs after the tracer has seen the entry
// (kernel/entry/common.c, syscall_trace_enter): the call is moved there to the program's own instruction. Should it
// have to be made again, then by the slot: where the program has it there is a breakpoint.
void SlotThreads::show_filtered_call(Tracee& tracee) {
  if (!tracee.in_slot || !tracee.in_slot->filtered_call) return;
  Tracee::FilteredCall& call = *tracee.in_slot->filtered_call;
  ptrace::Registers regs;
  RemoteAddr base;
  const Slot* slot = tracee.process->space->xol().find(tracee.in_slot->base, base);
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

// Only right when the original instruction is (or is about to be) what the thread will execute, i.e. when its
// breakpoint is out.
bool SlotThreads::move_out_of_slot(Tracee& tracee, ptrace::Registers& regs) {
  RemoteAddr base;
  const Slot* slot = tracee.process->space ? tracee.process->space->xol().find(native_place(regs), base) : nullptr;
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

// ---- signals --------------------------------------------------------------------------------------------------------

Act SlotThreads::deliver_in_slot(Tracee& tracee, int signal, ptrace::Registers& regs, const Slot& slot,
                                 RemoteAddr base) {
  siginfo_t info{};
  if (ptrace::get_siginfo(tracee.tid, info) != Outcome::ok) return Act::dying();
  const CopyPoint* point = slot.copy.at(regs.pc() - base.value);
  const bool fault = is_fault(signal, info);
  const std::uint64_t was_at = regs.pc();
  const bool at_pc = reinterpret_cast<std::uint64_t>(info.si_addr) == was_at;
  const Slot was = slot;  // may be forgotten
  std::uint64_t mask = 0;
  if (ptrace::get_sigmask(tracee.tid, mask) != Outcome::ok) return Act::dying();
  if (fault && signal == SIGSEGV && at_pc &&
      rooms_.code_changes.injected_code_gone(*tracee.process, RemoteAddr{regs.pc()})) {
    undo(was.copy.at(regs.pc() - base.value), was, base, regs);
    ptrace::set_registers(tracee.tid, regs);
    leave_slot(tracee);
    return Act::go_on("the program has unmapped the slots");
  }
  const bool its_step = native::steps_itself(regs);
  if (point && point->meaning == CopyPoint::Meaning::after) {
    apply(*point, regs);
    rooms_.delivery.move_fault(tracee, info, was_at, regs.pc());
  } else if (fault || its_step || tracee.leaving() || must_not_wait(slot.insn) ||
             !rooms_.delivery.may_hold_signals(tracee, mask)) {
    undo(point, slot, base, regs);
    if (fault) {
      rooms_.delivery.move_fault(tracee, info, was_at, slot.original.value);
      AddressSpace& space = *tracee.process->space;
      if (Site* site = is_step_trap(info) ? nullptr : space.find(slot.original))
        rooms_.detour_threads.keep_from_jump(space, *site);
    }
    // A fault that is repaired executes the instruction again, and that is a hit again; a signal is no second
    // execution, nor is a step between two rounds of a repeated instruction.
    if (!fault || is_step_trap(info)) note_rehit(tracee, slot, regs);
  } else {
    // Let the instruction complete first; nothing else may come in between.
    rooms_.delivery.hold_signals(tracee, mask, mask | ~kSynchronous);
    rooms_.delivery.note_taken(tracee, signal, info);
    tracee.way_out = Stepping{base, signal, info, true, mask};
    return Act::go_on("its signal waits until the instruction in the slot is done");
  }
  ptrace::set_registers(tracee.tid, regs);
  leave_slot(tracee);
  return rooms_.detour_threads.go_on_with_own_mask(tracee, signal, "a signal of its own, out of a slot");
}

// ---- past a breakpoint ----------------------------------------------------------------------------------------------

// Boosted: the thread goes on by itself, at the relocated copy or behind the emulated instruction.
Act SlotThreads::continue_past(Tracee& tracee, Site& site, ptrace::Registers& regs, bool step, int signal, bool hold) {
  if (site.jump) {
    regs.set_pc(site.jump->tail.value);
  } else if (site.plan.insn.emulable && (!step || !site.slot)) {
    const bool done = native::emulate(site.plan.code(), site.plan.insn, regs);
    PROBED_CHECK(done, "what is said to be emulable is");
    if (is_of_trap_size(site.plan.insn)) tracee.stands = regs;
  } else {
    if (is_of_trap_size(site.plan.insn)) tracee.sent = regs;
    regs.set_pc(site.slot.value);
    enter_slot(tracee, site.slot);
    if (site.plan.insn.flow == arch::Flow::syscall && has_filter(tracee))
      tracee.in_slot->filtered_call = Tracee::FilteredCall();
    // One that is leaving a detour has held signals of its own, and isn't to have two masks to get back.
    if (step && !tracee.leaving() && !must_not_wait(site.plan.insn))
      tracee.way_out = Stepping{.slot = site.slot, .own = native::steps_itself(regs)};
  }
  native::mark_dealt_with(regs);
  if (ptrace::set_registers(tracee.tid, regs) == Outcome::gone) return Act::dying();
  if (hold && signal == 0 && !tracee.process->detaching()) return rooms_.holds.hold_for_loader(tracee);
  return Act::go_on("past a breakpoint", signal);
}

// ---- steps ----------------------------------------------------------------------------------------------------------

Act SlotThreads::on_step(Tracee& tracee, int signal) {
  ptrace::Registers regs;
  siginfo_t info{};
  if (ptrace::get_registers(tracee.tid, regs) != Outcome::ok) return Act::dying();
  if (signal == SIGTRAP)
    if (const auto act = rooms_.calls.on_call_trap(tracee, regs)) return *act;
  if (ptrace::get_siginfo(tracee.tid, info) != Outcome::ok) return Act::dying();
  const InCopy where(*tracee.process->space, regs);
  if (signal == SIGTRAP && is_step_trap(info)) return end_step(tracee, regs, info, where);
  if (is_job_control(tracee.tid, signal)) return Act::go_on("job control, in the middle of a step", signal);
  return break_step(tracee, signal, regs, info, where);
}

// Its step's own trap.
Act SlotThreads::end_step(Tracee& tracee, ptrace::Registers& regs, siginfo_t& info, const InCopy& where) {
  if (!where.is_over()) return Act::go_on("another step");
  if (tracee.stepping()->own) {
    const std::uint64_t was_at = regs.pc();
    tracee.end_step();
    if (where.point) apply(*where.point, regs);
    ptrace::set_registers(tracee.tid, regs);
    rooms_.delivery.move_fault(tracee, info, was_at, regs.pc());
    return rooms_.delivery.deliver(tracee, SIGTRAP);
  }
  // A signal we hold can only be delivered from this very stop; nothing was reset then, see may_hold_signals().
  if (tracee.stepping()->held_signal == 0 && !rooms_.actions.mend_after_trap(tracee, regs, SIGTRAP, false).alive)
    return Act::away();
  if (where.point) apply(*where.point, regs);
  return finish_step(tracee, regs);
}

// A fault of the stepped instruction, or (on the stepped tier, where nothing is masked) any other signal.
Act SlotThreads::break_step(Tracee& tracee, int signal, ptrace::Registers& regs, const siginfo_t& info,
                            const InCopy& where) {
  const Stepping stepping = tracee.end_step();
  if (stepping.held_signal == 0) {
    if (stepping.masked) rooms_.delivery.let_signals(tracee, stepping.mask);
    return rooms_.delivery.deliver(tracee, signal);
  }
  const bool raised = is_fault(signal, info);
  if (!raised && signal == stepping.held_signal) {
    tracee.way_out = stepping;  // the one that is held stands for both (kernel/signal.c, legacy_queue)
    if (!where.is_over()) return Act::go_on("the same signal is held");
    if (where.point) apply(*where.point, regs);  // it has swallowed the step's trap
    return finish_step(tracee, regs);
  }
  if (where.detour) rooms_.detour_threads.leave_tail(tracee, regs, *where.detour);
  if (where.slot && where.is_over()) {
    apply(*where.point, regs);  // what has been sent has swallowed the step's trap
  } else if (where.slot) {
    undo(where.point, *where.slot, where.base, regs);
    note_rehit(tracee, *where.slot, regs);
  }
  // The held signal goes first, as it came first; the fault comes again when the instruction does.
  if (raised) {
    tracee.way_out = stepping;
    return finish_step(tracee, regs);
  }
  // Of a kind that must not be blocked while the instruction is executed, as that may raise it, and which somebody has
  // sent: it doesn't come again. Blocked still, the held one waits for the mask.
  ptrace::set_registers(tracee.tid, regs);
  if (native::kTrapMovesPc) tracee.stands = regs;
  leave_slot(tracee);
  rooms_.delivery.send_again(tracee, stepping.held_info);
  if (stepping.masked) rooms_.delivery.let_signals(tracee, stepping.mask);
  return rooms_.delivery.deliver(tracee, signal);
}

Act SlotThreads::finish_step(Tracee& tracee, ptrace::Registers& regs) {
  const Stepping stepping = tracee.end_step();
  leave_slot(tracee);
  ptrace::set_registers(tracee.tid, regs);
  if (native::kTrapMovesPc) tracee.stands = regs;
  if (stepping.held_signal != 0) {
    waiter_.take_report(tracee.tid);
    ptrace::set_siginfo(tracee.tid, stepping.held_info);
  }
  if (stepping.masked)
    rooms_.delivery.let_signals(tracee, stepping.mask);  // last: from here on the signal is in the journal no more
  return rooms_.detacher.go_on_or_leave(tracee, "stepped past the instruction", stepping.held_signal);
}

}  // namespace probed::tracer
