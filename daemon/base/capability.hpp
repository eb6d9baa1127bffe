// What the kernel lets this process do. capabilities(7).
#pragma once

namespace probed {

// Whether this thread has it in its effective set; `capability`: CAP_SYS_PTRACE, ... of linux/capability.h, 0 to 63.
bool has_capability(unsigned capability);

}  // namespace probed
