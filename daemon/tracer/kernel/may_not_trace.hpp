// What to do where the kernel lets this daemon trace no process, or not this one. Pure but for what is asked of /proc.
#pragma once

#include <string>

namespace probed::tracer {

// /proc/sys/kernel/yama/ptrace_scope (Documentation/admin-guide/LSM/Yama.rst): 0 to 3; 0 where the kernel has no Yama.
int yama_scope();

// PTRACE_SEIZE has failed with EPERM. `capable`: this daemon has CAP_SYS_PTRACE; `yama`: see above.
std::string hint_may_not_trace(bool capable, int yama);

}  // namespace probed::tracer
