// /proc/PID/maps, kept open. Thread: any.
#pragma once

#include <vector>

#include "daemon/symbols/maps.hpp"
#include "proto/base/fd.hpp"

namespace probed::symbols {

// The file stays that of the program which ran when it was opened (fs/proc/task_mmu.c, proc_maps_open), and is empty
// once nobody runs it any more.
struct Maps {
  std::vector<Mapping> mappings;
  UniqueFd file;
};
// Errors: as read_maps().
Result<Maps> open_maps(pid_t pid);

}  // namespace probed::symbols
