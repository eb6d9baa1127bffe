#include "daemon/tracer/kernel/wait.hpp"

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <tuple>
#include <utility>

#include "daemon/base/process.hpp"
#include "daemon/tracer/kernel/apart.hpp"
#include "daemon/tracer/kernel/ptrace.hpp"
#include "proto/base/check.hpp"

namespace probed::tracer {
namespace {

constexpr auto kAgainAfter = std::chrono::microseconds(200);
// ThreadSanitizer puts a handler off until the thread's next call that it intercepts: none runs for a signal that comes
// just before the thread blocks, and one for several signals. So there the signal comes all the time. In a call that
// waits as long as no handler has run it has to be a signal whose handler is not put off: one of instructions.
#ifdef __SANITIZE_THREAD__
constexpr auto kAgainEvery = std::chrono::milliseconds(10);
constexpr int kCollectSignal = SIGSYS;
#else
constexpr auto kAgainEvery = std::chrono::milliseconds(0);
constexpr int kCollectSignal = Waiter::kWakeSignal;
#endif
constexpr unsigned kMostInARow = 8;
constexpr unsigned kMostCutShort = 4;

sigset_t wake_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, Waiter::kWakeSignal);
  sigaddset(&set, kCollectSignal);
  return set;
}

timespec timespec_of(std::chrono::nanoseconds t) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(t);
  return {seconds.count(), (t - seconds).count()};
}

constexpr int kAlarm = 1, kAgain = 2, kCollect = 3;
constexpr auto kCollectEvery = std::chrono::milliseconds(5);
constexpr unsigned kTicksUntilAll = 4;  // of that

// A timer whose signal goes to the calling thread and carries `value`.
timer_t make_timer(int value, int signal = Waiter::kWakeSignal) {
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = signal;
  event.sigev_value.sival_int = value;
  event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));  // glibc 2.36 has no public name for this field
  timer_t timer{};
  PROBED_CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "the tracer thread has its timers");
  return timer;
}

thread_local Waiter* waiter_of_this_thread = nullptr;  // for the signal's handler

using Kind = WaitStatus::Kind;

Kind event_kind(int event, int signal) {
  switch (event) {
    case PTRACE_EVENT_CLONE: return Kind::clone;
    case PTRACE_EVENT_FORK: return Kind::fork;
    case PTRACE_EVENT_VFORK: return Kind::vfork;
    case PTRACE_EVENT_VFORK_DONE: return Kind::vfork_done;
    case PTRACE_EVENT_EXEC: return Kind::exec;
    // ptrace(2), "Group-stop": a seized thread reports the stopping signal here, and SIGTRAP for everything else.
    case PTRACE_EVENT_STOP: return signal == SIGTRAP ? Kind::interrupt : Kind::group_stop;
    default: return Kind::other;
  }
}

std::pair<Kind, int> decode(int raw) {
  if (WIFEXITED(raw)) return {Kind::exited, WEXITSTATUS(raw)};
  if (WIFSIGNALED(raw)) return {Kind::killed, WTERMSIG(raw)};
  PROBED_CHECK(WIFSTOPPED(raw), "a wait status is of an exit or a stop");
  const int signal = WSTOPSIG(raw);
  const int event = static_cast<unsigned>(raw) >> 16;
  if (event != 0) return {event_kind(event, signal), signal};
  if (signal == (SIGTRAP | 0x80)) return {Kind::syscall, SIGTRAP};
  return {Kind::signal, signal};
}

// The report of a tracee, which stays where it is. nullopt: errno says why, 0 that there is none (yet).
std::optional<Stop> peek(idtype_t type, pid_t tid, int options) {
  siginfo_t info{};
  const int flags = WEXITED | WSTOPPED | WNOWAIT | __WALL | __WNOTHREAD | options;
  if (waitid(type, static_cast<id_t>(tid), &info, flags) != 0) return std::nullopt;
  if (info.si_pid == 0) return errno = 0, std::nullopt;
  // waitid has another encoding for it (kernel/exit.c, wait_task_zombie, wait_task_stopped).
  int raw = info.si_status << 8 | 0x7f;
  if (info.si_code == CLD_EXITED) raw = info.si_status << 8;
  if (info.si_code == CLD_KILLED || info.si_code == CLD_DUMPED) raw = info.si_status;
  return Stop{info.si_pid, WaitStatus(raw)};
}

// That report, or what it has become meanwhile: the thread's exit. nullopt: it was killed, its exit follows.
std::optional<Stop> take(pid_t tid) {
  int raw = 0;
  if (waitpid(tid, &raw, __WALL | __WNOTHREAD | WNOHANG) != tid) return std::nullopt;
  return Stop{tid, WaitStatus(raw)};
}

bool is_signal(const Stop& stop) { return stop.status.kind() == Kind::signal; }

}  // namespace

WaitStatus::WaitStatus(int raw) : kind_(Kind::other), value_(0) { std::tie(kind_, value_) = decode(raw); }

Waiter::~Waiter() {
  if (!bound_ || process_ != getpid()) return;  // they have gone with their process
  timer_delete(alarm_);
  timer_delete(again_);
  timer_delete(collect_);
}

void Waiter::block_signals() {
  const sigset_t set = wake_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  // Stops are waited for, never signalled; exits keep their status as long as SIGCHLD isn't SIG_IGN (waitpid(2),
  // NOTES).
  struct sigaction quiet {};
  quiet.sa_handler = SIG_DFL;
  quiet.sa_flags = SA_NOCLDSTOP;
  sigaction(SIGCHLD, &quiet, nullptr);
  // No SA_RESTART: the signal is there to end waitid.
  struct sigaction action {};
  action.sa_sigaction = on_wake_signal;
  action.sa_flags = SA_SIGINFO;
  sigaction(kWakeSignal, &action, nullptr);
  if (kCollectSignal != kWakeSignal) sigaction(kCollectSignal, &action, nullptr);
}

void Waiter::bind_to_this_thread() {
  PROBED_CHECK(!bound_ && waiter_of_this_thread == nullptr, "one waiter a thread, one thread a waiter");
  process_ = getpid();
  thread_ = gettid();
  alarm_ = make_timer(kAlarm);
  again_ = make_timer(kAgain);
  collect_ = make_timer(kCollect, kCollectSignal);
  bound_ = true;
  waiter_of_this_thread = this;
  const itimerspec every{timespec_of(kAgainEvery), timespec_of(kAgainEvery)};
  timer_settime(again_, 0, &every, nullptr);
  const sigset_t set = wake_signals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

// On the tracer thread, in the middle of anything. timer_settime, clock_gettime and waitpid are async-signal-safe
// (signal-safety(7)), and waitid is nothing but a system call either.
void Waiter::on_wake_signal(int signal, siginfo_t* info, void*) {
  Waiter* const self = waiter_of_this_thread;
  if (!self || (kCollectSignal != kWakeSignal && signal == kCollectSignal && !self->in_waiting_call_)) return;
  const int saved = errno;
  if (self->in_waiting_call_) self->collect();
  if (info->si_code == SI_USER) note_death_of_daemon(info->si_pid);
  const bool is_alarm = info->si_code == SI_TIMER && info->si_value.sival_int == kAlarm;
  if (daemon_dies()) self->woken_.store(true);
  if (is_alarm || Clock::now().time_since_epoch().count() >= self->alarm_at_.load()) {
    self->alarm_at_.store(kNever);
    self->woken_.store(true);
  }
  if (self->woken_.load() && self->blocking_.load()) {
    const itimerspec again{timespec_of(kAgainEvery), timespec_of(kAgainAfter)};
    timer_settime(self->again_, 0, &again, nullptr);
  }
  errno = saved;
}

// In the signal's handler. What doesn't fit stays with the kernel, and so do signals (the Guardian can't be asked here)
// and what is behind them. What the tracer thread waits for is the exits of the threads that it has just seized, which
// come before older tracees' stops; younger ones that hide them must be rare, and then lose their signal if we die.
void Waiter::collect() {
  std::size_t count = collected_count_.load();
  const bool all = ticks_.fetch_add(1) >= kTicksUntilAll;
  for (int raw = 0; count < collected_.size(); ++count) {
    const auto next = peek(P_ALL, 0, WNOHANG);
    if (!next || (is_signal(*next) && !all)) break;
    const pid_t tid = waitpid(next->tid, &raw, __WALL | __WNOTHREAD | WNOHANG);
    if (tid <= 0) break;
    collected_[count] = {tid, raw};
  }
  collected_count_.store(count);
}

Waiter::Collecting::Collecting(Waiter& waiter) : waiter_(waiter) {
  waiter_.take_standing();
  note_progress();
  const itimerspec every{timespec_of(kCollectEvery), timespec_of(kCollectEvery)};
  timer_settime(waiter_.collect_, 0, &every, nullptr);
}

Waiter::Collecting::~Collecting() {
  const itimerspec never{};
  timer_settime(waiter_.collect_, 0, &never, nullptr);
  const std::size_t count = waiter_.collected_count_.exchange(0);
  for (std::size_t i = 0; i < count; ++i)
    waiter_.gathered_.push_back({waiter_.collected_[i].tid, WaitStatus(waiter_.collected_[i].raw)});
}

// Whoever it was handed out to has dealt with it, and left the thread standing; or another is about to be handed out. A
// thread that was killed meanwhile has another report: its exit, or of an exec that has taken its id over. It may be
// killed between the two looks as well: that report is nobody's to throw away.
void Waiter::take_standing() {
  const pid_t tid = ptrace::standing_thread();
  if (tid == 0) return;
  ptrace::note_standing(0);
  const auto stop = peek(P_PID, tid, WNOHANG);
  if (!stop || !is_signal(*stop)) return;
  if (const auto taken = take(tid); taken && !is_signal(*taken)) gathered_.push_back(*taken);
}

void Waiter::take_report(pid_t tid) {
  if (ptrace::standing_thread() == tid) take_standing();
}

Stop Waiter::pop_gathered() {
  const Stop first = gathered_.front();
  gathered_.pop_front();
  return first;
}

// nullopt: it was killed, its exit follows.
std::optional<Stop> Waiter::hand_out(const Stop& stop) {
  if (!is_signal(stop)) return take(stop.tid);
  take_standing();
  ptrace::note_standing(stop.tid);
  return stop;
}

std::optional<Stop> Waiter::wait() {
  take_standing();
  std::optional<Stop> next;
  if (gathered_.empty() && others_due_) next = gather();
  if (!gathered_.empty()) return pop_gathered();
  if (!next) next = wait_in_kernel();
  if (!next) return std::nullopt;
  others_due_ |= may_hide_others(next->tid);
  return hand_out(*next);
}

std::optional<Stop> Waiter::poll() {
  take_standing();
  std::optional<Stop> next;
  if (gathered_.empty()) next = gather();
  if (!gathered_.empty()) return pop_gathered();
  if (!next) return idle_since_ = Clock::now(), std::nullopt;
  return hand_out(*next);
}

std::optional<Stop> Waiter::wait_in_kernel() {
  std::optional<Stop> stop;
  idle_since_ = Clock::now();
  blocking_.store(true);
  if (!woken_.load()) {
    stop = peek(P_ALL, 0, 0);
    if (!stop && errno == ECHILD) sleep_until_woken();
  }
  blocking_.store(false, std::memory_order_relaxed);
  return stop;
}

bool Waiter::may_hide_others(pid_t tid) {
  if (std::exchange(last_, tid) == tid && ++in_a_row_ < kMostInARow) return false;
  in_a_row_ = 0;
  return true;
}

// A thread that isn't resumed can't stop twice, so this ends. The answer is the report that was left, and may hide
// others.
std::optional<Stop> Waiter::gather() {
  others_due_ = false;
  for (;;) {
    const auto next = peek(P_ALL, 0, WNOHANG);
    if (!next && errno == EINTR) continue;
    if (!next) return cut_short_ = 0, std::nullopt;
    const bool harmless = !is_signal(*next) || (guardian_ && guardian_->secure(next->tid, next->status.signal()));
    if (!harmless && cut_short_ < kMostCutShort) {
      ++cut_short_;
      others_due_ = true;
      return next;
    }
    if (guardian_ && next->status.kind() == WaitStatus::Kind::interrupt) guardian_->keep_call(next->tid);
    if (const auto stop = take(next->tid)) gathered_.push_back(*stop);
  }
}

// Without any tracee waitid doesn't block.
void Waiter::sleep_until_woken() {
  const sigset_t set = wake_signals();
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &set, &before);
  if (!woken_.load()) sigsuspend(&before);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

std::optional<WaitStatus> Waiter::take_gathered(pid_t tid) {
  const auto earlier = std::ranges::find(gathered_, tid, &Stop::tid);
  if (earlier == gathered_.end()) return std::nullopt;
  const WaitStatus status = earlier->status;
  gathered_.erase(earlier);
  return status;
}

// The wake signal, which the alarm raises, comes again and again until this has returned; the main loop looks at its
// own deadlines afterwards and sets its alarm anew.
std::optional<WaitStatus> Waiter::wait_for(pid_t tid, Clock::time_point deadline, bool& late) {
  late = false;
  if (const auto earlier = take_gathered(tid)) return earlier;
  set_alarm(deadline);
  blocking_.store(true);
  std::optional<Stop> stop;
  for (;;) {
    const bool last_look = Clock::now() >= deadline;
    const auto there = peek(P_PID, tid, last_look ? WNOHANG : 0);
    late = !there && errno == 0;
    if (there) stop = hand_out(*there);
    if (stop || late || (!there && errno != EINTR)) break;
  }
  blocking_.store(false);
  woken_.store(true);
  return stop ? std::optional(stop->status) : std::nullopt;
}

std::optional<WaitStatus> Waiter::wait_for(pid_t tid) {
  if (const auto earlier = take_gathered(tid)) return earlier;
  for (;;) {
    const auto there = peek(P_PID, tid, 0);
    if (!there && errno != EINTR) return std::nullopt;
    if (const auto stop = there ? hand_out(*there) : std::nullopt) return stop->status;
  }
}

// One that stands is found again where it is.
void Waiter::give_back(const Stop& stop) {
  if (stop.tid == ptrace::standing_thread())
    ptrace::note_standing(0);
  else
    gathered_.push_back(stop);
}

bool Waiter::gather_from(std::span<const pid_t> tids, Clock::duration limit) {
  constexpr timespec kBlink{0, 50'000};
  const auto deadline = Clock::now() + limit;
  std::set<pid_t> seen;
  const auto has_stopped = [&](pid_t tid) {
    if (seen.contains(tid) || std::ranges::find(gathered_, tid, &Stop::tid) != gathered_.end()) return true;
    const auto stop = peek(P_PID, tid, WNOHANG);
    if (!stop) return errno == ECHILD;
    seen.insert(tid);
    if (guardian_ && stop->status.kind() == WaitStatus::Kind::interrupt) guardian_->keep_call(tid);
    return true;
  };
  for (;;) {
    if (std::ranges::count_if(tids, has_stopped) == static_cast<std::ptrdiff_t>(tids.size())) return true;
    if (Clock::now() >= deadline) return false;
    nanosleep(&kBlink, nullptr);
  }
}

bool Waiter::gather_from(std::span<const pid_t> tids, Clock::duration limit, Clock::duration most) {
  const auto deadline = Clock::now() + most;
  const auto is_starved = [](pid_t tid) { return process::state(tid) == 'R'; };
  do
    if (gather_from(tids, limit)) return true;
  while (Clock::now() < deadline && std::ranges::any_of(tids, is_starved));
  return gather_from(tids, {});  // the last may have stopped since
}

bool Waiter::take_wake() { return woken_.load(std::memory_order_relaxed) && woken_.exchange(false); }

void Waiter::set_alarm(std::optional<Clock::time_point> at) {
  // All zeros disarm it; a time that has passed goes off at once.
  const itimerspec when{{}, at ? timespec_of(at->time_since_epoch()) : timespec{}};
  alarm_at_.store(at ? at->time_since_epoch().count() : kNever);
  timer_settime(alarm_, TIMER_ABSTIME, &when, nullptr);
}

void Waiter::wake() {
  woken_.store(true);
  if (blocking_.load()) syscall(SYS_tgkill, process_, thread_, kWakeSignal);
}

}  // namespace probed::tracer
