// What a program has arranged for SIGTRAP, and how to tell that a trap of ours has spoilt it.
//
// A breakpoint's or a step's SIGTRAP is forced (kernel/signal.c, force_sig_info_to_task): when the thread blocks SIGTRAP
// or the process ignores it, sa_handler becomes SIG_DFL and the thread's mask bit is cleared; sa_flags, sa_mask and
// sa_restorer stay. A program that sets SIG_DFL itself may leave the same ones behind (signal(2) after signal(2)), so an
// action that we know carries a mark: SA_NOCLDWAIT, which the kernel reads for SIGCHLD only. A SIG_DFL with the mark is
// the kernel's doing; one without it is the program's.
//
// Decisions are pure; what reads /proc says so. Any thread.
#pragma once

#include <sys/types.h>

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

enum class Disposition : std::uint8_t { standard, ignored, handled };
Disposition disposition_of(const Action& action);

Action marked(Action action);
Action unmarked(Action action);
// Whether `now` is what a forced signal makes of `known`, and nobody but the kernel would.
bool was_reset(const Action& now, const Action& known);

// Whether a thread with this mask, whose SIGTRAP bit a forced signal may have cleared, blocked SIGTRAP too: it blocks
// every other signal that instructions raise, which nobody does but by blocking all (sigfillset, as C libraries do
// around clone, posix_spawn and abort).
bool blocked_with_all_others(std::uint64_t mask);

// From an open /proc/TID/stat (proc(5), sigignore and sigcatch); nullopt: the thread is gone.
std::optional<Disposition> trap_disposition(int stat_fd);
// The same, opened for the purpose.
std::optional<Disposition> trap_disposition_of(pid_t tid);
// The stat file of one thread alone: that of /proc/PID adds up every thread's times.
int open_thread_stat(pid_t tid);

// Whether the thread has a SIGTRAP on its way to it, or stands in a tracing stop: it may have run into a breakpoint a
// moment ago. The order in which this looks leaves no gap: a signal is dequeued, and the thread's state changed for its
// stop, in one critical section (kernel/signal.c, get_signal, ptrace_stop).
bool trap_in_flight(pid_t tid);

// Whether SIGTRAP is in the thread's mask.
bool blocks_trap(pid_t tid);

// Whether a SIGTRAP waits for this thread or for its process, blocked or not.
bool trap_pending(pid_t tid);

}  // namespace probed::tracer
