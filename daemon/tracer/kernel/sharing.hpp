// Which processes share an address space: vfork children, and what clone(CLONE_VM) without CLONE_THREAD makes.
//
// Any thread. A breakpoint in shared text is everybody's, so whoever shares it must be traced with it.
#pragma once

#include <sys/types.h>

#include <vector>

namespace probed::tracer {

// Asks the kernel (kcmp, KCMP_VM). False also when one of them is gone.
bool shares_memory(pid_t a, pid_t b);

// Their signal actions: CLONE_SIGHAND without CLONE_THREAD (KCMP_SIGHAND).
bool shares_actions(pid_t a, pid_t b);

// The other processes that share memory, wherever in the tree of processes they are. A kcmp for each process there is.
std::vector<pid_t> processes_sharing_memory(pid_t pid);

}  // namespace probed::tracer
