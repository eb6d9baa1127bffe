#include "daemon/tracer/probes/breakpoints.hpp"

#include <signal.h>

#include <algorithm>

#include "daemon/tracer/recovery/left_landings.hpp"
#include "daemon/tracer/rooms.hpp"
#include "daemon/tracer/stops.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using ptrace::Outcome;

// Whether a hit continues an execution that was counted before a signal came.
bool take_rehit(Tracee& tracee, const ptrace::Registers& regs) {
  const auto same = [&](const Rehit& r) { return r.site.value == regs.pc() && native::same_execution(r.regs, regs); };
  const auto found = std::find_if(tracee.rehits.rbegin(), tracee.rehits.rend(), same);
  if (found == tracee.rehits.rend()) return false;
  tracee.rehits.erase(std::prev(found.base()), tracee.rehits.end());
  return true;
}

}  // namespace

// ---- breakpoints ----------------------------------------------------------------------------------------------------

// A thread that is seen to have run into a breakpoint is put back in front of it, so that it runs into it again should
// nobody live to let it go on otherwise; if its SIGTRAP comes, too, the landing leaves it alone. A thread that has been
// stepped gets on as it is.
bool Breakpoints::secure(pid_t tid, int signal) {
  const auto it = targets_.tracees.find(tid);
  if (signal != SIGTRAP || it == targets_.tracees.end()) return false;
  Tracee& tracee = it->second;
  const bool ordinary = tracee.process && tracee.process->space && !tracee.away() && !tracee.leaving();
  Tracee::Trapped trapped;
  if (!ordinary || ptrace::get_siginfo(tid, trapped.info) != Outcome::ok) return false;
  if (tracee.stepping()) return is_step_trap(trapped.info);
  if (!is_breakpoint_trap(trapped.info)) return false;
  if (!native::kTrapMovesPc) return true;
  if (ptrace::get_registers(tid, trapped.regs) != Outcome::ok || !native::pc_is_address(trapped.regs)) return false;
  AddressSpace& space = *tracee.process->space;
  const RemoteAddr address{native::breakpoint_address(trapped.regs.pc())};
  if (space.detours().call_trap(address)) return true;  // behind it a nop leads to where the landing would
  const bool entry = space.entry() && space.entry()->address == address;
  if (!entry && !space.find(address) && !space.former_site(address) && !left_landing(space, address)) return false;
  ptrace::Registers in_front = trapped.regs;
  in_front.set_pc(address.value);
  native::mark_dealt_with(in_front);
  if (ptrace::set_registers(tid, in_front) != Outcome::ok) return false;
  tracee.trapped = trapped;
  return true;
}

// How a thread stands that has got a SIGTRAP, or stood before secure(). False: it has gone.
bool Breakpoints::take_trapped(Tracee& tracee, Tracee::Trapped& trapped) {
  if (const auto before = std::exchange(tracee.trapped, std::nullopt)) {
    trapped = *before;
    return true;
  }
  return ptrace::get_registers(tracee.tid, trapped.regs) == Outcome::ok &&
         ptrace::get_siginfo(tracee.tid, trapped.info) == Outcome::ok;
}

std::optional<Act> Breakpoints::on_trap(Tracee& tracee) {
  const bool secured = tracee.trapped.has_value();
  Tracee::Trapped trapped;
  if (!take_trapped(tracee, trapped)) return Act::dying();
  const auto act = deal_with_trap(tracee, trapped);
  if (!act && secured) ptrace::set_registers(tracee.tid, trapped.regs);
  return act;
}

std::optional<Act> Breakpoints::deal_with_trap(Tracee& tracee, const Tracee::Trapped& trapped) {
  ptrace::Registers regs = trapped.regs;
  if (!native::pc_is_address(regs)) return std::nullopt;
  if (const auto act = rooms_.calls.on_call_trap(tracee, regs)) return act;
  if (is_step_trap(trapped.info)) return pass_step_of_copy(tracee, regs);
  Process& process = *tracee.process;
  const RemoteAddr address{native::breakpoint_address(regs.pc())};
  const bool entry = process.space->entry() && process.space->entry()->address == address;
  Site* site = process.space->find(address);
  const SitePlan* former = process.space->former_site(address);
  const bool ours = entry || site || former;
  const auto left = ours ? std::nullopt : left_landing(*process.space, address);
  if (!ours && !left) {
    if (!rooms_.code_changes.trapped_in_moved_code(process, address)) return std::nullopt;
    former = process.space->former_site(address);
  }
  // A SIGTRAP that was pending already swallows ours, which then comes with the program's siginfo (kernel/signal.c,
  // legacy_queue).
  const bool merged = !is_breakpoint_trap(trapped.info);
  const bool in_place = site && site->armed;
  if (merged && !left && (entry || !ran_into(tracee, regs, site ? site->plan : *former, in_place))) return std::nullopt;
  const bool armed = entry || (site && site->armed);
  if (!armed && !left) {
    // It trapped before we took the breakpoint out; unless the program has one of its own there by now.
    std::array<std::uint8_t, arch::kMaxInsnLength> now{};
    process.space->memory().read_some(address, std::as_writable_bytes(std::span(now)));
    if (native::is_breakpoint(now) && !rooms_.code_changes.trapped_in_moved_code(process, address)) return std::nullopt;
    site = nullptr;  // may be gone
  }
  const AfterTrap after = rooms_.actions.mend_after_trap(tracee, regs, SIGTRAP, merged);
  if (!after.alive) return Act::away();
  if (after.program_first) {
    rooms_.slot_threads.leave_slot(tracee);
    regs.set_pc(address.value);
    native::mark_dealt_with(regs);
    ptrace::set_registers(tracee.tid, regs);
    tracee.stands = regs;
    return rooms_.delivery.deliver(tracee, SIGTRAP);
  }
  if (entry) {
    if (after.signal != 0 && !rooms_.actions.queue_trap_again(tracee, address)) return Act::away();
    return rooms_.holds.on_entry_breakpoint(tracee, regs);
  }
  if (armed && !process.detaching() && native::executes_native_code(regs)) return on_hit(tracee, *site, regs, after);
  if (armed && !process.detaching()) give_up_other_code(*process.space, address);
  // As the landing of the daemon that has left it would: its breakpoint, which stays.
  rooms_.slot_threads.leave_slot(tracee);
  regs.set_pc(left.value_or(address).value);
  native::mark_dealt_with(regs);
  ptrace::set_registers(tracee.tid, regs);
  return rooms_.detacher.go_on_or_leave(tracee, "a breakpoint that is out, or that another daemon has left",
                                        after.signal);
}

// A step that the program makes itself. nullopt: of one of its own instructions, for it to see. It is of none of them
// behind what lets the next instruction be executed before it traps, in a copy the one that ends it: a popf that has
// set the trap flag, a load of ss (Intel SDM 3A 6.8.3), and a system call, which the kernel comes back from with the
// flag set in what it loads.
std::optional<Act> Breakpoints::pass_step_of_copy(Tracee& tracee, const ptrace::Registers& regs) {
  RemoteAddr base;
  XolAreas& xol = tracee.process->space->xol();
  const Slot* slot = tracee.in_slot ? xol.find(tracee.in_slot->base, base) : nullptr;
  if (!slot) return std::nullopt;
  const bool is_call = slot->insn.flow == arch::Flow::syscall;
  const bool inside = xol.find(native_place(regs), base) == slot;
  const bool behind = regs.pc() == slot->original.value + slot->insn.length;
  if (!(is_call && inside) && !((is_call || slot->insn.sees_trap_flag) && behind)) return std::nullopt;
  if (!inside) rooms_.slot_threads.leave_slot(tracee);
  return rooms_.detacher.go_on_or_leave(tracee, "a step of its own in a copy");
}

// A SIGTRAP that somebody has sent comes while the thread stands where a breakpoint of ours sends it: whether it got
// there by executing that. Where SIGTRAP is blocked, and in the middle of an instruction, it can't have come otherwise.
// Behind an instruction of the breakpoint's size it may stand because we emulated that, stepped it, sent it there, or
// because it has executed its copy: what moves the stack pointer tells that. Else it is unlikely to be there by chance.
bool Breakpoints::ran_into(const Tracee& tracee, const ptrace::Registers& regs, const SitePlan& plan,
                           bool armed) const {
  std::uint64_t mask = 0;
  if (const auto known = rooms_.masks.known_mask(tracee); known && (*known & signal_bit(SIGTRAP)) != 0) return true;
  if (ptrace::get_sigmask(tracee.tid, mask) == Outcome::ok && blocked_with_all_others(mask, SIGTRAP)) return true;
  // In front of the breakpoint: about to execute it is as good, then it is executed now.
  if (!native::kTrapMovesPc) return armed;
  if (plan.insn.length > native::kBreakpointSize) return true;
  if (tracee.stands && native::same_execution(*tracee.stands, regs)) return false;
  const bool from_copy = tracee.sent && tracee.sent->pc() == plan.address.value;
  return armed && !(from_copy && native::has_executed(plan.code(), *tracee.sent, regs));
}

// A thread has executed a breakpoint in 32-bit code, or in code that is both: its copy is 64-bit code. The instruction
// itself comes back, for good, and the thread executes that.
void Breakpoints::give_up_other_code(AddressSpace& space, RemoteAddr address) {
  rooms_.optimiser.note_other_code(space);
  space.optimisation().other_code.insert(address);
  rooms_.code_changes.drop_sites(space, std::array{address}, Layout::of(space.memory()), kIsOtherCode);
  rooms_.code_changes.heal_if_moved(space);
}

Act Breakpoints::on_hit(Tracee& tracee, Site& site, ptrace::Registers& regs, const AfterTrap& after) {
  rooms_.slot_threads.leave_slot(tracee);
  if (!std::exchange(site.executed, true) && site.may_be_other_code)
    rooms_.optimiser.consider(*tracee.process->space, site);
  if (tracee.lanes.size() < tracee.process->space->detours().lines().size()) rooms_.lanes.give_lanes(tracee, regs);
  regs.set_pc(site.plan.address.value);
  if (!rooms_.code_changes.follow_rewriting(tracee, site)) {
    native::mark_dealt_with(regs);
    ptrace::set_registers(tracee.tid, regs);
    return Act::go_on("the program has rewritten the code under its breakpoint", after.signal);
  }
  const bool again = take_rehit(tracee, regs);
  bool step = false, hold = false;
  if (!again && site.wanted()) {
    rooms_.puns.want_pun(*tracee.process->space, site);
    rooms_.optimiser.note_waiting(*tracee.process->space, site);
    const HitRecorder::Hit hit = rooms_.recorder.begin(tracee, regs, tracee.process->space->memory());
    bool returns = false;
    for (const ProgramPtr& program : site.programs) {
      if (!program->enabled) continue;
      if (program->role != ProbeProgram::Role::plain) {
        returns = true;
        continue;
      }
      if (program->watches_loader) {
        hold |= rooms_.holds.loader_has_report(tracee, *program);
        continue;
      }
      step |= program->force_step;
      if (rooms_.recorder.run(hit, *program)) listener_.limit_reached(program->limit->probes);
    }
    if (returns) rooms_.calls.run_return_probes(hit, site);
  }
  // It sees one step an instruction, whatever a copy makes of that.
  if (native::steps_itself(regs)) {
    if (!tracee.process->space->optimisation().refused)
      rooms_.optimiser.refuse_all(*tracee.process->space, kStepsItself);
    step = true;
  }
  return rooms_.slot_threads.continue_past(tracee, site, regs, step && after.may_step, after.signal, hold);
}

}  // namespace probed::tracer
