// Whose signal masks have to be known before a breakpoint or a fault of ours clears a bit in them, and how they are.
//
// A forced signal leaves no trace of the bit that it clears (trap_action.hpp). In a thread that blocks everything the
// other bits tell; in a process with one thread and a handler the handler's reset does. For the rest there is one way:
// a mask changes by a system call or as a handler begins, so a watched thread is let go on with PTRACE_SYSCALL, is
// interrupted as it gets a signal, and its mask is read at each of these stops. (PTRACE_GETSIGMASK answers with what
// the thread will have when it is back in its program, also within sigsuspend and its like: kernel/ptrace.c,
// test_tsk_restore_sigmask.)
//
// That costs two stops for each system call. So watched are:
// - every thread of a process with several that handles or ignores SIGTRAP, for kAtFirst from when its first probes are
//   added, and for good when one of them has been seen to block SIGTRAP and not everything;
// - every thread of one with several that handles SIGSEGV or SIGBUS, for kAtFirst from when its first probes that may
//   follow bad pointers are about to become jumps;
// - a thread that has been seen to block one of the signals and not everything, while it may get one of ours.
#include "daemon/tracer/signals/masks.hpp"

#include <algorithm>

#include "daemon/tracer/kernel/coarse_clock.hpp"
#include "daemon/tracer/kernel/interrupted_calls.hpp"
#include "daemon/tracer/rooms.hpp"

namespace probed::tracer {
namespace {

using namespace std::chrono_literals;
using ptrace::Outcome;
using Kind = WaitStatus::Kind;

constexpr auto kAtFirst = 100ms;
constexpr auto kWatchPatience = 100ms;
constexpr auto kUntilArmed = 30s;  // a batch that isn't armed by then won't be
constexpr std::size_t kMostRemembered = 64;

// Some probe of it is a breakpoint that can be run into, or may become one at any moment, as it is enabled or its jump
// is taken out: what a thread blocks can't be learnt then without stopping it.
bool has_places(const Process& process) { return !process.space->sites().empty(); }

bool blocks_fault_alone(std::uint64_t mask) { return blocks_alone(mask, SIGSEGV) || blocks_alone(mask, SIGBUS); }

// Raised by an instruction: what such a stop shows of the mask is what the kernel has left of it.
bool may_be_forced(const WaitStatus& status) {
  constexpr int kRaised[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS};
  return status.kind() == Kind::signal && std::ranges::find(kRaised, status.signal()) != std::end(kRaised);
}

}  // namespace

// Whether a signal that it has just raised waits behind this stop: its mask has lost that bit already.
bool Masks::has_just_raised(const Tracee& tracee) const {
  const MaskWatch& watch = tracee.process->watch;
  return (tracee.watched || watch.always || watch.until) && synchronous_signal_pending(tracee.tid);
}

std::optional<std::uint64_t> Masks::known_mask(const Tracee& tracee) const {
  if (tracee.stepping() && tracee.stepping()->masked) return tracee.stepping()->mask;
  if (tracee.leaving() && tracee.leaving()->masked) return tracee.leaving()->mask;
  return tracee.watched ? tracee.mask : std::nullopt;
}

void Masks::note_mask(Tracee& tracee, const WaitStatus& status) {
  Process* process = tracee.process;
  if (!process || !status.stopped() || may_be_forced(status)) return;
  if (!tracee.watched && status.kind() != Kind::interrupt) return;
  if (!tracee.is_itself() || (status.kind() == Kind::interrupt && has_just_raised(tracee))) return;
  std::uint64_t mask = 0;
  if (ptrace::get_sigmask(tracee.tid, mask) != Outcome::ok) return;
  tracee.mask = mask;
  if (!blocks_alone(mask, SIGTRAP) || process->threads.size() == 1) return;
  if (process->actions.of(SIGTRAP).known) process->watch.always = true;
}

bool Masks::must_watch(const Tracee& tracee) {
  Process* process = tracee.process;
  if (!process || !process->space || !process->space->touched()) return false;
  MaskWatch& watch = process->watch;
  if (watch.until && coarse_now() >= *watch.until) watch.until.reset();
  if (watch.arming_until && coarse_now() >= *watch.arming_until) watch.arming_until.reset();
  if (process->threads.size() > 1 && (watch.always || watch.until)) return true;
  if (!tracee.mask) return false;
  if (blocks_alone(*tracee.mask, SIGTRAP) && (watch.arming_until || has_places(*process))) return true;
  return process->actions.with_faults && blocks_fault_alone(*tracee.mask);
}

bool Masks::watches(Tracee& tracee) {
  std::uint64_t mask = 0;
  tracee.watched = must_watch(tracee);
  if (tracee.watched && !tracee.mask && !tracee.leaving() && !has_just_raised(tracee) &&
      ptrace::get_sigmask(tracee.tid, mask) == Outcome::ok)
    tracee.mask = mask;
  if (!tracee.watched) tracee.mask.reset();
  return tracee.watched;
}

// ---- who ------------------------------------------------------------------------------------------------------------

void Masks::watch_at_first(Process& process) {
  if (!process.actions.of(SIGTRAP).known || process.threads.size() == 1) return;
  process.watch.until = coarse_now() + kAtFirst;
  if (std::ranges::find(watched_before_, process.id) != watched_before_.end()) process.watch.always = true;
}

// The first loads of jumps that fault may do so in several threads at once. Whoever runs is stopped then, and is
// watched from then on.
void Masks::watch_first_faults(Process& process) {
  const auto handled = [&](int signal) { return process.actions.of(signal).known.has_value(); };
  if (!process.actions.with_faults || process.threads.size() == 1 || !(handled(SIGSEGV) || handled(SIGBUS))) return;
  if (!std::exchange(process.watch.first_faults, true)) process.watch.until = coarse_now() + kAtFirst;
}

void Masks::watch_everybody(const Tracee& tracee) {
  if (std::exchange(tracee.process->watch.always, true) || tracee.process->threads.size() == 1) return;
  rooms_.jobs.stop_others(tracee);  // each is watched when its turn comes to be let go on
}

bool Masks::anybody_to_watch(const Process& process) const {
  if (process.threads.size() > Jobs::kMostLookedAt) return false;
  return std::ranges::any_of(process.threads, [&](pid_t tid) {
    const std::uint64_t mask = targets_.tracees.at(tid).watched ? 0 : blocked_by(tid);
    return blocks_alone(mask, SIGTRAP) || (process.actions.with_faults && blocks_fault_alone(mask));
  });
}

void Masks::stop_to_watch(const Tracee& tracee) {
  Process& process = *tracee.process;
  process.watch.arming_until = coarse_now() + kUntilArmed;
  const bool all = process.watch.always || process.watch.until;
  std::vector<pid_t> asked;
  for (const pid_t tid : process.threads) {
    const Tracee& other = targets_.tracees.at(tid);
    if (tid == tracee.tid || other.watched || !other.runs()) continue;
    const std::uint64_t mask = all || process.threads.size() > Jobs::kMostLookedAt ? 0 : blocked_by(tid);
    if (!all && !blocks_alone(mask, SIGTRAP) && !blocks_fault_alone(mask)) continue;
    ptrace::interrupt(tid);
    asked.push_back(tid);
  }
  waiter_.gather_from(asked, kWatchPatience);
}

void Masks::note_armed(Process& process) {
  if (!std::exchange(process.watch.arming_until, std::nullopt)) return;
  watch_at_first(process);  // the first hits are yet to come
}

void Masks::remember_watch(const Process& process) {
  if (!process.watch.always || std::ranges::find(watched_before_, process.id) != watched_before_.end()) return;
  watched_before_.push_back(process.id);
  if (watched_before_.size() > kMostRemembered) watched_before_.pop_front();
}

}  // namespace probed::tracer
