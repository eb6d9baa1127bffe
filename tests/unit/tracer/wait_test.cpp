// Wait statuses: what the kernel's words mean (ptrace(2), "Stopped states").
#include "daemon/tracer/kernel/wait.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/ptrace.h>

using probed::tracer::WaitStatus;
using Kind = WaitStatus::Kind;

namespace {

constexpr int stopped(int signal, int event = 0) { return 0x7f | signal << 8 | event << 16; }

struct Row {
  const char* what;
  int raw;
  Kind kind;
  int value;
};

constexpr Row kRows[] = {
    {"exit 7", 7 << 8, Kind::exited, 7},
    {"killed by SIGKILL", SIGKILL, Kind::killed, SIGKILL},
    {"killed by SIGSEGV with a core", SIGSEGV | 0x80, Kind::killed, SIGSEGV},
    {"a signal about to be delivered", stopped(SIGUSR1), Kind::signal, SIGUSR1},
    {"a breakpoint's SIGTRAP", stopped(SIGTRAP), Kind::signal, SIGTRAP},
    {"a system call stop (TRACESYSGOOD)", stopped(SIGTRAP | 0x80), Kind::syscall, SIGTRAP},
    {"interrupted", stopped(SIGTRAP, PTRACE_EVENT_STOP), Kind::interrupt, SIGTRAP},
    {"stopped by job control", stopped(SIGTSTP, PTRACE_EVENT_STOP), Kind::group_stop, SIGTSTP},
    {"clone", stopped(SIGTRAP, PTRACE_EVENT_CLONE), Kind::clone, SIGTRAP},
    {"fork", stopped(SIGTRAP, PTRACE_EVENT_FORK), Kind::fork, SIGTRAP},
    {"vfork", stopped(SIGTRAP, PTRACE_EVENT_VFORK), Kind::vfork, SIGTRAP},
    {"end of a vfork", stopped(SIGTRAP, PTRACE_EVENT_VFORK_DONE), Kind::vfork_done, SIGTRAP},
    {"exec", stopped(SIGTRAP, PTRACE_EVENT_EXEC), Kind::exec, SIGTRAP},
    {"an event nobody asked for", stopped(SIGTRAP, PTRACE_EVENT_SECCOMP), Kind::other, SIGTRAP},
};

}  // namespace

TEST_CASE("a wait status is decoded to exactly one kind of stop") {
  for (const Row& row : kRows) {
    CAPTURE(row.what);
    const WaitStatus status(row.raw);
    CHECK(status.kind() == row.kind);
    CHECK(status.signal() == row.value);
    CHECK(status.stopped() == (row.kind != Kind::exited && row.kind != Kind::killed));
  }
}
