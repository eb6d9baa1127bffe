// What this process may have of the kernel's. Any thread; before others are started.
#pragma once

#include <sys/resource.h>

#include "proto/base/result.hpp"

namespace probed {

// As many descriptors as may be: each traced thread may cost one, each client does. And as many signals that wait, of
// this user's all together: a timer counts as one (timer_create(2), EAGAIN), and programs of the same user may have
// queued as many as the usual limit allows.
void raise_own_limits();

// Errors: limit_exceeded, there is not enough for a daemon that does anything at all.
Result<void> check_own_limits();

}  // namespace probed
