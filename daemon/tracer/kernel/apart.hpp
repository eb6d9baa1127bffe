// The tracer's thread as a process of its own: the same memory, descriptors and directories, but another thread group.
//
// What kills the daemon (SIGKILL, a crash) kills a thread group. When a tracer dies, the kernel lets its tracees go as
// they stand and delivers the breakpoints' traps, which a program that handles SIGTRAP itself, a thread that blocks it,
// or a load of an argument that isn't there doesn't survive. In a process of its own the tracer outlives the daemon by
// the milliseconds that it takes to let everything go as it does at any end: signals, calls, masks, text, all as they
// were. It is in a session of its own. What kills both (the OOM killer takes all that share the memory: mm/oom_kill.c,
// __oom_kill_process; a kill of a whole control group) leaves the landing and the guard (landing.hpp, guard.hpp).
//
// How. A thread of the daemon makes the process by clone(2), CLONE_VM | CLONE_FILES | CLONE_FS, and waits for its end
// without touching anything but its registers. The process works on a stack of its own but with that thread's
// thread-local storage, so that the C library takes it for that thread, which it is in all but its ids: what goes by
// the C library's own note of a thread id (pthread_kill, pthread_setname_np, pthread_getcpuclockid, raise) means the
// waiting one.
#pragma once

#include <sys/types.h>

#include <functional>

namespace probed::tracer {

// Sanitizers keep books on threads that this would spoil.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kMayRunApart = false;
#else
inline constexpr bool kMayRunApart = true;
#endif

// Runs `body` in a process of its own, on a thread that has nothing else to do, and comes back when that has ended.
// Where there can't be one (which is logged), and in a program that a sanitizer watches, `body` runs here. Signals that
// end or stop a process are ignored there: it ends when the daemon does. If it is killed all the same, so is this
// process, by the same signal: nothing is right any more. One at a time.
//
// When this process has died, the waiting thread of it is gone and alone() is true (base/alone.hpp); `on_wake`, a
// signal that `body` has a handler for, comes behind that.
void run_apart(int on_wake, const std::function<void()>& body);

// In the handler of `on_wake`, of a signal that `sender` seems to have sent: looks whether the daemon dies, and goes
// alone when it has died. Async-signal-safe.
void note_death_of_daemon(pid_t sender);
// Whether the waiting thread has died. The others of the daemon do as soon as they get a processor, and until then they
// are not gone.
bool daemon_dies();
// That thread; 0: nothing runs apart.
pid_t waiting_thread();

// Of the process that is alone: it is killed when this isn't called again within so many seconds, as what a dead thread
// has left may be in its way. The guard does its work then. For a lock of the C library's that a dead thread holds it
// waits 10 ms only: then the lock is free.
void give_seconds(unsigned seconds);

}  // namespace probed::tracer
