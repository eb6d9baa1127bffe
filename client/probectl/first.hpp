// Going before other programs on a busy machine, while a target is let go.
#pragma once

namespace probed::client {

// The calling thread goes first from now on, as far as this user may have that: by the lowest real-time priority, or a
// nice value. It is ordinary again when it has computed for a second without a rest (a third, where there is one
// processor).
void go_first();

}  // namespace probed::client
