// Probes whose code goes away, and comes back: gone, pending, revived. Asio thread.
//
// That code has gone is noticed by the tracer (probes/code_changes.cpp). A gone probe is looked for again when somebody
// enables it; one that was added with `pending` whenever the target's dynamic loader reports that it has loaded
// something: it calls a function for debuggers then (_dl_debug_state, <link.h>), and we have a breakpoint there as long
// as some probe of the target may have to wait. Whoever lists probes has the waiting ones looked for as well, which is
// all that there is for a program without a dynamic loader. A probe keeps its id, name and counters.
#include "daemon/control/reviver.hpp"

#include <fmt/format.h>
#include <link.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstddef>
#include <set>

#include "daemon/base/process.hpp"
#include "daemon/control/batches.hpp"
#include "daemon/control/parts.hpp"
#include "daemon/names/match.hpp"
#include "proto/json.hpp"

namespace probed::control {
namespace {

constexpr std::string_view kLoaderReports = "p _dl_debug_state";
constexpr std::chrono::milliseconds kLookLimit{250};

// What one probe of a glob was for, by its own name.
lang::Definition for_one(const Probe& probe) {
  lang::Definition definition = *probe.parsed;
  const std::size_t plus = probe.symbol.rfind("+0x");
  if (probe.many || !names::has_glob(definition.location.text) || plus == std::string::npos) return definition;
  const std::uint64_t offset = std::stoull(probe.symbol.substr(plus + 1), nullptr, 16);
  definition.location.module = probe.module;
  definition.location.where = lang::SymbolLocation{probe.symbol.substr(0, plus), offset};
  definition.location.text = probe.module + ":" + probe.symbol;
  return definition;
}

// Whether others of those that were refused together may have a place nevertheless.
bool is_of_some(const Error& why) {
  return why.reason != Reason::not_attached && why.reason != Reason::target_gone && why.reason != Reason::timed_out;
}

bool may_come_back(const Probe& probe) { return probe.committed && probe.pending && !probe.ended && !probe.no_code; }

std::optional<Watch> plan_watch(Planner& planner, const symbols::TargetSymbols& symbols) {
  const auto definition = lang::parse_definition(kLoaderReports);
  auto planned = planner.plan(0, *definition, std::nullopt);
  if (!planned) {
    spdlog::debug("no dynamic loader to watch: {}", planned.error().message);
    return std::nullopt;
  }
  Watch watch{planned->probes.front().plan, {}};
  // The main program's, if it refers to it: a copy relocation moves the variable there.
  if (const auto debug = symbols.resolve_data("_r_debug")) watch.state = *debug + offsetof(r_debug, r_state);
  return watch;
}

}  // namespace

// What another daemon probed is put back where its very code still is.
void Item::plan(Planner& planner) {
  if (glob) return plan_matches(planner);
  if (!expected) return plan_places(planner);
  const std::vector<Lost> all = lost;
  plan_places(planner);
  const bool one_function = !many || definition.kind == lang::Kind::return_probe;
  if (!is_as_expected() && one_function && expected->backing.from_file()) {
    // Several may have its name: static functions, or versions of one. Its place in the file says which it was.
    lost = all;
    found.clear();
    why.reset();
    definition.location.where = lang::FileOffsetLocation{expected->backing.offset};
    plan_places(planner);
  }
  if (is_as_expected() || found.empty()) return;
  found.clear();
  why = Error{Reason::unmapped_address,
              fmt::format("the code at {} isn't what it was: its file has been replaced, or it was rewritten, while no "
                          "daemon ran",
                          all.empty() ? definition.location.text : all.front().symbol),
              "`probectl enable` probes what is there now",
              {}};
}

bool Item::is_as_expected() const {
  const auto first = std::ranges::find(found, leader, &Found::id);
  if (first == found.end()) return false;
  const tracer::SitePlan& plan = first->planned.plan;
  return std::ranges::equal(plan.code(), expected->code) && plan.backing == expected->backing;
}

// Each place that was found goes to who has lost just that, then to anybody, then, where there may be many, to somebody
// new.
void Item::plan_places(Planner& planner) {
  auto planned = planner.plan(0, definition, filter.empty() ? std::nullopt : std::optional(filter));
  if (!planned) return void(why = std::move(planned).error());
  auto& places = planned->probes;
  std::erase_if(places,
                [&](const PlannedProbe& p) { return std::ranges::find(in_place, p.where.address) != in_place.end(); });
  const auto take = [&](auto fits) {
    for (auto l = lost.begin(); l != lost.end();) {
      const auto p = std::ranges::find_if(places, [&](const PlannedProbe& place) { return fits(place, *l); });
      if (p == places.end()) {
        ++l;
        continue;
      }
      found.push_back({l->id, std::move(*p), {}, {}});
      places.erase(p);
      l = lost.erase(l);
    }
  };
  take([](const PlannedProbe& p, const Lost& l) { return symbol_of(p.where) == l.symbol; });
  take([](const PlannedProbe&, const Lost&) { return true; });
  if (many)
    for (PlannedProbe& p : places) found.push_back({ProbeId{}, std::move(p), {}, {}});
}

std::vector<Failed> Reviver::failed(const std::vector<tracer::NotArmed>& not_armed) const {
  std::vector<Failed> failed;
  for (const tracer::NotArmed& n : not_armed)
    if (const auto it = registry_.probes.find(n.id); it != registry_.probes.end())
      failed.push_back({it->second.shown(), it->second.full_name(), n.why});
  return failed;
}

// ---- gone -----------------------------------------------------------------------------------------------------------

// Their owners and whoever gets their events.
void Reviver::tell_gone(const std::vector<ProbeId>& ids, const char* why) {
  const auto concerned = [this](const Probe& probe) { return owner_and_audience(registry_, probe); };
  for (const auto& [client, t] : sort_by_hearer(registry_, ids, concerned)) {
    proto::JsonWriter w;
    t.put_ids(w);
    if (why) w.key("message").string(why);
    const std::size_t more = t.ids.size() - 1;
    w.key("what").string(more == 0 ? t.first : fmt::format("{} and {} more", t.first, more));
    client->notify("probe.gone", w.end_object().text());
  }
}

void Reviver::tell_returned(const std::vector<ProbeId>& ids) {
  struct Told {
    std::string ids, notes, probes;
  };
  const auto member = [](std::string_view name, const std::string& elements) {
    return elements.empty() ? std::string() : fmt::format(R"(,"{}":[{}])", name, elements);
  };
  std::map<ClientId, Told> told;
  for (const ProbeId id : ids) {
    const auto it = registry_.probes.find(id);
    if (it == registry_.probes.end()) continue;
    if (!is_shown(it->second)) continue;
    Told& t = told[it->second.owner];
    t.ids += (t.ids.empty() ? "" : ",") + std::to_string(number(id));
    t.probes +=
        fmt::format(R"({}{{"id":{},"args":[{}]}})", t.probes.empty() ? "" : ",", number(id), args_of(it->second));
    for (const std::string& note : it->second.notes) {
      t.notes += t.notes.empty() ? "" : ",";
      proto::append_json_string(t.notes, fmt::format("{}: {}", it->second.full_name(), note));
    }
  }
  for (const auto& [owner, t] : told)
    if (const auto client = registry_.clients.find(owner); client != registry_.clients.end())
      client->second->notify("probe.returned", fmt::format(R"({{"ids":[{}]{}{}}})", t.ids, member("notes", t.notes),
                                                           member("probes", t.probes)));
}

void Reviver::on_code_gone(pid_t root, const std::vector<ProbeId>& ids, const char* why) {
  const auto t = registry_.targets.find(root);
  bool some_wait = false;
  parts_.stream.drain_all();  // a client learns of it after the last event
  for (const ProbeId id : ids) {
    if (t != registry_.targets.end() && t->second.loader_watch == id) t->second.loader_watch = {};
    const auto it = registry_.probes.find(id);
    if (it == registry_.probes.end()) continue;
    it->second.gone = true;
    it->second.no_code = why != nullptr;
    some_wait |= may_come_back(it->second);
    take_along(it->second);
  }
  tell_gone(ids, why);
  if (some_wait) look_for_pending(root);
}

// A return probe that has lost its entry or one of its exits is of no use any more.
void Reviver::take_along(const Probe& lost) {
  if (!lost.program->returns) return;
  const auto of_same_function = [&](ProbeId id) {
    return registry_.probes.at(id).program->returns == lost.program->returns;
  };
  std::vector<ProbeId> parts{lost.shown()};
  std::ranges::copy(registry_.probes.at(lost.shown()).followers, std::back_inserter(parts));
  std::erase_if(parts, [&](ProbeId id) { return !of_same_function(id) || registry_.probes.at(id).gone; });
  for (const ProbeId id : parts) {
    Probe& part = registry_.probes.at(id);
    part.gone = true;
  }
  parts_.tracer->post([parts = std::move(parts)](tracer::Engine& engine) { engine.remove(parts, nullptr); });
}

// Who asks for a list waits no longer for the tracer than this: its answer is as old as what was last seen, then.
void Reviver::look(std::optional<pid_t> pid, std::function<void()> done) {
  std::vector<pid_t> pids;
  for (const auto& [id, target] : registry_.targets)
    if (target.attached && (!pid || *pid == id)) pids.push_back(id);
  if (pids.empty()) return done();
  const auto limit = std::make_shared<boost::asio::steady_timer>(parts_.io, kLookLimit);
  limit->async_wait([this, done = std::move(done)](const auto&) {
    parts_.stream.drain_known();  // so that hits are what has been delivered and what is known to be missed
    done();
  });
  parts_.tracer->post([this, pids, limit](tracer::Engine& engine) mutable {
    for (const pid_t p : pids) engine.look_at_code(p);
    post([this, pids, limit = std::move(limit)] {
      const auto waits = [](const auto& entry) { return entry.second.gone && may_come_back(entry.second); };
      for (const pid_t p : pids)
        if (std::ranges::any_of(registry_.probes, [&](const auto& e) { return e.second.pid == p && waits(e); }))
          look_for_pending(p);
      limit->cancel();
    });
  });
}

// ---- back -----------------------------------------------------------------------------------------------------------

// A probe with its places, as they are now.
Item Reviver::item_of(const Probe& leader) const {
  Item item;
  item.leader = leader.id;
  item.definition = for_one(leader);
  item.filter = leader.filter;
  item.glob = leader.glob;
  if (item.glob) {
    note_taken(item, leader);
    return item;
  }
  item.many = leader.many || leader.program->returns;
  if (leader.awaited && !leader.pending) item.expected = leader.place;
  const auto note = [&](const Probe& probe) {
    if (probe.gone)
      item.lost.push_back({probe.id, probe.symbol});
    else
      item.in_place.push_back(probe.address);
  };
  note(leader);
  for (const ProbeId id : leader.followers) note(registry_.probes.at(id));
  return item;
}

// The thread that reported it waits for our answer.
void Reviver::on_libraries_changed(pid_t root, std::uint64_t ticket) {
  const auto t = registry_.targets.find(root);
  if (t != registry_.targets.end() && t->second.attached) {
    t->second.loader_ticket = ticket;
    return look_for_pending(root);
  }
  parts_.tracer->post([root, ticket](tracer::Engine& engine) { engine.loader_may_go_on(root, ticket); });
}

void Reviver::look_for_pending(pid_t pid) {
  const auto t = registry_.targets.find(pid);
  if (t == registry_.targets.end() || std::exchange(t->second.look_queued, true)) return;
  parts_.attachments.enqueue(pid, [this, pid](std::function<void()> next) {
    registry_.target(pid).look_queued = false;
    const auto over = [this, pid, ticket = registry_.target(pid).loader_ticket, next = std::move(next)] {
      if (ticket != 0)
        parts_.tracer->post([pid, ticket](tracer::Engine& engine) { engine.loader_may_go_on(pid, ticket); });
      next();
    };
    parts_.tracer->post([this, pid, over](tracer::Engine& engine) {
      engine.look_at_code(pid);
      post([this, pid, over] {
        auto revival = std::make_shared<Revival>();
        revival->pid = pid;
        revival->done = [over](const std::vector<Failed>&) { over(); };
        bool some_wait = false;
        for (const auto& [id, probe] : registry_.probes) {
          if (probe.pid != pid || number(probe.leader) != 0 || !may_come_back(probe)) continue;
          some_wait = true;
          Item item = item_of(probe);
          if (item.many || item.glob || !item.lost.empty()) revival->items.push_back(std::move(item));
        }
        revival->wants_watch = some_wait && number(registry_.target(pid).loader_watch) == 0;
        if (!registry_.target(pid).attached) return over();
        revive(std::move(revival));
      });
    });
  });
}

void Reviver::forget_watch_if_unneeded(pid_t pid) {
  const auto t = registry_.targets.find(pid);
  if (t == registry_.targets.end() || number(t->second.loader_watch) == 0) return;
  const auto waits = [pid](const auto& entry) { return entry.second.pid == pid && may_come_back(entry.second); };
  if (std::ranges::any_of(registry_.probes, waits)) return;
  parts_.tracer->post([id = std::exchange(t->second.loader_watch, {})](tracer::Engine& engine) {
    engine.remove(std::array{id}, nullptr);
  });
}

std::optional<Error> Reviver::why_not_revivable(const Probe& probe) const {
  const auto id = process::target_id(probe.pid);
  if (!probe.ended && id && id->start_time == probe.start_time) return std::nullopt;
  return Error{
      Reason::target_gone,
      fmt::format("process {} has ended, or runs another program: {} was in the old one", probe.pid, probe.full_name()),
      "remove the probe, and add it to the process of now",
      {}};
}

void Reviver::revive_all(ClientId who, const std::vector<ProbeId>& ids, std::function<void(std::vector<Failed>)> done) {
  auto all = std::make_shared<std::vector<Failed>>();
  std::map<pid_t, std::vector<Item>> by_pid;
  std::set<ProbeId> leaders;
  for (const ProbeId id : ids) leaders.insert(registry_.probes.at(id).shown());
  for (const ProbeId id : leaders) {
    const Probe& probe = registry_.probes.at(id);
    if (auto why = why_not_revivable(probe); why && !is_shown(probe))
      continue;
    else if (why)
      all->push_back({id, probe.full_name(), *std::move(why)});
    else {
      by_pid[probe.pid].push_back(item_of(probe));
      by_pid[probe.pid].back().expected.reset();  // who asks wants what is there now
    }
  }
  if (by_pid.empty()) return done(std::move(*all));
  const auto left = std::make_shared<std::size_t>(by_pid.size());
  const auto one_done = [all, left, done = std::move(done)](std::vector<Failed> failed) {
    std::ranges::move(failed, std::back_inserter(*all));
    if (--*left == 0) done(std::move(*all));
  };
  for (auto& [pid, items] : by_pid) {
    auto revival = std::make_shared<Revival>();
    revival->pid = pid;
    revival->items = std::move(items);
    parts_.attachments.enqueue(pid, [this, who, revival, one_done, pid = pid](std::function<void()> next) {
      revival->done = [this, pid, next, one_done](std::vector<Failed> failed) {
        next();
        parts_.attachments.detach_if_unused(
            pid, [one_done, failed = std::move(failed)]() mutable { one_done(std::move(failed)); });
      };
      parts_.attachments.ensure_attached(pid, {}, [this, who, revival](Result<void> attached) {
        if (attached) attached = parts_.access.check_still_allowed(who, revival->pid);
        if (attached) return revive(revival);
        for (Item& item : revival->items) item.why = attached.error();
        finish(revival);
      });
    });
  }
}

void Reviver::revive_awaited(pid_t pid, std::function<void(std::vector<Failed>)> done) {
  auto revival = std::make_shared<Revival>();
  revival->pid = pid;
  bool some_wait = false;
  for (const auto& [id, probe] : registry_.probes) {
    if (probe.pid != pid || !probe.awaited || number(probe.leader) != 0) continue;
    some_wait |= may_come_back(probe);
    revival->items.push_back(item_of(probe));
  }
  revival->wants_watch = some_wait && number(registry_.target(pid).loader_watch) == 0;
  revival->done = std::move(done);
  revive(std::move(revival));
}

void Reviver::revive(std::shared_ptr<Revival> revival) {
  if (revival->items.empty() && !revival->wants_watch) return finish(revival);
  const Target& t = registry_.target(revival->pid);
  revival->overlay = t.overlay;
  revival->execs = t.execs;
  revival->user = user_of(*revival);
  const auto make = [this, revival] { return plan_again(*revival); };
  at_work(revival->user, Work::change, make, [this, revival](Result<PlannedAgain> made) {
    if (made) {
      revival->symbols = std::move(made->symbols);
      revival->items = std::move(made->items);
      revival->watch_plan = std::move(made->watch_plan);
    } else {
      for (Item& item : revival->items) item.why = made.error();
    }
    place(revival);
  });
}

uid_t Reviver::user_of(const Revival& revival) const {
  std::optional<uid_t> user;
  for (const auto& [id, probe] : registry_.probes)
    if (probe.pid == revival.pid && number(probe.leader) == 0) user = std::min(user.value_or(probe.user), probe.user);
  return user.value_or(0);
}

// On a worker: of copies, for who waits may give up before this ends.
Result<PlannedAgain> Reviver::plan_again(const Revival& revival) {
  auto symbols = symbols::TargetSymbols::load(revival.pid, parts_.modules);
  if (!symbols) return std::move(symbols).error();
  PlannedAgain made{*symbols, revival.items, std::nullopt};
  const auto was_kept = [](const Item& i) { return i.expected.has_value(); };
  if (std::ranges::all_of(made.items, was_kept)) (*symbols)->spare_candidates();
  Planner planner(revival.pid, **symbols, revival.overlay.get());
  for (Item& item : made.items) item.plan(planner);
  const auto shows = [](const Item::Found& found) { return Placement::shows_symbols(found.planned); };
  if (std::ranges::any_of(made.items, [&](const Item& i) {
        return std::ranges::any_of(i.found, shows) || std::ranges::any_of(i.matches, Placement::shows_symbols);
      }))
    Placement::read_all_symbols(**symbols);
  if (revival.wants_watch) made.watch_plan = plan_watch(planner, **symbols);
  return made;
}

// A further place of a probe, invisible until the tracer has confirmed it.
Probe& Reviver::add_place(const Item& item) {
  Probe& leader = registry_.probes.at(item.leader);
  Probe place;
  place.id = ProbeId{++registry_.last_probe};
  place.pid = leader.pid;
  place.owner = leader.owner;
  place.user = leader.user;
  place.user_group = leader.user_group;
  place.mark = leader.mark;
  place.definition = leader.definition;
  place.filter = leader.filter;
  place.enabled = leader.enabled;
  place.optimize = leader.optimize;
  place.pending = leader.pending;
  place.parsed = leader.parsed;
  place.start_time = leader.start_time;
  place.gone = true;
  place.program = std::make_shared<tracer::ProbeProgram>();
  place.program->no_detour = leader.program->no_detour;
  parts_.placement.follow(place, leader.id);
  Probe& added = registry_.probes.emplace(place.id, std::move(place)).first->second;
  Sight sight;
  parts_.stream.link(added, sight);
  return added;
}

// A found place's program, visible before the tracer's answer: its first hits may come before that.
void Reviver::place_one(const Revival& revival, Item& item, std::size_t index, Step& step) {
  Item::Found& found = item.found[index];
  const bool joins = number(found.id) == 0;
  const tracer::ProgramPtr leaders = registry_.probes.at(item.leader).program;
  if (joins) found.id = add_place(item).id;
  const auto it = registry_.probes.find(found.id);
  if (it == registry_.probes.end() || !it->second.gone) return;
  Probe& probe = it->second;
  probe.address = found.planned.where.address;
  probe.symbol = symbol_of(found.planned.where);
  probe.module = found.planned.where.module;
  probe.notes = std::move(found.planned.notes);
  probe.schema = Placement::schema_of(probe, found.planned);
  if (Placement::shows_symbols(found.planned)) probe.symbols = revival.symbols;
  const tracer::SitePlan plan = found.planned.plan;
  parts_.keeper.note_place(probe, plan);
  found.program = Placement::program_of(probe, found.planned);
  if (!probe.optimize) found.program->no_detour = probe.program->no_detour;
  found.program->counters = probe.program->counters;
  found.program->streaming = !probe.audience.empty();
  if (found.program->returns && probe.program->returns && found.program->role == tracer::ProbeProgram::Role::entry)
    found.program->returns->take_over(*probe.program->returns);
  step.parts.push_back({{plan, found.program, {}}, joins ? leaders : probe.program, joins});
}

// That one can't be placed doesn't hinder the others.
void Reviver::place(std::shared_ptr<Revival> revival) {
  std::vector<Step> steps;
  Step together;
  for (Item& item : revival->items) {
    if (!registry_.probes.contains(item.leader)) continue;
    if (item.glob) {
      place_matches(*revival, item, steps);
      continue;
    }
    std::ranges::stable_sort(item.found, {}, [](const Item::Found& f) { return f.planned.returns.get(); });
    for (std::size_t i = 0; i < item.found.size(); ++i) place_one(*revival, item, i, together);
  }
  if (!together.parts.empty()) steps.push_back(std::move(together));
  if (revival->watch_plan) {
    revival->watch = std::make_shared<tracer::ProbeProgram>();
    revival->watch->id = ProbeId{++registry_.last_probe};
    revival->watch->watches_loader = true;
    revival->watch->loader_state = revival->watch_plan->state;
    registry_.target(revival->pid).loader_watch = revival->watch->id;
    steps.push_back({{{{revival->watch_plan->plan, revival->watch, {}}, nullptr, false}}});
  }
  if (steps.empty()) return finish(revival);
  revival->unplaced = steps.size();
  parts_.tracer->post([this, revival, steps = std::move(steps)](tracer::Engine& engine) {
    for (const Step& step : steps) place_step(engine, revival, step);
  });
}

// Tracer thread.
void Reviver::place_step(tracer::Engine& engine, const std::shared_ptr<Revival>& revival, const Step& step) {
  std::vector<tracer::SiteRequest> requests;
  std::vector<tracer::ProgramPtr> programs;
  for (const auto& [request, before, joins] : step.parts) {
    const bool again = before && request.program->limit == before->limit && before->limit;  // see place_halves()
    const tracer::ProgramPtr& program = request.program;
    if (before && !joins)
      engine.remove(std::array{program->id}, nullptr);  // what a followed child may still have of it
    if (before) program->take_over(*before);
    if (joins && !again && program->limit) program->limit->probes.push_back(program->id);
    requests.push_back(request);
    programs.push_back(program);
  }
  engine.add(revival->pid, revival->execs, std::move(requests), [this, revival, step, programs](Result<void> added) {
    if (!added && is_of_some(added.error()) && place_halves(revival, step)) return;
    post([this, revival, programs, added = std::move(added)]() mutable {
      if (!added)
        for (const tracer::ProgramPtr& program : programs) revival->refused.emplace(program.get(), added.error());
      if (--revival->unplaced == 0) finish(revival);
    });
  });
}

// Tracer thread: what couldn't be placed together, in two halves; of many thousands those that can't be are found soon.
// False: that was one function, or one place.
bool Reviver::place_halves(const std::shared_ptr<Revival>& revival, const Step& together) {
  const auto function = [](const Step::Part& part) { return part.request.program->returns.get(); };
  const std::vector<Step::Part>& parts = together.parts;
  auto half = parts.begin() + static_cast<std::ptrdiff_t>(parts.size() / 2);
  const auto splits_function = [&] { return function(*half) && function(*half) == function(*std::prev(half)); };
  while (half != parts.begin() && splits_function()) --half;
  if (half == parts.begin())
    for (++half; half != parts.end() && splits_function();) ++half;
  if (half == parts.end()) return false;
  post([this, revival, first = Step{{parts.begin(), half}}, second = Step{{half, parts.end()}}] {
    ++revival->unplaced;
    parts_.tracer->post([this, revival, first, second](tracer::Engine& engine) {
      place_step(engine, revival, first);
      place_step(engine, revival, second);
    });
  });
  return true;
}

// What a pending probe waits for has come, and it can't be placed there. Said once for each reason: a library may be
// loaded over and over.
void Reviver::tell_unplaced(Probe& probe, const Error& why) {
  if (std::exchange(probe.why_gone, why.message) == why.message) return;
  const auto client = registry_.clients.find(probe.owner);
  if (client == registry_.clients.end()) return;
  std::string message;
  proto::append_json_string(message, fmt::format("{}: {}", probe.full_name(), why.message));
  client->second->notify("probe.unplaced", fmt::format(R"({{"ids":[{}],"message":{}}})", number(probe.id), message));
}

void Reviver::finish(const std::shared_ptr<Revival>& revival) {
  parts_.stream.drain_all();
  parts_.encoder.forget_names();
  std::vector<ProbeId> back, ownerless;
  std::vector<RemoteAddr> sites;
  std::vector<Failed> failed;
  if (revival->watch && revival->refused.contains(revival->watch.get()))
    registry_.target(revival->pid).loader_watch = {};
  for (Item& item : revival->items) {
    bool any = false;
    for (Item::Found& found : item.found)
      if (const auto refused = revival->refused.find(found.program.get()); refused != revival->refused.end())
        found.why = refused->second;
    if (item.glob) {
      finish_matches(*revival, item, ownerless, sites);
      continue;
    }
    for (Item::Found& found : item.found) {
      const auto it = registry_.probes.find(found.id);
      if (it == registry_.probes.end()) {  // removed meanwhile
        if (found.program && !found.why) ownerless.push_back(found.id);
        continue;
      }
      Probe& probe = it->second;
      if (found.why) {
        if (!item.why) item.why = std::move(found.why);
        if (!probe.committed) parts_.changes.erase_probe(found.id);
        continue;
      }
      if (!found.program) continue;
      any = true;
      probe.gone = false;
      probe.awaited = false;
      probe.why_gone.clear();
      if (const auto shown = registry_.probes.find(probe.shown()); shown != registry_.probes.end())
        parts_.keeper.note_watched(shown->second);
      probe.committed = true;
      probe.program = found.program;
      probe.program->streaming.store(!probe.audience.empty(), std::memory_order_relaxed);
      if (back.empty() || back.back() != probe.shown()) back.push_back(probe.shown());  // an item's are in a row
      sites.push_back(probe.address);
    }
    const auto leader = registry_.probes.find(item.leader);
    if (leader == registry_.probes.end() || any || !item.why || !item.in_place.empty()) continue;
    if (!may_come_back(leader->second))
      failed.push_back({item.leader, leader->second.full_name(), *item.why});
    else if (!may_come(*item.why, item.definition) && !process::is_exiting(revival->pid))
      tell_unplaced(leader->second, *item.why);
  }
  parts_.placement.analyse_code(revival->user, revival->pid, revival->execs, revival->symbols, std::move(sites));
  if (!ownerless.empty())
    parts_.tracer->post([ids = std::move(ownerless)](tracer::Engine& e) { e.remove(ids, nullptr); });
  tell_returned(back);
  forget_watch_if_unneeded(revival->pid);
  revival->done(std::move(failed));
}

}  // namespace probed::control
