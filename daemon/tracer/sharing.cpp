#include "daemon/tracer/sharing.hpp"

#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "daemon/base/process.hpp"

namespace probed::tracer {

bool shares_memory(pid_t a, pid_t b) { return syscall(SYS_kcmp, a, b, KCMP_VM, 0, 0) == 0; }

std::vector<pid_t> children_of(pid_t pid) {
  std::vector<pid_t> children;
  const auto threads = process::thread_ids(pid);
  if (!threads) return children;
  for (const pid_t tid : *threads) {
    std::ifstream list("/proc/" + std::to_string(pid) + "/task/" + std::to_string(tid) + "/children");
    for (pid_t child = 0; list >> child;) children.push_back(child);
  }
  return children;
}

}  // namespace probed::tracer
