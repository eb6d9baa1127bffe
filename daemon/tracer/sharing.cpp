#include "daemon/tracer/sharing.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>
#include <memory>
#include <string_view>

#include "daemon/base/momentary.hpp"
#include "daemon/base/process.hpp"

namespace probed::tracer {

// Tasks without any (those that exit, and the kernel's own) are equal in that to kcmp.
bool shares_memory(pid_t a, pid_t b) {
  return syscall(SYS_kcmp, a, b, KCMP_VM, 0, 0) == 0 && !process::is_without_memory(a);
}

bool shares_actions(pid_t a, pid_t b) { return syscall(SYS_kcmp, a, b, KCMP_SIGHAND, 0, 0) == 0; }

std::vector<pid_t> processes_sharing_memory(pid_t pid) {
  std::vector<pid_t> sharing;
  const auto closer = [](DIR* d) { ::closedir(d); };
  Momentary fd("/proc", O_RDONLY | O_DIRECTORY);
  const std::unique_ptr<DIR, decltype(closer)> proc(fd ? ::fdopendir(fd.get()) : nullptr, closer);
  if (proc) fd.release();
  const pid_t mine = process::task_with_memory(pid);
  while (const dirent* entry = proc ? ::readdir(proc.get()) : nullptr) {
    pid_t other = 0;
    const std::string_view name = entry->d_name;
    if (std::from_chars(name.data(), name.data() + name.size(), other).ec != std::errc() || other == pid) continue;
    if (shares_memory(mine, other)) sharing.push_back(other);
  }
  return sharing;
}

}  // namespace probed::tracer
