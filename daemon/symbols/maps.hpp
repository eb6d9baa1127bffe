// /proc/PID/maps, parsed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/types.hpp"
#include "proto/base/result.hpp"

namespace probed::symbols {

// What a byte of memory was mapped from. All zeros: from no file.
struct Backing {
  std::uint32_t dev_major = 0, dev_minor = 0;
  std::uint64_t inode = 0;
  std::uint64_t offset = 0;  // of the byte in the file

  bool from_file() const { return inode != 0; }
  bool same_file(const Backing& other) const {
    return inode == other.inode && dev_major == other.dev_major && dev_minor == other.dev_minor;
  }
  bool operator==(const Backing&) const = default;
};

struct Mapping {
  RemoteAddr start, end;  // [start, end)
  bool readable = false, writable = false, executable = false, shared = false;
  std::uint64_t file_offset = 0;  // of start
  std::uint32_t dev_major = 0, dev_minor = 0;
  std::uint64_t inode = 0;  // 0: anonymous
  std::string path;         // as /proc gives it, unescaped, without " (deleted)"; "[vdso]" and the like kept
  bool deleted = false;

  bool contains(RemoteAddr a) const { return a >= start && a < end; }
  std::uint64_t size() const { return end.value - start.value; }
  // Precondition: contains(a).
  Backing backing(RemoteAddr a) const {
    if (inode == 0) return {};
    return {dev_major, dev_minor, inode, file_offset + (a.value - start.value)};
  }
};

// Errors: no_such_process, permission_denied.
Result<std::vector<Mapping>> read_maps(pid_t pid);
// The text of a maps file; malformed lines are skipped (the kernel writes none).
std::vector<Mapping> parse_maps(std::string_view text);

}  // namespace probed::symbols
