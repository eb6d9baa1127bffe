// How much memory a process may have, by the machine and its control groups (cgroups(7)).
//
// Thread: any. A daemon that sees another part of the hierarchy than the process's (a container) finds no limit there.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace probed {

// Bytes.
std::uint64_t memory_limit(pid_t pid);
// Of the groups that a /proc/PID/cgroup names, and of those above them; UINT64_MAX: none. mounted: /sys/fs/cgroup.
std::uint64_t group_memory_limit(std::string_view groups, const std::string& mounted);

}  // namespace probed
