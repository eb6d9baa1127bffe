// Which system calls notice a PTRACE_INTERRUPT, and how to choose the thread that notices it least.
//
// Pure, but for reading /proc. Any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

namespace probed::tracer {

// Whether a call that returned EINTR because its thread was stopped can simply be made again: it had no effect yet, and
// the kernel doesn't restart it by itself (signal(7), "Interruption of system calls ... by stop signals"; the calls in
// question return -EINTR where others return -ERESTART*). Not in the list: calls that may have had an effect (close).
// `other`: of the architecture's second table of calls, native::kOtherCalls.
enum class CallTable { own, other };
bool may_be_made_again(std::uint64_t syscall_number, CallTable table = CallTable::own);

// Whether the kernel may go on with such a call, interrupted, by restart_syscall: those with a restart_block
// (kernel/time/hrtimer.c, kernel/time/alarmtimer.c, kernel/futex/waitwake.c), and restart_syscall itself.
bool may_be_gone_on_with(std::uint64_t syscall_number);

// How much it may disturb a thread to stop it now; less is better. Reads /proc/TID/syscall.
int interruption_cost(pid_t tid);

// Whether the thread waits in a call that may fail with EINTR when it is stopped: the kernel doesn't make it again by
// itself. From when it is asked to stop until we have put its call back, our death would be seen by the program. So
// such a thread isn't stopped where it is enough that it sleeps. Reads /proc/TID/syscall.
bool may_lose_its_call(pid_t tid);

// The call that the thread is blocked in, as /proc/TID/syscall shows it; nullopt: in none.
struct BlockedCall {
  std::uint64_t number = 0, first_argument = 0, sp = 0, pc = 0;
};
std::optional<BlockedCall> blocked_call(pid_t tid);

// Whether the thread may be making a new task at this moment: it runs, or waits inside clone, fork or vfork. One that
// waits in any other call is not. Reads /proc/TID/syscall; false when the thread is gone.
bool may_be_cloning(pid_t tid);

// Whether a signal would have been discarded, had nobody traced the thread: ignored, or ignored by default. (A tracer
// makes the kernel wake the thread even for those: kernel/signal.c, sig_ignored.) Reads /proc/TID/status.
bool would_be_ignored(pid_t tid, int signal);

// Whether the process has handlers, other than the C library's for its own two signals, and for SIGTRAP, which may be
// ours. Reads /proc/TID/status; true when that can't be.
bool handles_signals(pid_t tid);

// Whether a signal that an instruction raises (a breakpoint's SIGTRAP, a fault) waits to be delivered to the thread. A
// PTRACE_EVENT_STOP is reported before it is (kernel/signal.c, get_signal: job control comes first), so the thread's pc
// may already be behind a breakpoint. Reads /proc/TID/status.
bool synchronous_signal_pending(pid_t tid);

// Whether a seccomp filter or strict mode is in force for the thread.
bool under_seccomp(pid_t tid);
// Kinds of signals that no instruction raises and that neither stop nor continue a process.
enum class SignalKind {
  ignored,    // a standard one that the process ignores
  real_time,  // that isn't the C library's
  standard,
};
// A signal of that kind that is not pending for the thread or its process; nullopt: none.
std::optional<int> unused_signal(pid_t tid, SignalKind kind);
// Whether the signal, injected now, stops or continues the process and nothing else: no handler runs. Such a signal
// must be injected at the very stop that reports it: only there does the kernel know whether a SIGCONT has overtaken it
// (kernel/signal.c, JOBCTL_STOP_DEQUEUED).
bool is_job_control(pid_t tid, int signal);
// Whether the signal, delivered now, ends the process with a core dump. False also when the thread has gone.
bool would_dump_core(pid_t tid, int signal);

}  // namespace probed::tracer
