// What a program has arranged for the signals that our own code raises in it, and how to tell that one of these has
// spoilt it: SIGTRAP (breakpoints, steps), SIGSEGV and SIGBUS (a detour's load of an argument that isn't there).
//
// They are forced (kernel/signal.c, force_sig_info_to_task): when the thread blocks the signal or the process ignores
// it, sa_handler becomes SIG_DFL and the thread's mask bit is cleared; sa_flags, sa_mask and sa_restorer stay. A
// program that sets SIG_DFL itself may leave the same ones behind (signal(2) after signal(2)), so an action that we
// know carries a mark: SA_NOCLDWAIT, which the kernel reads for SIGCHLD only. A SIG_DFL with the mark is the kernel's
// doing; one without it is the program's.
//
// Decisions are pure; what reads /proc says so. Any thread.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace probed::tracer {

// struct sigaction as rt_sigaction(2) takes it on x86-64 and aarch64.
struct Action {
  std::uint64_t handler = 0;
  std::uint64_t flags = 0;
  std::uint64_t restorer = 0;
  std::uint64_t mask = 0;

  bool operator==(const Action&) const = default;
};
static_assert(sizeof(Action) == 32);

// The signals that this is about, and their places in tables.
inline constexpr std::array<int, 3> kForcedSignals{SIGTRAP, SIGSEGV, SIGBUS};
constexpr bool is_forced_signal(int signal) { return signal == SIGTRAP || signal == SIGSEGV || signal == SIGBUS; }
constexpr std::size_t forced_index(int signal) { return signal == SIGTRAP ? 0 : signal == SIGSEGV ? 1 : 2; }

enum class Disposition : std::uint8_t { standard, ignored, handled };
using Dispositions = std::array<Disposition, kForcedSignals.size()>;  // by forced_index()
Disposition disposition_of(const Action& action);

Action marked(Action action);
Action unmarked(Action action);
// Whether `now` is what a forced signal makes of `known`, and nobody but the kernel would.
bool was_reset(const Action& now, const Action& known);

// Whether a thread with this mask, whose bit for `signal` a forced one may have cleared, blocked that too: it blocks
// every other signal that instructions raise, which nobody does but by blocking all (sigfillset, as C libraries do
// around clone, posix_spawn and abort).
bool blocked_with_all_others(std::uint64_t mask, int signal);
// Whether this mask blocks `signal` and not all others that instructions raise: a bit that, once it is cleared, nothing
// in the mask tells of.
bool blocks_alone(std::uint64_t mask, int signal);

// From an open /proc/TID/stat (proc(5), sigignore and sigcatch); nullopt: the thread is gone.
std::optional<Dispositions> dispositions(int stat_fd);
// The same, opened for the purpose.
std::optional<Dispositions> dispositions_of(pid_t tid);
// The stat file of one thread alone: that of /proc/PID adds up every thread's times.
int open_thread_stat(pid_t tid);

// Whether the thread has that signal on its way to it, or stands in a tracing stop: it may have run into a breakpoint a
// moment ago. The order in which this looks leaves no gap: a signal is dequeued, and the thread's state changed for its
// stop, in one critical section (kernel/signal.c, get_signal, ptrace_stop).
bool signal_in_flight(pid_t tid, int signal);

// What the thread blocks, from /proc; 0 also when it is gone.
std::uint64_t blocked_by(pid_t tid);

// Whether that signal waits for this thread or for its process, blocked or not.
bool signal_pending(pid_t tid, int signal);

}  // namespace probed::tracer
