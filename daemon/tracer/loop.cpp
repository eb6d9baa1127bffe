#include "daemon/tracer/loop.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "daemon/base/process.hpp"
#include "daemon/tracer/kernel/interrupted_calls.hpp"
#include "daemon/tracer/kernel/left_calls.hpp"
#include "daemon/tracer/recovery/left_landings.hpp"
#include "daemon/tracer/rooms.hpp"
#include "proto/base/check.hpp"

namespace probed::tracer {
namespace {

using namespace std::chrono_literals;
namespace native = arch::native;
using ptrace::Outcome;
using Kind = WaitStatus::Kind;

constexpr std::uint8_t kMostPutOff = 100;
constexpr auto kAskAgainAfter = std::chrono::milliseconds(10);
constexpr auto kBeforeDeadline = std::chrono::seconds(3);  // LettingGo::deadline

bool in_native_code(pid_t tid) {
  ptrace::Registers regs;
  return ptrace::get_registers(tid, regs) != Outcome::ok || native::executes_native_code(regs);
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

// "; probe 3", "; probes 3, 4": those of the breakpoint that it has run into.
std::string probes_of(const Tracee& tracee, const ptrace::Registers& regs) {
  const Process* process = tracee.process;
  const std::uint64_t trapped = tracee.trapped ? tracee.trapped->regs.pc() : regs.pc();
  const Site* site = process && process->space ? process->space->find({native::breakpoint_address(trapped)}) : nullptr;
  std::string ids;
  for (const ProgramPtr& program : site ? site->programs : std::vector<ProgramPtr>())
    ids += fmt::format("{}{}", ids.empty() ? "" : ", ", number(program->id));
  return ids.empty() ? "" : fmt::format("; probe{} {}", site->programs.size() == 1 ? "" : "s", ids);
}

// As it was found, before anybody has dealt with it.
std::string facts_of(const Tracee& tracee, const WaitStatus& status) {
  std::string facts = name_of(status.kind());
  if (status.kind() == Kind::signal || status.kind() == Kind::killed || status.kind() == Kind::exited)
    facts += fmt::format(" {}", status.signal());
  ptrace::Registers regs;
  if (status.stopped() && ptrace::get_registers(tracee.tid, regs) == Outcome::ok)
    facts += fmt::format(" at {:#x}{}", regs.pc(),
                         status.kind() == Kind::signal && status.signal() == SIGTRAP ? probes_of(tracee, regs) : "");
  if (tracee.away()) facts += ", on a call for us";
  if (tracee.in_slot) facts += ", sent into a slot before";
  if (tracee.stepping()) facts += ", stepping";
  if (tracee.leaving()) facts += ", leaving a detour";
  if (tracee.process && tracee.process->detaching()) facts += ", detaching";
  return facts;
}

}  // namespace

// ---- deadlines ------------------------------------------------------------------------------------------------------

std::optional<Waiter::Clock::time_point> Loop::next_deadline() const {
  std::optional<Waiter::Clock::time_point> next;
  const auto consider = [&](Waiter::Clock::time_point t) { next = next ? std::min(*next, t) : t; };
  const auto loads_at = rooms_.detour_threads.look_for_loads_at();
  if (loads_at != Waiter::Clock::time_point::max()) consider(loads_at);
  for (const auto& [tid, tracee] : targets_.tracees) {
    if (const Unclaimed* waits = tracee.unclaimed()) consider(waits->until);
    if (tracee.loader_ticket != 0) consider(tracee.loader_until);
  }
  for (const auto& [pid, process] : targets_.processes) {
    if (const auto& going = process->letting_go) {
      if (!process->detach_replies.empty()) consider(std::min(going->look_at, going->deadline));
      consider(going->ask_all_at);
      if (going->together_until) consider(*going->together_until);
    }
    if (process->ask_again) consider(*process->ask_again);
    if (process->actions.look_at) consider(*process->actions.look_at);
    if (process->space && process->space->optimisation().at != Waiter::Clock::time_point::max())
      consider(process->space->optimisation().at);
    if (process->give_back_at) consider(*process->give_back_at);
    for (const Job& job : process->jobs) consider(rooms_.jobs.widens_at(*process, job));
  }
  return next;
}

static void tell_late_detach(Process& process, std::vector<std::function<void()>>& late) {
  const Error error = refuse(Reason::timed_out,
                             fmt::format("process {}: its text is restored, but {} of its threads can't be stopped now "
                                         "(uninterruptible wait)",
                                         process.id.pid, process.threads.size()),
                             "each is let go as soon as it wakes; nothing more is needed");
  for (auto& reply : std::exchange(process.detach_replies, {}))
    late.push_back([reply = std::move(reply), error] { reply(error); });
}

void Loop::check_deadlines() {
  const auto now = Waiter::Clock::now();
  std::vector<std::function<void()>> late;
  std::vector<pid_t> givers, incomplete, stalled, trapped;
  for (auto& [pid, process] : targets_.processes) {
    if (process->actions.look_at && now >= *process->actions.look_at) trapped.push_back(pid);
    if (process->give_back_at && now >= *process->give_back_at) givers.push_back(pid);
    if (auto& going = process->letting_go) {
      if (going->together_until && now >= *going->together_until) incomplete.push_back(pid);
      if (now >= going->look_at) {
        going->look_at = Waiter::Clock::time_point::max();
        if (Jobs::none_can_stop(*process)) tell_late_detach(*process, late);
      }
      if (now >= going->deadline) tell_late_detach(*process, late);
      if (now >= going->ask_all_at) stalled.push_back(pid);
    }
    if (process->ask_again && now >= *process->ask_again) {
      process->ask_again.reset();
      for (const pid_t tid : process->threads)
        if (std::exchange(targets_.tracees.at(tid).interrupt_again, false)) ptrace::interrupt(tid);
    }
    rooms_.jobs.look_after_jobs(*process, now, late);
  }
  for (const pid_t pid : trapped)
    if (Process* process = targets_.find_process(pid)) rooms_.actions.look_behind_traps(*process);
  for (const pid_t pid : givers)
    if (Process* process = targets_.find_process(pid)) rooms_.code_changes.give_back_soon(*process);
  for (Process* process : targets_.one_for_each_space())
    if (process->space->optimisation().at <= now) {
      rooms_.code_changes.heal_if_moved(*process->space);
      rooms_.optimiser.optimise(*process->space);
    }
  std::vector<pid_t> orphans;
  for (const auto& [tid, tracee] : targets_.tracees) {
    const Unclaimed* waits = tracee.unclaimed();
    // Its creator's event may be among what has been reported since and nobody has looked at yet.
    if (waits && now >= waits->until && waiter_.idle_since() >= waits->until) orphans.push_back(tid);
  }
  for (const pid_t tid : orphans) rooms_.family.release_orphan(tid);
  rooms_.holds.release_late_loaders();
  for (const pid_t pid : stalled) {
    Process* process = targets_.find_process(pid);
    if (!process || !process->letting_go) continue;
    rooms_.detacher.ask_to_leave(*process, process->letting_go->to_ask.size());
    rooms_.detacher.forget_vanished(*process);
  }
  for (const pid_t pid : incomplete) {
    if (Process* process = targets_.find_process(pid)) rooms_.detacher.leave_incomplete(*process);
  }
  for (auto& call : late) call();
  rooms_.detour_threads.look_for_blocked_loads();
}

void Loop::handle(const Stop& stop) {
  if (Tracee* tracee = rooms_.family.tracee_of(stop)) {
    const std::string facts = logs_stops() ? facts_of(*tracee, stop.status) : std::string();
    carry_out(stop.tid, on_stop(*tracee, stop.status), facts);
  }
  while (!targets_.ended_meanwhile.empty()) {
    const Stop ended = targets_.ended_meanwhile.back();
    targets_.ended_meanwhile.pop_back();
    handle(ended);
  }
}

Act Loop::on_stop(Tracee& tracee, const WaitStatus& status) {
  if (tracee.away() && give_back(tracee, status)) return Act::none("it is on its way back from a call for us");
  tracee.stop = status.kind();
  tracee.group_stopped = false;
  rooms_.masks.note_mask(tracee, status);
  rooms_.restarts.note_restart(tracee, status);
  const bool is_event_stop = tracee.stop == Kind::interrupt || tracee.stop == Kind::group_stop;
  if (is_event_stop) ptrace::note_event_stop(tracee.tid);
  if (is_event_stop && tracee.is_held() && !tracee.process->detaching()) {
    settle_call_note(tracee.tid);
    rooms_.rounds.looked_at(tracee);
    tracee.interrupted_at.reset();
    tracee.group_stopped = tracee.stop == Kind::group_stop;
    return Act::stay(std::get<Held>(tracee.left).until, "it is held, and is back from a call for us");
  }
  if (tracee.hidden && status.stopped()) rooms_.delivery.show_again(tracee);
  switch (status.kind()) {
    case Kind::exited:
    case Kind::killed: return Act::end(status);
    case Kind::signal:
      if (std::exchange(tracee.interrupt_again, false) || ptrace::is_interrupted(tracee.tid))
        ptrace::interrupt(tracee.tid);
      if (tracee.sent_again) rooms_.delivery.mend_sent_again(tracee, status.signal());
      return on_signal(tracee, status.signal());
    case Kind::group_stop: return on_interrupt(tracee, true);
    case Kind::interrupt: return on_interrupt(tracee, false);
    case Kind::clone:
    case Kind::fork:
    case Kind::vfork: return rooms_.family.on_new_task(tracee);
    case Kind::vfork_done: return rooms_.lanes.on_vfork_done(tracee);
    case Kind::exec: return rooms_.family.on_exec(tracee);
    case Kind::syscall: return on_call(tracee);
    case Kind::other: break;
  }
  return Act::go_on("nobody has asked for this event");
}

// At the entry or the exit of a system call.
Act Loop::on_call(Tracee& tracee) {
  if (tracee.leaving() && tracee.leaving()->masked) return rooms_.detour_threads.call_while_leaving(tracee);
  if (ptrace::is_interrupted(tracee.tid)) ptrace::interrupt(tracee.tid);
  rooms_.restarts.mend_restart(tracee);
  rooms_.slot_threads.show_filtered_call(tracee);
  return Act::go_on("a call that was to be seen");
}

// A thread that took too long over a system call for us. True: the stop was on the way back, and is dealt with.
bool Loop::give_back(Tracee& tracee, const WaitStatus& status) {
  const Kind kind = status.kind();
  const bool has_gone = !status.stopped() || kind == Kind::exec;
  if (has_gone || kind == Kind::interrupt || kind == Kind::group_stop) {
    const Away away = *tracee.away();
    tracee.left = away.listened ? Left(Listening{}) : Running{};
    if (has_gone) return false;
    if (away.held) tracee.left = Held{*away.held};
    away.back.give_back(tracee.tid);
    return false;
  }
  // What can arrive with everything blocked is SIGSTOP.
  const bool stops = kind == Kind::signal && status.signal() == SIGSTOP;
  tracee.away()->back.go_on_to_event_stop(tracee.tid, stops ? SIGSTOP : 0);
  return true;
}

// ---- acts -----------------------------------------------------------------------------------------------------------

void Loop::carry_out(pid_t tid, Act act, std::string_view facts) {
  const auto it = targets_.tracees.find(tid);
  const bool there = it != targets_.tracees.end();
  PROBED_CHECK(there || act.kind == Act::Kind::none, "only a thread that is known can be let do something");
  if (act.kind == Act::Kind::leave) act = rooms_.detacher.prepare_to_leave(it->second, act);
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
      tracee.left = Held{act.until};
      // One that waits for a stopped thread need not wait for another one.
      if (!process->jobs.empty()) rooms_.jobs.run_jobs(tracee);
      return;
    case Act::Kind::wait: tracee.left = Held{act.until}; return rooms_.detacher.leave_if_complete(*process);
    case Act::Kind::end: return rooms_.family.bury(tracee, *act.how);
    case Act::Kind::leave:  // is another act by now
    case Act::Kind::detach: break;
  }
  if (tracee.key_rights) ptrace::put_key_rights(tid, *tracee.key_rights);
  ptrace::detach(tid, act.signal);
  rooms_.detacher.forget_tracee(tid);
  if (process) rooms_.detacher.finish_detach_if_empty(*process);
}

void Loop::let_go_on(Tracee& tracee, int signal) {
  if (tracee.interrupted_at && !tracee.stepping()) {
    rooms_.rounds.note_pause(tracee);
    tracee.interrupted_at.reset();
  }
  tracee.loader_ticket = 0;
  if (tracee.key_rights) rooms_.detour_threads.give_keys_back(tracee);
  if (signal != 0 && would_dump_core(tracee.tid, signal)) rooms_.delivery.hide_from_core_dump(tracee);
  // Gone is fine everywhere here: the exit status follows.
  if (tracee.group_stopped) {
    tracee.left = Listening{};
    ptrace::listen(tracee.tid);
    return;
  }
  tracee.left = Running{};
  if (const Stepping* const stepping = tracee.stepping()) {
    ptrace::step(tracee.tid, signal);
    if (stepping->held_signal != 0) rooms_.delivery.note_gone_on(tracee);
    return;
  }
  if (tracee.leaving() && tracee.leaving()->masked) {
    ptrace::resume_without_syscall(tracee.tid, signal);
    return rooms_.delivery.note_gone_on(tracee);
  }
  const bool watched = rooms_.masks.watches(tracee);
  const bool shows_call = tracee.restart || (tracee.in_slot && tracee.in_slot->filtered_call);
  if (!watched && !shows_call) return void(ptrace::resume(tracee.tid, signal));
  if (watched && signal != 0) ptrace::interrupt(tracee.tid);  // stops it at its handler's first instruction
  ptrace::resume_to_syscall(tracee.tid, signal);
}

// ---- signals --------------------------------------------------------------------------------------------------------

Act Loop::on_signal(Tracee& tracee, int signal) {
  if (const auto act = rooms_.detour_threads.unmark(tracee, signal)) return *act;
  if (signal == SIGSEGV || signal == SIGBUS)
    if (const auto act = rooms_.detour_threads.skip_absent_load(tracee, signal)) return *act;
  if (signal == SIGSEGV) {
    if (const auto act = rooms_.detour_threads.stand_in_for_clock(tracee, signal)) return *act;
    if (const auto act = rooms_.detour_threads.pass_key(tracee, signal)) return *act;
  }
  if (const auto act = rooms_.detour_threads.turn_back(tracee, signal)) return *act;
  if (const auto act = rooms_.code_changes.leave_moved_jump(tracee, signal)) return *act;
  if (tracee.stepping()) return rooms_.slot_threads.on_step(tracee, signal);
  if (signal == SIGTRAP)
    if (const auto act = rooms_.breakpoints.on_trap(tracee)) return *act;
  return rooms_.delivery.deliver(tracee, signal);
}

// A stop behind a SIGSTOP and a SIGCONT isn't ours: calls do fail then (signal(7), "Interruption of system calls and
// library functions by stop signals").
Act Loop::on_interrupt(Tracee& tracee, bool group_stop) {
  const pid_t tid = tracee.tid;
  tracee.group_stopped = group_stop;
  const bool is_copy = tracee.process->copy_of != nullptr;
  if (!is_copy && !group_stop && !tracee.listens()) rooms_.restarts.put_back_interrupted_call(tracee);
  settle_call_note(tid);
  if (is_copy) return rooms_.family.adopt_child(tracee, *tracee.process);
  rooms_.detour_threads.give_up_load(tracee);
  if (const auto act = rooms_.detour_threads.waits_to_leave(tracee)) return *act;
  rooms_.calls.limit_kept_calls(tracee);
  rooms_.lanes.meet(tracee);
  rooms_.rounds.looked_at(tracee);
  // Stopped for the sake of the page copies; its turn to be let go comes later.
  if (tracee.process->waits_to_be_asked(tid)) return Act::go_on("it is to leave, and its turn comes later");
  const bool wanted = tracee.process->detaching() || !tracee.process->jobs.empty();
  const bool holds_signal = tracee.stepping() && tracee.stepping()->held_signal != 0;
  const bool elsewhere = wanted && !in_native_code(tid);
  if (elsewhere) rooms_.optimiser.note_other_code(*tracee.process->space);
  // Somebody who waits for a job is answered at its deadline, and others are asked before that.
  const bool may_wait = tracee.interrupts_put_off < kMostPutOff || (elsewhere && !tracee.process->detaching());
  const bool comes_first = holds_signal || rooms_.delivery.gets_sent_again(tracee) || synchronous_signal_pending(tid);
  // On a full machine a hundred stops take longer than whoever asked for the detach waits for it.
  const auto& going = tracee.process->letting_go;
  const bool overdue = going && !comes_first && Waiter::Clock::now() >= going->deadline - kBeforeDeadline;
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
  if (tracee.process->detaching()) return Act::leave("its process is being let go");
  if (!tracee.process->jobs.empty()) rooms_.jobs.run_jobs(tracee);
  if (!targets_.tracees.contains(tid) || !targets_.ended_meanwhile.empty())
    return Act::none("it did a job, and is away or gone");
  // A job may have answered a request that led to a detach.
  return rooms_.detacher.go_on_or_leave(tracee, "it was interrupted");
}

}  // namespace probed::tracer
