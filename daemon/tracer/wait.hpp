// The one gate for waitpid(2), and what its status words mean.
//
// Owning thread: the tracer thread, except wake(). SIGCHLD and the wake signal are blocked in every thread of the daemon
// (block_signals() before any thread starts); the tracer consumes them with sigtimedwait, so neither a stop nor a wake-up
// that arrives between a drain and the next wait is ever missed.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>

namespace probed::tracer {

// One decoded wait status of one thread.
class WaitStatus {
 public:
  enum class Kind : std::uint8_t {
    exited,      // code()
    killed,      // signal()
    signal,      // signal-delivery-stop: signal() is about to be delivered
    group_stop,  // job control: signal() is the stopping signal
    interrupt,   // PTRACE_EVENT_STOP: our interrupt, a new tracee's first stop, or SIGCONT after listening
    syscall,     // entry or exit of an injected system call
    clone,
    fork,
    vfork,
    exec,
    other,       // an event we didn't ask for; resumed
  };

  explicit WaitStatus(int raw);
  Kind kind() const { return kind_; }
  int signal() const { return value_; }
  int code() const { return value_; }
  bool stopped() const { return kind_ != Kind::exited && kind_ != Kind::killed; }

 private:
  Kind kind_;
  int value_;
};

struct Stop {
  pid_t tid;
  WaitStatus status;
};

class Waiter {
 public:
  using Clock = std::chrono::steady_clock;

  // Before the process starts its first thread.
  static void block_signals();
  // On the tracer thread, before wake() may be used.
  void bind_to_this_thread();

  // A stop or exit of any of this thread's tracees, without blocking. Fair: everything that is there is gathered before
  // any of it is handed out. (The kernel answers waitpid(-1) with the youngest tracee first: kernel/ptrace.c,
  // __ptrace_link adds at the head. A few busy threads would starve all older ones.)
  std::optional<Stop> next();
  // The next stop or exit of this one tracee, blocking. nullopt: there's no such tracee any more.
  std::optional<WaitStatus> wait_for(pid_t tid);
  // Blocks until a tracee may have stopped or wake() was called (true), or the deadline has passed (false).
  bool block_until(std::optional<Clock::time_point> deadline);
  // Any thread: ends the current or the next block_until.
  void wake();

 private:
  void gather();

  pthread_t thread_{};
  std::deque<Stop> gathered_;
  bool drained_ = false;  // nothing was left when we last asked
};

}  // namespace probed::tracer
