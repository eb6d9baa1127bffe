// Whose permissions open a file.
//
// The daemon is privileged; files that a user's file names are opened with no more than that user may. Credentials are
// a thread's in Linux (credentials(7)): libc keeps those of all threads equal, the system calls themselves don't.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "proto/base/result.hpp"

namespace probed {

struct FileCredentials {
  uid_t user = 0;
  gid_t group = 0;
  std::vector<gid_t> groups;  // supplementary, as the kernel lists them
  bool operator==(const FileCredentials&) const = default;
};

// The effective ids of a process, as this user namespace has them. Errors: no_such_process, permission_denied.
Result<FileCredentials> file_credentials(pid_t pid);
std::string to_string(const FileCredentials& who);

// While it lives, this thread opens files with another user's permissions: his ids decide, and none of the capabilities
// that overrule permissions is in effect. A daemon that isn't root's has only its own user's permissions, and keeps
// them.
//
// Thread: made and ended by the same one. Nothing but opening files belongs in between.
class ActingAs {
 public:
  explicit ActingAs(const FileCredentials& who);
  ~ActingAs();
  ActingAs(const ActingAs&) = delete;
  ActingAs& operator=(const ActingAs&) = delete;
  // False: the kernel has refused (no CAP_SETUID, CAP_SETGID), and nothing has changed.
  explicit operator bool() const { return able_; }

 private:
  bool able_ = true, changed_ = false;
  std::vector<gid_t> own_groups_;
};

}  // namespace probed
