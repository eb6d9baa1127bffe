// What daemons have left that were killed together with their guards (an OOM kill of the group, the end of a container
// or a session), found and put back by the next daemon of the same user.
//
// Their journals are where private daemons live (base/private_places.hpp) and, for root, beside the system's socket.
// A living daemon holds its state directory's lock, and so does a guard at work: such a one is left alone. Other users'
// journals are not believed. Where there is no journal a process's own memory tells (left_landings.hpp).
//
// Any thread but the tracer's; blocks.
#pragma once

#include <sys/types.h>

#include <vector>

#include "daemon/tracer/recovery/recover.hpp"

namespace probed::tracer {

// By all journals that are found. What nothing is left of is removed. What became of each, as recover_all() says it.
std::vector<Recovered> recover_left_behind();

// Whether something may be left in it: cheap, and wrong rather with yes than with no.
bool may_hold_left(pid_t pid);
// By the journals, then by its memory. The process is not traced by anybody.
void recover_left_in(pid_t pid);

}  // namespace probed::tracer
