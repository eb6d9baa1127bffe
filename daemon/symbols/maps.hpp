// /proc/PID/maps, parsed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/types.hpp"
#include "proto/result.hpp"

namespace probed::symbols {

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
};

// Errors: no_such_process, permission_denied.
Result<std::vector<Mapping>> read_maps(pid_t pid);
// The text of a maps file; malformed lines are skipped (the kernel writes none).
std::vector<Mapping> parse_maps(std::string_view text);

}  // namespace probed::symbols
