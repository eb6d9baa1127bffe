// The listening socket: made at a path of the file system, or handed over by systemd.
//
// Thread: whoever starts and stops the daemon. Invariants: a socket somebody answers on is never taken away from him;
// nothing but a socket is ever removed; the path is removed at the end only while it is still what was made here.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

#include "proto/base/fd.hpp"
#include "proto/base/result.hpp"

namespace probed::api {

struct ListenOptions {
  std::string path;            // at most 107 bytes (unix(7), sun_path)
  mode_t mode = 0600;          // of the socket file: who may connect needs write permission
  std::optional<gid_t> group;  // of the socket file
};

class Listener {
 public:
  // Binds and listens, non-blocking, close-on-exec. A stale socket file (nobody answers) is replaced; the directory is
  // locked meanwhile, so of two daemons that start at once the second finds the first. Errors: limit_exceeded (path
  // too long), permission_denied, unsupported (something else stands at the path, or another daemon answers there),
  // internal (other system errors, by name).
  static Result<Listener> at(const ListenOptions& options);
  // The socket systemd passes (sd_listen_fds(3)); nullopt: it passes none. Errors: unsupported (more than one, or not a
  // listening Unix stream socket). Consumes the environment variables.
  static Result<std::optional<Listener>> from_systemd();

  Listener(Listener&&) = default;
  Listener& operator=(Listener&&) = default;
  ~Listener() { remove(); }

  int fd() const { return fd_.get(); }
  int release_fd() { return fd_.release(); }         // to an acceptor, which closes it
  const std::string& path() const { return path_; }  // empty: systemd's
  // Removes the socket file if it is still the one made here. Done at most once.
  void remove();

 private:
  Listener(UniqueFd fd, std::string path, dev_t device, ino_t inode)
      : fd_(std::move(fd)), path_(std::move(path)), device_(device), inode_(inode) {}
  UniqueFd fd_;
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

// A group's number from its name or digits. Errors: bad_params.
Result<gid_t> find_group(std::string_view name);

}  // namespace probed::api
