// The sub-commands that ask the daemon something, print the answer and end; and `stream`.
#pragma once

#include "client/probectl/options.hpp"

namespace probed::client {

// Runs any sub-command. Returns the exit status.
int run_command(const Options& options);

}  // namespace probed::client
