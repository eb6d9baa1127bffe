// Directories and files that are believed because nobody but this user can have written them: what they say is done to
// processes that others may not touch.
//
// Every file is opened in its directory, once that has been found to be this user's alone: whoever can rename what is
// above it gets nothing of his read, written or removed.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <string>

#include "proto/base/fd.hpp"

namespace probed {

struct Own {
  UniqueFd fd;
  int error = 0;      // without a descriptor: an errno, or 0: what is there is refused, because
  std::string wrong;  // "it belongs to user 1000"; of a file also what is wrong with its directory
  struct stat file {};
  explicit operator bool() const { return static_cast<bool>(fd); }
  std::string why() const;  // of either kind
};

// A directory of this user's that nobody else can write to; symbolic links are refused.
Own open_own_directory(const std::string& path);
// A regular file with one name that nobody else has access to, in such a directory. flags: O_CREAT makes it so; no
// open waits (FIFOs).
Own open_own_file(const std::string& path, int flags);
// The whole of it, of at most `limit` bytes.
Own read_own_file(const std::string& path, std::size_t limit, std::string& content);
// The lock of such a directory, its file named lock, held as long as the descriptor is. flags: as open_own_file()'s.
// Without a descriptor: the error is EWOULDBLOCK when somebody holds it.
Own lock_own_directory(const std::string& path, int flags);
// Nothing else is removed, nor from elsewhere.
void remove_own_file(const std::string& path);

}  // namespace probed
