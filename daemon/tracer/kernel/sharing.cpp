#include "daemon/tracer/kernel/sharing.hpp"

#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/base/process.hpp"

namespace probed::tracer {

// Tasks without any (those that exit, and the kernel's own) are equal in that to kcmp.
bool shares_memory(pid_t a, pid_t b) {
  return syscall(SYS_kcmp, a, b, KCMP_VM, 0, 0) == 0 && !process::is_without_memory(a);
}

bool shares_actions(pid_t a, pid_t b) { return syscall(SYS_kcmp, a, b, KCMP_SIGHAND, 0, 0) == 0; }

std::vector<pid_t> processes_sharing_memory(pid_t pid) {
  std::vector<pid_t> sharing = process::process_ids();
  const pid_t mine = process::task_with_memory(pid);
  std::erase_if(sharing, [=](pid_t other) { return other == pid || !shares_memory(mine, other); });
  return sharing;
}

}  // namespace probed::tracer
