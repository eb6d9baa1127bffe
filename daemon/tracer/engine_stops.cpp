// Stops of threads: signals, breakpoints, interrupts, and what becomes of them (act.hpp). What happens in slots is in
// engine_slots.cpp.
#include "daemon/tracer/engine_stops.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "daemon/tracer/engine.hpp"
#include "daemon/tracer/interrupted_calls.hpp"
#include "daemon/tracer/left_calls.hpp"
#include "daemon/tracer/left_landings.hpp"
#include "proto/base/check.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using ptrace::Outcome;
using Kind = WaitStatus::Kind;

bool in_native_code(pid_t tid) {
  ptrace::Registers regs;
  return ptrace::get_registers(tid, regs) != Outcome::ok || native::executes_native_code(regs);
}

constexpr std::uint8_t kMostPutOff = 100;
constexpr auto kAskAgainAfter = std::chrono::milliseconds(10);
constexpr auto kBeforeDeadline = std::chrono::seconds(3);  // Process::detach_deadline

// Whether a hit continues an execution that was counted before a signal came.
bool take_rehit(Tracee& tracee, const ptrace::Registers& regs) {
  const auto same = [&](const Rehit& r) { return r.site.value == regs.pc() && native::same_execution(r.regs, regs); };
  const auto found = std::find_if(tracee.rehits.rbegin(), tracee.rehits.rend(), same);
  if (found == tracee.rehits.rend()) return false;
  tracee.rehits.erase(std::prev(found.base()), tracee.rehits.end());
  return true;
}

// ---- what the log says of a stop ----

bool logs_stops() { return spdlog::should_log(spdlog::level::trace); }

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::exited: return "has exited";
    case Kind::killed: return "was killed";
    case Kind::signal: return "signal";
    case Kind::group_stop: return "stopped by job control";
    case Kind::interrupt: return "interrupted";
    case Kind::syscall: return "at a call";
    case Kind::clone: return "clone";
    case Kind::fork: return "fork";
    case Kind::vfork: return "vfork";
    case Kind::vfork_done: return "vfork done";
    case Kind::exec: return "exec";
    case Kind::other: break;
  }
  return "an event";
}

const char* name_of(Act::Kind kind) {
  switch (kind) {
    case Act::Kind::go_on: return "goes on";
    case Act::Kind::leave: return "leaves";
    case Act::Kind::detach: return "is let go";
    case Act::Kind::wait: return "waits for the others";
    case Act::Kind::stay: return "stays";
    case Act::Kind::end: return "is forgotten";
    case Act::Kind::none: break;
  }
  return "no more to do";
}

// As it was found, before anybody has dealt with it.
std::string facts_of(const Tracee& tracee, const WaitStatus& status) {
  std::string facts = name_of(status.kind());
  if (status.kind() == Kind::signal || status.kind() == Kind::killed || status.kind() == Kind::exited)
    facts += fmt::format(" {}", status.signal());
  ptrace::Registers regs;
  if (status.stopped() && ptrace::get_registers(tracee.tid, regs) == Outcome::ok)
    facts += fmt::format(" at {:#x}", regs.pc());
  if (tracee.borrowed) facts += ", on a call for us";
  if (tracee.slot) facts += ", sent into a slot before";
  if (tracee.stepping) facts += ", stepping";
  if (tracee.leaving) facts += ", leaving a detour";
  if (tracee.process && tracee.process->detaching) facts += ", detaching";
  return facts;
}

}  // namespace

void Engine::handle(const Stop& stop) {
  if (Tracee* tracee = tracee_of(stop)) {
    const std::string facts = logs_stops() ? facts_of(*tracee, stop.status) : std::string();
    carry_out(stop.tid, on_stop(*tracee, stop.status), facts);
  }
  while (!ended_meanwhile_.empty()) {
    const Stop ended = ended_meanwhile_.back();
    ended_meanwhile_.pop_back();
    handle(ended);
  }
}

Act Engine::on_stop(Tracee& tracee, const WaitStatus& status) {
  if (tracee.borrowed && give_back(tracee, status)) return Act::none("it is on its way back from a call for us");
  tracee.stop = status.kind();
  tracee.group_stopped = false;
  note_mask(tracee, status);
  note_restart(tracee, status);
  if (tracee.stop == Kind::interrupt || tracee.stop == Kind::group_stop) ptrace::note_event_stop(tracee.tid);
  if (tracee.hidden && status.stopped()) show_again(tracee);
  switch (status.kind()) {
    case Kind::exited:
    case Kind::killed: return Act::end(status);
    case Kind::signal:
      if (std::exchange(tracee.interrupt_again, false) || ptrace::is_interrupted(tracee.tid))
        ptrace::interrupt(tracee.tid);
      if (tracee.sent_again) mend_sent_again(tracee, status.signal());
      return on_signal(tracee, status.signal());
    case Kind::group_stop: return on_interrupt(tracee, true);
    case Kind::interrupt: return on_interrupt(tracee, false);
    case Kind::clone:
    case Kind::fork:
    case Kind::vfork: return on_new_task(tracee);
    case Kind::vfork_done: return on_vfork_done(tracee);
    case Kind::exec: return on_exec(tracee);
    case Kind::syscall: return on_call(tracee);
    case Kind::other: break;
  }
  return Act::go_on("nobody has asked for this event");
}

// At the entry or the exit of a system call.
Act Engine::on_call(Tracee& tracee) {
  if (tracee.leaving && tracee.leaving->masked) return call_while_leaving(tracee);
  if (ptrace::is_interrupted(tracee.tid)) ptrace::interrupt(tracee.tid);
  mend_restart(tracee);
  show_filtered_call(tracee);
  return Act::go_on("a call that was to be seen");
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

// ---- acts -----------------------------------------------------------------------------------------------------------

// `facts`: of the stop that it answers; empty: it answers none, or nobody wants to read them.
void Engine::carry_out(pid_t tid, Act act, std::string_view facts) {
  const auto it = tracees_.find(tid);
  const bool there = it != tracees_.end();
  PROBED_CHECK(there || act.kind == Act::Kind::none, "only a thread that is known can be let do something");
  if (act.kind == Act::Kind::leave) act = prepare_to_leave(it->second, act);
  if (logs_stops()) {
    const std::string signal = act.signal == 0 ? std::string() : fmt::format(" with signal {}", act.signal);
    spdlog::trace("thread {}{}{}: {}{}: {}", tid, facts.empty() ? "" : ", ", facts, name_of(act.kind), signal, act.why);
  }
  if (!there) return;
  Tracee& tracee = it->second;
  Process* process = tracee.process;
  switch (act.kind) {
    case Act::Kind::none: return;
    case Act::Kind::go_on: return let_go_on(tracee, act.signal);
    case Act::Kind::stay:
      tracee.state = Tracee::State::held;
      tracee.held_until = act.until;
      // One that waits for a stopped thread need not wait for another one.
      if (!process->jobs.empty()) run_jobs(tracee);
      return;
    case Act::Kind::wait:
      tracee.state = Tracee::State::held;
      tracee.held_until = act.until;
      return leave_if_complete(*process);
    case Act::Kind::end: return bury(tracee, *act.how);
    case Act::Kind::leave:  // is another act by now
    case Act::Kind::detach: break;
  }
  if (tracee.key_rights) ptrace::put_key_rights(tid, *tracee.key_rights);
  ptrace::detach(tid, act.signal);
  forget_tracee(tid);
  if (process) finish_detach_if_empty(*process);
}

void Engine::let_go_on(Tracee& tracee, int signal) {
  if (tracee.interrupted_at && !tracee.stepping) {
    note_pause(tracee);
    tracee.interrupted_at.reset();
  }
  tracee.loader_ticket = 0;
  if (tracee.key_rights) give_keys_back(tracee);
  if (signal != 0 && would_dump_core(tracee.tid, signal)) hide_from_core_dump(tracee);
  // Gone is fine everywhere here: the exit status follows.
  if (tracee.group_stopped) {
    tracee.state = Tracee::State::listening;
    ptrace::listen(tracee.tid);
    return;
  }
  tracee.state = Tracee::State::running;
  if (tracee.stepping) return void(ptrace::step(tracee.tid, signal));
  if (tracee.leaving && tracee.leaving->masked) return void(ptrace::resume_without_syscall(tracee.tid, signal));
  const bool watched = watches(tracee);
  if (!watched && !tracee.filtered_call && !tracee.restart) return void(ptrace::resume(tracee.tid, signal));
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

// Gets a thread that leaves out of code of ours; an act when that takes more than its registers.
std::optional<Act> Engine::leave_our_code(Tracee& tracee, ptrace::Registers& regs, int signal) {
  if (tracee.process->space) {
    const DetourSpace& detours = tracee.process->space->detours();
    if (const auto site = detours.site_of_island(native_place(regs))) {
      regs.set_pc(site->value);
      ptrace::set_registers(tracee.tid, regs);
    } else if (const auto place = detours.find(native_place(regs))) {
      if (place->capture && is_job_control(tracee.tid, signal)) {
        ptrace::interrupt(tracee.tid);
        return Act::go_on("job control stops it in a detour before it leaves", signal);
      }
      if (place->capture && tracee.stepping) return Act::go_on("stepping out of a detour before it leaves");
      if (place->capture) return start_leaving(tracee, signal);
      leave_tail(tracee, regs, *place);
      ptrace::set_registers(tracee.tid, regs);
    }
  }
  if (move_out_of_slot(tracee, regs)) ptrace::set_registers(tracee.tid, regs);
  return std::nullopt;
}

// The step of a thread that leaves is over. The signal that it gets: `signal`, or the one that the step kept back.
int Engine::end_step(Tracee& tracee, int signal) {
  if (!tracee.stepping) return signal;
  const Stepping step = *std::exchange(tracee.stepping, std::nullopt);
  const bool can_get_it = signal == 0 && tracee.stop == Kind::signal;
  if (step.held_signal != 0 && !can_get_it) send_again(tracee, step.held_info);  // which waits for the mask
  if (step.masked) let_signals(tracee, step.mask);
  if (step.held_signal == 0 || !can_get_it) return signal;
  waiter_.take_report(tracee.tid);
  ptrace::set_siginfo(tracee.tid, step.held_info);
  return step.held_signal;
}

// For a thread of a process that is being detached: lets it go if nothing of ours is in its way any more, or does the
// next step to that end.
Act Engine::prepare_to_leave(Tracee& tracee, const Act& wanted) {
  Process& process = *tracee.process;
  int signal = wanted.signal;
  // More signals of its are to follow this one, or the mask that it has isn't its own.
  if (tracee.leaving) {
    ptrace::interrupt(tracee.tid);
    return signal != 0 ? go_on_with_own_mask(tracee, signal, "to get out of a detour before it leaves")
                       : Act::go_on("to get out of a detour before it leaves");
  }
  ptrace::Registers regs;
  if (ptrace::get_registers(tracee.tid, regs) != Outcome::ok) return Act::dying();
  if (const auto act = leave_our_code(tracee, regs, signal)) return *act;
  signal = end_step(tracee, signal);
  if (gets_sent_again(tracee)) {
    ptrace::interrupt(tracee.tid);
    return Act::go_on("to a signal that was sent to it again, before it leaves", signal);
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
    return Act::go_on("it leaves at its next stop, in which it can make calls for us", signal);
  }
  if (process.leave_together_until) return Act::wait(wanted.why);
  if (gives_back) {
    for (Process* member : family_of(process.root)) member->asked_to_give_back = true;
    if (!give_back_copies(tracee, *space)) return Act::away();
  }
  if (owes && leave_actions(tracee) == Leaves::away) return Act::away();
  if (space && space->touched()) space->keep_pads_of(process.id.pid, tracee.tid, regs);
  if (last && !leave_no_trace(tracee, *space)) return Act::away();
  return Act::detach(wanted.why, signal);
}

// ---- signals --------------------------------------------------------------------------------------------------------

Act Engine::on_signal(Tracee& tracee, int signal) {
  if (const auto act = unmark(tracee, signal)) return *act;
  if (signal == SIGSEGV || signal == SIGBUS)
    if (const auto act = skip_absent_load(tracee, signal)) return *act;
  if (signal == SIGSEGV) {
    if (const auto act = stand_in_for_clock(tracee, signal)) return *act;
    if (const auto act = pass_key(tracee, signal)) return *act;
  }
  if (const auto act = turn_back(tracee, signal)) return *act;
  if (const auto act = leave_moved_jump(tracee, signal)) return *act;
  if (tracee.stepping) return on_step(tracee, signal);
  if (signal == SIGTRAP)
    if (const auto act = on_trap(tracee)) return *act;
  return deliver(tracee, signal);
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

// A signal whose stop is over, and which the thread is to get after all. What a program has sent with a value, the
// kernel takes as it was; the rest says who sent it first when it is reported (kernel/signal.c, do_rt_tgsigqueueinfo).
void Engine::send_again(Tracee& tracee, siginfo_t info) {
  // It would wake its process, which has been stopped since. Only another one does that, and stands for both.
  if (info.si_signo == SIGCONT && tracee.group_stopped) return;
  const pid_t pid = tracee.process->id.pid;
  const bool as_it_was = info.si_code < 0 && info.si_code != SI_TKILL;
  const long result = as_it_was ? ::syscall(SYS_rt_tgsigqueueinfo, pid, tracee.tid, info.si_signo, &info)
                                : ::tgkill(pid, tracee.tid, info.si_signo);
  if (result != 0)
    return spdlog::error("signal {} of thread {} is lost: it can't be sent again: {}", info.si_signo, tracee.tid,
                         std::strerror(errno));
  if (!as_it_was) tracee.sent_again = info;
}

// It comes, and says who sent it first.
void Engine::mend_sent_again(Tracee& tracee, int signal) {
  siginfo_t info{}, first = *tracee.sent_again;
  if (signal != first.si_signo || ptrace::get_siginfo(tracee.tid, info) != Outcome::ok) return;
  // 0: its pid namespace is another.
  const bool is_ours = info.si_code == SI_TKILL && (info.si_pid == ::getpid() || info.si_pid == 0);
  // Where another one was pending, that is it; but those of a real-time signal are queued.
  if (is_ours || signal < kFirstRealTime) tracee.sent_again.reset();
  if (!is_ours) return;
  waiter_.take_report(tracee.tid);
  ptrace::set_siginfo(tracee.tid, first);
}

// Whether the thread, when it goes on, is about to get a signal that was sent to it again. One that job control has
// stopped goes nowhere.
bool Engine::gets_sent_again(const Tracee& tracee) {
  std::uint64_t mask = 0;
  if (!tracee.sent_again || tracee.group_stopped) return false;
  const int signal = tracee.sent_again->si_signo;
  return ptrace::get_sigmask(tracee.tid, mask) == Outcome::ok && (mask & signal_bit(signal)) == 0 &&
         ptrace::signal_queued(tracee.tid, signal);
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
Act Engine::deliver(Tracee& tracee, int signal) {
  if (is_forced_signal(signal))
    if (const auto act = before_own_signal(tracee, signal)) return *act;
  ptrace::Registers regs;
  if (ptrace::get_registers(tracee.tid, regs) != Outcome::ok) return Act::dying();
  if (!native::executes_native_code(regs)) note_other_code(*tracee.process->space);
  // (A SIGCONT that finds nobody stopped has stopped every thread before, see on_interrupt().)
  if (signal != SIGCONT && was_only_interrupted(tracee.tid, regs) && would_be_ignored(tracee.tid, signal)) {
    make_call_again(tracee, regs);
  } else if (tracee.made_again && !would_be_ignored(tracee.tid, signal) && unmake(tracee.made_again, regs)) {
    ptrace::set_registers(tracee.tid, regs);
  }
  const bool job_control = is_job_control(tracee.tid, signal);
  if (!job_control) note_handler(tracee.tid, regs, signal);
  if (tracee.process->detaching && !tracee.leaving) return Act::leave("with a signal of its own", signal);
  if (job_control) return Act::go_on("job control, wherever it is", signal);
  const DetourSpace& detours = tracee.process->space->detours();
  if (const auto place = detours.find(native_place(regs))) return deliver_in_detour(tracee, signal, regs, *place);
  if (const auto site = detours.site_of_island(native_place(regs))) {
    regs.set_pc(site->value);
    ptrace::set_registers(tracee.tid, regs);
  }
  RemoteAddr base;
  Slot* slot = tracee.process->space->xol().find(native_place(regs), base);
  if (slot) return deliver_in_slot(tracee, signal, regs, *slot, base);
  leave_slot(tracee);
  return go_on_with_own_mask(tracee, signal, "a signal of its own");
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
bool Engine::take_trapped(Tracee& tracee, Tracee::Trapped& trapped) {
  if (const auto before = std::exchange(tracee.trapped, std::nullopt)) {
    trapped = *before;
    return true;
  }
  return ptrace::get_registers(tracee.tid, trapped.regs) == Outcome::ok &&
         ptrace::get_siginfo(tracee.tid, trapped.info) == Outcome::ok;
}

// nullopt: the trap isn't ours.
std::optional<Act> Engine::on_trap(Tracee& tracee) {
  const bool secured = tracee.trapped.has_value();
  Tracee::Trapped trapped;
  if (!take_trapped(tracee, trapped)) return Act::dying();
  const auto act = deal_with_trap(tracee, trapped);
  if (!act && secured) ptrace::set_registers(tracee.tid, trapped.regs);
  return act;
}

std::optional<Act> Engine::deal_with_trap(Tracee& tracee, const Tracee::Trapped& trapped) {
  ptrace::Registers regs = trapped.regs;
  if (!native::pc_is_address(regs)) return std::nullopt;
  if (const auto act = on_call_trap(tracee, regs)) return act;
  if (is_step_trap(trapped.info)) return pass_step_of_copy(tracee, regs);
  Process& process = *tracee.process;
  const RemoteAddr address{native::breakpoint_address(regs.pc())};
  const bool entry = process.space->entry() && process.space->entry()->address == address;
  Site* site = process.space->find(address);
  const SitePlan* former = process.space->former_site(address);
  const bool ours = entry || site || former;
  const auto left = ours ? std::nullopt : left_landing(*process.space, address);
  if (!ours && !left) {
    if (!trapped_in_moved_code(process, address)) return std::nullopt;
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
    if (native::is_breakpoint(now) && !trapped_in_moved_code(process, address)) return std::nullopt;
    site = nullptr;  // may be gone
  }
  const AfterTrap after = mend_after_trap(tracee, regs, SIGTRAP, merged);
  if (!after.alive) return Act::away();
  if (after.program_first) {
    leave_slot(tracee);
    regs.set_pc(address.value);
    native::mark_dealt_with(regs);
    ptrace::set_registers(tracee.tid, regs);
    tracee.stands = regs;
    return deliver(tracee, SIGTRAP);
  }
  if (entry) {
    if (after.signal != 0 && !queue_trap_again(tracee, address)) return Act::away();
    return on_entry_breakpoint(tracee, regs);
  }
  if (armed && !process.detaching && native::executes_native_code(regs)) return on_hit(tracee, *site, regs, after);
  if (armed && !process.detaching) give_up_other_code(*process.space, address);
  // As the landing of the daemon that has left it would: its breakpoint, which stays.
  leave_slot(tracee);
  regs.set_pc(left.value_or(address).value);
  native::mark_dealt_with(regs);
  ptrace::set_registers(tracee.tid, regs);
  return go_on_or_leave(tracee, "a breakpoint that is out, or that another daemon has left", after.signal);
}

// It leaves if its process is being let go.
Act Engine::go_on_or_leave(const Tracee& tracee, const char* why, int signal) {
  return tracee.process->detaching ? Act::leave(why, signal) : Act::go_on(why, signal);
}

// A step that the program makes itself. nullopt: of one of its own instructions, for it to see. It is of none of them
// behind what lets the next instruction be executed before it traps, in a copy the one that ends it: a popf that has
// set the trap flag, a load of ss (Intel SDM 3A 6.8.3), and a system call, which the kernel comes back from with the
// flag set in what it loads.
std::optional<Act> Engine::pass_step_of_copy(Tracee& tracee, const ptrace::Registers& regs) {
  RemoteAddr base;
  XolAreas& xol = tracee.process->space->xol();
  const Slot* slot = tracee.slot ? xol.find(tracee.slot, base) : nullptr;
  if (!slot) return std::nullopt;
  const bool is_call = slot->insn.flow == arch::Flow::syscall;
  const bool inside = xol.find(native_place(regs), base) == slot;
  const bool behind = regs.pc() == slot->original.value + slot->insn.length;
  if (!(is_call && inside) && !((is_call || slot->insn.sees_trap_flag) && behind)) return std::nullopt;
  if (!inside) leave_slot(tracee);
  return go_on_or_leave(tracee, "a step of its own in a copy");
}

// A SIGTRAP that somebody has sent comes while the thread stands where a breakpoint of ours sends it: whether it got
// there by executing that. Where SIGTRAP is blocked, and in the middle of an instruction, it can't have come otherwise.
// Behind an instruction of the breakpoint's size it may stand because we emulated that, stepped it, sent it there, or
// because it has executed its copy: what moves the stack pointer tells that. Else it is unlikely to be there by chance.
bool Engine::ran_into(const Tracee& tracee, const ptrace::Registers& regs, const SitePlan& plan, bool armed) const {
  std::uint64_t mask = 0;
  if (const auto known = known_mask(tracee); known && (*known & signal_bit(SIGTRAP)) != 0) return true;
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
void Engine::give_up_other_code(AddressSpace& space, RemoteAddr address) {
  note_other_code(space);
  space.optimisation().other_code.insert(address);
  drop_sites(space, std::array{address}, Layout::of(space.memory()), kIsOtherCode);
  heal_if_moved(space);
}

Act Engine::on_hit(Tracee& tracee, Site& site, ptrace::Registers& regs, const AfterTrap& after) {
  leave_slot(tracee);
  if (!std::exchange(site.executed, true) && site.may_be_other_code) consider(*tracee.process->space, site);
  if (tracee.lanes.size() < tracee.process->space->detours().lines().size()) give_lanes(tracee, regs);
  regs.set_pc(site.plan.address.value);
  if (!follow_rewriting(tracee, site)) {
    native::mark_dealt_with(regs);
    ptrace::set_registers(tracee.tid, regs);
    return Act::go_on("the program has rewritten the code under its breakpoint", after.signal);
  }
  const bool again = take_rehit(tracee, regs);
  bool step = false, hold = false;
  if (!again && site.wanted()) {
    want_pun(*tracee.process->space, site);
    note_waiting(*tracee.process->space, site);
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
  return continue_past(tracee, site, regs, step && after.may_step, after.signal, hold);
}

// ---- interrupts -----------------------------------------------------------------------------------------------------

// Our interrupt made a call return EINTR although nothing happened to the program: it is made again.
void Engine::put_back_interrupted_call(Tracee& tracee) {
  ptrace::Registers regs;
  if (ptrace::get_registers(tracee.tid, regs) != Outcome::ok) return;
  RemoteAddr base;
  const bool in_slot = tracee.process->space && tracee.process->space->xol().find(native_place(regs), base);
  if (!in_slot) leave_slot(tracee);
  if (was_only_interrupted(tracee.tid, regs)) make_call_again(tracee, regs);
}

// As on_interrupt() will, when this thread's turn comes: others may come first.
void Engine::keep_call(pid_t tid) {
  const auto it = tracees_.find(tid);
  if (it == tracees_.end()) return;
  Tracee& tracee = it->second;
  const bool is_copy = tracee.process && tracee.process->copy_of;
  if (!tracee.process || is_copy || tracee.borrowed || tracee.state != Tracee::State::running) return;
  ptrace::Registers regs;
  if (ptrace::get_registers(tid, regs) == Outcome::ok && was_only_interrupted(tid, regs)) make_call_again(tracee, regs);
}

void Engine::make_call_again(Tracee& tracee, ptrace::Registers& regs) {
  if (!make_again(tracee.tid, regs)) return;
  ptrace::set_registers(tracee.tid, regs);
  if (!native::kRegistersTellCall) tracee.made_again = regs;
}

// A call that is to end at a certain time is gone on with as restart_syscall. Where that leaves this call's number in a
// register, and not the one that the program put there, a program that makes the same call again would make that one.
void Engine::note_restart([[maybe_unused]] Tracee& tracee, [[maybe_unused]] const WaitStatus& status) {
  if constexpr (native::kRestartNumber) {
    ptrace::Registers regs;
    if (!status.stopped() || status.kind() == Kind::syscall || tracee.leaving || tracee.stepping) return;
    if (status.kind() == Kind::signal && is_forced_signal(status.signal())) return;
    if (ptrace::get_registers(tracee.tid, regs) != Outcome::ok) return;
    const std::uint64_t number = native::syscall_number(regs);
    if (number == native::kRestartNumber) {
      if (tracee.restart) tracee.restart->entered = false;
    } else if (may_be_gone_on_with(number)) {
      tracee.restart = {number, false};
    } else {
      tracee.restart.reset();
    }
  }
}

// At a call's entry or behind it.
void Engine::mend_restart([[maybe_unused]] Tracee& tracee) {
  if constexpr (native::kRestartNumber) {
    ptrace::Registers regs;
    if (!tracee.restart || ptrace::get_registers(tracee.tid, regs) != Outcome::ok) return;
    const bool as_restart = native::syscall_number(regs) == native::kRestartNumber;
    if (!std::exchange(tracee.restart->entered, as_restart)) {
      if (!as_restart) tracee.restart.reset();
      return;
    }
    native::set_syscall_number(regs, tracee.restart->number);
    ptrace::set_registers(tracee.tid, regs);
    tracee.restart->entered = false;
    if (!is_to_be_restarted(regs)) tracee.restart.reset();
  }
}

// A stop behind a SIGSTOP and a SIGCONT isn't ours: calls do fail then (signal(7), "Interruption of system calls and
// library functions by stop signals").
Act Engine::on_interrupt(Tracee& tracee, bool group_stop) {
  const pid_t tid = tracee.tid;
  tracee.group_stopped = group_stop;
  const bool is_copy = tracee.process->copy_of != nullptr;
  if (!is_copy && !group_stop && tracee.state != Tracee::State::listening) put_back_interrupted_call(tracee);
  settle_call_note(tid);
  if (is_copy) return adopt_child(tracee, *tracee.process);
  give_up_load(tracee);
  if (const auto act = waits_to_leave(tracee)) return *act;
  limit_kept_calls(tracee);
  meet(tracee);
  looked_at(tracee);
  // Stopped for the sake of the page copies; its turn to be let go comes later.
  if (std::ranges::find(tracee.process->to_ask, tid) != tracee.process->to_ask.end())
    return Act::go_on("it is to leave, and its turn comes later");
  const bool wanted = tracee.process->detaching || !tracee.process->jobs.empty();
  const bool holds_signal = tracee.stepping && tracee.stepping->held_signal != 0;
  const bool elsewhere = wanted && !in_native_code(tid);
  if (elsewhere) note_other_code(*tracee.process->space);
  // Somebody who waits for a job is answered at its deadline, and others are asked before that.
  const bool may_wait = tracee.interrupts_put_off < kMostPutOff || (elsewhere && !tracee.process->detaching);
  const bool comes_first = holds_signal || gets_sent_again(tracee) || synchronous_signal_pending(tid);
  // On a full machine a hundred stops take longer than whoever asked for the detach waits for it.
  const bool overdue = tracee.process->detaching && !comes_first &&
                       Waiter::Clock::now() >= tracee.process->detach_deadline - kBeforeDeadline;
  if (wanted && (comes_first || elsewhere) && may_wait && !overdue) {
    // It has just run into a breakpoint or a fault, or is to complete an instruction before a signal that we hold: that
    // comes first, then we ask again; also when it doesn't come. In 32-bit code it can make no calls for us.
    if (tracee.interrupts_put_off < kMostPutOff) ++tracee.interrupts_put_off;
    if (comes_first) tracee.group_stopped = false;  // else it stays stopped, if job control has stopped it
    tracee.interrupt_again = true;
    tracee.process->ask_again = Waiter::Clock::now() + kAskAgainAfter;
    return Act::go_on(comes_first ? "a signal comes first" : "it executes 32-bit code: asked again later");
  }
  tracee.interrupts_put_off = 0;
  if (tracee.process->detaching) return Act::leave("its process is being let go");
  if (!tracee.process->jobs.empty()) run_jobs(tracee);
  if (!tracees_.contains(tid) || !ended_meanwhile_.empty()) return Act::none("it did a job, and is away or gone");
  // A job may have answered a request that led to a detach.
  return go_on_or_leave(tracee, "it was interrupted");
}

// ---- entry hold -----------------------------------------------------------------------------------------------------

Act Engine::on_entry_breakpoint(Tracee& tracee, ptrace::Registers& regs) {
  Process& process = *tracee.process;
  regs.set_pc(process.space->entry()->address.value);
  process.space->remove_entry();
  native::mark_dealt_with(regs);
  ptrace::set_registers(tracee.tid, regs);
  if (!process.detaching && process.hold_at_entry && loader_is_at_work(tracee, regs))
    return Act::go_on("the dynamic loader is at work before its program");
  mend_entry_mask(tracee);
  if (process.detaching) return Act::leave("at its program's entry");
  if (!std::exchange(process.hold_at_entry, false)) return Act::go_on("nobody waits for its program's entry any more");
  listener_.process_ready(process.id.pid);
  return Act::stay(Hold::entry, "at its program's entry");
}

}  // namespace probed::tracer
