// Which processes share an address space: vfork children, and what clone(CLONE_VM) without CLONE_THREAD makes.
//
// Any thread. A breakpoint in shared text is everybody's, so whoever shares it must be traced with it.
#pragma once

#include <sys/types.h>

#include <vector>

namespace probed::tracer {

// Asks the kernel (kcmp, KCMP_VM). False also when one of them is gone.
bool shares_memory(pid_t a, pid_t b);

// The child processes of all threads of a process, as /proc/PID/task/TID/children lists them.
std::vector<pid_t> children_of(pid_t pid);

}  // namespace probed::tracer
