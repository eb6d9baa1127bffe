#include "daemon/control/pool.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "daemon/control/batches.hpp"
#include "daemon/control/parts.hpp"

namespace probed::control {

Error Pool::took_too_long() {
  return {Reason::timed_out,
          "reading the files of the process takes too long, or one of them is never read to its end",
          "look where its program, its libraries and their debug files are: a file server may be gone",
          {}};
}

Error Pool::takes_too_much() {
  return {Reason::limit_exceeded,
          "the debug information of this user's programs takes more memory than the daemon has for one user",
          "let go of other programs, probe by symbol without variables, or have root ask",
          {}};
}

Error Pool::no_memory() {
  return {Reason::limit_exceeded,
          "the daemon has no memory left to read the files of the process",
          "raise its limit (ulimit -v, MemoryMax=), or probe less at a time",
          {}};
}

// A target costs some descriptors: its memory, its maps twice, its page tables, its journal. Half of those that the
// daemon may have are for targets that users add; the rest is for root's, for connections, and for followed children to
// come.
Result<void> Pool::check_descriptors(uid_t user, pid_t pid) const {
  const auto known = registry_.targets.find(pid);
  if (user == 0 || user == ::geteuid() || (known != registry_.targets.end() && known->second.attached)) return {};
  constexpr rlim_t kEach = 6;
  rlim_t used = 0;
  for (const auto& [id, target] : registry_.targets)
    if (target.attached) used += kEach * std::max<std::size_t>(1, target.members.size());
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || used + kEach <= limit.rlim_cur / 2) return {};
  return Error{Reason::limit_exceeded,
               fmt::format("the daemon has too many targets: they use half of its {} file descriptors", limit.rlim_cur),
               "let go of others (probectl ps, detach), or have the daemon's limit raised (ulimit -n, LimitNOFILE=)",
               {}};
}

}  // namespace probed::control
