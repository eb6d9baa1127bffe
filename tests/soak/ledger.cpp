// See ledger.hpp.
#include "tests/soak/ledger.hpp"

#include <algorithm>
#include <cstdio>

namespace probed::soak {

std::string Dice::bytes(std::size_t count) {
  std::string out(count, '\0');
  std::ranges::generate(out, [this] { return static_cast<char>(below(256)); });
  return out;
}

void Ledger::begin(unsigned life, std::string action) {
  life_ = life;
  ++step_;
  action_ = std::move(action);
}

void Ledger::fail(Wrong kind, const std::string& expected, const std::string& seen) {
  ++wrong_.at(static_cast<std::size_t>(kind));
  std::printf("soak: FAILED seed %u life %u step %u %s: expected %s; saw %s\n", seed_, life_, step_, action_.c_str(),
              expected.c_str(), seen.c_str());
  std::fflush(stdout);
}

void Ledger::check(Wrong kind, const std::string& what, std::uint64_t expected, std::uint64_t seen) {
  if (seen != expected) fail(kind, what + " to be " + std::to_string(expected), std::to_string(seen));
}

bool Ledger::clean() const {
  return std::ranges::all_of(wrong_, [](unsigned n) { return n == 0; });
}

namespace {
void row(const char* name, double value, int decimals = 0) { std::printf("  %-44s %16.*f\n", name, decimals, value); }
}  // namespace

void Ledger::print(double seconds) const {
  const Figures& f = figures;
  std::printf("\nseed %u, %.1f s\n", seed_, seconds);
  row("daemons", f.lives);
  row("  killed", f.kills);
  row("    their guards first", f.guard_kills);
  row("  ended by SIGTERM under fire", f.terms);
  row("recovered by the guard", f.recovered_by_guard);
  row("recovered by the next daemon", f.recovered_by_next);
  row("recovered by probed --recover", f.recovered_by_hand);
  row("steps", step_);
  for (const auto& [name, times] : actions_) row(("  " + name).c_str(), times);
  row("targets", f.targets);
  row("  ended by design, their work verified", f.targets_ended);
  row("rounds of calls verified by their own target", static_cast<double>(f.rounds));
  double hits = 0;
  for (const auto& [tier, count] : f.hits) {
    row(("hits, " + tier).c_str(), static_cast<double>(count));
    hits += static_cast<double>(count);
  }
  row("hits a second of a daemon's life", f.alive_s > 0 ? hits / f.alive_s : 0);
  row("faults injected", f.faults);
  row("probes accounted for exactly", f.accounts);
  row("  their calls", static_cast<double>(f.accounted_calls));
  row("  their events", static_cast<double>(f.accounted_events));
  row("largest daemon, MiB", static_cast<double>(f.daemon_rss_kb) / 1024, 1);
  row("most descriptors of a daemon", static_cast<double>(f.daemon_fds));
  row("KiB left mapped for each kill (documented)", f.kills > 0 ? static_cast<double>(f.left_kb) / f.kills : 0, 1);
  row("descriptors of killed daemons (documented)", f.left_fds);
  constexpr std::array kNames{"targets lost", "wrong results", "events unaccounted for",
                              "leaked descriptors, pages, processes", "daemons that failed"};
  for (std::size_t i = 0; i < kNames.size(); ++i) row(kNames.at(i), wrong_.at(i));
}

}  // namespace probed::soak
