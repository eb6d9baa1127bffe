// Which files may be read at all: what lies on an ordinary file system, and is a regular file there.
//
// S_ISREG says little: /proc/kmsg and tracefs's pipes are regular files whose read waits for ever. And a file system in
// user space (FUSE) answers when the user who serves it wants to. So every directory on the way to a file that a
// stranger names is looked at before anything below it is asked for; nothing here sends such a file system a request.
//
// Thread: any, one at a time for each object.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "proto/base/fd.hpp"

namespace probed {

// An open file, or why there is none.
struct Opened {
  UniqueFd fd;
  int error = 0;    // errno, or 0: what is there is refused, because
  std::string why;  // "it is on a file system of kind proc, ..."

  Opened() = default;
  Opened(UniqueFd open) : fd(std::move(open)) {}
  static Opened failed(int error) { return failed(error, {}); }
  static Opened refused(std::string why) { return failed(0, std::move(why)); }
  explicit operator bool() const { return static_cast<bool>(fd); }
  // "", unless something is there.
  std::string objection() const;

 private:
  static Opened failed(int error, std::string why) {
    Opened none;
    none.error = error;
    none.why = std::move(why);
    return none;
  }
};

// The mounts that one process sees.
class Mounts {
 public:
  explicit Mounts(pid_t view) : view_(view) {}

  // Why nothing of the file system is read that this descriptor (O_PATH will do) is on; "": it is an ordinary one.
  const std::string& objection(int fd);

 private:
  void read();
  pid_t view_;
  std::unordered_map<std::uint64_t, std::string> known_;  // objection by mount id
  std::string kernels_own_;                               // the last answer about a mount that isn't listed
};

// The same of a line of /proc/PID/mountinfo (proc(5)); pure. own_user: who may serve a FUSE file system besides root.
std::string mount_objection(std::string_view mountinfo_line, uid_t own_user);

// Whether it is a regular file, without asking the file system (AT_STATX_DONT_SYNC).
bool is_regular_file(int fd);

// What an O_PATH descriptor leads to, for reading: a regular file on an ordinary file system. Never waits, neither for
// a FIFO's writer nor for who holds a lease (fcntl(2), F_SETLEASE).
Opened reopen(const UniqueFd& path, Mounts& mounts);
// A link of /proc/PID, as exe and map_files/* are: the kernel leads to the file itself, no name is looked up.
Opened open_link(const std::string& link, Mounts& mounts);

// A file by its path below a root, which no symbolic link and no ".." leads out of. One name at a time: no file system
// is entered that may not be read.
UniqueFd find_below(int root, std::string_view path, Mounts& mounts, Opened& refused);

}  // namespace probed
