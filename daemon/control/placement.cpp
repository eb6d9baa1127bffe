// Probes on their way in.
//
// An add goes parse (here) -> attach (tracer) -> plan (pool) -> register, invisible (here) -> arm (tracer) -> visible
// (here). Whatever fails takes all of it back.
#include "daemon/control/placement.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "daemon/base/process.hpp"
#include "daemon/base/reserve.hpp"
#include "daemon/control/batches.hpp"
#include "daemon/control/parts.hpp"
#include "daemon/names/demangle.hpp"
#include "daemon/names/match.hpp"

namespace probed::control {
namespace {

constexpr std::string_view kDefaultGroup = "probes";
constexpr std::ptrdiff_t kManyPlaces = 64;
constexpr auto kAnalysisPatience = std::chrono::milliseconds(300);

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

// Of a C++ function: neither its parameters nor its own template arguments, and std::string as in the source.
std::string without_signature(const std::string& symbol) {
  const bool is_plain = symbol.find_first_of("(<") == symbol.npos;
  return is_plain ? symbol : names::in_one_spelling(names::split_name(symbol).bare);
}

// The name the language gives to the place found, which for a glob is not the place as written. Of a function that
// exists only inlined it is that function's, not that of the one which the place is in.
std::string generated_name(const lang::Definition& definition, const symbols::Site& where) {
  lang::Definition found;
  found.kind = definition.kind;
  found.location = definition.location;
  if (where.usdt)
    found.location.where = lang::UsdtLocation{where.usdt->provider, where.usdt->name};
  else if (where.address && names_functions(definition.location) && where.instance != symbols::Site::Instance::inlined)
    found.location.where = lang::SymbolLocation{without_signature(where.symbol), where.offset};
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

// later: a probe that may wait for its code does, whether that is there or not.
Result<Planned> plan_all(pid_t pid, const AddRequest& request, const std::vector<lang::Definition>& definitions,
                         const tracer::TextOverlay* overlay, symbols::ModuleCache& modules,
                         std::shared_ptr<const symbols::TargetSymbols>& used, bool later) {
  auto symbols = symbols::TargetSymbols::load(pid, modules);
  if (!symbols) return std::move(symbols).error();
  used = *symbols;
  Planner planner(pid, **symbols, overlay);
  Planned all;
  for (std::size_t i = 0; i < definitions.size(); ++i) {
    if (definitions[i].kind == lang::Kind::remove) continue;
    const bool waits = later && request.probes[i].pending;
    auto planned = waits ? plan_for_later(i, definitions[i], request.probes[i])
                         : planner.plan(i, definitions[i], request.probes[i].filter);
    if (!planned && !waits && request.probes[i].pending && may_come(planned.error())) {
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

Result<std::vector<lang::Definition>> Placement::parse(const AddRequest& request) const {
  std::vector<lang::Definition> definitions;
  for (std::size_t i = 0; i < request.probes.size(); ++i) {
    auto definition = lang::parse_definition(request.probes[i].definition);
    if (!definition) return in_definition(std::move(definition).error(), i, request.probes.size());
    definitions.push_back(std::move(definition).value());
  }
  return definitions;
}

// Names are unique among one owner's probes on one target, so that two clients never get in each other's way.
Result<void> Placement::check_names(const AddRequest& request, ClientId owner,
                                    const std::vector<lang::Definition>& definitions) const {
  std::set<std::string> seen;
  for (std::size_t i = 0; i < definitions.size(); ++i) {
    const lang::Definition& d = definitions[i];
    if (d.name.empty() && d.kind != lang::Kind::remove) continue;  // it will get a free one
    const std::string full = (d.group.empty() ? std::string(kDefaultGroup) : d.group) + "/" + d.name;
    const auto taken = std::ranges::find_if(registry_.probes, [&](const auto& entry) {
      return entry.second.pid == request.pid && entry.second.owner == owner && holds_name(entry.second) &&
             named_by(entry.second, d);
    });
    if (d.kind == lang::Kind::remove) {
      if (taken == registry_.probes.end())
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
    if (taken != registry_.probes.end())
      return in_definition(Error{Reason::duplicate_name,
                                 fmt::format("process {} already has a probe named {}", request.pid, full),
                                 "choose another name, or remove that probe first",
                                 {}},
                           i, definitions.size());
  }
  return {};
}

void Placement::add(Client& client, AddRequest request, Reply<Added> reply) {
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
  const auto drop = [reply] { reply(Access::client_has_gone()); };
  const auto run = [this, plan, who, pid, reply = std::move(reply)](std::function<void()> next) {
    // However it ends: a target that has nothing to do is let go again before the client hears of it.
    plan->reply = [this, pid, reply, next](Result<Added> result) {
      next();
      // Shared: what waits its turn is copied on its way, and a glob's answer is many thousands of probes.
      const auto shared = std::make_shared<Result<Added>>(std::move(result));
      parts_.attachments.detach_if_unused(pid, [reply, shared] { reply(std::move(*shared)); });
    };
    if (auto names = check_names(plan->request, plan->owner, plan->definitions); !names)
      return plan->reply(std::move(names).error());
    if (auto room = parts_.pool.check_descriptors(plan->user, pid); !room) return plan->reply(std::move(room).error());
    parts_.attachments.ensure_attached(pid, {plan->request.follow_fork, false, false},
                                       [this, plan, who](Result<void> attached) {
                                         if (attached)
                                           attached = parts_.access.check_still_allowed(who, plan->request.pid);
                                         if (!attached) return plan->reply(std::move(attached).error());
                                         Target& t = registry_.target(plan->request.pid);
                                         t.interested.insert(who);
                                         plan->overlay = t.overlay;
                                         plan->execs = t.execs;
                                         plan_in_pool(plan);
                                       });
  };
  parts_.attachments.enqueue(pid, run, who, drop);
}

void Placement::plan_in_pool(std::shared_ptr<Plan> plan) {
  struct Made {
    std::shared_ptr<const symbols::TargetSymbols> symbols;
    Result<Planned> planned;
  };
  const auto make = [this, plan]() -> Result<Made> {
    std::shared_ptr<const symbols::TargetSymbols> symbols;
    auto planned = plan_all(plan->request.pid, plan->request, plan->definitions, plan->overlay.get(), parts_.modules,
                            symbols, plan->waits());
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
void Placement::analyse_first(std::shared_ptr<Plan> plan) {
  const auto optimised = [&](const PlannedProbe& p) { return p.plan.address && plan->request.probes[p.spec].optimize; };
  if (!registry_.optimize || std::ranges::count_if(plan->planned, optimised) < kManyPlaces) return commit(plan);
  plan->analysis = Plan::Analysis::under_way;
  const auto patience = std::make_shared<boost::asio::steady_timer>(parts_.io, kAnalysisPatience);
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

void Placement::take_analysis(const std::shared_ptr<Plan>& plan, std::vector<tracer::SiteCode> code) {
  plan->analysis = Plan::Analysis::done;
  plan->code = std::move(code);
  if (!plan->committed) return commit(plan);
  if (plan->in_place) tell_code(plan->request.pid, plan->execs, std::move(plan->code));
}

// Why, which may tell of the program: only who may trace what the process still runs is told.
void Placement::refuse(const Plan& plan, Error why) {
  if (!plan.symbols) return plan.reply(std::move(why));
  auto same = parts_.access.check_same_program(plan.who, plan.request.pid, *plan.symbols);
  plan.reply(same ? std::move(why) : std::move(same).error());
}

bool Placement::shows_symbols(const PlannedProbe& planned) {
  return planned.returns || std::ranges::any_of(planned.args(), [](const lang::FetchArg& arg) {
           return arg.type.base == values::BaseType::symbol;
         });
}

events::EventSchema Placement::schema_of(const Probe& probe, const PlannedProbe& planned) {
  events::EventSchema schema = planned.returns
                                   ? events::make_return_schema(probe.full_name(), planned.function, planned.args())
                                   : events::make_schema(probe.full_name(), probe.symbol, planned.args());
  schema.shown = probe.shown();
  return schema;
}

tracer::ProgramPtr Placement::program_of(const Probe& probe, PlannedProbe& planned) {
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

void Placement::read_all_symbols(const symbols::TargetSymbols& symbols) {
  for (const symbols::Mapping& mapping : symbols.mappings())
    if (mapping.executable) symbols.symbolize(mapping.start);
}

// The names of one owner's probes on one target. What is taken is gathered once for a whole batch, which a glob makes
// many thousands long.
class Names {
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

void Placement::follow(Probe& probe, ProbeId leader) {
  Probe& first = registry_.probes.at(leader);
  first.followers.push_back(probe.id);
  probe.leader = leader;
  probe.group = first.group;
  probe.name = first.name;
}

Result<void> Placement::check_room(const Plan& plan) const {
  const pid_t pid = plan.request.pid;
  const std::size_t more = plan.planned.size();
  if (registry_.probe_count(pid) + more > registry_.probe_limits.per_target)
    return Error{Reason::limit_exceeded,
                 fmt::format("process {} would have more than {} probes", pid, registry_.probe_limits.per_target),
                 "use a narrower glob, or start probed with a higher --max-probes",
                 {}};
  if (plan.user != 0 && registry_.probe_count_of_user(plan.user) + more > registry_.probe_limits.per_user)
    return Error{Reason::limit_exceeded,
                 fmt::format("user {} would have more than {} probes", plan.user, registry_.probe_limits.per_user),
                 "remove some of them, or have probed started with a higher --max-user-probes",
                 {}};
  return {};
}

// What the definition, the place and whoever asked say of a probe; its name and its part in others are the caller's.
void Placement::describe(Probe& probe, const Plan& plan, const Target& t, PlannedProbe& planned) const {
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
  parts_.keeper.note_place(probe, planned.plan);
  probe.group = definition.group.empty() ? std::string(kDefaultGroup) : definition.group;
  probe.name = definition.name;
  probe.definition = spec.definition;
  probe.filter = spec.filter.value_or("");
  probe.symbol = probe.gone ? definition.location.text : symbol_of(planned.where);
  probe.module = probe.gone ? definition.location.module : planned.where.module;
  probe.notes = std::move(planned.notes);
  probe.address = planned.where.address;
  probe.enabled = !spec.disabled;
  probe.not_begun = spec.disabled;
  probe.optimize = spec.optimize;
  probe.pace.most = request.max_rate;
  if (request.expire) probe.expires = std::chrono::steady_clock::now() + std::chrono::seconds(*request.expire);
}

Result<void> Placement::register_probes(Plan& plan) {
  const AddRequest& request = plan.request;
  Target& t = registry_.target(request.pid);
  if (!t.attached) return process::no_longer_there(request.pid);
  if (auto room = check_room(plan); !room) return room;
  Names names(registry_.probes, request.pid, plan.owner, plan.planned.size());
  plan.ids.reserve(plan.planned.size());
  auto limit = request.limit ? std::make_shared<tracer::HitLimit>(*request.limit) : nullptr;
  std::vector<std::shared_ptr<const lang::Definition>> shared(plan.definitions.size());
  std::map<std::pair<std::size_t, std::string>, ProbeId> leaders;  // by definition and static probe
  std::unordered_map<const tracer::ReturnProbe*, ProbeId> entries;
  const auto glob = registry_.probes.find(plan.from);
  Sight sight;
  for (PlannedProbe& planned : plan.planned) {
    const lang::Definition& definition = plan.definitions[planned.spec];
    auto& parsed = shared[planned.spec];
    if (!parsed) parsed = std::make_shared<lang::Definition>(definition);
    const ProbeId id{++registry_.last_probe};
    Probe& probe = registry_.probes.try_emplace(registry_.probes.end(), id)->second;
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
    probe.program->force_step = glob == registry_.probes.end() ? request.force_step : glob->second.program->force_step;
    if (!probe.optimize) probe.program->no_detour = "it was added so (optimize: false)";
    if (limit) limit->probes.push_back(probe.id);
    plan.ids.push_back(id);
    parts_.stream.link(probe, sight);
  }
  return {};
}

void Placement::commit(std::shared_ptr<Plan> plan) {
  if (plan->owner != ClientId::none && !registry_.clients.contains(plan->owner))
    return plan->reply(Error{Reason::target_gone, "the client has gone", "", {}});
  plan->committed = true;
  if (auto registered = register_probes(*plan); !registered) return plan->reply(std::move(registered).error());
  std::vector<tracer::SiteRequest> batch;
  batch.reserve(plan->ids.size());
  for (std::size_t i = 0; i < plan->ids.size(); ++i)
    if (plan->planned[i].plan.address)
      batch.push_back({plan->planned[i].plan, registry_.probes.at(plan->ids[i]).program, {}});
  if (plan->code.size() == batch.size())
    for (std::size_t i = 0; i < batch.size(); ++i) batch[i].code = std::move(plan->code[i]);
  const bool has_code = !std::exchange(plan->code, {}).empty();
  parts_.tracer->post([this, plan, has_code, batch = std::move(batch)](tracer::Engine& engine) mutable {
    engine.add(plan->request.pid, plan->execs, std::move(batch), [this, plan, has_code](Result<void> done) {
      post([this, plan, has_code, done = std::move(done)]() mutable {
        if (!done) {
          for (const ProbeId id : plan->ids) parts_.changes.erase_probe(id);  // leaders and followers
          if (auto again = plan->again(done.error())) return plan_in_pool(std::move(again));
          return plan->reply(std::move(done).error());
        }
        Added added{{}, std::move(plan->skipped)};
        std::vector<ProbeId> ownerless;
        for (const ProbeId id : plan->ids) {
          const auto it = registry_.probes.find(id);
          if (it == registry_.probes.end()) {  // its client went meanwhile, before the tracer knew it
            ownerless.push_back(id);
            continue;
          }
          it->second.committed = true;
        }
        parts_.limits.look_at_limits_at(std::chrono::steady_clock::now());
        if (plan->request.persist) parts_.keeper.keep(plan->request.pid);
        make_room(added.probes, plan->ids.size());
        for (const ProbeId id : plan->ids)
          if (const auto it = registry_.probes.find(id); it != registry_.probes.end() && is_shown(it->second))
            added.probes.push_back(parts_.views.view(it->second));
        plan->in_place = true;
        if (plan->analysis == Plan::Analysis::none)
          analyse_code(plan->user, plan->request.pid, plan->execs, plan->symbols, sites_of(plan->planned));
        else if (!has_code)
          tell_code(plan->request.pid, plan->execs, std::exchange(plan->code, {}));
        if (plan->any_pending) parts_.reviver.look_for_pending(plan->request.pid);
        if (!ownerless.empty())
          parts_.tracer->post([ownerless = std::move(ownerless)](tracer::Engine& e) { e.remove(ownerless, nullptr); });
        std::vector<ProbeId> cleared;
        for (const lang::Definition& d : plan->definitions) {
          if (d.kind != lang::Kind::remove) continue;
          for (const auto& [id, p] : registry_.probes)
            if (p.pid == plan->request.pid && p.owner == plan->owner &&
                registry_.is_named(p, [&d](const Probe& probe) { return named_by(probe, d); }))
              cleared.push_back(id);
        }
        if (cleared.empty()) return plan->reply(std::move(added));
        parts_.changes.take_out(std::move(cleared), [plan, added = std::move(added)](auto) { plan->reply(added); });
      });
    });
  });
}

void Placement::analyse_code(uid_t user, pid_t pid, std::uint32_t execs,
                             std::shared_ptr<const symbols::TargetSymbols> symbols, std::vector<RemoteAddr> sites) {
  if (sites.empty() || !symbols) return;
  auto analyse = [this, symbols = std::move(symbols), sites = std::move(sites), pid, execs] {
    tell_code(pid, execs, code_around(*symbols, sites));
  };
  parts_.workers.post({user, Work::change, std::move(analyse), nullptr});
}

// Any thread.
void Placement::tell_code(pid_t pid, std::uint32_t execs, std::vector<tracer::SiteCode> code) {
  if (code.empty()) return;
  parts_.tracer->post(
      [pid, execs, code = std::move(code)](tracer::Engine& engine) { engine.know_code(pid, execs, code); });
}

}  // namespace probed::control
