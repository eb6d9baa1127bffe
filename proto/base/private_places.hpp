// Where probectl's private daemons live: in a directory of this user's that the next one knows, so that what one that
// was killed has left in its targets is found. Each has a directory of its own there (0700), with its socket in it.
//
// Any thread; reads the environment. probectl makes such a directory, every daemon looks there
// (tracer/recovery/left_behind.hpp).
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace probed {

inline constexpr const char* kPrivateSocket = "probed.sock";  // in a private daemon's directory
inline constexpr const char* kStateEnding = ".state";         // behind a socket's path: its daemon's state directory

// This user's own, a directory, nobody else may write to it; no symbolic link.
inline bool is_own_directory(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == ::geteuid() &&
         (status.st_mode & 022) == 0;
}

// The best first. That of XDG_RUNTIME_DIR ends with the user's last session, as most of his processes do; root's, and
// where there is no such directory, that in /tmp, don't.
inline std::vector<std::string> private_places() {
  std::vector<std::string> places;
  const std::string user = std::to_string(::geteuid());
  const char* const given = std::getenv("XDG_RUNTIME_DIR");
  if (given && is_own_directory(given)) places.push_back(std::string(given) + "/probectl");
  if (const std::string usual = "/run/user/" + user; is_own_directory(usual) && (!given || usual != given))
    places.push_back(usual + "/probectl");
  if (::geteuid() == 0) places.push_back("/run/probectl");
  places.push_back("/tmp/probectl-" + user);
  return places;
}

}  // namespace probed
