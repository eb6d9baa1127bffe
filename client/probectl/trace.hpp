// `probectl trace`: find or start the target and the daemon, arm, stream, take everything out again, give the account.
#pragma once

#include "client/probectl/options.hpp"

namespace probed::client {

// Returns the exit status.
int run_trace(const Options& options);

// Parameters of probe.add for a trace: disabled, so that no hit comes before the subscription.
std::string trace_add_params(const Options& options, pid_t pid);

// H, D and M of the last line. H comes from the probes' counters, D is what arrived; what was hit and did not arrive
// was missed. Counters that are unknown or behind (the daemon went away) are made up for by the reported losses.
struct Account {
  std::uint64_t hits = 0, delivered = 0, missed = 0;
};
Account make_account(std::uint64_t counted_hits, std::uint64_t delivered, std::uint64_t reported_missed);

}  // namespace probed::client
