#include "daemon/control/changes.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "daemon/base/reserve.hpp"
#include "daemon/control/batches.hpp"
#include "daemon/control/parts.hpp"

namespace probed::control {

// ---- remove, enable -------------------------------------------------------------------------------------------------

std::vector<ProbeId> Changes::select(const Client& client, const Selector& which) const {
  std::map<pid_t, bool> may;
  const auto permitted = [&](pid_t pid) {
    const auto [it, added] = may.try_emplace(pid, false);
    if (added) it->second = client.may_trace(pid);
    return it->second;
  };
  const std::set<ProbeId> ids(which.ids.begin(), which.ids.end());
  const std::set<std::string> names(which.names.begin(), which.names.end());
  const auto named = [&](const Probe& probe) {
    return ids.contains(probe.shown()) || names.contains(probe.name) || names.contains(probe.full_name());
  };
  std::vector<ProbeId> selected;
  for (const auto& [id, probe] : registry_.probes) {
    if (!probe.committed) continue;
    // The pid of one whose process has ended may be somebody else's by now.
    const bool ended = probe.owner == ClientId::none && probe.ended;
    const auto allowed = [&] {
      return ended ? client.user() == 0 || client.user() == probe.user : permitted(probe.pid);
    };
    if ((which.all || registry_.is_named(probe, named)) && (probe.owner == client.id() || allowed()))
      selected.push_back(id);
  }
  return selected;
}

void Changes::erase_probe(ProbeId id) {
  const auto it = registry_.probes.find(id);
  if (it == registry_.probes.end()) return;
  if (!it->second.ended) parts_.stream.note_end(it->second);
  if (const auto leader = registry_.probes.find(it->second.leader); leader != registry_.probes.end())
    std::erase(leader->second.followers, id);
  if (const auto glob = registry_.probes.find(it->second.from);
      glob != registry_.probes.end() && it->second.committed && number(it->second.leader) == 0)
    --glob->second.matches;
  const Counts counts = parts_.stream.counts_of(it->second);
  registry_.totals.hits += counts.hits;
  registry_.totals.missed += counts.missed;
  registry_.totals.filtered += counts.filtered;
  for (const auto& [feed, index] : it->second.sources) feed->taps[index].probe = nullptr;
  registry_.probes.erase(it);
}

void Changes::take_out(std::vector<ProbeId> ids, Reply<std::vector<ProbeView>> reply) {
  parts_.tracer->urgency().hurry_others(kForLettingGo);
  auto removed = [this, ids, reply = std::move(reply)] {
    parts_.stream.drain_all();
    std::vector<ProbeView> views;
    make_room(views, ids.size());
    std::set<pid_t> pids, keep_anew;
    for (const ProbeId id : ids) {
      const auto it = registry_.probes.find(id);
      if (it == registry_.probes.end()) continue;
      if (it->second.owner == ClientId::none) keep_anew.insert(it->second.pid);
      if (it->second.pending) pids.insert(it->second.pid);
      if (!is_shown(it->second)) continue;
      views.push_back(parts_.views.view(it->second));
      views.back().armed = false;
    }
    std::vector<ProbeId> emptied;
    for (const ProbeId id : ids) {
      if (const auto it = registry_.probes.find(id); it != registry_.probes.end())
        parts_.reviver.forget_match(it->second, emptied);
      erase_probe(id);
    }
    for (const ProbeId id : emptied) erase_probe(id);
    for (const pid_t pid : pids) parts_.reviver.forget_watch_if_unneeded(pid);
    for (const pid_t pid : keep_anew) parts_.keeper.keep(pid);
    reply(std::move(views));
  };
  parts_.tracer->post([this, ids = std::move(ids), removed = std::move(removed)](tracer::Engine& engine) {
    engine.remove(ids, [this, removed] { post(removed); });
  });
}

void Changes::remove_ids(std::vector<ProbeId> ids, Reply<std::vector<ProbeView>> reply) {
  take_out(std::move(ids), [this, reply = std::move(reply)](Result<std::vector<ProbeView>> removed) {
    std::set<pid_t> pids;
    for (const ProbeView& view : *removed)
      if (registry_.targets.contains(view.pid)) pids.insert(view.pid);
    auto left = std::make_shared<std::size_t>(pids.size());
    if (pids.empty()) return reply(std::move(removed));
    const auto shared = std::make_shared<Result<std::vector<ProbeView>>>(std::move(removed));
    const auto one_done = [left, reply, shared] {
      if (--*left == 0) reply(std::move(*shared));
    };
    for (const pid_t pid : pids) parts_.attachments.detach_if_unused(pid, one_done);
  });
}

void Changes::remove(Client& client, Selector which, Reply<std::vector<ProbeView>> reply) {
  remove_ids(select(client, which), std::move(reply));
}

void Changes::set_enabled(Client& client, Selector which, bool enabled, Reply<Changed> reply) {
  if (!enabled) parts_.tracer->urgency().hurry_others(kForLettingGo);
  std::vector<ProbeId> ids = select(client, which);
  auto done = [this, ids, enabled, who = client.id(), reply = std::move(reply)] {
    parts_.stream.drain_all();
    const auto now = std::chrono::steady_clock::now();
    const auto made_meanwhile = [this](ProbeId glob, const std::vector<ProbeId>& known) {
      auto made = parts_.reviver.matches_of(glob);
      std::erase_if(made, [&](ProbeId id) { return std::ranges::find(known, id) != known.end(); });
      return made;
    };
    std::vector<ProbeId> lost;
    std::vector<ProbeId> switched;
    for (const ProbeId id : ids) {
      const auto it = registry_.probes.find(id);
      if (it == registry_.probes.end()) continue;
      // That whoever has added it enables it then is a part of adding it.
      const bool begins = enabled && std::exchange(it->second.not_begun, false) && it->second.owner == who;
      if (it->second.enabled != enabled && !begins) switched.push_back(id);
      it->second.enabled = enabled;
      it->second.why_disabled.clear();
      it->second.pace.since = {};
      // Whoever enables it again after its time wants it for good.
      if (enabled && it->second.expires && now >= *it->second.expires) it->second.expires.reset();
      if (enabled && it->second.gone) lost.push_back(id);
      if (it->second.glob) parts_.reviver.set_enabled_as(it->second, made_meanwhile(id, ids));
    }
    tell_switched(who, switched, enabled);
    if (enabled) parts_.limits.look_at_limits_at(now);
    parts_.reviver.revive_all(who, std::move(lost), [this, ids, reply](std::vector<Failed> failed) {
      Changed changed{{}, std::move(failed)};
      std::set<pid_t> keep_anew;
      for (const ProbeId id : ids)
        if (const auto it = registry_.probes.find(id); it != registry_.probes.end() && is_shown(it->second)) {
          changed.probes.push_back(parts_.views.view(it->second));
          if (it->second.owner == ClientId::none) keep_anew.insert(it->second.pid);
        }
      for (const pid_t pid : keep_anew) parts_.keeper.keep(pid);
      reply(std::move(changed));
    });
  };
  // Of code that has gone unnoticed nothing was counted since: who ends his probes learns of it.
  std::set<pid_t> looked_at;
  if (!enabled)
    for (const ProbeId id : ids)
      if (const auto it = registry_.probes.find(id); it != registry_.probes.end() && !it->second.gone)
        looked_at.insert(it->second.pid);
  parts_.tracer->post([this, ids = std::move(ids), enabled, done = std::move(done),
                       looked_at = std::move(looked_at)](tracer::Engine& engine) {
    for (const pid_t pid : looked_at) engine.look_at_code(pid);
    // What couldn't be armed has been told to code_gone() when this is called.
    engine.set_enabled(ids, enabled, [this, done](const std::vector<tracer::NotArmed>&) { post(done); });
  });
}

void Changes::mark_gone(pid_t pid, std::string_view why) {
  std::vector<ProbeId> ids, persistent;
  for (auto& [id, probe] : registry_.probes) {
    if (probe.pid != pid) continue;
    if (!std::exchange(probe.ended, true)) {
      probe.why_gone = why;
      parts_.stream.note_end(probe);
    }
    probe.gone = true;
    ids.push_back(id);
    if (probe.owner == ClientId::none && probe.committed) persistent.push_back(id);
  }
  for (const ProbeId id : persistent) erase_probe(id);
  parts_.keeper.keep(pid);
  if (const auto t = registry_.targets.find(pid); t != registry_.targets.end() && number(t->second.loader_watch) != 0)
    ids.push_back(std::exchange(t->second.loader_watch, {}));
  parts_.tracer->post([ids = std::move(ids)](tracer::Engine& engine) { engine.remove(ids, nullptr); });
}

// Whoever gets the events of probes that somebody else has switched.
void Changes::tell_switched(ClientId by, const std::vector<ProbeId>& ids, bool enabled) {
  const auto others = [&](const Probe& probe) {
    std::set<Client*> clients;
    if (!probe.committed) return clients;
    probe.audience.each([&](const Subscription& s) {
      if (s.client->id() != by) clients.insert(s.client);
    });
    return clients;
  };
  for (const auto& [client, t] : sort_by_hearer(registry_, ids, others)) {
    proto::JsonWriter w;
    t.put_ids(w);
    w.key("enabled").boolean(enabled);
    const char* what = enabled ? "enabled by another client" : "disabled by another client";
    w.key("message").string(was_done(t.first, t.ids.size(), what)).end_object();
    client->notify("probe.switched", w.text());
  }
}

// ---- global switches ------------------------------------------------------------------------------------------------

void Changes::set_armed(Client& client, bool armed, Reply<std::vector<Failed>> reply) {
  parts_.tracer->post([this, armed, who = client.id(), reply = std::move(reply)](tracer::Engine& engine) {
    const auto not_armed = engine.set_armed(armed);
    post([this, armed, who, not_armed, reply] {
      std::set<Client*> streaming;
      for (const auto& [id, subscription] : registry_.subscriptions)
        if (subscription.client->id() != who) streaming.insert(subscription.client);
      if (armed != registry_.armed)
        for (Client* other : streaming) other->notify("daemon.switched", fmt::format(R"({{"armed":{}}})", armed));
      registry_.armed = armed;
      parts_.keeper.keep_all();
      reply(parts_.reviver.failed(not_armed));
    });
  });
}

void Changes::set_optimize(bool enabled, Reply<void> reply) {
  parts_.tracer->post([this, enabled, reply = std::move(reply)](tracer::Engine& engine) {
    engine.set_optimize(enabled);
    post([this, enabled, reply] {
      registry_.optimize = enabled;
      parts_.keeper.keep_all();
      reply({});
    });
  });
}

}  // namespace probed::control
