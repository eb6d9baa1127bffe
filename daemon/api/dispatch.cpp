// See dispatch.hpp. One handler for each method; the table at the end says who may call it.
#include "daemon/api/dispatch.hpp"

#include <signal.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <optional>

#include "daemon/api/advice.hpp"
#include "daemon/api/views.hpp"
#include "daemon/base/out_of_descriptors.hpp"
#include "daemon/base/own_processes.hpp"
#include "daemon/base/process.hpp"
#include "proto/framing.hpp"
#include "proto/openrpc.hpp"
#include "proto/schema.hpp"

namespace probed::api {
namespace {

using proto::Json;

// One request under way. Completions keep the connection alive, not the services: those are touched later only while
// the connection is open, which is never longer than the server lives.
struct Call {
  const Services& services;
  std::shared_ptr<Connection> connection;
  const Json& params;  // valid during the handler only
  Completion done;

  control::Controller& controller() const { return services.controller; }
};

// ---- parameters; validated before, so presence and type are known ----

std::optional<pid_t> pid_of(const Json& params) {
  const auto pid = params.find("pid");
  return pid == params.end() ? std::nullopt : std::optional(pid->get<pid_t>());
}

bool flag_of(const Json& params, const char* key, bool otherwise = false) { return params.value(key, otherwise); }

control::Selector selector_of(const Json& params) {
  control::Selector which;
  which.all = flag_of(params, "all");
  if (params.contains("names")) which.names = params["names"].get<std::vector<std::string>>();
  if (params.contains("ids"))
    for (const Json& id : params["ids"]) which.ids.push_back(static_cast<ProbeId>(id.get<std::uint32_t>()));
  return which;
}

control::ProbeSpec spec_of(const Json& probe) {
  control::ProbeSpec spec;
  spec.definition = probe["definition"].get<std::string>();
  // An empty filter is how probe.list shows "none"; it may be sent back as it came.
  if (const auto filter = probe.value("filter", std::string()); !filter.empty()) spec.filter = filter;
  spec.disabled = flag_of(probe, "disabled");
  spec.optimize = flag_of(probe, "optimize", true);
  spec.pending = flag_of(probe, "pending");
  return spec;
}

control::AddRequest add_request_of(const Json& params) {
  control::AddRequest request;
  request.pid = *pid_of(params);
  for (const Json& probe : params["probes"]) request.probes.push_back(spec_of(probe));
  request.persist = flag_of(params, "persist");
  if (params.contains("limit")) request.limit = params["limit"].get<std::uint64_t>();
  if (params.contains("maxRate")) request.max_rate = params["maxRate"].get<std::uint64_t>();
  if (params.contains("expire")) request.expire = params["expire"].get<std::uint64_t>();
  request.follow_fork = flag_of(params, "followFork");
  request.force_step = flag_of(params, "x-step");
  return request;
}

control::SubscribeRequest subscribe_request_of(const Json& params) {
  control::SubscribeRequest request;
  request.pid = pid_of(params);
  if (!params.contains("probes")) return request;
  request.probes.emplace();
  for (const Json& probe : params["probes"])
    request.probes->push_back(probe.is_string() ? probe.get<std::string>() : probe.dump());
  return request;
}

// ---- what the caller may see ----

// may_trace for each process once: a daemon has many probes in few processes.
class Sight {
 public:
  explicit Sight(const Connection& connection) : connection_(connection) {}
  bool operator()(pid_t pid) {
    const auto known = seen_.find(pid);
    if (known != seen_.end()) return known->second;
    return seen_[pid] = connection_.may_trace(pid);
  }

 private:
  const Connection& connection_;
  std::map<pid_t, bool> seen_;
};

std::vector<control::ProbeView> visible_probes(const Services& services, const Connection& connection,
                                               std::optional<pid_t> pid) {
  auto probes = services.controller.probes(pid);
  Sight may(connection);
  // The pid of one whose process has ended may be somebody else's by now.
  const auto& peer = connection.peer();
  const auto sees_ended = [&](const control::ProbeView& p) {
    return p.user == peer.uid || services.authorizer.is_administrator(peer);
  };
  std::erase_if(probes,
                [&](const control::ProbeView& p) { return p.persist && p.ended ? !sees_ended(p) : !may(p.pid); });
  std::ranges::sort(probes, {}, &control::ProbeView::id);
  return probes;
}

std::vector<control::ProbeView> visible_probes(const Call& call, std::optional<pid_t> pid) {
  return visible_probes(call.services, *call.connection, pid);
}

// Asked before and after: what a view tells of a process is read from /proc while it is made.
std::vector<control::TargetView> visible_targets(const Call& call) {
  Sight before(*call.connection), after(*call.connection);
  for (const control::TargetView& t : call.controller().targets()) before(t.id.pid);
  auto targets = call.controller().targets();
  std::erase_if(targets, [&](const control::TargetView& t) { return !before(t.id.pid) || !after(t.id.pid); });
  return targets;
}

// ---- completions ----

// A reply of the controller, turned into JSON on success.
template <class T, class ToJson>
control::Reply<T> answer_with(Completion done, ToJson to_json) {
  return [done = std::move(done), to_json](Result<T> result) {
    if (!result) return done(std::move(result).error());
    done(to_json(*result));
  };
}

control::Reply<void> answer_text(Completion done, std::string json) {
  return [done = std::move(done), json = std::move(json)](Result<void> result) {
    if (!result) return done(std::move(result).error());
    done(json);
  };
}

std::string pid_json(pid_t pid) { return "{\"pid\":" + std::to_string(pid) + "}"; }
std::string flag_json(std::string_view key, bool value) {
  proto::JsonWriter w;
  w.begin_object().key(key).boolean(value).end_object();
  return std::move(w).text();
}

// ---- initialize, rpc.discover ----

std::string machine() {
  utsname names{};
  uname(&names);
  return names.machine;
}

void put_capabilities(proto::JsonWriter& w, const Services& services) {
  w.key("capabilities").begin_object();
  w.key("batch").boolean(true).key("contentLength").boolean(true);
  w.key("maxMessage").number(std::uint64_t{proto::kMaxMessage});
  w.key("eventBuffer").number(std::uint64_t{services.event_buffer});
  w.key("experimental").begin_array().string("x-step").end_array();
  w.end_object();
}

void initialize(const Call& call) {
  const Peer& peer = call.connection->peer();
  proto::JsonWriter w;
  w.begin_object().key("server").begin_object().key("name").string("probed").key("version").string(PROBED_VERSION);
  w.end_object().key("protocol").number(std::uint64_t{1}).key("arch").string(machine());
  put_capabilities(w, call.services);
  w.key("peer").begin_object();
  w.key("uid").number(std::uint64_t{peer.uid}).key("gid").number(std::uint64_t{peer.gid});
  w.key("admin").boolean(call.services.authorizer.is_administrator(peer)).end_object().end_object();
  call.done(std::move(w).text());
}

void discover(const Call& call) { call.done(proto::openrpc_text()); }

// ---- target.* ----

// A daemon that stops its own threads can never let them go on.
std::optional<Error> refuse_self(pid_t pid) {
  if (pid != getpid() && pid != tracer_process()) return std::nullopt;
  return Error{Reason::unsupported_target, "process " + std::to_string(pid) + " is the daemon itself",
               "a daemon cannot trace itself; start another one, with --socket, to trace this one"};
}

bool attached(const Call& call, pid_t pid) {
  return std::ranges::any_of(call.controller().targets(), [&](const auto& t) { return t.id.pid == pid; });
}

void attach(const Call& call) {
  const pid_t pid = *pid_of(call.params);
  if (auto error = refuse_self(pid)) return call.done(std::move(*error));
  const control::AttachOptions options{flag_of(call.params, "followFork"), flag_of(call.params, "holdAtEntry"),
                                       flag_of(call.params, "persist"), flag_of(call.params, "holdAtExecs")};
  const bool before = attached(call, pid);
  // Between the check and the attach the process may have executed a set-user-ID program: look again now that it is
  // ours. The tracer, being privileged, was not stopped by the kernel.
  auto checked = [&services = call.services, connection = call.connection, done = call.done, pid,
                  before](Result<control::TargetView> target) {
    if (!target) return done(with_advice(std::move(target).error(), pid, connection->peer().uid));
    if (!connection->open()) return;
    auto allowed = services.authorizer.may_trace(connection->peer(), pid);
    if (allowed) return done(target_json(*target));
    if (!before) services.controller.detach(pid, [](Result<void>) {});
    done(std::move(allowed).error());
  };
  call.controller().attach(*call.connection, pid, options, std::move(checked));
}

void detach(const Call& call) {
  const pid_t pid = *pid_of(call.params);
  call.controller().detach(pid, answer_text(call.done, pid_json(pid)));
}

void resume(const Call& call) {
  const pid_t pid = *pid_of(call.params);
  call.controller().resume(pid, answer_text(call.done, pid_json(pid)));
}

void list_targets(const Call& call) { call.done(targets_json(visible_targets(call))); }

// ---- probe.* ----

// Undoes what a client got but may not have: as that client, but allowed to.
class Withdrawal final : public control::Client {
 public:
  explicit Withdrawal(ClientId id) : id_(id) {}
  ClientId id() const override { return id_; }
  uid_t user() const override { return 0; }
  gid_t group() const override { return 0; }
  bool may_trace(pid_t) const override { return true; }
  bool offer_event(std::uint64_t, std::string_view) override { return false; }
  void report_missed(std::uint64_t, std::uint64_t) override {}
  void flush_events() override {}
  void notify(std::string_view, std::string_view) override {}

 private:
  ClientId id_;
};

void withdraw(const Services& services, const Connection& connection, const std::vector<control::ProbeView>& probes,
              Completion done, Error why) {
  control::Selector which;
  for (const auto& p : probes) which.ids.push_back(p.id);
  const auto client = std::make_shared<Withdrawal>(connection.id());
  services.controller.remove(*client, std::move(which),
                             [client, done = std::move(done), why = std::move(why)](auto) { done(why); });
}

void add(const Call& call) {
  control::AddRequest request = add_request_of(call.params);
  const pid_t pid = request.pid;
  if (auto error = refuse_self(pid)) return call.done(std::move(*error));
  // As for attach: what the process has become meanwhile decides.
  auto checked = [&services = call.services, connection = call.connection, done = call.done,
                  pid](Result<control::Added> added) {
    if (!added) return done(with_advice(std::move(added).error(), pid, connection->peer().uid));
    if (!connection->open()) return;
    auto allowed = services.authorizer.may_trace(connection->peer(), pid);
    if (allowed) return done(added_json(*added));
    withdraw(services, *connection, added->probes, done, std::move(allowed).error());
  };
  call.controller().add(*call.connection, std::move(request), std::move(checked));
}

void remove(const Call& call) {
  call.controller().remove(*call.connection, selector_of(call.params),
                           answer_with<std::vector<control::ProbeView>>(call.done, probes_json));
}

// Enabling looks for code that has gone, in whatever the process runs by now.
void hide_reasons(const Connection& connection, control::Changed& changed) {
  Sight may(connection);
  for (control::Failed& failed : changed.failed) {
    const auto view = std::ranges::find(changed.probes, failed.id, &control::ProbeView::id);
    if (view != changed.probes.end() && may(view->pid)) continue;
    failed.why = {Reason::permission_denied, failed.name + ": its process is one that you may not trace now",
                  "see `ps -o uid,comm -p` what it is"};
  }
}

template <bool enabled>
void enable(const Call& call) {
  auto answer = [connection = call.connection, done = call.done](Result<control::Changed> changed) {
    if (!changed) return done(std::move(changed).error());
    if (!connection->open()) return;
    hide_reasons(*connection, *changed);
    done(changed_json(*changed));
  };
  call.controller().set_enabled(*call.connection, selector_of(call.params), enabled, std::move(answer));
}

// A mistyped pid has no probes either: say so. One whose probes are still listed has only just ended.
std::optional<Error> refuse_nobody(std::optional<pid_t> pid) {
  if (!pid || kill(*pid, 0) == 0 || errno != ESRCH) return std::nullopt;
  return Error{Reason::no_such_process, "there is no process " + std::to_string(*pid),
               "processes and their ids: ps -e"};
}

template <auto to_json>
void show_probes(const Call& call) {
  const auto pid = pid_of(call.params);
  call.controller().look(pid, [&services = call.services, connection = call.connection, done = call.done, pid] {
    if (!connection->open()) return;
    const auto probes = visible_probes(services, *connection, pid);
    auto nobody = probes.empty() ? refuse_nobody(pid) : std::nullopt;
    nobody ? done(std::move(*nobody)) : done(to_json(probes));
  });
}

// NAME without a group means every group's.
bool has_name(const control::ProbeView& p, std::string_view name) {
  if (p.name == name) return true;
  const auto slash = p.name.find('/');
  return slash != std::string::npos && std::string_view(p.name).substr(slash + 1) == name;
}

void format(const Call& call) {
  const auto id = call.params.find("id");
  const bool by_id = id != call.params.end();
  const std::string wanted = by_id ? id->dump() : call.params["name"].get<std::string>();
  for (const auto& p : visible_probes(call, std::nullopt))
    if (by_id ? number(p.id) == id->get<std::uint32_t>() : has_name(p, wanted)) return call.done(format_json(p));
  call.done(Error{Reason::no_such_probe, "there is no probe " + wanted, "`probectl list` shows those there are"});
}

// ---- events.* ----

void subscribe(const Call& call) {
  if (call.connection->subscription_count() >= call.services.max_subscriptions)
    return call.done(Error{Reason::limit_exceeded,
                           "this connection has " + std::to_string(call.services.max_subscriptions) +
                               " subscriptions, which is the most one may have",
                           "end one with events.unsubscribe, or open another connection"});
  const std::size_t most = call.services.max_user_subscriptions;
  if (call.connection->user() != 0 && call.connection->user_subscription_count() >= most)
    return call.done(
        Error{Reason::limit_exceeded,
              "your connections have " + std::to_string(most) + " subscriptions, which is the most they may have",
              "end some with events.unsubscribe, or close a connection"});
  if (auto nobody = refuse_nobody(pid_of(call.params))) return call.done(std::move(*nobody));
  auto subscription = call.controller().subscribe(*call.connection, subscribe_request_of(call.params));
  if (!subscription) return call.done(std::move(subscription).error());
  call.connection->subscribed(subscription->id);
  const bool with_hits = flag_of(call.params, "withHits");
  call.done("{\"subscription\":" + std::to_string(subscription->id) +
            (with_hits ? ",\"hits\":" + std::to_string(subscription->hits) +
                             ",\"startedNs\":" + std::to_string(call.services.started_ns)
                       : "") +
            "}");
}

void unsubscribe(const Call& call) {
  const auto id = call.params["subscription"].get<std::uint64_t>();
  if (!call.connection->owns(id))
    return call.done(Error{Reason::no_such_subscription, "this connection has no subscription " + std::to_string(id),
                           "it is the connection that subscribed that must unsubscribe"});
  auto totals = call.controller().unsubscribe(*call.connection, id);
  if (!totals) return call.done(std::move(totals).error());
  call.connection->unsubscribed(id);
  call.done("{\"delivered\":" + std::to_string(totals->delivered) + ",\"missed\":" + std::to_string(totals->missed) +
            "}");
}

// ---- daemon.* ----

template <bool armed>
void arm(const Call& call) {
  const auto to_json = [](const std::vector<control::Failed>& failed) { return armed_json(armed, failed); };
  call.controller().set_armed(*call.connection, armed, answer_with<std::vector<control::Failed>>(call.done, to_json));
}

void optimize(const Call& call) {
  const bool enabled = flag_of(call.params, "enabled");
  call.controller().set_optimize(enabled, answer_text(call.done, flag_json("optimize", enabled)));
}

// Totals over everybody's probes would tell one user what another one traces.
void narrow(const Call& call, control::Status& status) {
  const auto probes = visible_probes(call, std::nullopt);
  const auto targets = visible_targets(call);
  status.targets = static_cast<std::uint32_t>(targets.size());
  status.longest_pause_ns = status.starved_ns = 0;
  for (const auto& t : targets) {
    status.longest_pause_ns = std::max(status.longest_pause_ns, t.longest_pause_ns);
    status.starved_ns = std::max(status.starved_ns, t.starved_ns);
  }
  // The longest of all times may have been somebody else's: no more than what this caller's targets were there for.
  status.longest_wait_ns = std::min(status.longest_wait_ns, status.starved_ns);
  status.probes = static_cast<std::uint32_t>(probes.size());
  status.clients = 1;
  status.subscriptions = static_cast<std::uint32_t>(call.connection->subscription_count());
  status.hits = status.missed = status.filtered = status.optimized = 0;
  for (const auto& p : probes) {
    status.optimized += p.tier == "optimized" ? 1 : 0;
    status.hits += p.hits;
    status.missed += p.missed;
    status.filtered += p.filtered;
  }
}

void status(const Call& call) {
  control::Status status = call.controller().status();
  if (!call.services.authorizer.is_administrator(call.connection->peer())) narrow(call, status);
  call.done(status_json(status));
}

// ---- symbols.* ----

void functions(const Call& call) {
  const auto limit = call.params.value("limit", std::size_t{0});
  const std::size_t ask = limit == 0 ? 0 : limit + 1;  // one more tells whether there are more
  auto to_json = [limit](const std::vector<symbols::Function>& found) { return functions_json(found, limit); };
  call.controller().functions(*call.connection, *pid_of(call.params), call.params.value("glob", std::string()), ask,
                              to_json, call.done);
}

void usdt(const Call& call) {
  const auto limit = call.params.value("limit", std::size_t{0});
  const std::size_t ask = limit == 0 ? 0 : limit + 1;
  auto to_json = [limit](const std::vector<symbols::UsdtProbe>& found) { return usdt_json(found, limit); };
  call.controller().usdt(*call.connection, *pid_of(call.params), call.params.value("glob", std::string()), ask, to_json,
                         call.done);
}

void variables(const Call& call) {
  call.controller().variables(*call.connection, *pid_of(call.params), call.params.value("location", std::string()),
                              variables_json, call.done);
}

void lines(const Call& call) {
  const auto limit = call.params.value("limit", std::size_t{0});
  const std::size_t ask = limit == 0 ? 0 : limit + 1;
  auto to_json = [limit](const std::vector<symbols::SourceLine>& found) { return lines_json(found, limit); };
  call.controller().lines(*call.connection, *pid_of(call.params), call.params.value("file", std::string()), ask,
                          to_json, call.done);
}

// ---- the table ----

enum class Access : std::uint8_t {
  open,    // anybody who can connect; what is shown is filtered
  target,  // the peer must be allowed to trace the process named by pid, when one is named, and still when he is told
  act,     // only before: the answer says nothing of the process, which may have ended by what was done
  admin,   // root or the daemon's own user
};

enum class Does : std::uint8_t { read, change };  // what is changed is told, whatever room there is for answers

constexpr std::size_t kSpare = 64;  // descriptors: what all workers together may have open, with something to spare

// Opens files of processes: without descriptors to spare what is there would not be found, and called missing.
enum class Needs : std::uint8_t { nothing, descriptors };

struct Row {
  std::string_view method;
  Access access;
  Does does;
  void (*handler)(const Call&);
  Needs needs = Needs::nothing;
};

constexpr std::array kRows{
    Row{"initialize", Access::open, Does::read, initialize},
    Row{"target.attach", Access::target, Does::change, attach, Needs::descriptors},
    Row{"target.detach", Access::act, Does::change, detach},
    Row{"target.list", Access::open, Does::read, list_targets},
    Row{"target.resume", Access::act, Does::change, resume},
    Row{"probe.add", Access::target, Does::change, add, Needs::descriptors},
    Row{"probe.remove", Access::open, Does::change, remove},
    Row{"probe.enable", Access::open, Does::change, enable<true>, Needs::descriptors},
    Row{"probe.disable", Access::open, Does::change, enable<false>},
    Row{"probe.list", Access::target, Does::read, show_probes<probes_json>},
    Row{"probe.profile", Access::target, Does::read, show_probes<profile_json>},
    Row{"probe.format", Access::open, Does::read, format},
    Row{"events.subscribe", Access::act, Does::change, subscribe},
    Row{"events.unsubscribe", Access::open, Does::change, unsubscribe},
    Row{"daemon.arm", Access::admin, Does::change, arm<true>, Needs::descriptors},
    Row{"daemon.disarm", Access::admin, Does::change, arm<false>},
    Row{"daemon.optimize", Access::admin, Does::change, optimize},
    Row{"daemon.status", Access::open, Does::read, status},
    Row{"symbols.functions", Access::target, Does::read, functions, Needs::descriptors},
    Row{"symbols.usdt", Access::target, Does::read, usdt, Needs::descriptors},
    Row{"symbols.variables", Access::target, Does::read, variables, Needs::descriptors},
    Row{"symbols.lines", Access::target, Does::read, lines, Needs::descriptors},
    Row{"rpc.discover", Access::open, Does::read, discover},
};

Result<void> authorize(const Row& row, const Call& call) {
  const Peer& peer = call.connection->peer();
  const auto pid = pid_of(call.params);
  switch (row.access) {
    case Access::open: return {};
    case Access::target:
    case Access::act: return pid ? call.services.authorizer.may_trace(peer, *pid) : Result<void>();
    case Access::admin: return call.services.authorizer.may_administer(peer, row.method);
  }
  return {};
}

// Whatever is found out about a process is told, errors too, only if the peer may trace it then as well: meanwhile it
// may have executed a set-user-ID program. Handlers that have changed something undo it by the same rule, before this.
Completion told_if_allowed(const Call& call, pid_t pid) {
  const auto start_of = [](pid_t process) {
    const auto id = process::target_id(process);
    return id ? std::optional(id->start_time) : std::nullopt;
  };
  return [&services = call.services, connection = call.connection, done = call.done, pid, start_of,
          began = start_of(pid)](Result<std::string> found) {
    if (!connection->open()) return;
    const Peer& peer = connection->peer();
    if (peer.uid == 0) return done(std::move(found));
    auto allowed = services.authorizer.may_trace(peer, pid);
    if (!allowed) return done(std::move(allowed).error());
    if (!began || start_of(pid) == began) return done(std::move(found));
    done(Error{Reason::no_such_process, "process " + std::to_string(pid) + " has just ended",
               "processes and their ids: ps -e"});
  };
}

Error too_few_descriptors() {
  return {Reason::limit_exceeded,
          "the daemon has fewer than " + std::to_string(kSpare) + " file descriptors left to look at processes with",
          kMoreDescriptors};
}

Error unknown_method(std::string_view name) {
  return {Reason::unknown_method, "there is no method \"" + std::string(name.substr(0, 64)) + "\"",
          "rpc.discover describes those there are"};
}

}  // namespace

bool changes_something(std::string_view method) {
  const auto row = std::ranges::find(kRows, method, &Row::method);
  return row != kRows.end() && row->does == Does::change;
}

void dispatch(const Services& services, const std::shared_ptr<Connection>& connection, const proto::Request& request,
              Completion done) {
  const auto row = std::ranges::find(kRows, std::string_view(request.method), &Row::method);
  const proto::Method* method = proto::find_method(request.method);
  if (row == kRows.end() || !method) return done(unknown_method(request.method));
  if (auto valid = proto::validate(*method, request.params); !valid) return done(std::move(valid).error());
  Call call{services, connection, request.params, std::move(done)};
  if (row->needs == Needs::descriptors && !descriptors_left(kSpare)) return call.done(too_few_descriptors());
  if (auto allowed = authorize(*row, call); !allowed) return call.done(std::move(allowed).error());
  if (const auto pid = pid_of(call.params); pid && row->access == Access::target)
    call.done = told_if_allowed(call, *pid);
  row->handler(call);
}

std::vector<std::string_view> handled_methods() {
  std::vector<std::string_view> names;
  for (const Row& row : kRows) names.push_back(row.method);
  return names;
}

}  // namespace probed::api
