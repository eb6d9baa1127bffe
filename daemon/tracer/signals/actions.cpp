// What our own traps and faults do to the program's signals, undone: the action, the threads' mask bits, a signal of
// the program's own that ours was merged with. trap_action.hpp says what the kernel does, and how it is told apart;
// signals/masks.cpp how it is known whether the thread blocked the signal.
//
// Processes in which SIGTRAP has its default action pay one PTRACE_GETSIGMASK and one PTRACE_GETSIGINFO a hit, and a
// look into /proc every kLookAge of hits and once behind the last one: a landing that the kernel has reset is to be
// back before this daemon dies, whether more hits come or not. The others pay a look into /proc at each hit, and remote
// calls when something has to be put back. A load of an absent argument likewise, for its SIGSEGV or SIGBUS.
//
// What is chosen where it isn't known what a thread blocked:
// - One that blocks the signal alone, in a process that has left it at its default, loses its mask bit. Setting a bit
//   wrongly would last; a cleared one lasts until the program restores its mask.
// - Several threads of a process with a handler run into breakpoints within the same microseconds and the handler is
//   found reset: the one that is in its SIGTRAP handler or blocks everything; else nobody gets the bit back, for the
//   same reason. From then on all are watched.
// - SIGTRAP ignored in a process with several threads: setting SIG_IGN again would flush the traps of threads that have
//   just run into a breakpoint (do_sigaction, flush_sigqueue_mask), so it waits until one thread is left; until then we
//   ignore the signal in the kernel's place. A fault that is flushed comes again with its instruction.
#include "daemon/tracer/signals/actions.hpp"

#include <signal.h>

#include <algorithm>

#include "daemon/base/process.hpp"
#include "daemon/tracer/family/remote_calls.hpp"
#include "daemon/tracer/kernel/coarse_clock.hpp"
#include "daemon/tracer/kernel/sharing.hpp"
#include "daemon/tracer/rooms.hpp"
#include "daemon/tracer/signals/action_calls.hpp"
#include "daemon/tracer/stops.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using namespace std::chrono_literals;
using ptrace::Outcome;

constexpr auto kLookAge = 10ms;
constexpr auto kLandingAge = 100ms;      // of hits, until a handler that has taken the landing's place is noticed
constexpr auto kMostPause = 60s;         // between two threads that are asked to put it back
constexpr unsigned kMostMended = 64;     // landings, in a kLookAge
constexpr unsigned kMostInVain = 5;      // looks at what isn't as it should be, in a row
constexpr unsigned kMostInterrupts = 8;  // that a signal on its way to a thread may be behind
constexpr std::uint64_t kHandlerDepth = 256 << 10;  // bytes of stack that a SIGTRAP handler is thought to use at most

bool handles(const std::optional<Action>& action) { return action && disposition_of(*action) == Disposition::handled; }
bool ignores(const std::optional<Action>& action) { return action && disposition_of(*action) == Disposition::ignored; }

// What /proc should show.
Disposition known_disposition(const Process& process, int signal) {
  const auto& known = process.actions.of(signal).known;
  if (signal == SIGTRAP && process.actions.landing_in_place()) return Disposition::handled;
  return known ? disposition_of(*known) : Disposition::standard;
}

// SIG_IGN may be set where that flushes nothing that is wanted: no trap of a thread that has run into a breakpoint.
bool safe_to_ignore(const Process& process, int signal) {
  if (process.threads.size() > Jobs::kMostLookedAt) return false;
  const auto executing = [](pid_t tid) { return !process::is_exiting(tid); };
  const bool no_traps = signal != SIGTRAP || process.threads.size() == 1 || !process.space->touched() ||
                        std::ranges::count_if(process.threads, executing) <= 1;
  return no_traps && std::ranges::none_of(process.threads, [=](pid_t tid) { return signal_pending(tid, signal); });
}

enum class Seen : std::uint8_t { as_known, changed, reset, unknown };

// Compares what is in the kernel with what we know; learns and marks what is new.
Seen reconcile(Process& process, int signal, ActionCalls& calls) {
  Arrangement& is = process.actions.of(signal);
  auto now = calls.get(signal);
  if (!now) return Seen::unknown;
  is.fetched = coarse_now();
  const bool landing_was_here = signal == SIGTRAP && process.actions.landing_in_place();
  if (signal == SIGTRAP && note_landing(process, calls, now)) {
    is.owed = false;
    is.known.reset();
    return Seen::as_known;
  }
  if (!now) return Seen::unknown;
  if (is.known && was_reset(*now, *is.known)) {
    is.contended = true;
    return Seen::reset;
  }
  is.owed = false;
  if (disposition_of(*now) == Disposition::standard) {
    is.known.reset();
    if (landing_was_here && !process.detaching()) install_landing(process, calls);
    return Seen::changed;
  }
  if (is.known == *now) return Seen::as_known;
  is.known = *now;
  const bool may_mark = disposition_of(*now) == Disposition::handled || safe_to_ignore(process, signal);
  if (may_mark && *now != marked(*now) && calls.replace(signal, *now, marked(*now))) is.known = marked(*now);
  return Seen::changed;
}

void put_back(Process& process, int signal, ActionCalls& calls) {
  Arrangement& is = process.actions.of(signal);
  Action reset = *is.known;
  reset.handler = reinterpret_cast<std::uint64_t>(SIG_DFL);
  is.owed = ignores(is.known) && !safe_to_ignore(process, signal);
  if (!is.owed && !calls.replace(signal, reset, *is.known)) is.fetched = {};  // look again soon
}

// Whether a thread that has just raised this signal for us blocked everything: then it was that one.
bool some_block_all(const Process& process, int signal) {
  return process.threads.size() > Jobs::kMostLookedAt || std::ranges::any_of(process.threads, [=](pid_t tid) {
           return blocked_with_all_others(blocked_by(tid), signal) && signal_in_flight(tid, signal);
         });
}

bool matters(const Process& process, int signal) { return signal == SIGTRAP || process.actions.with_faults; }

// Whether what /proc shows isn't what we know, of signals other than this one; 0: of any.
bool others_changed(const Process& process, const Dispositions& now, int but) {
  return std::ranges::any_of(kForcedSignals, [&](int signal) {
    return signal != but && matters(process, signal) && !process.actions.of(signal).owed &&
           now[forced_index(signal)] != known_disposition(process, signal);
  });
}

// The breakpoint whose SIGTRAP this is, from the registers that it came with; 0: it is a step's, or another signal.
RemoteAddr trapped_at(const Tracee& tracee, const ptrace::Registers& regs, int signal) {
  if (signal != SIGTRAP || tracee.stepping()) return {};
  return {native::breakpoint_address(regs.pc())};
}

}  // namespace

// Runs f(ActionCalls&) in a thread that stands in an event stop or in a forced signal's. False: it has died. A thread
// that may make no calls (ActionCalls::refused) has not left its stop, and `put_back` has not been sent to it again.
template <class F>
bool Actions::with_actions(Tracee& tracee, int put_back, F f, RemoteAddr trapped_at) {
  Process& process = *tracee.process;
  const bool in_signal = tracee.stop == WaitStatus::Kind::signal;
  const bool alive = rooms_.jobs.with_remote_calls(
      tracee, *process.space,
      [&](RemoteSyscalls& remote) {
        ActionCalls calls(remote, *process.space);
        f(calls);
      },
      put_back, trapped_at);
  // An interrupt that somebody is waiting for (to let it go, for a job, a round, to see whether it has left a detour)
  // has been taken for our own.
  if (alive && in_signal) ptrace::interrupt(tracee.tid);
  return alive;
}

// True: other threads may have raised this signal for us just now, too; they are marked.
bool Actions::suspect_others(const Tracee& tracee, int signal) {
  const std::set<pid_t>& threads = tracee.process->threads;
  bool found = threads.size() > Jobs::kMostLookedAt;
  for (const pid_t tid : threads) {
    if (threads.size() > Jobs::kMostLookedAt) break;
    Tracee& other = targets_.tracees.at(tid);
    if (tid == tracee.tid || !other.runs() || !signal_in_flight(tid, signal)) continue;
    other.trap_suspect = found = true;
  }
  return found;
}

// Whether another thread's hit could have the handler reset just before it is called: when it begins to block the
// signal after we have looked, that is the end of the process. Only where stopping all would cost more than a moment
// are they trusted until one has been seen to.
bool Actions::others_may_reset(const Tracee& tracee, int signal) const {
  const Process& process = *tracee.process;
  const std::size_t threads = process.threads.size();
  if (threads == 1) return false;
  if (process.actions.of(signal).contended) return true;
  return threads <= Jobs::kMostLookedAt && (signal == SIGTRAP || !process.space->detours().areas_empty());
}

std::optional<Dispositions> Actions::actions_now(Tracee& tracee) {
  if (!tracee.stat) tracee.stat.reset(open_thread_stat(tracee.tid));
  return tracee.stat ? dispositions(tracee.stat.get()) : dispositions_of(tracee.tid);
}

// Where what is found to have changed is then fetched.
std::optional<Dispositions> Actions::look_at_actions(Tracee& tracee) {
  tracee.process->actions.looked = coarse_now();
  return actions_now(tracee);
}

bool Actions::must_learn_actions(const Process& process) const {
  const auto now = dispositions_of(process.id.pid);
  return (now && others_changed(process, *now, 0)) || rooms_.masks.anybody_to_watch(process);
}

void Actions::learn_actions(Tracee& tracee) {
  Process& process = *tracee.process;
  const auto now = look_at_actions(tracee);
  if (!now) return;
  const bool as_known = !others_changed(process, *now, 0) && !process.actions.any_owed();
  if (!as_known) rooms_.jobs.stop_few_others(tracee);
  if (!as_known && !put_actions_back(tracee)) return;
  rooms_.masks.watch_at_first(process);
  rooms_.masks.stop_to_watch(tracee);
}

void Actions::will_look_behind_traps(Process& process) {
  if (process.actions.landing_in_place() && !process.actions.look_at)
    process.actions.look_at = Waiter::Clock::now() + kLookAge;
}

// Asking a thread to stop for it may make a wait of its begin anew: that happens less and less often.
void Actions::look_behind_traps(Process& process) {
  Arrangements& actions = process.actions;
  const auto now = Waiter::Clock::now();
  actions.look_at.reset();
  if (process.detaching()) return;
  if (now - actions.trapped < kLookAge) return void(actions.look_at = now + kLookAge);  // more have come
  actions.looked = now;
  const auto all = dispositions_of(process.id.pid);
  if (!all) return;
  if (!others_changed(process, *all, 0)) return void(actions.looked_in_vain = 0);
  if (actions.looked_in_vain >= kMostInVain) return;  // it can't be put back: a seccomp filter, say
  if (now < actions.ask_at) return void(actions.look_at = actions.ask_at);
  ++actions.looked_in_vain;
  actions.ask_at = now + actions.ask_pause;
  actions.ask_pause = std::min<Waiter::Clock::duration>(4 * actions.ask_pause, kMostPause);
  actions.look_at = now + kLandingAge;
  rooms_.jobs.request_job(process, Job{[this](Tracee& tracee) { put_actions_back(tracee); }, [](const Error&) {}, {}});
}

// False: the thread has died.
bool Actions::put_actions_back(Tracee& tracee) {
  Process& process = *tracee.process;
  return with_actions(tracee, 0, [&](ActionCalls& calls) {
    for (const int signal : kForcedSignals)
      if (matters(process, signal) && reconcile(process, signal, calls) == Seen::reset)
        put_back(process, signal, calls);
  });
}

void Actions::settle_actions(Process& process) {
  if (!process.actions.any_owed()) return;
  rooms_.jobs.request_job(process, Job{[this](Tracee& tracee) { learn_actions(tracee); }, [](const Error&) {}, {}});
}

// ---- after a signal of ours -----------------------------------------------------------------------------------------

// The kernel has just reset it, and it is to be back at once: other threads may run into breakpoints while this daemon
// dies. Only where threads that block the signal do all the time, which nothing saves then, it waits for the next look.
bool Actions::must_mend_landing(Process& process, int signal, const AfterTrap& after) {
  if (signal != SIGTRAP || !after.blocks || !process.actions.landing_in_place()) return false;
  Arrangements& actions = process.actions;
  if (const auto now = coarse_now(); now - actions.mended_from > kLookAge) {
    actions.mended_from = now;
    actions.mended = 0;
  }
  return actions.mended++ < kMostMended;
}

AfterTrap Actions::mend_after_trap(Tracee& tracee, const ptrace::Registers& regs, int signal, bool merged) {
  AfterTrap after;
  Process& process = *tracee.process;
  const std::uint64_t bit = signal_bit(signal);
  std::uint64_t mask = 0;
  if (ptrace::get_sigmask(tracee.tid, mask) != Outcome::ok) return {.alive = false};
  const auto before = rooms_.masks.known_mask(tracee);
  after.exact = before.has_value();
  after.with_all = before ? !blocks_alone(*before, signal) : blocked_with_all_others(mask, signal);
  after.blocks = before ? (*before & bit) != 0 : blocked_with_all_others(mask, signal);
  if (tracee.trap_frame && signal == SIGTRAP) {
    const bool inside = regs.sp() < *tracee.trap_frame && *tracee.trap_frame - regs.sp() < kHandlerDepth;
    after.in_handler = inside;
    if (!inside) tracee.trap_frame.reset();
  }
  if (signal == SIGTRAP) after.blocks |= std::exchange(tracee.trap_suspect, false) && after.in_handler && !before;
  const auto now = coarse_now();
  process.actions.trapped = now;
  if (merged || process.actions.of(signal).known || after.in_handler || now - process.actions.looked > kLookAge ||
      must_mend_landing(process, signal, after))
    mend_action(tracee, regs, signal, merged, after);
  else
    will_look_behind_traps(process);
  if (!after.alive || after.program_first) return after;
  if (before) after.blocks = (*before & bit) != 0;
  after.blocks &= (mask & bit) == 0;
  if (after.blocks) ptrace::set_sigmask(tracee.tid, mask | bit);
  if (tracee.is_itself()) tracee.mask = after.blocks ? mask | bit : mask;
  after.may_step = !after.blocks && !ignores(process.actions.of(SIGTRAP).known);
  return after;
}

void Actions::mend_action(Tracee& tracee, const ptrace::Registers& regs, int signal, bool merged, AfterTrap& after) {
  Process& process = *tracee.process;
  Arrangement& is = process.actions.of(signal);
  const auto all = look_at_actions(tracee);
  if (!all) return void(after.alive = false);
  const Disposition now = (*all)[forced_index(signal)];
  const bool standard = now == Disposition::standard;
  // Nothing was reset: the thread doesn't block the signal, and the program's came while it ran into the breakpoint.
  // Unless it was, and has been put back for another thread meanwhile. A load that isn't there may not have run at all.
  if (merged && !after.blocks && (after.exact || !standard || signal != SIGTRAP))
    return void(after.program_first = true);
  // Its handler has set the default action, or had it set by SA_RESETHAND.
  after.blocks |= merged || (standard && after.in_handler && !is.known);
  if (merged) after.signal = signal;
  const bool as_known = now == known_disposition(process, signal) && !others_changed(process, *all, signal);
  const auto age = coarse_now() - is.fetched;
  const bool stale =
      is.known ? age > kLookAge : signal == SIGTRAP && process.actions.landing_in_place() && age > kLandingAge;
  if ((as_known && !stale) || (standard && is.owed && !safe_to_ignore(process, signal))) return;
  const bool alone = standard && !suspect_others(tracee, signal);
  const bool handled = handles(is.known);
  const bool had_none = !process.actions.of(SIGTRAP).known;
  bool found_reset = false, refused = false;
  const int put_back_signal = std::exchange(after.signal, 0);
  after.alive = with_actions(
      tracee, put_back_signal,
      [&](ActionCalls& calls) {
        refused = calls.refused();
        for (const int each : kForcedSignals) {
          if (!matters(process, each) || reconcile(process, each, calls) != Seen::reset) continue;
          if (each == signal) {
            found_reset = handled;
            after.blocks |= handled && (alone || after.in_handler);
            suspect_others(tracee, signal);
          }
          put_back(process, each, calls);
        }
      },
      trapped_at(tracee, regs, signal));
  if (!after.alive) return;
  if (refused) after.signal = put_back_signal;
  if (had_none) rooms_.masks.watch_at_first(process);
  if (found_reset && !after.with_all && (alone || !some_block_all(process, signal)))
    rooms_.masks.watch_everybody(tracee);
}

bool Actions::queue_trap_again(Tracee& tracee, RemoteAddr breakpoint) {
  return with_actions(
      tracee, SIGTRAP, [](ActionCalls&) {}, breakpoint);
}

// ---- a signal of the program's own, of those kinds ------------------------------------------------------------------

// The disposition it meets must be the program's: a trap or fault of ours in another thread may just have reset it.
std::optional<Act> Actions::before_own_signal(Tracee& tracee, int signal) {
  Process& process = *tracee.process;
  Arrangement& is = process.actions.of(signal);
  if (!matters(process, signal)) return std::nullopt;
  const std::uint64_t bit = signal_bit(signal);
  siginfo_t info{};
  std::uint64_t mask = 0;
  if (ptrace::get_siginfo(tracee.tid, info) != Outcome::ok) return Act::dying();
  if (ptrace::get_sigmask(tracee.tid, mask) != Outcome::ok) return Act::dying();
  const bool forced = info.si_code > 0;  // raised by an instruction of its own
  // Blocked and yet delivered: a sigsuspend() of the kind lets it through now, and must not see it come again later.
  const bool looked = std::exchange(tracee.action_looked, 0) == signal || (mask & bit) != 0;
  if (!looked) {
    const auto all = look_at_actions(tracee);
    if (!all) return Act::dying();
    const Disposition now = (*all)[forced_index(signal)];
    const bool at_risk = others_may_reset(tracee, signal);
    const bool trusted = signal != SIGTRAP && !is.contended && !at_risk;
    const bool quiet_signal = trusted && now == known_disposition(process, signal);
    if (!quiet_signal && (now != Disposition::standard || is.known)) {
      const bool quiet = at_risk && rooms_.jobs.stop_others(tracee);
      if (!quiet && signal == SIGTRAP) rooms_.jobs.stop_few_others(tracee);
      // When its own instruction raises a signal that it blocks, the program is to die of it.
      const auto before = rooms_.masks.known_mask(tracee);
      const bool by_others = suspect_others(tracee, signal);
      const bool dies = forced && (before ? (*before & bit) != 0 : !by_others);
      bool refused = false;
      const auto look = [&](ActionCalls& calls) {
        refused = calls.refused();
        const Seen seen = reconcile(process, signal, calls);
        if (signal == SIGTRAP) remove_landing(process, calls);
        if (seen != Seen::reset || dies) return;
        put_back(process, signal, calls);
        suspect_others(tracee, signal);
      };
      if (!with_actions(tracee, signal, look)) return Act::away();
      if (refused) return note_own_signal(tracee, signal), std::nullopt;  // to what is there, as nobody can look at it
      const Act to_signal = Act::go_on("its signal comes again, with the program's action in place");
      if (tracee.group_stopped) return to_signal;  // whenever job control lets it go on; it is looked at anew then
      tracee.action_looked = signal;
      if (!quiet) return to_signal;
      rooms_.loop.carry_out(tracee.tid, to_signal);
      see_into_handler(tracee, signal);
      return Act::none("it runs already, to be seen into its handler");
    }
  }
  if (is.owed && !forced) return Act::go_on("the program ignores its signal, which we do in the kernel's place");
  note_own_signal(tracee, signal);
  return std::nullopt;
}

// The other threads are stopped, so that none can have the handler reset once more: the signal comes again, is passed
// on, and the thread stops at its handler's first instruction. Whatever else happens is left to the main loop, and the
// action has to be looked at anew then: the others go on.
void Actions::see_into_handler(Tracee& tracee, int signal) {
  const pid_t tid = tracee.tid;
  auto status = waiter_.wait_for(tid);
  // It is interrupted once more below, for whoever has asked for this stop.
  for (unsigned i = 0; i < kMostInterrupts && status && status->kind() == WaitStatus::Kind::interrupt; ++i) {
    tracee.group_stopped = false;
    rooms_.loop.carry_out(tid, Act::go_on("interrupted on the way to its signal"));
    status = waiter_.wait_for(tid);
  }
  if (status && status->kind() == WaitStatus::Kind::signal && status->signal() == signal) {
    tracee.stop = WaitStatus::Kind::signal;
    ptrace::interrupt(tid);
    rooms_.loop.carry_out(tid, rooms_.delivery.deliver(tracee, signal));
    status = waiter_.wait_for(tid);
  } else {
    tracee.action_looked = 0;
    ptrace::interrupt(tid);
  }
  if (status) waiter_.give_back({tid, *status});
}

// It is about to be delivered.
void Actions::note_own_signal(Tracee& tracee, int signal) {
  auto& known = tracee.process->actions.of(signal).known;
  if (!handles(known)) return;
  ptrace::Registers regs;
  if (signal == SIGTRAP && !(known->flags & (SA_NODEFER | SA_ONSTACK)) &&
      ptrace::get_registers(tracee.tid, regs) == Outcome::ok)
    tracee.trap_frame = regs.sp();
  if (known->flags & SA_RESETHAND) known.reset();  // the kernel takes it away as it calls it
}

// ---- other programs, and the end ------------------------------------------------------------------------------------

// Handlers end with an exec, and with them all flags; what is ignored stays so (kernel/signal.c,
// flush_signal_handlers).
void Actions::actions_after_exec(Tracee& tracee) {
  Process& process = *tracee.process;
  const Arrangements before = std::exchange(process.actions, {});
  process.watch = {};
  if (ptrace::get_sigmask(tracee.tid, process.mask_at_exec) != Outcome::ok) process.mask_at_exec = 0;
  const auto now = dispositions_of(tracee.tid);
  for (const int signal : kForcedSignals) {
    Arrangement& is = process.actions.of(signal);
    is.owed = before.of(signal).owed;
    if (is.owed || (now && (*now)[forced_index(signal)] == Disposition::ignored))
      is.known = Action{reinterpret_cast<std::uint64_t>(SIG_IGN), 0, 0, 0};
  }
}

// There the mask is still the one that the program was started with.
void Actions::mend_entry_mask(Tracee& tracee) {
  const std::uint64_t began = tracee.process->mask_at_exec;
  std::uint64_t mask = 0;
  if ((began & signal_bit(SIGTRAP)) == 0 || ptrace::get_sigmask(tracee.tid, mask) != Outcome::ok) return;
  if (mask == (began & ~signal_bit(SIGTRAP))) ptrace::set_sigmask(tracee.tid, began);
}

bool Actions::owes_actions(const Process& process) const {
  if (!process.actions.any_ours()) return false;
  const pid_t pid = process.id.pid;
  return std::ranges::none_of(targets_.processes, [&](const auto& entry) {
    const Process& other = *entry.second;
    return &other != &process && other.space == process.space && !other.detaching() &&
           shares_actions(pid, other.id.pid);
  });
}

bool Actions::must_leave_actions(const Process& process) const {
  return process.threads.size() == 1 && owes_actions(process);
}

Leaves Actions::leave_actions(Tracee& tracee) {
  Process& process = *tracee.process;
  const auto threads = process::thread_ids(process.id.pid);
  const bool alone = threads && threads->size() == 1;
  const auto leave = [&](ActionCalls& calls, int signal, const Action& known) {
    const auto now = calls.get(signal);
    if (!now) return;
    const bool reset = was_reset(*now, known);
    if (!reset && *now != known) return;
    // The others have been let go: what they set while a mark is taken away would be undone for a moment. It stays.
    if (!reset && !alone) return;
    // Setting SIG_IGN drops what is pending; a mark does no harm.
    if (ignores(known) && (!reset && (known == unmarked(known) || signal_pending(tracee.tid, signal)))) return;
    calls.replace(signal, *now, unmarked(known));
  };
  bool refused = false;
  const auto leave_all = [&](ActionCalls& calls) {
    refused = calls.refused();
    if (refused) return;
    leave_landing(process, calls);
    for (const int signal : kForcedSignals)
      if (const auto& known = process.actions.of(signal).known) leave(calls, signal, *known);
  };
  const bool alive = with_actions(tracee, 0, leave_all);
  if (refused) return Leaves::no;
  if (!alive) return Leaves::away;  // late: all of it is done again when it has come back
  // One that comes later than the others may still have it reset.
  for (Arrangement& is : process.actions.all)
    if (is.known) is.known = unmarked(*is.known);
  return Leaves::yes;
}

}  // namespace probed::tracer
