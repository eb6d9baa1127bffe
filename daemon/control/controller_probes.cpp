// Probes: add, remove, enable, list.
//
// An add goes parse (here) -> attach (tracer) -> plan (pool) -> register, invisible (here) -> arm (tracer) -> visible
// (here). Whatever fails takes all of it back.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "daemon/base/room.hpp"
#include "daemon/control/controller_parts.hpp"
#include "daemon/names/match.hpp"

namespace probed::control {

namespace {

constexpr std::string_view kDefaultGroup = "probes";
constexpr std::ptrdiff_t kManyPlaces = 64;
constexpr auto kAnalysisPatience = std::chrono::milliseconds(300);

std::uint64_t nanoseconds_of(std::chrono::steady_clock::time_point t) {
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(t.time_since_epoch()).count());
}

// Says which of several definitions an error is about.
Error in_definition(Error error, std::size_t index, std::size_t count) {
  if (count == 1) return error;
  error.message = fmt::format("definition {} of {}: {}", index + 1, count, error.message);
  error.definition = index;
  return error;
}

bool names_functions(const lang::Location& location) {
  const auto* const line = std::get_if<lang::LineLocation>(&location.where);
  return std::holds_alternative<lang::SymbolLocation>(location.where) || (line && !line->function.empty());
}

// The name the language gives to the place found, which for a glob is not the place as written.
std::string generated_name(const lang::Definition& definition, const symbols::Site& where) {
  lang::Definition found;
  found.kind = definition.kind;
  found.location = definition.location;
  if (where.usdt)
    found.location.where = lang::UsdtLocation{where.usdt->provider, where.usdt->name};
  else if (where.address && names_functions(definition.location))
    found.location.where = lang::SymbolLocation{where.symbol, where.offset};
  return lang::generated_name(found);
}

// The static probe alone, of however many the definition names.
std::shared_ptr<const lang::Definition> named_exactly(const lang::Definition& definition, const elf::UsdtSite& usdt) {
  auto exact = std::make_shared<lang::Definition>(definition);
  if (!std::holds_alternative<lang::UsdtLocation>(definition.location.where)) exact->location.module.clear();
  exact->location.where = lang::UsdtLocation{usdt.provider, usdt.name};
  return exact;
}

// Whether a definition's [GROUP/]NAME is this probe's; -:GROUP/ names every probe of the group.
bool named_by(const Probe& probe, const lang::Definition& definition) {
  const std::string_view group = definition.group.empty() ? kDefaultGroup : std::string_view(definition.group);
  if (probe.group != group) return false;
  return probe.name == definition.name || (definition.kind == lang::Kind::remove && definition.name.empty());
}

// Whether each match is a probe of its own.
bool is_glob(const lang::Location& location) {
  if (const auto* symbol = std::get_if<lang::SymbolLocation>(&location.where)) return names::has_glob(symbol->name);
  if (const auto* usdt = std::get_if<lang::UsdtLocation>(&location.where))
    return names::has_glob(usdt->provider) || names::has_glob(usdt->name);
  const auto* line = std::get_if<lang::LineLocation>(&location.where);
  return line && (names::has_glob(line->file) || names::has_glob(line->function));
}

// A pending probe holds its name: it will be there again.
bool holds_name(const Probe& probe) { return !probe.gone || (probe.pending && !probe.ended); }

// In place of what can't be found.
Result<Planned> plan_for_later(std::size_t spec, const lang::Definition& definition, const ProbeSpec& asked) {
  auto probe = Planner::plan_without_place(spec, definition, asked.filter);
  if (!probe) return std::move(probe).error();
  Planned planned;
  planned.probes.push_back(std::move(probe).value());
  return planned;
}

std::vector<RemoteAddr> sites_of(std::span<const PlannedProbe> probes) {
  std::vector<RemoteAddr> places;
  places.reserve(probes.size());
  for (const PlannedProbe& probe : probes)
    if (probe.plan.address) places.push_back(probe.plan.address);
  return places;
}

// On a worker: what the optimiser is to know.
std::vector<tracer::SiteCode> code_around(const symbols::TargetSymbols& symbols, std::span<const RemoteAddr> sites) {
  std::vector<tracer::SiteCode> code;
  code.reserve(sites.size());
  for (const RemoteAddr site : sites) {
    auto known = symbols.code_around(site);
    code.push_back({site, std::move(known.flow), known.bias, known.why_not, known.in_frame});
  }
  return code;
}

// "r:work k", of somebody who takes what follows the colon for the function.
Error naming_the_event(Error why, const lang::Definition& definition, const symbols::TargetSymbols& symbols) {
  if (why.reason != Reason::no_such_symbol || definition.name.empty() || why.column != definition.location.column)
    return why;
  if (!symbols.knows_function(definition.name)) return why;
  why.hint =
      fmt::format("\":{0}\" only names the event, the place is the word behind it: \"{1} {0}\" or \"{1}:{0} {0}\"",
                  definition.name, definition.kind == lang::Kind::return_probe ? "r" : "p");
  return why;
}

Result<Planned> plan_all(pid_t pid, const AddRequest& request, const std::vector<lang::Definition>& definitions,
                         const tracer::TextOverlay* overlay, symbols::ModuleCache& modules,
                         std::shared_ptr<const symbols::TargetSymbols>& used) {
  auto symbols = symbols::TargetSymbols::load(pid, modules);
  if (!symbols) return std::move(symbols).error();
  used = *symbols;
  Planner planner(pid, **symbols, overlay);
  Planned all;
  for (std::size_t i = 0; i < definitions.size(); ++i) {
    if (definitions[i].kind == lang::Kind::remove) continue;
    auto planned = planner.plan(i, definitions[i], request.probes[i].filter);
    if (!planned && request.probes[i].pending && may_come(planned.error())) {
      const Error why = std::move(planned).error();
      planned = plan_for_later(i, definitions[i], request.probes[i]);
      if (planned && !may_come(why, definitions[i]))
        planned->probes.front().notes.push_back("it waits for another file: " + why.message + "; " + why.hint);
    }
    if (!planned) {
      Error why = naming_the_event(std::move(planned).error(), definitions[i], *used);
      return in_definition(std::move(why), i, definitions.size());
    }
    if (all.probes.empty())
      all.probes = std::move(planned->probes);
    else
      std::ranges::move(planned->probes, std::back_inserter(all.probes));
    std::ranges::move(planned->skipped, std::back_inserter(all.skipped));
  }
  return all;
}

}  // namespace

Result<std::vector<lang::Definition>> ControllerImpl::parse(const AddRequest& request) const {
  std::vector<lang::Definition> definitions;
  for (std::size_t i = 0; i < request.probes.size(); ++i) {
    auto definition = lang::parse_definition(request.probes[i].definition);
    if (!definition) return in_definition(std::move(definition).error(), i, request.probes.size());
    definitions.push_back(std::move(definition).value());
  }
  return definitions;
}

// Names are unique among one owner's probes on one target, so that two clients never get in each other's way.
Result<void> ControllerImpl::check_names(const AddRequest& request, ClientId owner,
                                         const std::vector<lang::Definition>& definitions) const {
  std::set<std::string> seen;
  for (std::size_t i = 0; i < definitions.size(); ++i) {
    const lang::Definition& d = definitions[i];
    if (d.name.empty() && d.kind != lang::Kind::remove) continue;  // it will get a free one
    const std::string full = (d.group.empty() ? std::string(kDefaultGroup) : d.group) + "/" + d.name;
    const auto taken = std::ranges::find_if(probes_, [&](const auto& entry) {
      return entry.second.pid == request.pid && entry.second.owner == owner && holds_name(entry.second) &&
             named_by(entry.second, d);
    });
    if (d.kind == lang::Kind::remove) {
      if (taken == probes_.end())
        return in_definition(Error{Reason::no_such_probe,
                                   fmt::format("no probe of process {} is named {}", request.pid, full),
                                   "only probes of the same owner can be removed in this way; `probectl list` shows "
                                   "all, `probectl remove NAME` removes any",
                                   {}},
                             i, definitions.size());
      continue;
    }
    if (!seen.insert(full).second)
      return in_definition(Error{Reason::duplicate_name,
                                 fmt::format("two of these definitions have the name {}", full),
                                 "choose another name for one of them",
                                 {}},
                           i, definitions.size());
    if (taken != probes_.end())
      return in_definition(Error{Reason::duplicate_name,
                                 fmt::format("process {} already has a probe named {}", request.pid, full),
                                 "choose another name, or remove that probe first",
                                 {}},
                           i, definitions.size());
  }
  return {};
}

void ControllerImpl::add(Client& client, AddRequest request, Reply<Added> reply) {
  const ClientId who = client.id();
  auto definitions = parse(request);
  if (!definitions) return reply(std::move(definitions).error());
  auto plan = std::make_shared<Plan>();
  plan->request = std::move(request);
  plan->who = who;
  plan->owner = plan->request.persist ? ClientId::none : who;
  plan->user = client.user();
  plan->user_group = client.group();
  plan->definitions = std::move(definitions).value();
  const pid_t pid = plan->request.pid;
  const auto drop = [reply] { reply(client_has_gone()); };
  const auto run = [this, plan, who, pid, reply = std::move(reply)](std::function<void()> next) {
    // However it ends: a target that has nothing to do is let go again before the client hears of it.
    plan->reply = [this, pid, reply, next](Result<Added> result) {
      next();
      // Shared: what waits its turn is copied on its way, and a glob's answer is many thousands of probes.
      const auto shared = std::make_shared<Result<Added>>(std::move(result));
      detach_if_unused(pid, [reply, shared] { reply(std::move(*shared)); });
    };
    if (auto names = check_names(plan->request, plan->owner, plan->definitions); !names)
      return plan->reply(std::move(names).error());
    if (auto room = check_descriptors(plan->user, pid); !room) return plan->reply(std::move(room).error());
    ensure_attached(pid, {plan->request.follow_fork, false, false}, [this, plan, who](Result<void> attached) {
      if (attached) attached = check_still_allowed(who, plan->request.pid);
      if (!attached) return plan->reply(std::move(attached).error());
      Target& t = target(plan->request.pid);
      t.interested.insert(who);
      plan->overlay = t.overlay;
      plan->execs = t.execs;
      plan_in_pool(plan);
    });
  };
  enqueue(pid, run, who, drop);
}

void ControllerImpl::plan_in_pool(std::shared_ptr<Plan> plan) {
  struct Made {
    std::shared_ptr<const symbols::TargetSymbols> symbols;
    Result<Planned> planned;
  };
  const auto make = [this, plan]() -> Result<Made> {
    std::shared_ptr<const symbols::TargetSymbols> symbols;
    auto planned =
        plan_all(plan->request.pid, plan->request, plan->definitions, plan->overlay.get(), modules_, symbols);
    if (planned && std::ranges::any_of(planned->probes, shows_symbols)) read_all_symbols(*symbols);
    return Made{std::move(symbols), std::move(planned)};
  };
  at_work(plan->user, Work::change, make, [this, plan](Result<Made> made) {
    if (!made) return plan->reply(std::move(made).error());
    plan->symbols = std::move(made->symbols);
    if (!made->planned) return refuse(*plan, std::move(made->planned).error());
    plan->planned = std::move(made->planned->probes);
    plan->skipped = std::move(made->planned->skipped);
    analyse_first(plan);
  });
}

// The optimiser has to know the code around a place to make a jump there. Many probes at once are all over the program,
// and some of them are hit all the time: they wait for that, for a while.
void ControllerImpl::analyse_first(std::shared_ptr<Plan> plan) {
  const auto optimised = [&](const PlannedProbe& p) { return p.plan.address && plan->request.probes[p.spec].optimize; };
  if (!optimize_ || std::ranges::count_if(plan->planned, optimised) < kManyPlaces) return commit(plan);
  plan->analysis = Plan::Analysis::under_way;
  const auto patience = std::make_shared<boost::asio::steady_timer>(io_, kAnalysisPatience);
  const auto make = [symbols = plan->symbols,
                     sites = sites_of(plan->planned)]() -> Result<std::vector<tracer::SiteCode>> {
    return code_around(*symbols, sites);
  };
  at_work(plan->user, Work::change, make, [this, plan, patience](Result<std::vector<tracer::SiteCode>> code) {
    patience->cancel();
    take_analysis(plan, code ? std::move(code).value() : std::vector<tracer::SiteCode>());
  });
  patience->async_wait([this, plan, patience](const boost::system::error_code& cancelled) {
    if (!cancelled && !plan->committed) commit(plan);
  });
}

void ControllerImpl::take_analysis(const std::shared_ptr<Plan>& plan, std::vector<tracer::SiteCode> code) {
  plan->analysis = Plan::Analysis::done;
  plan->code = std::move(code);
  if (!plan->committed) return commit(plan);
  if (plan->in_place) tell_code(plan->request.pid, plan->execs, std::move(plan->code));
}

// Why, which may tell of the program: only who may trace what the process still runs is told.
void ControllerImpl::refuse(const Plan& plan, Error why) {
  if (!plan.symbols) return plan.reply(std::move(why));
  auto same = check_same_program(plan.who, plan.request.pid, *plan.symbols);
  plan.reply(same ? std::move(why) : std::move(same).error());
}

bool ControllerImpl::shows_symbols(const PlannedProbe& planned) {
  return planned.returns || std::ranges::any_of(planned.args(), [](const lang::FetchArg& arg) {
           return arg.type.base == values::BaseType::symbol;
         });
}

// What is to be said of a probe's events at this place.
events::EventSchema ControllerImpl::schema_of(const Probe& probe, const PlannedProbe& planned) {
  events::EventSchema schema = planned.returns
                                   ? events::make_return_schema(probe.full_name(), planned.function, planned.args())
                                   : events::make_schema(probe.full_name(), probe.symbol, planned.args());
  schema.shown = probe.shown();
  return schema;
}

// For the tracer; what was planned is moved out of.
tracer::ProgramPtr ControllerImpl::program_of(const Probe& probe, PlannedProbe& planned) {
  auto program = std::make_shared<tracer::ProbeProgram>();
  program->id = probe.id;
  program->role = planned.role;
  program->exit = planned.exit;
  program->semaphore = planned.where.semaphore;
  program->semaphore_backing = planned.semaphore_backing;
  program->needs_comm = planned.needs_comm();
  program->returns = std::move(planned.returns);
  if (program->role == tracer::ProbeProgram::Role::entry) program->returns->entry = probe.id;
  program->fetch = std::move(planned.fetch);
  program->filter = std::move(planned.filter);
  program->no_detour = std::move(planned.no_detour);
  if (probe.optimize) program->detour = std::move(planned.detour);
  program->enabled = probe.enabled;
  return program;
}

void ControllerImpl::read_all_symbols(const symbols::TargetSymbols& symbols) {
  for (const symbols::Mapping& mapping : symbols.mappings())
    if (mapping.executable) symbols.symbolize(mapping.start);
}

// The names of one owner's probes on one target. What is taken is gathered once for a whole batch, which a glob makes
// many thousands long.
class ControllerImpl::Names {
 public:
  Names(const std::map<ProbeId, Probe>& probes, pid_t pid, ClientId owner, std::size_t more) {
    taken_.reserve(more);
    for (const auto& [id, p] : probes)
      if (p.pid == pid && p.owner == owner && holds_name(p)) taken_.insert(p.full_name());
  }
  void take(const std::string& group, const std::string& name) { taken_.insert(group + "/" + name); }
  // `wanted`, or the first of wanted_1, wanted_2, ... that is free; taken from then on.
  std::string take_free(const std::string& group, std::string wanted) {
    if (taken_.insert(group + "/" + wanted).second) return wanted;
    unsigned& last = last_number_[group + "/" + wanted];
    std::string name;
    do name = fmt::format("{}_{}", wanted, ++last);
    while (!taken_.insert(group + "/" + name).second);
    return name;
  }

 private:
  std::unordered_set<std::string> taken_;                  // GROUP/NAME
  std::unordered_map<std::string, unsigned> last_number_;  // numbers up to this one are taken
};

// One more place of a probe that is there already.
void ControllerImpl::follow(Probe& probe, ProbeId leader) {
  Probe& first = probes_.at(leader);
  first.followers.push_back(probe.id);
  probe.leader = leader;
  probe.group = first.group;
  probe.name = first.name;
}

Result<void> ControllerImpl::check_room(const Plan& plan) const {
  const pid_t pid = plan.request.pid;
  const std::size_t more = plan.planned.size();
  if (probe_count(pid) + more > probe_limits_.per_target)
    return Error{Reason::limit_exceeded,
                 fmt::format("process {} would have more than {} probes", pid, probe_limits_.per_target),
                 "use a narrower glob, or start probed with a higher --max-probes",
                 {}};
  if (plan.user != 0 && probe_count_of_user(plan.user) + more > probe_limits_.per_user)
    return Error{Reason::limit_exceeded,
                 fmt::format("user {} would have more than {} probes", plan.user, probe_limits_.per_user),
                 "remove some of them, or have probed started with a higher --max-user-probes",
                 {}};
  return {};
}

// What the definition, the place and whoever asked say of a probe; its name and its part in others are the caller's.
void ControllerImpl::describe(Probe& probe, const Plan& plan, const Target& t, PlannedProbe& planned) const {
  const AddRequest& request = plan.request;
  const lang::Definition& definition = plan.definitions[planned.spec];
  const ProbeSpec& spec = request.probes[planned.spec];
  probe.start_time = t.id.start_time;
  probe.pending = spec.pending;
  probe.gone = !planned.where.address;
  probe.glob = probe.gone && is_glob(definition.location);
  probe.many = (probe.gone && !probe.glob) || planned.where.usdt || !planned.where.one_probe.empty();
  probe.from = plan.from;
  probe.pid = request.pid;
  probe.owner = plan.owner;
  probe.user = plan.user;
  probe.user_group = plan.user_group;
  probe.mark = t.mark;
  note_place(probe, planned.plan);
  probe.group = definition.group.empty() ? std::string(kDefaultGroup) : definition.group;
  probe.name = definition.name;
  probe.definition = spec.definition;
  probe.filter = spec.filter.value_or("");
  probe.symbol = probe.gone ? definition.location.text : symbol_of(planned.where);
  probe.module = probe.gone ? definition.location.module : planned.where.module;
  probe.notes = std::move(planned.notes);
  probe.address = planned.where.address;
  probe.enabled = !spec.disabled;
  probe.optimize = spec.optimize;
  probe.pace.most = request.max_rate;
  if (request.expire) probe.expires = std::chrono::steady_clock::now() + std::chrono::seconds(*request.expire);
}

// Enters the planned probes, invisible until the tracer has confirmed them: their hits may arrive before that.
Result<void> ControllerImpl::register_probes(Plan& plan) {
  const AddRequest& request = plan.request;
  Target& t = target(request.pid);
  if (!t.attached) return Error{Reason::target_gone, fmt::format("process {} has gone", request.pid), "", {}};
  if (auto room = check_room(plan); !room) return room;
  Names names(probes_, request.pid, plan.owner, plan.planned.size());
  plan.ids.reserve(plan.planned.size());
  auto limit = request.limit ? std::make_shared<tracer::HitLimit>(*request.limit) : nullptr;
  std::vector<std::shared_ptr<const lang::Definition>> shared(plan.definitions.size());
  std::map<std::pair<std::size_t, std::string>, ProbeId> leaders;  // by definition and static probe
  std::unordered_map<const tracer::ReturnProbe*, ProbeId> entries;
  const auto glob = probes_.find(plan.from);
  Sight sight;
  for (PlannedProbe& planned : plan.planned) {
    const lang::Definition& definition = plan.definitions[planned.spec];
    auto& parsed = shared[planned.spec];
    if (!parsed) parsed = std::make_shared<lang::Definition>(definition);
    const ProbeId id{++last_probe_};
    Probe& probe = probes_.try_emplace(probes_.end(), id)->second;
    probe.id = id;
    probe.parsed = planned.where.usdt ? named_exactly(definition, *planned.where.usdt) : parsed;
    describe(probe, plan, t, planned);
    plan.any_pending |= probe.pending;
    if (const std::string key = one_probe(planned.where); !key.empty()) {
      const auto [leader, first] = leaders.try_emplace({planned.spec, key}, probe.id);
      if (!first) follow(probe, leader->second);
    }
    if (planned.returns) {
      const auto [entry, first] = entries.try_emplace(planned.returns.get(), probe.id);
      if (!first) follow(probe, entry->second);
    }
    if (probe.name.empty())
      probe.name = names.take_free(probe.group, generated_name(definition, planned.where));
    else
      names.take(probe.group, probe.name);
    probe.schema = schema_of(probe, planned);
    if (shows_symbols(planned)) probe.symbols = plan.symbols;
    probe.program = program_of(probe, planned);
    probe.program->limit = limit;
    probe.program->force_step = glob == probes_.end() ? request.force_step : glob->second.program->force_step;
    if (!probe.optimize) probe.program->no_detour = "it was added so (optimize: false)";
    if (limit) limit->probes.push_back(probe.id);
    plan.ids.push_back(id);
    link(probe, sight);
  }
  return {};
}

void ControllerImpl::commit(std::shared_ptr<Plan> plan) {
  if (plan->owner != ClientId::none && !clients_.contains(plan->owner))
    return plan->reply(Error{Reason::target_gone, "the client has gone", "", {}});
  plan->committed = true;
  if (auto registered = register_probes(*plan); !registered) return plan->reply(std::move(registered).error());
  std::vector<tracer::SiteRequest> batch;
  batch.reserve(plan->ids.size());
  for (std::size_t i = 0; i < plan->ids.size(); ++i)
    if (plan->planned[i].plan.address) batch.push_back({plan->planned[i].plan, probes_.at(plan->ids[i]).program, {}});
  if (plan->code.size() == batch.size())
    for (std::size_t i = 0; i < batch.size(); ++i) batch[i].code = std::move(plan->code[i]);
  const bool has_code = !std::exchange(plan->code, {}).empty();
  tracer_->post([this, plan, has_code, batch = std::move(batch)](tracer::Engine& engine) mutable {
    engine.add(plan->request.pid, plan->execs, std::move(batch), [this, plan, has_code](Result<void> done) {
      post([this, plan, has_code, done = std::move(done)]() mutable {
        if (!done) {
          for (const ProbeId id : plan->ids) erase_probe(id);  // leaders and followers
          if (auto again = plan->again(done.error())) return plan_in_pool(std::move(again));
          return plan->reply(std::move(done).error());
        }
        Added added{{}, std::move(plan->skipped)};
        std::vector<ProbeId> ownerless;
        for (const ProbeId id : plan->ids) {
          const auto it = probes_.find(id);
          if (it == probes_.end()) {  // its client went meanwhile, before the tracer knew it
            ownerless.push_back(id);
            continue;
          }
          it->second.committed = true;
        }
        look_at_limits_at(std::chrono::steady_clock::now());
        if (plan->request.persist) keep(plan->request.pid);
        make_room(added.probes, plan->ids.size());
        for (const ProbeId id : plan->ids)
          if (const auto it = probes_.find(id); it != probes_.end() && is_shown(it->second))
            added.probes.push_back(view(it->second));
        plan->in_place = true;
        if (plan->analysis == Plan::Analysis::none)
          analyse_code(plan->user, plan->request.pid, plan->execs, plan->symbols, sites_of(plan->planned));
        else if (!has_code)
          tell_code(plan->request.pid, plan->execs, std::exchange(plan->code, {}));
        if (plan->any_pending) look_for_pending(plan->request.pid);
        if (!ownerless.empty())
          tracer_->post([ownerless = std::move(ownerless)](tracer::Engine& e) { e.remove(ownerless, nullptr); });
        std::vector<ProbeId> cleared;
        for (const lang::Definition& d : plan->definitions) {
          if (d.kind != lang::Kind::remove) continue;
          for (const auto& [id, p] : probes_)
            if (p.pid == plan->request.pid && p.owner == plan->owner &&
                is_named(p, [&d](const Probe& probe) { return named_by(probe, d); }))
              cleared.push_back(id);
        }
        if (cleared.empty()) return plan->reply(std::move(added));
        take_out(std::move(cleared), [plan, added = std::move(added)](auto) { plan->reply(added); });
      });
    });
  });
}

// What the optimiser has to know of the code around new probes, found out while they are hit as breakpoints.
void ControllerImpl::analyse_code(uid_t user, pid_t pid, std::uint32_t execs,
                                  std::shared_ptr<const symbols::TargetSymbols> symbols,
                                  std::vector<RemoteAddr> sites) {
  if (sites.empty() || !symbols) return;
  auto analyse = [this, symbols = std::move(symbols), sites = std::move(sites), pid, execs] {
    tell_code(pid, execs, code_around(*symbols, sites));
  };
  workers_.post({user, Work::change, std::move(analyse), nullptr});
}

// Any thread.
void ControllerImpl::tell_code(pid_t pid, std::uint32_t execs, std::vector<tracer::SiteCode> code) {
  if (code.empty()) return;
  tracer_->post([pid, execs, code = std::move(code)](tracer::Engine& engine) { engine.know_code(pid, execs, code); });
}

// ---- remove, enable, list -------------------------------------------------------------------------------------------

std::vector<ProbeId> ControllerImpl::select(const Client& client, const Selector& which) const {
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
  for (const auto& [id, probe] : probes_) {
    if (!probe.committed) continue;
    // The pid of one whose process has ended may be somebody else's by now.
    const bool ended = probe.owner == ClientId::none && probe.ended;
    const auto allowed = [&] {
      return ended ? client.user() == 0 || client.user() == probe.user : permitted(probe.pid);
    };
    if ((which.all || is_named(probe, named)) && (probe.owner == client.id() || allowed())) selected.push_back(id);
  }
  return selected;
}

void ControllerImpl::erase_probe(ProbeId id) {
  const auto it = probes_.find(id);
  if (it == probes_.end()) return;
  if (!it->second.ended) note_end(it->second);
  if (const auto leader = probes_.find(it->second.leader); leader != probes_.end())
    std::erase(leader->second.followers, id);
  if (const auto glob = probes_.find(it->second.from);
      glob != probes_.end() && it->second.committed && number(it->second.leader) == 0)
    --glob->second.matches;
  const Counts counts = counts_of(it->second);
  totals_.hits += counts.hits;
  totals_.missed += counts.missed;
  totals_.filtered += counts.filtered;
  for (const auto& [feed, index] : it->second.sources) feed->taps[index].probe = nullptr;
  probes_.erase(it);
}

// Takes probes out of the tracer and the registry; their targets stay attached.
void ControllerImpl::take_out(std::vector<ProbeId> ids, Reply<std::vector<ProbeView>> reply) {
  tracer_->urgency().hurry_others(kForLettingGo);
  auto removed = [this, ids, reply = std::move(reply)] {
    drain_all();
    std::vector<ProbeView> views;
    make_room(views, ids.size());
    std::set<pid_t> pids, keep_anew;
    for (const ProbeId id : ids) {
      const auto it = probes_.find(id);
      if (it == probes_.end()) continue;
      if (it->second.owner == ClientId::none) keep_anew.insert(it->second.pid);
      if (it->second.pending) pids.insert(it->second.pid);
      if (!is_shown(it->second)) continue;
      views.push_back(view(it->second));
      views.back().armed = false;
    }
    std::vector<ProbeId> emptied;
    for (const ProbeId id : ids) {
      if (const auto it = probes_.find(id); it != probes_.end()) forget_match(it->second, emptied);
      erase_probe(id);
    }
    for (const ProbeId id : emptied) erase_probe(id);
    for (const pid_t pid : pids) forget_watch_if_unneeded(pid);
    for (const pid_t pid : keep_anew) keep(pid);
    reply(std::move(views));
  };
  tracer_->post([this, ids = std::move(ids), removed = std::move(removed)](tracer::Engine& engine) {
    engine.remove(ids, [this, removed] { post(removed); });
  });
}

void ControllerImpl::remove_ids(std::vector<ProbeId> ids, Reply<std::vector<ProbeView>> reply) {
  take_out(std::move(ids), [this, reply = std::move(reply)](Result<std::vector<ProbeView>> removed) {
    // The answer comes when the targets that were only attached for these probes are free again.
    std::set<pid_t> pids;
    for (const ProbeView& view : *removed)
      if (targets_.contains(view.pid)) pids.insert(view.pid);
    auto left = std::make_shared<std::size_t>(pids.size());
    if (pids.empty()) return reply(std::move(removed));
    const auto shared = std::make_shared<Result<std::vector<ProbeView>>>(std::move(removed));
    const auto one_done = [left, reply, shared] {
      if (--*left == 0) reply(std::move(*shared));
    };
    for (const pid_t pid : pids) detach_if_unused(pid, one_done);
  });
}

void ControllerImpl::remove(Client& client, Selector which, Reply<std::vector<ProbeView>> reply) {
  remove_ids(select(client, which), std::move(reply));
}

void ControllerImpl::set_enabled(Client& client, Selector which, bool enabled, Reply<Changed> reply) {
  if (!enabled) tracer_->urgency().hurry_others(kForLettingGo);
  std::vector<ProbeId> ids = select(client, which);
  auto done = [this, ids, enabled, who = client.id(), reply = std::move(reply)] {
    drain_all();
    const auto now = std::chrono::steady_clock::now();
    const auto made_meanwhile = [this](ProbeId glob, const std::vector<ProbeId>& known) {
      auto made = matches_of(glob);
      std::erase_if(made, [&](ProbeId id) { return std::ranges::find(known, id) != known.end(); });
      return made;
    };
    std::vector<ProbeId> lost;
    std::vector<ProbeId> switched;
    for (const ProbeId id : ids) {
      const auto it = probes_.find(id);
      if (it == probes_.end()) continue;
      if (it->second.enabled != enabled) switched.push_back(id);
      it->second.enabled = enabled;
      it->second.why_disabled.clear();
      it->second.pace.since = {};
      // Whoever enables it again after its time wants it for good.
      if (enabled && it->second.expires && now >= *it->second.expires) it->second.expires.reset();
      if (enabled && it->second.gone) lost.push_back(id);
      if (it->second.glob) set_enabled_as(it->second, made_meanwhile(id, ids));
    }
    tell_switched(who, switched, enabled);
    if (enabled) look_at_limits_at(now);
    revive_all(who, std::move(lost), [this, ids, reply](std::vector<Failed> failed) {
      Changed changed{{}, std::move(failed)};
      std::set<pid_t> keep_anew;
      for (const ProbeId id : ids)
        if (const auto it = probes_.find(id); it != probes_.end() && is_shown(it->second)) {
          changed.probes.push_back(view(it->second));
          if (it->second.owner == ClientId::none) keep_anew.insert(it->second.pid);
        }
      for (const pid_t pid : keep_anew) keep(pid);
      reply(std::move(changed));
    });
  };
  tracer_->post([this, ids = std::move(ids), enabled, done = std::move(done)](tracer::Engine& engine) {
    // What couldn't be armed has been told to code_gone() when this is called.
    engine.set_enabled(ids, enabled, [this, done](const std::vector<tracer::NotArmed>&) { post(done); });
  });
}

void ControllerImpl::mark_gone(pid_t pid) {
  std::vector<ProbeId> ids, persistent;
  for (auto& [id, probe] : probes_) {
    if (probe.pid != pid) continue;
    if (!std::exchange(probe.ended, true)) note_end(probe);
    probe.gone = true;
    ids.push_back(id);
    if (probe.owner == ClientId::none && probe.committed) persistent.push_back(id);
  }
  for (const ProbeId id : persistent) erase_probe(id);
  keep(pid);
  if (const auto t = targets_.find(pid); t != targets_.end() && number(t->second.loader_watch) != 0)
    ids.push_back(std::exchange(t->second.loader_watch, {}));
  tracer_->post([ids = std::move(ids)](tracer::Engine& engine) { engine.remove(ids, nullptr); });
}

// A return probe costs as much as the dearest of its places.
const tracer::ProbeProgram& ControllerImpl::dearest(const Probe& probe) const {
  const tracer::ProbeProgram* program = probe.program.get();
  for (const ProbeId id : probe.followers) {
    const tracer::ProbeProgram& other = *probes_.at(id).program;
    if (program->returns && other.returns == program->returns && program->optimized) program = &other;
  }
  return *program;
}

// What a probe costs now, and why it doesn't cost less.
void ControllerImpl::put_tier(ProbeView& view, const Probe& probe) const {
  const tracer::ProbeProgram& program = dearest(probe);
  if (program.optimized) return void(view.tier = "optimized");
  view.tier = program.force_step ? "stepped" : "boosted";
  if (const char* why = program.not_optimized) view.tier_reason = why;
  if (view.tier_reason.empty()) view.tier_reason = program.no_detour;
}

// A function's exits are no places of their own.
std::uint64_t ControllerImpl::places_of(const Probe& probe) const {
  const auto is_place = [&](ProbeId id) { return probes_.at(id).program->role != tracer::ProbeProgram::Role::exit; };
  return 1 + static_cast<std::uint64_t>(std::ranges::count_if(probe.followers, is_place));
}

ProbeView ControllerImpl::view(const Probe& probe) const {
  ProbeView view;
  view.id = probe.id;
  view.name = probe.full_name();
  view.kind = probe.parsed->kind == lang::Kind::return_probe ? "r" : "p";
  view.pid = probe.pid;
  view.address = probe.address;
  view.symbol = probe.symbol;
  view.module = probe.module;
  if (const auto glob = probes_.find(probe.from); glob != probes_.end())
    view.from = {glob->first, glob->second.full_name()};
  const bool waits = probe.pending && !probe.ended;
  bool gone = probe.gone;
  Counts counts = counts_of(probe);
  for (const ProbeId id : probe.followers) {
    const Probe& other = probes_.at(id);
    gone &= other.gone;
    const Counts more = counts_of(other);
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
  for (const lang::FetchArg& arg : probe.schema.args) view.args.push_back({arg.name, values::to_string(arg.type)});
  view.notes = probe.notes;
  view.persist = probe.owner == ClientId::none;
  note_unkept(view);
  view.armed = armed_ && probe.enabled && !gone;
  view.hits = counts.hits;
  view.missed = counts.missed;
  view.filtered = counts.filtered;
  const auto add_calls = [&](const tracer::ProbeProgram& program) {
    if (program.role != tracer::ProbeProgram::Role::entry) return;
    view.abandoned += program.returns->abandoned;
    view.unmatched += program.returns->unmatched;
  };
  add_calls(*probe.program);
  for (const ProbeId id : probe.followers) add_calls(*probes_.at(id).program);
  return view;
}

std::vector<ProbeView> ControllerImpl::probes(std::optional<pid_t> pid) const {
  std::vector<ProbeView> views;
  for (const auto& [id, probe] : probes_)
    if (probe.committed && is_shown(probe) && (!pid || probe.pid == *pid)) views.push_back(view(probe));
  return views;
}

// On a worker: a list of the target's symbols.
template <typename T, typename List>
void ControllerImpl::look_up(const Client& client, pid_t pid, Shape<T> shape, Reply<std::string> reply, List list) {
  struct Found {
    std::shared_ptr<const symbols::TargetSymbols> symbols;
    std::string list;
  };
  const auto make = [this, pid, shape = std::move(shape), list = std::move(list)]() -> Result<Found> {
    auto symbols = symbols::TargetSymbols::load(pid, modules_);
    if (!symbols) return std::move(symbols).error();
    const Result<std::vector<T>> found = list(**symbols);
    if (!found) return found.error();
    return Found{*symbols, shape(*found)};
  };
  at_work(client.user(), Work::look, make, [this, who = client.id(), pid, reply](Result<Found> found) {
    if (!found) return reply(std::move(found).error());
    auto same = check_same_program(who, pid, *found->symbols);
    same ? reply(std::move(found->list)) : reply(std::move(same).error());
  });
}

void ControllerImpl::functions(Client& client, pid_t pid, std::string pattern, std::size_t limit,
                               Shape<symbols::Function> shape, Reply<std::string> reply) {
  look_up<symbols::Function>(
      client, pid, std::move(shape), std::move(reply),
      [pattern = std::move(pattern), limit](const auto& symbols) { return symbols.list_functions(pattern, limit); });
}

void ControllerImpl::variables(Client& client, pid_t pid, std::string location, Shape<dwarf::VisibleVariable> shape,
                               Reply<std::string> reply) {
  auto parsed = lang::parse_definition(location);
  if (!parsed) return reply(std::move(parsed).error());
  look_up<dwarf::VisibleVariable>(
      client, pid, std::move(shape), std::move(reply),
      [where = std::move(parsed->location)](const auto& symbols) { return symbols.list_variables(where); });
}

void ControllerImpl::lines(Client& client, pid_t pid, std::string file, std::size_t limit,
                           Shape<symbols::SourceLine> shape, Reply<std::string> reply) {
  look_up<symbols::SourceLine>(
      client, pid, std::move(shape), std::move(reply),
      [file = std::move(file), limit](const auto& symbols) { return symbols.list_lines(file, limit); });
}

void ControllerImpl::usdt(Client& client, pid_t pid, std::string pattern, std::size_t limit,
                          Shape<symbols::UsdtProbe> shape, Reply<std::string> reply) {
  look_up<symbols::UsdtProbe>(
      client, pid, std::move(shape), std::move(reply),
      [pattern = std::move(pattern), limit](const auto& symbols) { return symbols.list_usdt(pattern, limit); });
}

// ---- global switches ------------------------------------------------------------------------------------------------

// Whoever gets the events of probes that somebody else has switched.
void ControllerImpl::tell_switched(ClientId by, const std::vector<ProbeId>& ids, bool enabled) {
  struct Told {
    std::vector<ProbeId> ids;
    std::string first;
  };
  std::map<Client*, Told> told;
  for (const ProbeId id : ids) {
    const Probe& probe = probes_.at(id);
    if (!is_shown(probe) || !probe.committed) continue;
    std::set<Client*> clients;
    probe.audience.each([&](const Subscription& s) {
      if (s.client->id() != by) clients.insert(s.client);
    });
    for (Client* client : clients) {
      Told& t = told[client];
      if (t.ids.empty()) t.first = probe.full_name();
      t.ids.push_back(id);
    }
  }
  for (const auto& [client, t] : told) {
    proto::JsonWriter w;
    w.begin_object().key("ids").begin_array();
    for (const ProbeId id : t.ids) w.number(std::uint64_t{number(id)});
    w.end_array().key("enabled").boolean(enabled);
    const char* what = enabled ? "enabled by another client" : "disabled by another client";
    w.key("message").string(was_done(t.first, t.ids.size(), what)).end_object();
    client->notify("probe.switched", w.text());
  }
}

void ControllerImpl::set_armed(Client& client, bool armed, Reply<std::vector<Failed>> reply) {
  tracer_->post([this, armed, who = client.id(), reply = std::move(reply)](tracer::Engine& engine) {
    const auto not_armed = engine.set_armed(armed);
    post([this, armed, who, not_armed, reply] {
      std::set<Client*> streaming;
      for (const auto& [id, subscription] : subscriptions_)
        if (subscription.client->id() != who) streaming.insert(subscription.client);
      if (armed != armed_)
        for (Client* other : streaming) other->notify("daemon.switched", fmt::format(R"({{"armed":{}}})", armed));
      armed_ = armed;
      keep_all();
      reply(failed(not_armed));
    });
  });
}

void ControllerImpl::set_optimize(bool enabled, Reply<void> reply) {
  tracer_->post([this, enabled, reply = std::move(reply)](tracer::Engine& engine) {
    engine.set_optimize(enabled);
    post([this, enabled, reply] {
      optimize_ = enabled;
      keep_all();
      reply({});
    });
  });
}

Status ControllerImpl::status() const {
  Status status = totals_;
  status.armed = armed_;
  status.optimize = optimize_;
  status.targets = static_cast<std::uint32_t>(targets().size());
  status.clients = static_cast<std::uint32_t>(clients_.size());
  status.subscriptions = static_cast<std::uint32_t>(subscriptions_.size());
  for (const auto& [id, probe] : probes_) {
    if (!probe.committed) continue;
    status.probes += is_shown(probe) ? 1 : 0;
    status.optimized += is_shown(probe) && dearest(probe).optimized ? 1 : 0;
    const Counts counts = counts_of(probe);
    status.hits += counts.hits;
    status.missed += counts.missed;
    status.filtered += counts.filtered;
  }
  status.longest_pause_ns = longest_pause_;
  const tracer::Urgency& urgency = tracer_->urgency();
  status.priority = to_string(urgency.means());
  status.longest_wait_ns = urgency.longest_wait_ns();
  status.starved_ns = urgency.starved_ns();
  return status;
}

}  // namespace probed::control
