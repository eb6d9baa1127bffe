// See peer.hpp.
#include "daemon/api/peer.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstring>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // asm-generic/socket.h, Linux 6.5
#endif

namespace probed::api {
namespace {

UniqueFd peer_pidfd(int socket, pid_t pid) {
  int fd = -1;
  socklen_t size = sizeof fd;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0) return UniqueFd(fd);
  // Older kernels: the pid may have been reused since the connect. Only Yama's descendants rule and the user namespace
  // rest on it, both of which an impostor of the same user could meet anyway.
  if (errno != ENOPROTOOPT || pid <= 0) return UniqueFd();
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

}  // namespace

bool Peer::alive() const {
  pollfd p{pidfd.get(), POLLIN, 0};
  return pidfd && poll(&p, 1, 0) == 0;  // readable once the process has ended (pidfd_open(2))
}

Result<Peer> peer_of(int socket, const Procfs& procfs) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
    return Error{Reason::internal, std::string("cannot tell who connected: SO_PEERCRED: ") + std::strerror(errno)};
  Peer peer{credentials.uid, credentials.gid, credentials.pid, peer_pidfd(socket, credentials.pid), {}};
  // Read first, then make sure that it was this process's and not a successor's under the same pid. A process can move
  // to a namespace further down after connecting, never up, so a late reading errs on the safe side.
  std::string ns = peer.pid > 0 ? procfs.user_namespace(peer.pid) : std::string();
  if (peer.alive()) peer.user_namespace = std::move(ns);
  return peer;
}

}  // namespace probed::api
