// What our own traps do to the program's SIGTRAP, undone: its disposition, the threads' mask bits, a SIGTRAP of the
// program's own that ours was merged with. trap_action.hpp says what the kernel does, and how it is told apart.
//
// Processes in which SIGTRAP has its default action pay one PTRACE_GETSIGMASK and one PTRACE_GETSIGINFO a hit, and a
// look into /proc every kLookAge of hits. The others pay a look into /proc at each hit, and remote calls when something
// has to be put back.
//
// What can't be known exactly, and what is chosen then:
// - A thread that blocks SIGTRAP alone, in a process that has left it at its default, loses its mask bit: nothing else
//   tells. Setting a bit wrongly would last; a cleared one lasts until the program restores its mask.
// - Several threads of a process with a handler run into breakpoints within the same microseconds and the handler is
//   found reset: one of them blocked SIGTRAP. The one that is in its SIGTRAP handler or blocks everything; else nobody
//   gets the bit back, for the same reason.
// - SIGTRAP ignored in a process with several threads: setting SIG_IGN again would flush the traps of threads that have
//   just run into a breakpoint (do_sigaction, flush_sigqueue_mask), so it waits until one thread is left; until then we
//   ignore the signal in the kernel's place.
#include <fmt/format.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

#include <algorithm>

#include "daemon/tracer/engine.hpp"
#include "daemon/tracer/engine_remote.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using namespace std::chrono_literals;
using ptrace::Outcome;

constexpr auto kLookAge = 10ms;
constexpr auto kStopPatience = 100ms;
constexpr std::size_t kMostLookedAt = 256;          // threads, when asking which of them ran into a breakpoint
constexpr std::uint64_t kHandlerDepth = 256 << 10;  // bytes of stack that a SIGTRAP handler is thought to use at most
constexpr std::uint64_t kTrapBit = 1ULL << (SIGTRAP - 1);
constexpr std::uint64_t kSigsetSize = 8;

// CLOCK_MONOTONIC_COARSE: a quarter of the price, and some milliseconds don't matter.
std::chrono::steady_clock::time_point coarse_now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  return std::chrono::steady_clock::time_point(std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec));
}

bool handles(const std::optional<Action>& action) {
  return action && disposition_of(*action) == Disposition::handled;
}
bool ignores(const std::optional<Action>& action) {
  return action && disposition_of(*action) == Disposition::ignored;
}

// SIG_IGN may be set where that flushes nothing that is wanted.
bool safe_to_ignore(const Process& process) {
  const bool no_traps = process.threads.size() == 1 || !process.space->touched();
  return no_traps && process.threads.size() <= kMostLookedAt && std::ranges::none_of(process.threads, trap_pending);
}

// SIGTRAP's action in the target, by way of a borrowed thread.
class ActionCalls {
 public:
  ActionCalls(RemoteSyscalls& remote, AddressSpace& space) : remote_(remote), space_(space) {}

  std::optional<Action> get() { return call(nullptr); }
  // Puts one action in place of another. False: the program has set a third one meanwhile, and that stays.
  bool replace(const Action& expected, Action wanted) {
    std::optional<Action> replaced = call(&wanted);
    if (replaced == expected) return true;
    for (int i = 0; i < 8 && replaced && *replaced != wanted; ++i) {
      wanted = *replaced;
      replaced = call(&wanted);
    }
    return false;
  }

 private:
  // The action before; nullopt: the call can't be made.
  std::optional<Action> call(const Action* action) {
    if (!map_scratch()) return std::nullopt;
    const RemoteAddr in = space_.scratch(), out = in + sizeof(Action);
    Action before;
    if (action && !space_.memory().write(in, std::as_bytes(std::span(action, 1)))) return std::nullopt;
    const auto result = remote_.call(SYS_rt_sigaction, {SIGTRAP, action ? in.value : 0, out.value, kSigsetSize, 0, 0});
    if (!result || *result != 0) return std::nullopt;
    if (!space_.memory().read(out, std::as_writable_bytes(std::span(&before, 1)))) return std::nullopt;
    return before;
  }

  bool map_scratch() {
    if (space_.scratch()) return true;
    const auto page =
        remote_.call(SYS_mmap, {0, kPageSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, ~0ULL, 0});
    if (!page || *page <= 0) return false;
    space_.set_scratch({static_cast<std::uint64_t>(*page)});
    space_.xol().add_data(space_.scratch(), kPageSize, false);
    return true;
  }

  RemoteSyscalls& remote_;
  AddressSpace& space_;
};

enum class Seen : std::uint8_t { as_known, changed, reset, unknown };

// Compares what is in the kernel with what we know; learns and marks what is new.
Seen reconcile(Process& process, ActionCalls& calls) {
  TrapArrangement& trap = process.trap;
  const auto now = calls.get();
  if (!now) return Seen::unknown;
  trap.fetched = coarse_now();
  if (trap.known && was_reset(*now, *trap.known)) {
    trap.contended = true;
    return Seen::reset;
  }
  trap.owed = false;
  if (disposition_of(*now) == Disposition::standard) {
    trap.known.reset();
    return Seen::changed;
  }
  if (trap.known == *now) return Seen::as_known;
  trap.known = *now;
  const bool may_mark = disposition_of(*now) == Disposition::handled || safe_to_ignore(process);
  if (may_mark && *now != marked(*now) && calls.replace(*now, marked(*now))) trap.known = marked(*now);
  return Seen::changed;
}

void put_back(Process& process, ActionCalls& calls) {
  TrapArrangement& trap = process.trap;
  Action reset = *trap.known;
  reset.handler = reinterpret_cast<std::uint64_t>(SIG_DFL);
  trap.owed = ignores(trap.known) && !safe_to_ignore(process);
  if (!trap.owed && !calls.replace(reset, *trap.known)) trap.fetched = {};  // look again soon
}

}  // namespace

// Runs f(ActionCalls&) in a thread that stands in an event stop or in a SIGTRAP's. False: it has died.
template <class F>
bool Engine::with_trap_action(Tracee& tracee, int put_back, F f) {
  Process& process = *tracee.process;
  const bool in_signal = tracee.stop == WaitStatus::Kind::signal;
  const bool alive = with_remote_calls(
      tracee, *process.space,
      [&](RemoteSyscalls& remote) {
        ActionCalls calls(remote, *process.space);
        f(calls);
      },
      put_back);
  // An interrupt that somebody is waiting for may have been taken for our own.
  if (alive && in_signal && (process.detaching || !process.jobs.empty())) ptrace::interrupt(tracee.tid);
  return alive;
}

// True: other threads may have run into breakpoints just now, too; they are marked.
bool Engine::suspect_others(const Tracee& tracee) {
  const std::set<pid_t>& threads = tracee.process->threads;
  bool found = threads.size() > kMostLookedAt;
  for (const pid_t tid : threads) {
    if (threads.size() > kMostLookedAt) break;
    Tracee& other = tracees_.at(tid);
    if (tid == tracee.tid || other.state != Tracee::State::running || !trap_in_flight(tid)) continue;
    other.trap_suspect = found = true;
  }
  return found;
}

// Whether another thread's hit could have the handler reset just before it is called: when it begins to block SIGTRAP
// after we have looked, that is the end of the process. So only where stopping all would cost more than a moment are
// they trusted until one has been seen to.
bool Engine::others_may_reset(const Tracee& tracee) const {
  const std::size_t threads = tracee.process->threads.size();
  return threads > 1 && (threads <= kMostLookedAt || tracee.process->trap.contended);
}

// False: some are in an uninterruptible wait.
bool Engine::stop_others(const Tracee& tracee) {
  std::vector<pid_t> others;
  for (const pid_t tid : tracee.process->threads) {
    if (tid == tracee.tid || tracees_.at(tid).state != Tracee::State::running) continue;
    ptrace::interrupt(tid);
    others.push_back(tid);
  }
  return waiter_.gather_from(others, kStopPatience);
}

// nullopt: the thread has gone.
std::optional<Disposition> Engine::look_at_trap(Tracee& tracee) {
  if (!tracee.stat) tracee.stat.reset(open_thread_stat(tracee.tid));
  tracee.process->trap.looked = coarse_now();
  return trap_disposition(tracee.stat.get());
}

// Before breakpoints are written: whether SIGTRAP's action has to be fetched first, which takes a stopped thread.
bool Engine::must_learn_trap(const Process& process) const {
  const auto now = trap_disposition_of(process.id.pid);
  if (!now || process.trap.owed) return false;
  return *now != (process.trap.known ? disposition_of(*process.trap.known) : Disposition::standard);
}

void Engine::learn_trap(Tracee& tracee) {
  Process& process = *tracee.process;
  process.trap.looked = coarse_now();
  with_trap_action(tracee, 0, [&](ActionCalls& calls) {
    if (reconcile(process, calls) == Seen::reset) put_back(process, calls);
  });
}

// ---- after a trap of ours -------------------------------------------------------------------------------------------

// `merged`: the stop's siginfo is the program's, so its SIGTRAP was there first.
Engine::AfterTrap Engine::mend_after_trap(Tracee& tracee, const ptrace::Registers& regs, bool merged) {
  AfterTrap after;
  Process& process = *tracee.process;
  std::uint64_t mask = 0;
  if (ptrace::get_sigmask(tracee.tid, mask) != Outcome::ok) return {.alive = false};
  after.blocks = blocked_with_all_others(mask);
  if (tracee.trap_frame) {
    const bool inside = regs.sp() < *tracee.trap_frame && *tracee.trap_frame - regs.sp() < kHandlerDepth;
    after.in_handler = inside;
    if (!inside) tracee.trap_frame.reset();
  }
  after.blocks |= std::exchange(tracee.trap_suspect, false) && after.in_handler;
  if (merged || process.trap.known || after.in_handler || coarse_now() - process.trap.looked > kLookAge)
    mend_action(tracee, merged, after);
  if (!after.alive) return after;
  after.blocks &= (mask & kTrapBit) == 0;
  if (after.blocks) ptrace::set_sigmask(tracee.tid, mask | kTrapBit);
  after.may_step = !after.blocks && !ignores(process.trap.known);
  return after;
}

void Engine::mend_action(Tracee& tracee, bool merged, AfterTrap& after) {
  TrapArrangement& trap = tracee.process->trap;
  const auto now = look_at_trap(tracee);
  if (!now) return void(after.alive = false);
  const bool standard = *now == Disposition::standard;
  // Nothing was reset: the thread doesn't block SIGTRAP, and the program's came while it ran into the breakpoint. Unless
  // it was, and has been put back for another thread meanwhile.
  if (merged && !standard && !after.blocks) return void(after.program_first = true);
  // Its handler has set the default action, or had it set by SA_RESETHAND.
  after.blocks |= merged || (standard && after.in_handler && !trap.known);
  if (merged) after.signal = SIGTRAP;
  const bool as_known = *now == (trap.known ? disposition_of(*trap.known) : Disposition::standard);
  const bool stale = trap.known && coarse_now() - trap.fetched > kLookAge;
  if ((as_known && !stale) || (standard && trap.owed && !safe_to_ignore(*tracee.process))) return;
  const bool alone = standard && !suspect_others(tracee);
  const bool handled = handles(trap.known);
  after.alive = with_trap_action(tracee, std::exchange(after.signal, 0), [&](ActionCalls& calls) {
    if (reconcile(*tracee.process, calls) != Seen::reset) return;
    after.blocks |= handled && (alone || after.in_handler);
    put_back(*tracee.process, calls);
    suspect_others(tracee);
  });
}

// Where the thread isn't to go on from this stop. False: it has died.
bool Engine::queue_trap_again(Tracee& tracee) {
  return with_trap_action(tracee, SIGTRAP, [](ActionCalls&) {});
}

// ---- a SIGTRAP of the program's own ---------------------------------------------------------------------------------

// The disposition it meets must be the program's: a trap of another thread may just have reset it. True: nothing is left
// to do here, the thread goes on, and gets the signal again if it is to get it.
bool Engine::before_own_trap(Tracee& tracee) {
  Process& process = *tracee.process;
  siginfo_t info{};
  std::uint64_t mask = 0;
  if (ptrace::get_siginfo(tracee.tid, info) != Outcome::ok) return true;
  if (ptrace::get_sigmask(tracee.tid, mask) != Outcome::ok) return true;
  const bool forced = info.si_code > 0;  // raised by an instruction of its own
  // Blocked and yet delivered: a sigsuspend() of the kind lets it through now, and must not see it come again later.
  const bool looked = std::exchange(tracee.trap_looked, false) || (mask & kTrapBit) != 0;
  if (!looked) {
    const auto now = look_at_trap(tracee);
    if (!now) return true;
    if (*now != Disposition::standard || process.trap.known) {
      const bool quiet = others_may_reset(tracee) && stop_others(tracee);
      // When its own instruction raises a SIGTRAP that it blocks, the program is to die of it.
      const bool by_others = suspect_others(tracee);
      const bool alive = with_trap_action(tracee, SIGTRAP, [&](ActionCalls& calls) {
        if (reconcile(process, calls) != Seen::reset || (forced && !by_others)) return;
        put_back(process, calls);
        suspect_others(tracee);
      });
      if (!alive) return true;
      tracee.trap_looked = true;
      resume(tracee);
      if (quiet) see_into_handler(tracee);
      return true;
    }
  }
  if (process.trap.owed && !forced) {
    resume(tracee);
    return true;
  }
  note_own_trap(tracee);
  return false;
}

// The other threads are stopped, so that none can have the handler reset once more: the signal comes again, is passed on,
// and the thread stops at its handler's first instruction. Whatever else happens is left to the main loop.
void Engine::see_into_handler(Tracee& tracee) {
  const pid_t tid = tracee.tid;
  auto status = waiter_.wait_for(tid);
  if (status && status->kind() == WaitStatus::Kind::signal && status->signal() == SIGTRAP) {
    tracee.stop = WaitStatus::Kind::signal;
    ptrace::interrupt(tid);
    deliver(tracee, SIGTRAP);
    status = waiter_.wait_for(tid);
  }
  if (status) waiter_.give_back({tid, *status});
}

// It is about to be delivered.
void Engine::note_own_trap(Tracee& tracee) {
  auto& known = tracee.process->trap.known;
  if (!handles(known)) return;
  ptrace::Registers regs;
  if (!(known->flags & (SA_NODEFER | SA_ONSTACK)) && ptrace::get_registers(tracee.tid, regs) == Outcome::ok)
    tracee.trap_frame = regs.sp();
  if (known->flags & SA_RESETHAND) known.reset();  // the kernel takes it away as it calls it
}

// ---- other programs, and the end ------------------------------------------------------------------------------------

// Handlers end with an exec, and with them all flags; what is ignored stays so (kernel/signal.c, flush_signal_handlers).
void Engine::trap_after_exec(Tracee& tracee) {
  Process& process = *tracee.process;
  const bool owed = process.trap.owed;
  process.trap = {};
  if (ptrace::get_sigmask(tracee.tid, process.mask_at_exec) != Outcome::ok) process.mask_at_exec = 0;
  if (!owed && trap_disposition_of(tracee.tid) != Disposition::ignored) return;
  process.trap.known = Action{reinterpret_cast<std::uint64_t>(SIG_IGN), 0, 0, 0};
  process.trap.owed = owed;
}

// At the program's entry point its mask is still the one that it was started with.
void Engine::mend_entry_mask(Tracee& tracee) {
  const std::uint64_t began = tracee.process->mask_at_exec;
  std::uint64_t mask = 0;
  if ((began & kTrapBit) == 0 || ptrace::get_sigmask(tracee.tid, mask) != Outcome::ok) return;
  if (mask == (began & ~kTrapBit)) ptrace::set_sigmask(tracee.tid, began);
}

bool Engine::must_leave_trap(const Process& process) const {
  return process.trap.known && process.threads.size() == 1;
}

// The last thread takes our mark away, and puts back what is still owed. False: it died meanwhile.
bool Engine::leave_trap(Tracee& tracee) {
  Process& process = *tracee.process;
  const Action known = *process.trap.known;
  const bool alive = with_trap_action(tracee, 0, [&](ActionCalls& calls) {
    const auto now = calls.get();
    if (!now) return;
    const bool reset = was_reset(*now, known);
    if (!reset && *now != known) return;
    // Setting SIG_IGN drops what is pending; a mark does no harm.
    if (ignores(known) && (!reset && (known == unmarked(known) || trap_pending(tracee.tid)))) return;
    calls.replace(*now, unmarked(known));
  });
  process.trap = {};
  return alive;
}

}  // namespace probed::tracer
