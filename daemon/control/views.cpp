#include "daemon/control/views.hpp"

#include <algorithm>

#include "daemon/control/batches.hpp"
#include "daemon/control/parts.hpp"

namespace probed::control {
namespace {

std::uint64_t nanoseconds_of(std::chrono::steady_clock::time_point t) {
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(t.time_since_epoch()).count());
}

}  // namespace

// A return probe costs as much as the dearest of its places.
const tracer::ProbeProgram& Views::dearest(const Probe& probe) const {
  const tracer::ProbeProgram* program = probe.program.get();
  for (const ProbeId id : probe.followers) {
    const tracer::ProbeProgram& other = *registry_.probes.at(id).program;
    if (program->returns && other.returns == program->returns && program->optimized) program = &other;
  }
  return *program;
}

// What a probe costs now, and why it doesn't cost less.
void Views::put_tier(ProbeView& view, const Probe& probe) const {
  const tracer::ProbeProgram& program = dearest(probe);
  if (program.optimized) return void(view.tier = "optimized");
  view.tier = program.force_step ? "stepped" : "boosted";
  if (const char* why = program.not_optimized) view.tier_reason = why;
  if (view.tier_reason.empty()) view.tier_reason = program.no_detour;
}

// A function's exits are no places of their own.
std::uint64_t Views::places_of(const Probe& probe) const {
  const auto is_place = [&](ProbeId id) {
    return registry_.probes.at(id).program->role != tracer::ProbeProgram::Role::exit;
  };
  return 1 + static_cast<std::uint64_t>(std::ranges::count_if(probe.followers, is_place));
}

ProbeView Views::view(const Probe& probe) const {
  ProbeView view;
  view.id = probe.id;
  view.name = probe.full_name();
  view.kind = probe.parsed->kind == lang::Kind::return_probe ? "r" : "p";
  view.pid = probe.pid;
  view.address = probe.address;
  view.symbol = probe.symbol;
  view.module = probe.module;
  if (const auto glob = registry_.probes.find(probe.from); glob != registry_.probes.end())
    view.from = {glob->first, glob->second.full_name()};
  const bool waits = probe.pending && !probe.ended;
  bool gone = probe.gone;
  Counts counts = parts_.stream.counts_of(probe);
  for (const ProbeId id : probe.followers) {
    const Probe& other = registry_.probes.at(id);
    gone &= other.gone;
    const Counts more = parts_.stream.counts_of(other);
    counts.hits += more.hits;
    counts.missed += more.missed;
    counts.filtered += more.filtered;
  }
  view.places = places_of(probe);
  view.state = gone ? (waits ? "pending" : "gone") : probe.enabled ? "enabled" : "disabled";
  if (view.state == "disabled") view.state_reason = probe.why_disabled;
  if (gone) view.state_reason = probe.why_gone;
  view.ended = probe.ended;
  view.user = probe.user;
  view.unwatched = probe.unwatched;
  view.max_rate = probe.pace.most;
  if (probe.expires) view.expires = nanoseconds_of(*probe.expires);
  put_tier(view, probe);
  view.definition = probe.definition;
  view.filter = probe.filter;
  if (probe.parsed) view.condition = probe.parsed->filter;
  for (const lang::FetchArg& arg : probe.schema.args) view.args.push_back({arg.name, values::to_string(arg.type)});
  view.notes = probe.notes;
  view.persist = probe.owner == ClientId::none;
  parts_.keeper.note_unkept(view);
  view.armed = registry_.armed && probe.enabled && !gone;
  view.hits = counts.hits;
  view.missed = counts.missed;
  view.filtered = counts.filtered;
  const auto add_calls = [&](const tracer::ProbeProgram& program) {
    if (program.role != tracer::ProbeProgram::Role::entry) return;
    view.abandoned += program.returns->abandoned;
    view.unmatched += program.returns->unmatched;
  };
  add_calls(*probe.program);
  for (const ProbeId id : probe.followers) add_calls(*registry_.probes.at(id).program);
  return view;
}

std::vector<ProbeView> Views::probes(std::optional<pid_t> pid) const {
  std::vector<ProbeView> views;
  for (const auto& [id, probe] : registry_.probes)
    if (probe.committed && is_shown(probe) && (!pid || probe.pid == *pid)) views.push_back(view(probe));
  return views;
}

Status Views::status() const {
  Status status = registry_.totals;
  status.armed = registry_.armed;
  status.optimize = registry_.optimize;
  status.targets = static_cast<std::uint32_t>(parts_.attachments.targets().size());
  status.clients = static_cast<std::uint32_t>(registry_.clients.size());
  status.subscriptions = static_cast<std::uint32_t>(registry_.subscriptions.size());
  for (const auto& [id, probe] : registry_.probes) {
    if (!probe.committed) continue;
    const bool there = is_shown(probe) && !probe.ended;
    status.probes += there ? 1 : 0;
    status.optimized += there && dearest(probe).optimized ? 1 : 0;
    const Counts counts = parts_.stream.counts_of(probe);
    status.hits += counts.hits;
    status.missed += counts.missed;
    status.filtered += counts.filtered;
  }
  status.longest_pause_ns = registry_.longest_pause;
  const tracer::Urgency& urgency = parts_.tracer->urgency();
  status.priority = to_string(urgency.means());
  status.longest_wait_ns = urgency.longest_wait_ns();
  status.starved_ns = urgency.starved_ns();
  return status;
}

}  // namespace probed::control
