// Processes of this machine, as far as a command line needs them.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/fd.hpp"
#include "proto/base/result.hpp"

namespace probed::client {

struct ProcessName {
  pid_t pid = 0;
  std::string comm, exe;  // exe: the link's text, empty when it may not be read
};

// Exactly the comm, or exactly the executable's base name (which, unlike the comm, is not cut after 15 bytes).
bool has_name(const ProcessName& process, std::string_view name);

// The one process of that name. Errors: no_such_process; bad_params, with their pids, when there are several.
Result<pid_t> choose_by_name(std::span<const ProcessName> processes, std::string_view name);

// Every process in /proc except this one.
std::vector<ProcessName> all_processes();

// Of /proc/PID/stat (proc(5)): 'R', 'S', 'T' (stopped), ...; '?': it can't be read.
char state_of(pid_t pid);
// Those that are there, but this process, ascending.
std::vector<pid_t> children_of(pid_t pid);

// A pidfd; empty when the process is gone or the kernel has none.
UniqueFd open_pidfd(pid_t pid);
// True when it ended in time.
bool wait_for_exit(const UniqueFd& pidfd, int milliseconds);

}  // namespace probed::client
