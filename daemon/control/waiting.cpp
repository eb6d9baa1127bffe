// Globs that wait for their code: what they match when it has been loaded becomes probes of their own, named as if the
// glob had been added then. Asio thread, except where said.
//
// The waiting probe stays, out of sight as long as there are matches of it: it goes on looking, in what is loaded later
// too, and whatever is asked for by its id or name is asked of its matches. A match whose code goes is pending itself,
// and comes back like any probe (reviver.cpp); one that somebody removes isn't made again.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "daemon/control/batches.hpp"
#include "daemon/control/parts.hpp"
#include "daemon/control/reviver.hpp"
#include "proto/error.hpp"
#include "proto/json.hpp"

namespace probed::control {
namespace {

constexpr std::size_t kMostSkippedTold = 1000;  // in one notification

// Places of one match share it; a match of the same name in another copy of the library does, too.
std::string match_of(const symbols::Site& where) {
  const std::string key = one_probe(where);
  return key.empty() ? where.module + ":" + symbol_of(where) : key;
}

std::string added_params(ProbeId glob, std::string_view ids, std::string_view args,
                         const std::vector<Skipped>& skipped) {
  proto::JsonWriter w;
  w.begin_object().key("from").number(std::uint64_t{number(glob)});
  w.key("ids").raw("[" + std::string(ids) + "]").key("args").raw("[" + std::string(args) + "]");
  w.key("skipped").begin_array();
  for (std::size_t i = 0; i < std::min(skipped.size(), kMostSkippedTold); ++i) {
    const Skipped& s = skipped[i];
    w.begin_object().key("symbol").string(s.symbol).key("address").address(s.address.value);
    w.key("reason").string(to_string(s.why.reason)).key("message").string(s.why.message).end_object();
  }
  w.end_array().key("skippedCount").number(std::uint64_t{skipped.size()}).end_object();
  return std::move(w).text();
}

// Nothing of it is loaded: no fault, that is what it waits for.
bool is_to_come(const Error& why, const lang::Definition& definition) {
  return may_come(why) && why.column == definition.location.column;
}

}  // namespace

std::string args_of(const Probe& probe) {
  proto::JsonWriter w;
  for (const lang::FetchArg& arg : probe.schema.args)
    w.begin_object().key("name").string(arg.name).key("type").string(values::to_string(arg.type)).end_object();
  return std::move(w).text();
}

std::vector<ProbeId> Reviver::matches_of(ProbeId glob) const {
  std::vector<ProbeId> ids;
  for (const auto& [id, probe] : registry_.probes)
    if (probe.from == glob) ids.push_back(id);
  return ids;
}

// What is no new match: what is in place, what waits for its code itself, and what isn't wanted any more.
void Reviver::note_taken(Item& item, const Probe& glob) const {
  item.taken = glob.unwanted;
  for (const ProbeId id : matches_of(glob.id)) {
    const Probe& probe = registry_.probes.at(id);
    if (!probe.gone) item.in_place.push_back(probe.address);
    if (probe.gone || probe.many) item.taken.insert(probe.match);
  }
}

// Worker pool.
void Item::plan_matches(Planner& planner) {
  auto planned = planner.plan_matches(0, definition, filter.empty() ? std::nullopt : std::optional(filter));
  if (!planned) return void(why = std::move(planned).error());
  // Unloaded while it was looked at.
  std::erase_if(planned->skipped, [](const Skipped& s) { return s.why.reason == Reason::unmapped_address; });
  if (planned->probes.empty() && !planned->skipped.empty()) why = none_fits(definition, planned->skipped);
  skipped = std::move(planned->skipped);
  matches = std::move(planned->probes);
  const std::set<RemoteAddr> there(in_place.begin(), in_place.end());
  std::set<const tracer::ReturnProbe*> known;  // functions: their exits have no names of their own
  std::erase_if(matches, [&](const PlannedProbe& p) {
    if (p.returns && known.contains(p.returns.get())) return true;
    const bool is = there.contains(p.where.address) || taken.contains(match_of(p.where));
    if (is && p.returns) known.insert(p.returns.get());
    return is;
  });
}

// Enters what a glob has found, as an add of it would.
void Reviver::place_matches(Revival& revival, Item& item, std::vector<Step>& steps) {
  if (item.matches.empty()) return;
  const Probe& glob = registry_.probes.at(item.leader);
  Plan plan;
  plan.request.pid = glob.pid;
  plan.request.probes.push_back({glob.definition, glob.filter.empty() ? std::nullopt : std::optional(glob.filter),
                                 !glob.enabled, glob.optimize, true});
  plan.request.max_rate = glob.pace.most;
  plan.owner = glob.owner;
  plan.user = glob.user;
  plan.user_group = glob.user_group;
  plan.definitions.push_back(*glob.parsed);
  plan.symbols = revival.symbols;
  plan.planned = std::move(item.matches);
  plan.from = glob.id;
  if (auto registered = parts_.placement.register_probes(plan); !registered) {
    spdlog::warn("{} of process {}: {}", glob.full_name(), glob.pid, registered.error().message);
    return void(item.why = std::move(registered).error());
  }
  Step& step = steps.emplace_back();
  for (std::size_t i = 0; i < plan.ids.size(); ++i) {
    Probe& probe = registry_.probes.at(plan.ids[i]);
    probe.match = match_of(plan.planned[i].where);
    probe.why_disabled = glob.why_disabled;
    probe.expires = glob.expires;
    probe.program->streaming = !probe.audience.empty();
    step.parts.push_back({{plan.planned[i].plan, probe.program, {}}, glob.program, true});
    item.found.push_back({probe.id, {}, probe.program, {}});
  }
}

// Those that the tracer has put in place are seen from now on.
void Reviver::finish_matches(const Revival& revival, Item& item, std::vector<ProbeId>& ownerless,
                             std::vector<RemoteAddr>& sites) {
  const auto it = registry_.probes.find(item.leader);
  std::vector<ProbeId> added;
  for (Item::Found& found : item.found) {
    const auto p = registry_.probes.find(found.id);
    const bool wanted =
        p != registry_.probes.end() && it != registry_.probes.end();  // it may have been removed meanwhile
    if (!wanted && !found.why) ownerless.push_back(found.id);
    if (p == registry_.probes.end()) continue;
    Probe& probe = p->second;
    if (found.why && number(probe.leader) == 0)
      item.skipped.push_back({probe.symbol, probe.address, *std::move(found.why)});
    if (!wanted || found.why) {
      parts_.changes.erase_probe(found.id);
      continue;
    }
    probe.committed = true;
    sites.push_back(probe.address);
    added.push_back(found.id);
  }
  if (it == registry_.probes.end()) return;
  Probe& glob = it->second;
  std::vector<ProbeId> shown;
  for (const ProbeId id : added)
    if (number(registry_.probes.at(id).leader) == 0) shown.push_back(id);
  glob.matches += shown.size();
  glob.notes.clear();
  if (item.why && !is_to_come(*item.why, *glob.parsed)) glob.notes.push_back(item.why->message);
  set_enabled_as(glob, added);  // it may have been switched meanwhile
  if (!shown.empty() || (!item.skipped.empty() && item.skipped.size() != glob.told_skipped)) {
    spdlog::info("{} of process {}: {} matches have been loaded, {} can't be probed{}{}", glob.full_name(), revival.pid,
                 shown.size(), item.skipped.size(), item.skipped.empty() ? "" : "; the first: ",
                 item.skipped.empty() ? "" : item.skipped.front().why.message);
    tell_added(glob, shown, item.skipped);
  }
  glob.told_skipped = item.skipped.size();
  if (!shown.empty() && glob.owner == ClientId::none) parts_.keeper.keep(glob.pid);
  if (!shown.empty()) parts_.limits.look_at_limits_at(std::chrono::steady_clock::now());
}

// Its owner, and who gets its events. Matches whose arguments have other types are told of by themselves.
void Reviver::tell_added(const Probe& glob, const std::vector<ProbeId>& added, const std::vector<Skipped>& skipped) {
  std::set<Client*> clients;
  if (const auto owner = registry_.clients.find(glob.owner); owner != registry_.clients.end())
    clients.insert(owner->second);
  glob.audience.each([&](const Subscription& subscription) { clients.insert(subscription.client); });
  std::map<std::string, std::string> ids;  // by arguments
  for (const ProbeId id : added) {
    std::string& list = ids[args_of(registry_.probes.at(id))];
    list += (list.empty() ? "" : ",") + std::to_string(number(id));
  }
  if (ids.empty()) ids[args_of(glob)];
  for (Client* client : clients) {
    bool first = true;
    for (const auto& [args, list] : ids)
      client->notify("probe.added",
                     added_params(glob.id, list, args, std::exchange(first, false) ? skipped : std::vector<Skipped>()));
  }
}

void Reviver::set_enabled_as(const Probe& glob, const std::vector<ProbeId>& matches) {
  std::vector<ProbeId> other;
  for (const ProbeId id : matches) {
    Probe& probe = registry_.probes.at(id);
    if (std::exchange(probe.enabled, glob.enabled) != glob.enabled) other.push_back(id);
  }
  if (other.empty()) return;
  parts_.tracer->post([other = std::move(other), enabled = glob.enabled](tracer::Engine& engine) {
    engine.set_enabled(other, enabled, [](const std::vector<tracer::NotArmed>&) {});
  });
}

// A glob of which everything has been removed goes, too: nobody would see what for it stays.
void Reviver::forget_match(const Probe& match, std::vector<ProbeId>& emptied) {
  if (number(match.from) == 0 || number(match.leader) != 0) return;
  const auto it = registry_.probes.find(match.from);
  if (it == registry_.probes.end()) return;
  it->second.unwanted.insert(match.match);
  if (match.committed && it->second.matches == 1) emptied.push_back(match.from);
}

}  // namespace probed::control
