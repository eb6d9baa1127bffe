#include "daemon/tracer/wait.hpp"

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <tuple>
#include <utility>

#include "daemon/base/check.hpp"

namespace probed::tracer {
namespace {

// Not a real-time signal: one pending instance is all a wake-up needs.
constexpr int kWakeSignal = SIGUSR2;

sigset_t waited_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  sigaddset(&set, kWakeSignal);
  return set;
}

using Kind = WaitStatus::Kind;

Kind event_kind(int event, int signal) {
  switch (event) {
    case PTRACE_EVENT_CLONE: return Kind::clone;
    case PTRACE_EVENT_FORK: return Kind::fork;
    case PTRACE_EVENT_VFORK: return Kind::vfork;
    case PTRACE_EVENT_EXEC: return Kind::exec;
    // ptrace(2), "Group-stop": a seized thread reports the stopping signal here, and SIGTRAP for everything else.
    case PTRACE_EVENT_STOP: return signal == SIGTRAP ? Kind::interrupt : Kind::group_stop;
    default: return Kind::other;
  }
}

std::pair<Kind, int> decode(int raw) {
  if (WIFEXITED(raw)) return {Kind::exited, WEXITSTATUS(raw)};
  if (WIFSIGNALED(raw)) return {Kind::killed, WTERMSIG(raw)};
  PROBED_CHECK(WIFSTOPPED(raw), "waitpid reports exits and stops only");
  const int signal = WSTOPSIG(raw);
  const int event = static_cast<unsigned>(raw) >> 16;
  if (event != 0) return {event_kind(event, signal), signal};
  if (signal == (SIGTRAP | 0x80)) return {Kind::syscall, SIGTRAP};
  return {Kind::signal, signal};
}

}  // namespace

WaitStatus::WaitStatus(int raw) : kind_(Kind::other), value_(0) { std::tie(kind_, value_) = decode(raw); }

void Waiter::block_signals() {
  const sigset_t set = waited_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void Waiter::bind_to_this_thread() { thread_ = pthread_self(); }

// A thread that isn't resumed can't stop twice, so this ends.
void Waiter::gather() {
  int raw = 0;
  for (;;) {
    const pid_t tid = waitpid(-1, &raw, __WALL | __WNOTHREAD | WNOHANG);
    if (tid > 0)
      gathered_.push_back({tid, WaitStatus(raw)});
    else if (tid == 0 || errno != EINTR)
      return;
  }
}

std::optional<Stop> Waiter::next() {
  if (gathered_.empty()) {
    // Asked again after the last one: what has come since is announced by a signal, which block_until() finds.
    if (std::exchange(drained_, false)) return std::nullopt;
    gather();
    if (gathered_.empty()) return std::nullopt;
    drained_ = true;
  }
  const Stop first = gathered_.front();
  gathered_.pop_front();
  return first;
}

std::optional<WaitStatus> Waiter::wait_for(pid_t tid) {
  const auto earlier = std::ranges::find(gathered_, tid, &Stop::tid);
  if (earlier != gathered_.end()) {
    const WaitStatus status = earlier->status;
    gathered_.erase(earlier);
    return status;
  }
  int raw = 0;
  for (;;) {
    const pid_t got = waitpid(tid, &raw, __WALL | __WNOTHREAD);
    if (got == tid) return WaitStatus(raw);
    if (got == -1 && errno != EINTR) return std::nullopt;
  }
}

bool Waiter::block_until(std::optional<Clock::time_point> deadline) {
  static const sigset_t set = waited_signals();
  if (!deadline) return sigwaitinfo(&set, nullptr) > 0;
  const auto left = std::max(*deadline - Clock::now(), Clock::duration::zero());
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
  const timespec timeout{seconds.count(), std::chrono::nanoseconds(left - seconds).count()};
  return sigtimedwait(&set, nullptr, &timeout) > 0 || errno == EINTR;
}

void Waiter::wake() { pthread_kill(thread_, kWakeSignal); }

}  // namespace probed::tracer
