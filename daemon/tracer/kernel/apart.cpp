#include "daemon/tracer/kernel/apart.hpp"

#include <sched.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "arch/lock_wait.hpp"
#include "daemon/base/alone.hpp"
#include "daemon/base/last_words.hpp"
#include "daemon/base/own_processes.hpp"

namespace probed::tracer {
namespace {

constexpr std::size_t kStackSize = 8 << 20, kGuardSize = 64 << 10;  // bytes
constexpr int kFlags = CLONE_VM | CLONE_FILES | CLONE_FS;           // and no signal at its end
constexpr unsigned kFirstSeconds = 3;
std::atomic<pid_t> waiting{0};
std::atomic<bool> dies{false};
std::atomic<std::int64_t> ends_at{0};        // seconds of CLOCK_MONOTONIC
constexpr suseconds_t kAlarmEvery = 10'000;  // microseconds

std::int64_t seconds_now() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

// Again and again while this process is alone. A lock that it waits for belongs to a dead thread: nobody else gives it
// back, and nobody is left to be kept out. What it guards may be half done, malloc's lists for instance. But alone this
// process asks malloc for hardly anything (base/alone.hpp), and if it fails now its guard does the work, as it would if
// the process had waited on.
void on_alarm(int, siginfo_t*, void* context) {
  if (seconds_now() > ends_at.load()) {
    ::signal(SIGALRM, SIG_DFL);
    ::kill(::getpid(), SIGALRM);  // comes when this returns
    return;
  }
  if (int* const lock = arch::lock_waited_for(context)) __atomic_store_n(lock, 0, __ATOMIC_SEQ_CST);
}

void handle_alarm() {
  struct sigaction action {};
  action.sa_sigaction = on_alarm;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  ::sigaction(SIGALRM, &action, nullptr);
}

struct Start {
  const std::function<void()>& body;
  int on_wake;
  sigset_t mask;  // the calling thread's own
};

int begin(void* argument) {
  const Start& start = *static_cast<Start*>(argument);
  ::prctl(PR_SET_NAME, kTracerName);
  ::setsid();  // what is sent to the daemon's group or session isn't meant for it
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE, SIGTSTP, SIGTTIN, SIGTTOU})
    ::signal(signal, SIG_IGN);
  handle_alarm();
  set_own_processes(daemon_process(), ::getpid());
  sigset_t mask = start.mask;
  sigdelset(&mask, SIGALRM);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  ::prctl(PR_SET_PDEATHSIG, start.on_wake);
  note_death_of_daemon(0);
  start.body();
  return 0;
}

// Nothing in here is the C library's but the two functions, which touch no thread-local storage unless they fail: that
// is the other process' until it has ended. Every signal is blocked, so none can interrupt the wait. An errno: there is
// no process.
int run_and_wait(void* stack_top, Start& start, siginfo_t& end) {
  const int pid = ::clone(begin, stack_top, kFlags, &start);
  if (pid < 0) return errno;
  ::syscall(SYS_waitid, P_PID, pid, &end, WEXITED | __WALL, nullptr);
  return 0;
}

// Its stack, and a page below it that nobody may touch.
class Stack {
 public:
  Stack() : base_(::mmap(nullptr, kGuardSize + kStackSize, PROT_READ | PROT_WRITE, kKind, -1, 0)) {
    if (base_ != MAP_FAILED) ::mprotect(base_, kGuardSize, PROT_NONE);
  }
  ~Stack() {
    if (base_ != MAP_FAILED) ::munmap(base_, kGuardSize + kStackSize);
  }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  // null: there is none
  void* top() const { return base_ == MAP_FAILED ? nullptr : static_cast<std::byte*>(base_) + kGuardSize + kStackSize; }

 private:
  static constexpr int kKind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK;
  void* base_;
};

[[noreturn]] void end_like(const siginfo_t& end) {
  if (end.si_code == CLD_EXITED) {
    spdlog::critical("the tracer has ended with status {}: so does the daemon", end.si_status);
    ::_exit(EXIT_FAILURE);
  }
  spdlog::critical("the tracer was killed by signal {} ({}): so is the daemon{}", end.si_status,
                   strsignal(end.si_status), last_words());
  ::signal(end.si_status, SIG_DFL);
  ::kill(::getpid(), end.si_status);
  ::kill(::getpid(), SIGKILL);
  for (;;) ::pause();
}

// The kernel has no thread in it any more, and the next one would be its child (kernel/exit.c, forget_original_parent).
bool daemon_has_died() {
  const pid_t daemon = daemon_process();
  return tracer_process() == ::getpid() && daemon != ::getpid() && ::getppid() != daemon;
}

}  // namespace

pid_t waiting_thread() { return waiting.load(); }
bool daemon_dies() { return dies.load(); }

// The signal comes whenever the thread whose child this process is ends, in that thread's name; the next one that lives
// takes its place (kernel/exit.c, forget_original_parent, reparent_leader).
void note_death_of_daemon(pid_t sender) {
  const bool died = daemon_has_died();
  if (died || (sender != 0 && sender == daemon_process())) dies.store(true);
  if (alone() || !died) return;
  go_alone();
  give_seconds(kFirstSeconds);
  const itimerval often{{0, kAlarmEvery}, {0, kAlarmEvery}};
  ::setitimer(ITIMER_REAL, &often, nullptr);
}

void give_seconds(unsigned seconds) { ends_at.store(seconds_now() + seconds); }

void run_apart(int on_wake, const std::function<void()>& body) {
  const pid_t daemon = ::getpid();
  set_own_processes(daemon, 0);
  sigset_t all;
  Start start{body, on_wake, {}};
  sigfillset(&all);
  const Stack stack;
  int error = 0;
  siginfo_t end{};
  if (kMayRunApart && stack.top()) {
    waiting.store(::gettid());
    ::pthread_sigmask(SIG_SETMASK, &all, &start.mask);
    error = run_and_wait(stack.top(), start, end);
    ::pthread_sigmask(SIG_SETMASK, &start.mask, nullptr);
    if (error == 0 && (end.si_code != CLD_EXITED || end.si_status != 0)) end_like(end);
    waiting.store(0);
    if (error == 0) return set_own_processes(daemon, 0);
  }
  if (kMayRunApart)
    spdlog::warn(
        "the tracer gets no process of its own ({}): should this daemon be killed, programs that handle SIGTRAP "
        "themselves may be harmed",
        std::strerror(stack.top() ? error : ENOMEM));
  set_own_processes(daemon, daemon);
  body();
  set_own_processes(daemon, 0);
}

}  // namespace probed::tracer
