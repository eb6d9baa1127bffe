// What to do about a refusal, where that depends on more than whoever refused could know.
//
// Thread: any; reads /proc.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

#include "proto/base/error.hpp"

namespace probed::api {

// A process held by another probed is to be asked of that one: killing it, the general advice about tracers, would take
// everybody's probes away. What this daemon may not trace root is to ask another one for, not to "run this as root".
// Errors about anything else come back as they are. `asker`: the client's user.
Error with_advice(Error error, pid_t pid, uid_t asker);

// How another probed was started, from its /proc/PID/cmdline and environ (NUL between the strings).
struct OtherDaemon {
  std::string socket;          // where it listens
  bool for_one_trace = false;  // a probectl's private one
};
OtherDaemon describe_daemon(std::string_view cmdline, std::string_view environ);

}  // namespace probed::api
