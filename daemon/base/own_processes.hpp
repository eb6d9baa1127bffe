// The two processes that a daemon is made of: the one that a user has started, and its tracer
// (tracer/kernel/apart.hpp), which is what the kernel names where it tells who traces somebody. Any thread.
#pragma once

#include <sys/types.h>

namespace probed {

inline constexpr const char* kTracerName = "probed-tracer";  // its comm

// 0: it hasn't begun.
pid_t tracer_process();
// Of either.
pid_t daemon_process();
// Of another daemon's tracer, the daemon: what a user knows. Any other process: itself.
pid_t daemon_of(pid_t tracer);

// What they answer from now on.
void set_own_processes(pid_t daemon, pid_t tracer);

}  // namespace probed
