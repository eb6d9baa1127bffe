// Probes whose code goes away, and comes back: gone, pending, revived. Asio thread.
//
// That code has gone is noticed by the tracer (engine_memory.cpp). A gone probe is looked for again when somebody
// enables it; one that was added with `pending` whenever the target's dynamic loader reports that it has loaded
// something: it calls a function for debuggers then (_dl_debug_state, <link.h>), and we have a breakpoint there as long
// as some probe of the target may have to wait. Whoever lists probes has the waiting ones looked for as well, which is
// all that there is for a program without a dynamic loader. A probe keeps its id, name and counters.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "daemon/base/process.hpp"
#include "daemon/control/controller_impl.hpp"
#include "daemon/symbols/match.hpp"

namespace probed::control {

namespace {

constexpr std::string_view kLoaderReports = "p _dl_debug_state";
constexpr std::chrono::milliseconds kLookLimit{250};

struct Item {
  ProbeId id{};
  lang::Definition definition;
  std::string filter;
  std::string symbol;  // where it was: of several places, the one to choose
  std::optional<PlannedProbe> planned;
  tracer::ProgramPtr program;
  std::optional<Error> why;  // not placed
};

std::string symbol_of(const symbols::Site& where) {
  return where.symbol.empty() ? fmt::format("{:#x}", where.address.value)
                              : fmt::format("{}+{:#x}", where.symbol, where.offset);
}

// What one probe of a glob was for, by its own name.
lang::Definition for_one(const Probe& probe) {
  lang::Definition definition = *probe.parsed;
  const std::size_t plus = probe.symbol.rfind("+0x");
  if (!symbols::has_glob(definition.location.text) || plus == std::string::npos) return definition;
  const std::uint64_t offset = std::stoull(probe.symbol.substr(plus + 1), nullptr, 16);
  definition.location.module = probe.module;
  definition.location.where = lang::SymbolLocation{probe.symbol.substr(0, plus), offset};
  definition.location.text = probe.module + ":" + probe.symbol;
  return definition;
}

void plan(Item& item, Planner& planner) {
  const auto filter = item.filter.empty() ? std::nullopt : std::optional(item.filter);
  auto planned = planner.plan(0, item.definition, filter);
  if (!planned) return void(item.why = std::move(planned).error());
  const auto same = [&](const PlannedProbe& p) { return symbol_of(p.where) == item.symbol; };
  const auto found = std::ranges::find_if(planned->probes, same);
  item.planned = std::move(found == planned->probes.end() ? planned->probes.front() : *found);
}

std::optional<tracer::SitePlan> plan_watch(Planner& planner) {
  const auto definition = lang::parse_definition(kLoaderReports);
  auto planned = planner.plan(0, *definition, std::nullopt);
  if (planned) return planned->probes.front().plan;
  spdlog::debug("no dynamic loader to watch: {}", planned.error().message);
  return std::nullopt;
}

bool may_come_back(const Probe& probe) { return probe.committed && probe.pending && !probe.ended; }

}  // namespace

struct ControllerImpl::Revival {
  pid_t pid = 0;
  std::uint32_t execs = 0;
  KnownPlans known;
  std::shared_ptr<const tracer::TextOverlay> overlay;
  std::shared_ptr<const symbols::TargetSymbols> symbols;
  std::vector<Item> items;
  bool wants_watch = false;
  std::optional<tracer::SitePlan> watch_plan;
  tracer::ProgramPtr watch;
  std::size_t unplaced = 0;  // of what the tracer has been asked to add
  std::function<void(std::vector<Failed>)> done;
};

std::vector<Failed> ControllerImpl::failed(const std::vector<tracer::NotArmed>& not_armed) const {
  std::vector<Failed> failed;
  for (const tracer::NotArmed& n : not_armed)
    if (const auto it = probes_.find(n.id); it != probes_.end())
      failed.push_back({n.id, it->second.full_name(), n.why});
  return failed;
}

// ---- gone -----------------------------------------------------------------------------------------------------------

void ControllerImpl::notify_owners(const std::vector<ProbeId>& ids, std::string_view method) {
  std::map<ClientId, std::string> told;
  for (const ProbeId id : ids) {
    const auto it = probes_.find(id);
    if (it == probes_.end()) continue;
    std::string& list = told[it->second.owner];
    list += (list.empty() ? "" : ",") + std::to_string(number(id));
  }
  for (const auto& [owner, list] : told)
    if (const auto client = clients_.find(owner); client != clients_.end())
      client->second->notify(method, fmt::format(R"({{"ids":[{}]}})", list));
}

void ControllerImpl::on_code_gone(pid_t root, const std::vector<ProbeId>& ids) {
  const auto t = targets_.find(root);
  bool some_wait = false;
  drain_all();  // a client learns of it after the last event
  for (const ProbeId id : ids) {
    if (t != targets_.end() && t->second.loader_watch == id) t->second.loader_watch = {};
    const auto it = probes_.find(id);
    if (it == probes_.end()) continue;
    it->second.gone = true;
    some_wait |= may_come_back(it->second);
    if (t != targets_.end()) t->second.known.erase(it->second.address);
  }
  notify_owners(ids, "probe.gone");
  if (some_wait) look_for_pending(root);
}

// Who asks for a list waits no longer for the tracer than this: its answer is as old as what was last seen, then.
void ControllerImpl::look(std::optional<pid_t> pid, std::function<void()> done) {
  std::vector<pid_t> pids;
  for (const auto& [id, target] : targets_)
    if (target.attached && (!pid || *pid == id)) pids.push_back(id);
  if (pids.empty()) return done();
  const auto limit = std::make_shared<boost::asio::steady_timer>(io_, kLookLimit);
  limit->async_wait([this, done = std::move(done)](const auto&) {
    drain_known();  // so that hits are what has been delivered and what is known to be missed
    done();
  });
  tracer_->post([this, pids, limit](tracer::Engine& engine) mutable {
    for (const pid_t p : pids) engine.look_at_code(p);
    post([this, pids, limit = std::move(limit)] {
      const auto waits = [](const auto& entry) { return entry.second.gone && may_come_back(entry.second); };
      for (const pid_t p : pids)
        if (std::ranges::any_of(probes_, [&](const auto& e) { return e.second.pid == p && waits(e); }))
          look_for_pending(p);
      limit->cancel();
    });
  });
}

// ---- back -----------------------------------------------------------------------------------------------------------

// What waits for its code is looked for, once for however many reports; the dynamic loader is watched from then on.
void ControllerImpl::look_for_pending(pid_t pid) {
  const auto t = targets_.find(pid);
  if (t == targets_.end() || std::exchange(t->second.look_queued, true)) return;
  enqueue(pid, [this, pid](std::function<void()> next) {
    target(pid).look_queued = false;
    tracer_->post([this, pid, next](tracer::Engine& engine) {
      engine.look_at_code(pid);
      post([this, pid, next] {
        auto revival = std::make_shared<Revival>();
        revival->pid = pid;
        revival->done = [next](const std::vector<Failed>&) { next(); };
        bool some_wait = false;
        for (const auto& [id, probe] : probes_) {
          if (probe.pid != pid || !may_come_back(probe)) continue;
          some_wait = true;
          if (probe.gone) revival->items.push_back({id, for_one(probe), probe.filter, probe.symbol, {}, {}, {}});
        }
        revival->wants_watch = some_wait && number(target(pid).loader_watch) == 0;
        if (!target(pid).attached) return next();
        revive(std::move(revival));
      });
    });
  });
}

void ControllerImpl::forget_watch_if_unneeded(pid_t pid) {
  const auto t = targets_.find(pid);
  if (t == targets_.end() || number(t->second.loader_watch) == 0) return;
  const auto waits = [pid](const auto& entry) { return entry.second.pid == pid && may_come_back(entry.second); };
  if (std::ranges::any_of(probes_, waits)) return;
  tracer_->post([id = std::exchange(t->second.loader_watch, {})](tracer::Engine& engine) {
    engine.remove(std::array{id}, nullptr);
  });
}

std::optional<Error> ControllerImpl::why_not_revivable(const Probe& probe) const {
  const auto id = process::target_id(probe.pid);
  if (!probe.ended && id && id->start_time == probe.start_time) return std::nullopt;
  return Error{
      Reason::target_gone,
      fmt::format("process {} has ended, or runs another program: {} was in the old one", probe.pid, probe.full_name()),
      "remove the probe, and add it to the process of now",
      {}};
}

// Looks for the code of gone probes because somebody has asked for it. Those that wait for it anyway don't count as
// failed as long as it isn't there.
void ControllerImpl::revive_all(ClientId who, const std::vector<ProbeId>& ids,
                                std::function<void(std::vector<Failed>)> done) {
  auto all = std::make_shared<std::vector<Failed>>();
  std::map<pid_t, std::vector<Item>> by_pid;
  for (const ProbeId id : ids) {
    const Probe& probe = probes_.at(id);
    if (auto why = why_not_revivable(probe))
      all->push_back({id, probe.full_name(), *std::move(why)});
    else
      by_pid[probe.pid].push_back({id, for_one(probe), probe.filter, probe.symbol, {}, {}, {}});
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
    enqueue(pid, [this, who, revival, one_done, pid = pid](std::function<void()> next) {
      revival->done = [this, pid, next, one_done](std::vector<Failed> failed) {
        next();
        detach_if_unused(pid, [one_done, failed = std::move(failed)]() mutable { one_done(std::move(failed)); });
      };
      ensure_attached(pid, {}, [this, who, revival](Result<void> attached) {
        if (attached) attached = check_still_allowed(who, revival->pid);
        if (attached) return revive(revival);
        for (Item& item : revival->items) item.why = attached.error();
        finish(revival);
      });
    });
  }
}

void ControllerImpl::revive(std::shared_ptr<Revival> revival) {
  if (revival->items.empty() && !revival->wants_watch) return finish(revival);
  const Target& t = target(revival->pid);
  revival->known = t.known;
  revival->overlay = t.overlay;
  revival->execs = t.execs;
  boost::asio::post(pool_, [this, revival] {
    const auto symbols = symbols::TargetSymbols::load(revival->pid, modules_);
    if (symbols) {
      revival->symbols = *symbols;
      Planner planner(revival->pid, **symbols, revival->known, revival->overlay.get());
      for (Item& item : revival->items) plan(item, planner);
      if (revival->wants_watch) revival->watch_plan = plan_watch(planner);
    } else {
      for (Item& item : revival->items) item.why = symbols.error();
    }
    post([this, revival] { place(revival); });
  });
}

// Each by itself: that one can't be placed doesn't hinder the others.
void ControllerImpl::place(std::shared_ptr<Revival> revival) {
  Target& t = target(revival->pid);
  std::vector<tracer::SiteRequest> requests;
  std::vector<tracer::ProgramPtr> before;
  for (Item& item : revival->items) {
    const auto it = probes_.find(item.id);
    if (!item.planned || it == probes_.end() || !it->second.gone) continue;
    item.program = std::make_shared<tracer::ProbeProgram>();
    item.program->id = item.id;
    item.program->needs_comm = item.planned->fetch.needs_comm();
    item.program->fetch = std::move(item.planned->fetch);
    item.program->filter = std::move(item.planned->filter);
    item.program->detour = std::move(item.planned->detour);
    item.program->no_detour = std::move(item.planned->no_detour);
    if (!it->second.optimize) item.program->detour.reset(), item.program->no_detour = it->second.program->no_detour;
    item.program->counters = it->second.program->counters;
    item.program->enabled = it->second.enabled;
    item.program->streaming = !it->second.subscriptions.empty();
    t.known.insert_or_assign(item.planned->plan.address, item.planned->plan);
    requests.push_back({item.planned->plan, item.program});
    before.push_back(it->second.program);
  }
  if (revival->watch_plan) {
    revival->watch = std::make_shared<tracer::ProbeProgram>();
    revival->watch->id = ProbeId{++last_probe_};
    revival->watch->watches_loader = true;
    t.loader_watch = revival->watch->id;
    requests.push_back({*revival->watch_plan, revival->watch});
    before.push_back(nullptr);
  }
  if (requests.empty()) return finish(revival);
  revival->unplaced = requests.size();
  tracer_->post([this, revival, requests = std::move(requests), before = std::move(before)](tracer::Engine& engine) {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const tracer::ProgramPtr& program = requests[i].program;
      if (before[i]) {
        engine.remove(std::array{program->id}, nullptr);  // what a followed child may still have of it
        program->take_over(*before[i]);
      }
      engine.add(revival->pid, revival->execs, {requests[i]}, [this, revival, program](Result<void> added) {
        post([this, revival, program, added = std::move(added)]() mutable {
          for (Item& item : revival->items)
            if (item.program == program && !added) item.why = std::move(added).error();
          if (revival->watch == program && !added) target(revival->pid).loader_watch = {};
          if (--revival->unplaced == 0) finish(revival);
        });
      });
    }
  });
}

void ControllerImpl::finish(const std::shared_ptr<Revival>& revival) {
  drain_all();
  std::vector<ProbeId> back, ownerless;
  std::vector<RemoteAddr> sites;
  std::vector<Failed> failed;
  for (Item& item : revival->items) {
    const auto it = probes_.find(item.id);
    if (it == probes_.end()) {  // removed meanwhile
      if (item.program && !item.why) ownerless.push_back(item.id);
      continue;
    }
    Probe& probe = it->second;
    if (item.why) {
      if (!may_come_back(probe)) failed.push_back({item.id, probe.full_name(), *item.why});
      continue;
    }
    if (!item.program) continue;
    probe.gone = false;
    probe.program = item.program;
    probe.program->streaming.store(!probe.subscriptions.empty(), std::memory_order_relaxed);
    probe.address = item.planned->where.address;
    probe.symbol = symbol_of(item.planned->where);
    probe.module = item.planned->where.module;
    probe.schema = events::make_schema(probe.full_name(), probe.symbol, item.program->fetch.args());
    back.push_back(item.id);
    sites.push_back(probe.address);
  }
  analyse_code(revival->pid, revival->execs, revival->symbols, std::move(sites));
  if (!ownerless.empty()) tracer_->post([ids = std::move(ownerless)](tracer::Engine& e) { e.remove(ids, nullptr); });
  notify_owners(back, "probe.returned");
  forget_watch_if_unneeded(revival->pid);
  revival->done(std::move(failed));
}

}  // namespace probed::control
