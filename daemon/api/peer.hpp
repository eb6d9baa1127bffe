// Who is at the other end of a connection, as the kernel says, fixed at the moment of its connect(2).
#pragma once

#include <sys/types.h>

#include <string>

#include "daemon/api/procfs.hpp"
#include "proto/base/fd.hpp"
#include "proto/base/result.hpp"

namespace probed::api {

struct Peer {
  uid_t uid = 0;  // effective, in the daemon's user namespace (unix(7), SO_PEERCRED)
  gid_t gid = 0;
  pid_t pid = 0;               // 0: from a pid namespace the daemon can't see
  UniqueFd pidfd;              // of the process that connected; empty on kernels without SO_PEERPIDFD (before 6.5)
  std::string user_namespace;  // that process's; empty: it could not be told

  // The process that connected still runs, so pid still means it.
  bool alive() const;
};

// Errors: internal (the socket is no connected Unix socket).
Result<Peer> peer_of(int socket, const Procfs& procfs);

}  // namespace probed::api
