// Whether this process has no file descriptor left: then what isn't found may be there all the same. Any thread.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "proto/base/error.hpp"

namespace probed {

inline bool out_of_descriptors() {
  const int next = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
  if (next >= 0) return ::close(next), false;
  return errno == EMFILE || errno == ENFILE;
}

inline Error no_descriptors(int pid) {
  return {Reason::limit_exceeded,
          "the daemon has no file descriptor left to look at process " + std::to_string(pid),
          "let go of targets (probectl ps, detach), or have the daemon's limit raised (ulimit -n, LimitNOFILE=)",
          {}};
}

}  // namespace probed
