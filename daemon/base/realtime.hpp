// For short work that somebody stands still for, on a full machine, too.
#pragma once

#include <sched.h>

namespace probed {

// The lowest real-time priority for this thread and what it starts. False: it may not have that (sched_setscheduler(2):
// CAP_SYS_NICE or RLIMIT_RTPRIO).
inline bool take_realtime_priority() {
  sched_param lowest{};
  lowest.sched_priority = ::sched_get_priority_min(SCHED_RR);
  return ::sched_setscheduler(0, SCHED_RR, &lowest) == 0;
}

}  // namespace probed
