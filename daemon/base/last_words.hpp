// Why the daemon ends by an exception that nobody catches: for people, and for whoever reports its end.
//
// Any thread. The tracer is a process of its own in the same memory (tracer/kernel/apart.hpp): what it says is known to
// the daemon, too.
#pragma once

namespace probed {

// std::terminate tells and keeps the reason from now on.
void keep_last_words();
// " (REASON)", or "" when there was none yet.
const char* last_words();

}  // namespace probed
