// Opens files the way one target sees them: what it has mapped, whatever happened to the path since, and paths inside
// its own root. Every file that a target or one of its files names is opened here, and nowhere else.
//
// What a stranger's file names is opened with the permissions of the target's user, and nothing else than that user
// could read for himself is: not through symbolic links, nor through debug links, split units and supplementary files
// that say where to look. Only regular files on ordinary file systems are read (mounts.hpp): no fifo, device or file of
// /proc keeps a reader waiting. Symbolic links never lead out of the target's root.
//
// Thread: any; one lock.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "daemon/base/acting_as.hpp"
#include "daemon/base/mounts.hpp"
#include "daemon/symbols/maps.hpp"
#include "proto/base/fd.hpp"
#include "proto/base/result.hpp"

namespace probed::symbols {

// Whether a file is the one that is mapped, asked when device and inode don't say (overlay and btrfs report other
// devices in maps than stat does).
using SameBuild = std::function<bool(int fd)>;

class TargetFiles {
 public:
  // Whose permissions count is looked at once: should the process become a privileged one later, nothing more can be
  // read through it. Errors: no_such_process.
  static Result<TargetFiles> of(pid_t pid);

  // A regular file by a path inside the target's root.
  Opened open(const std::string& path) const;
  // The same in the daemon's own root, below one of these directories: for targets in a root of their own, which seldom
  // has debug files.
  Opened open_here(const std::string& path, const std::vector<std::string>& directories) const;

  // Opens the file behind a mapping: through map_files (needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE; works for
  // deleted and replaced files), else the program's own /proc/PID/exe, else its path. The latter two are verified.
  // Errors: permission_denied, unsupported_target (the file is gone, another one is in its place, or it may not be
  // read).
  Result<UniqueFd> open_mapped(const Mapping& mapping, const SameBuild& same_build) const;

  // What tells one file's content from another's, one view of the file system from another, and one user's permissions
  // from another's: the symbols of a file are shared only among targets for which all of this is equal, so that no
  // target can choose the debug file of another one, and no user is told what only another one may read. Empty when the
  // file or the process is gone.
  std::string identity(int fd, const std::string& path) const;

  const FileCredentials& credentials() const { return who_; }

 private:
  TargetFiles(pid_t pid, FileCredentials who) : pid_(pid), who_(std::move(who)) {}
  Opened open_as_user(const UniqueFd& root, const std::string& path, Mounts& mounts) const;

  struct Seen {
    explicit Seen(pid_t pid) : theirs(pid), ours(::getpid()) {}
    std::mutex mutex;
    Mounts theirs, ours;
  };
  pid_t pid_;
  FileCredentials who_;
  std::unique_ptr<Seen> seen_ = std::make_unique<Seen>(pid_);
};

// The file behind a mapping, for who reads but a little of it.
Result<UniqueFd> open_mapped(pid_t pid, const Mapping& mapping, const SameBuild& same_build);

}  // namespace probed::symbols
