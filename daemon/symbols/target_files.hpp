// Opens files the way one target sees them: what it has mapped, whatever happened to the path since, and paths inside
// its own root.
//
// Thread: any; no state but the pid. Invariants: only regular files are ever opened for reading (a fifo would hang us,
// a device might act); symbolic links never lead out of the target's root.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "daemon/base/fd.hpp"
#include "daemon/symbols/maps.hpp"
#include "proto/result.hpp"

namespace probed::symbols {

// Opens a regular file by a path inside the target's root. Empty: it can't be opened.
UniqueFd open_in_root(pid_t pid, const std::string& path);

// Whether a file is the one that is mapped, asked when device and inode don't say (overlay and btrfs report other
// devices in maps than stat does).
using SameBuild = std::function<bool(int fd)>;

// Opens the file behind a mapping: through map_files (needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE; works for deleted
// and replaced files), else the program's own /proc/PID/exe, else its path. The latter two are verified. Errors:
// permission_denied, unsupported_target (the file is gone, or another one is in its place).
Result<UniqueFd> open_mapped(pid_t pid, const Mapping& mapping, const SameBuild& same_build);

// What tells one file's content from another's, and one view of the file system from another: the symbols of a file are
// shared only among targets for which all of this is equal, so that no target can choose the debug file of another one.
// Empty when the file or the process is gone.
std::string file_identity(pid_t pid, int fd, const std::string& path);

}  // namespace probed::symbols
