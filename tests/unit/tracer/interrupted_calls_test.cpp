// Which system calls may be made again after a stop, and what a thread would have ignored.
#include "daemon/tracer/kernel/interrupted_calls.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace probed::tracer;

TEST_CASE("calls without an effect so far may be made again; close and nanosleep may not") {
  CHECK(may_be_made_again(SYS_epoll_pwait));
  CHECK(may_be_made_again(SYS_rt_sigtimedwait));
  CHECK(may_be_made_again(SYS_semop));
  CHECK(may_be_made_again(SYS_ppoll));
  CHECK_FALSE(may_be_made_again(SYS_close));      // the descriptor is gone already
  CHECK_FALSE(may_be_made_again(SYS_nanosleep));  // the kernel restarts it itself, with the rest of the time
  CHECK_FALSE(may_be_made_again(SYS_clock_nanosleep));
}

TEST_CASE("a signal is known to be ignored by disposition or by default") {
  const pid_t self = getpid();
  CHECK(would_be_ignored(self, SIGWINCH));
  CHECK_FALSE(would_be_ignored(self, SIGTERM));
  struct sigaction old {};
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGUSR1, &ignore, &old);
  CHECK(would_be_ignored(self, SIGUSR1));
  sigaction(SIGUSR1, &old, nullptr);
  struct sigaction handle {};
  handle.sa_handler = [](int) {};
  sigaction(SIGWINCH, &handle, &old);
  CHECK_FALSE(would_be_ignored(self, SIGWINCH));
  sigaction(SIGWINCH, &old, nullptr);
}

TEST_CASE("a running thread is cheaper to stop than one in a call, one in write is dearer") {
  struct Child {
    explicit Child(void (*body)(int)) {
      REQUIRE(pipe(fds) == 0);
      pid = fork();
      if (pid == 0) {
        body(fds[0]);
        _exit(0);
      }
    }
    ~Child() {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    // What /proc says settles as soon as the child is where it is going to stay.
    bool settles_at(int wanted) const {
      for (int i = 0; i < 1'000'000; ++i)
        if (interruption_cost(pid) == wanted) return true;
      return false;
    }
    int fds[2];
    pid_t pid;
  };
  const Child spinning([](int) {
    for (volatile int i = 0;;) i = i + 1;
  });
  const Child reading([](int fd) {
    char byte = 0;
    [[maybe_unused]] const auto n = read(fd, &byte, 1);
  });
  const Child writing([](int) {
    int full[2];
    char bytes[4096] = {};
    if (pipe(full) != 0) _exit(1);
    while (write(full[1], bytes, sizeof bytes) > 0) {
    }
  });
  CHECK(spinning.settles_at(0));
  CHECK(reading.settles_at(2));
  CHECK(writing.settles_at(4));
}
