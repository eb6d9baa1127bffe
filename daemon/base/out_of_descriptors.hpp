// Whether this process has no file descriptor left: then what isn't found may be there all the same. Any thread.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string>

#include "proto/base/error.hpp"

namespace probed {

inline bool lacks_descriptors(int error) { return error == EMFILE || error == ENFILE; }

inline bool out_of_descriptors() {
  const int next = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
  if (next >= 0) return ::close(next), false;
  return lacks_descriptors(errno);
}

// Whether this process may open so many more. Looked for from the top, as the lowest numbers are taken first.
inline bool descriptors_left(std::size_t wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return true;
  for (auto next = limit.rlim_cur; wanted > 0 && next > 0; --next)
    wanted -= ::fcntl(static_cast<int>(next - 1), F_GETFD) < 0 ? 1 : 0;
  return wanted == 0;
}

constexpr const char* kMoreDescriptors =
    "let go of targets with probectl detach, or have the daemon's limit raised: ulimit -n, LimitNOFILE=";

inline Error no_descriptors(int pid) {
  return {Reason::limit_exceeded,
          "the daemon has no file descriptor left to look at process " + std::to_string(pid),
          kMoreDescriptors,
          {}};
}

}  // namespace probed
