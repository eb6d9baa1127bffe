// The one gate for waitid(2) and waitpid(2), and what its status words mean.
//
// Owning thread: the tracer thread, except wake().
//
// The tracer blocks in waitid itself: a stop then costs one system call to wait for, and no SIGCHLD (asking for one,
// and waiting for it with a time limit, cost a sixth of a hit; tests/bench, part-sigwait). What ends the wait besides
// is the wake signal. A wake-up must not be lost that arrives just before the thread blocks:
//
//   wake()     woken_ = true; if (blocking_) raise the signal
//   wait()     blocking_ = true; if (!woken_) waitid
//   the signal's handler, when woken_ is still set while blocking_: make a timer raise it again a moment later
//
// Both flags are sequentially consistent: either wait() sees woken_, or wake() sees blocking_. In the latter case the
// signal either ends waitid (EINTR), or comes in the moment between the test and the system call; then it comes again
// until wait() has returned. An alarm is a wake-up that a timer makes.
//
// Our death. waitpid takes the signal that a tracee has stopped for away with its report: a thread whose tracer is
// killed goes on with what the report says (kernel/exit.c, wait_task_stopped; kernel/signal.c, ptrace_stop: exit_code),
// which is nothing then. Behind a breakpoint that is the middle of an instruction. So reports are only looked at
// (WNOWAIT):
//
//   - that of an event, a system call or an exit is taken before the stop is handed out: nothing is lost with it;
//   - that of a signal *stands* while its stop is being dealt with; what resumes the thread ends it. If we die, the
//     signal is delivered, and the landing takes a breakpoint's (landing.hpp). At most one report stands.
//
// Fairness. The kernel answers with the youngest tracee first (kernel/ptrace.c: __ptrace_link adds at the head), and
// with the same one as long as its report is there: a few busy threads would starve all older ones. So when another
// thread has stopped than the one before, everything that is there is gathered before any more of it is handed out. To
// see behind a signal's report it must be taken; a Guardian sees to it first that the thread survives that, as one that
// has run into a breakpoint does when it is put back in front of it. A report that it can't help is left to be handed
// out next, unless such have hidden the others several times in a row. While one and the same thread stops, that
// question is asked every few stops only.
//
// Where the tracer thread is a process of its own (apart.hpp) the kernel raises the wake signal as well when the daemon
// has died.
//
// Every other thread keeps the signal blocked. Its handler may interrupt any system call of the tracer thread; those
// that the kernel can interrupt and that aren't made again by their callers don't belong on this thread.
#pragma once

#include <signal.h>
#include <sys/types.h>
#include <time.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <span>

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
    vfork_done,  // only after ptrace::report_vfork_done
    exec,
    other,  // an event we didn't ask for; resumed
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

  class Guardian {
   public:
    virtual ~Guardian() = default;
    // For a thread that stands in a signal's stop: sees to it that it gets on both with and without that signal, should
    // we die. False: it can't be helped.
    virtual bool secure(pid_t tid, int signal) = 0;
    // For one that stands in the stop of our interrupt and will have to wait for its turn: sees to it that the call it
    // was in goes on, should we die. More than once does no harm.
    virtual void keep_call(pid_t tid) = 0;
  };

  Waiter() = default;
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;
  // When no thread can call wake() any more.
  ~Waiter();

  // What ends a wait; its handler takes the daemon's death from the kernel, too (apart.hpp).
  static constexpr int kWakeSignal = SIGUSR2;  // not a real-time signal: one pending instance is all that is needed

  // Before the process starts its first thread.
  static void block_signals();
  // On the tracer thread, before anything below, and once.
  void bind_to_this_thread();
  // It outlives all waits; null: nobody can be helped.
  void set_guardian(Guardian* guardian) { guardian_ = guardian; }

  // The next stop or exit of any of this thread's tracees, blocking. nullopt: look at take_wake(), and wait again.
  std::optional<Stop> wait();
  // When wait() last found nothing to hand out: what has stopped since can't have stood still for longer.
  Clock::time_point idle_since() const { return idle_since_; }
  // The next stop or exit that is there already. nullopt: none is. Whoever is woken again and again must not forget the
  // stops for it.
  std::optional<Stop> poll();
  // The next stop or exit of this one tracee, blocking. nullopt: there's no such tracee any more.
  std::optional<WaitStatus> wait_for(pid_t tid);
  // The same, not longer than until then: `late` says that the time has passed (and the answer is nullopt).
  std::optional<WaitStatus> wait_for(pid_t tid, Clock::time_point deadline, bool& late);
  // Waits until each of these tracees has stopped or ended, polling, `limit` in all; wait() and wait_for() hand out
  // what they say afterwards. False: some haven't.
  bool gather_from(std::span<const pid_t> tids, Clock::duration limit);
  // The same, but `most` as long as some of them only wait for a processor.
  bool gather_from(std::span<const pid_t> tids, Clock::duration limit, Clock::duration most);
  // The report of the stop that was handed out last, if it is this thread's, stands no longer: should we die, the
  // thread goes on without its signal. Before another signal than that is put in its place, whose siginfo wouldn't fit.
  void take_report(pid_t tid);
  // For wait() to hand out, in its turn, what wait_for() gave.
  void give_back(const Stop& stop);
  // Whether wake() was called, or an alarm went off, since the last time. A plain load unless so.
  bool take_wake();
  // One wake-up at this time, instead of the alarm set before; nullopt: none.
  void set_alarm(std::optional<Clock::time_point> at);
  // Any thread: ends the current or the next wait().
  void wake();

  // While it lives, exits and stops are collected even if the tracer thread is blocked in a call made by during();
  // wait() hands them out afterwards. For PTRACE_SEIZE: it waits for cred_guard_mutex, which a thread of the target
  // that is in execve(2) holds until the others, which may be ours already, have been waited for (kernel/ptrace.c,
  // ptrace_attach; fs/exec.c, de_thread). Not nested.
  class Collecting {
   public:
    explicit Collecting(Waiter& waiter);
    ~Collecting();
    Collecting(const Collecting&) = delete;
    Collecting& operator=(const Collecting&) = delete;
    // The tracer thread isn't blocked for good. Until it has been for some ticks signals' reports stay where they are.
    void note_progress() const { waiter_.ticks_.store(0); }
    // Makes the call that may wait.
    template <class Call>
    auto during(Call&& call) const {
      waiter_.in_waiting_call_ = 1;
      const auto result = call();
      const int error = errno;
      waiter_.in_waiting_call_ = 0;
      errno = error;
      return result;
    }

   private:
    Waiter& waiter_;
  };

 private:
  static void on_wake_signal(int, siginfo_t* info, void*);
  std::optional<Stop> wait_in_kernel();
  void sleep_until_woken();
  bool may_hide_others(pid_t tid);
  std::optional<Stop> gather();
  std::optional<Stop> hand_out(const Stop& stop);
  void take_standing();
  Stop pop_gathered();
  std::optional<WaitStatus> take_gathered(pid_t tid);
  void collect();

  struct Collected {
    pid_t tid;
    int raw;
  };

  pid_t process_ = 0, thread_ = 0;  // where it is bound
  static constexpr Clock::rep kNever = std::numeric_limits<Clock::rep>::max();

  timer_t alarm_{};  // raises the wake signal for set_alarm()
  timer_t again_{};  // raises it once more for its own handler
  bool bound_ = false;
  Guardian* guardian_ = nullptr;
  std::deque<Stop> gathered_;  // their reports have been taken
  bool others_due_ = false;    // gather before the next wait
  unsigned cut_short_ = 0;     // gatherings in a row that a signal's report has ended
  pid_t last_ = 0;             // the thread that stopped last, and how often in a row without a look at the others
  unsigned in_a_row_ = 0;
  Clock::time_point idle_since_{};
  timer_t collect_{};  // raises it while Collecting
  std::array<Collected, 4096> collected_{};
  std::atomic<std::size_t> collected_count_{0};
  volatile sig_atomic_t in_waiting_call_ = 0;
  std::atomic<unsigned> ticks_{0};            // of Collecting, since its last progress
  std::atomic<Clock::rep> alarm_at_{kNever};  // since the clock's epoch
  std::atomic<bool> woken_{false};
  std::atomic<bool> blocking_{false};
};

}  // namespace probed::tracer
