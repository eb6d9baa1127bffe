// What keeps probes from doing harm by the number of their hits, or by being forgotten: how often one may be hit in a
// second, how often at all, and how long it is there.
//
// Rates cost nothing at a hit: the probes' counters are read every now and then. A probe with a rate of its own is
// disabled when it has been passed more often within a second, some tenths of a second later at most. One without is
// held to the daemon's rate while it is a breakpoint, each of whose hits stops a thread: for so many seconds on end
// that neither a burst nor the moment before it becomes a jump matter. Asio thread.
#include "daemon/control/limits.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "daemon/control/parts.hpp"
#include "proto/json.hpp"

namespace probed::control {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kLookAtRates = 100ms;
constexpr auto kLookSeldom = 1s;  // where only the daemon's rate holds: there may be many thousands
constexpr auto kRateWindow = 1s;
constexpr unsigned kFastSeconds = 20;

}  // namespace

Limits::Limits(Parts& parts) : Part(parts), limits_timer_(parts.io) {}

void Limits::on_limit_reached(std::vector<ProbeId> ids) {
  for (const ProbeId id : ids)
    if (const auto it = registry_.probes.find(id); it != registry_.probes.end())
      it->second.why_disabled = "the hits asked for have come";
  disable(std::move(ids), "limit");
}

void Limits::look_at_limits_at(Clock::time_point at) {
  if (limits_at_ && *limits_at_ <= at) return;
  limits_at_ = at;
  limits_timer_.expires_at(at);
  limits_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) look_at_limits();
  });
}

// 0: any number.
std::uint64_t Limits::most_of(const Probe& probe) const {
  if (!probe.enabled || probe.gone || !registry_.armed) return 0;
  if (probe.pace.most) return *probe.pace.most;
  return probe.program->optimized ? 0 : registry_.max_rate;
}

// With those that a filter turned away, which cost the target as much.
std::uint64_t Limits::passes_of(const Probe& probe) const {
  const Counts own = parts_.stream.counts_of(probe);
  std::uint64_t passes = own.hits + own.filtered;
  for (const ProbeId id : probe.followers) {
    const Counts more = parts_.stream.counts_of(registry_.probes.at(id));
    passes += more.hits + more.filtered;
  }
  return passes;
}

// Says why, too, if it is.
bool Limits::is_too_fast(Probe& probe, std::uint64_t most, Clock::time_point now) const {
  Probe::Pace& pace = probe.pace;
  const std::uint64_t passes = passes_of(probe);
  if (pace.since == Clock::time_point() || passes < pace.passes) {
    pace.since = now;
    pace.passes = passes;
    pace.fast_seconds = 0;
    return false;
  }
  // A look that comes late has counted more than one second's.
  const std::chrono::duration<double> length = std::max<Clock::duration>(now - pace.since, kRateWindow);
  const double rate = static_cast<double>(passes - pace.passes) / length.count();
  const bool fast = rate > static_cast<double>(most);
  const bool window_ends = now - pace.since >= kRateWindow;
  if (window_ends) {
    pace.since = now;
    pace.passes = passes;
    pace.fast_seconds = fast ? pace.fast_seconds + 1 : 0;
  }
  if (!fast || (!pace.most && pace.fast_seconds < kFastSeconds)) return false;
  probe.why_disabled = pace.most
                           ? fmt::format("it was hit more than {} times in a second", most)
                           : fmt::format("as a breakpoint it was hit {:.0f} times a second, more than {} for {} s",
                                         rate, most, kFastSeconds);
  pace.since = {};
  return true;
}

void Limits::look_at_limits() {
  limits_at_.reset();
  const auto now = Clock::now();
  std::optional<Clock::time_point> next;
  const auto consider = [&next](Clock::time_point t) { next = next ? std::min(*next, t) : t; };
  std::vector<ProbeId> fast, expired;
  for (auto& [id, probe] : registry_.probes) {
    if (!probe.committed || number(probe.leader) != 0 || !probe.enabled) continue;
    const auto add_to = [&](std::vector<ProbeId>& ids) {
      ids.push_back(id);
      ids.insert(ids.end(), probe.followers.begin(), probe.followers.end());
    };
    if (probe.expires && now >= *probe.expires) {
      probe.why_disabled = "its time (expire) is over";
      add_to(expired);
      continue;
    }
    if (probe.expires) consider(*probe.expires);
    if (const std::uint64_t most = most_of(probe); most == 0) {
      probe.pace.since = {};
      if (!probe.pace.most && registry_.max_rate != 0) consider(now + kLookSeldom);  // it may become a breakpoint again
    } else {
      consider(now + (probe.pace.most ? kLookAtRates : kLookSeldom));
      if (is_too_fast(probe, most, now)) add_to(fast);
    }
  }
  if (next) look_at_limits_at(*next);
  if (!fast.empty()) disable(std::move(fast), "rate");
  if (!expired.empty()) disable(std::move(expired), "expired");
}

void Limits::disable(std::vector<ProbeId> ids, std::string reason) {
  auto disabled = [this, ids, reason = std::move(reason)] {
    parts_.stream.drain_all();
    for (const ProbeId id : ids)
      if (const auto it = registry_.probes.find(id); it != registry_.probes.end()) it->second.enabled = false;
    parts_.keeper.keep_all();
    tell_disabled(ids, reason);
  };
  parts_.tracer->post([this, ids = std::move(ids), disabled = std::move(disabled)](tracer::Engine& engine) {
    engine.set_enabled(ids, false, [this, disabled](const std::vector<tracer::NotArmed>&) { post(disabled); });
  });
}

// Their owners, and who gets their events.
void Limits::tell_disabled(const std::vector<ProbeId>& ids, std::string_view reason) {
  const auto concerned = [&](const Probe& probe) {
    if (reason != "limit")
      spdlog::info("{} of process {} is disabled: {}", probe.full_name(), probe.pid, probe.why_disabled);
    return owner_and_audience(registry_, probe);
  };
  for (const auto& [client, t] : sort_by_hearer(registry_, ids, concerned)) {
    const Probe& first = registry_.probes.at(t.ids.front());
    const std::size_t more = t.ids.size() - 1;
    proto::JsonWriter w;
    t.put_ids(w);
    w.key("reason").string(reason);
    w.key("message").string(fmt::format("{}: {}{}", first.full_name(), first.why_disabled,
                                        more == 0 ? "" : fmt::format(" (and {} more)", more)));
    client->notify("probe.disabled", w.end_object().text());
  }
}

}  // namespace probed::control
