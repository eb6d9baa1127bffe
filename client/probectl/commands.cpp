// See commands.hpp. With --json the daemon's own objects are printed, byte for byte, one a line.
#include "client/probectl/commands.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "client/display.hpp"
#include "client/probectl/answer.hpp"
#include "client/probectl/private_daemon.hpp"
#include "client/probectl/process.hpp"
#include "client/probectl/reach.hpp"
#include "client/probectl/report.hpp"
#include "client/probectl/selection.hpp"
#include "client/probectl/stream.hpp"
#include "client/probectl/trace.hpp"
#include "client/views.hpp"
#include "proto/json.hpp"

namespace probed::client {
namespace {

// ---- parameters -----------------------------------------------------------------------------------------------------

std::string no_params(const Options&) { return "{}"; }

std::string attach_params(const Options& o) {
  proto::JsonWriter json;
  json.begin_object().key("pid").number(std::int64_t{*o.pid});
  if (o.follow_fork) json.key("followFork").boolean(true);
  json.key("persist").boolean(true);  // it outlives this command, whose end lets go of everything else
  return json.end_object().text();
}

std::string add_params(const Options& o) {
  proto::JsonWriter json;
  json.begin_object().key("pid").number(std::int64_t{*o.pid}).key("probes").begin_array();
  for (const auto& definition : o.probes) {
    json.begin_object().key("definition").string(definition);
    if (!o.filter.empty()) json.key("filter").string(o.filter);
    if (o.disabled) json.key("disabled").boolean(true);
    if (o.no_optimize) json.key("optimize").boolean(false);
    if (o.pending) json.key("pending").boolean(true);
    json.end_object();
  }
  json.end_array().key("persist").boolean(true);
  if (o.max_rate) json.key("maxRate").number(*o.max_rate);
  if (o.expire) json.key("expire").number(*o.expire);
  if (o.follow_fork) json.key("followFork").boolean(true);
  return json.end_object().text();
}

std::string optimize_params(const Options& o) { return fmt::format("{{\"enabled\":{}}}", o.switch_on); }

std::string functions_params(const Options& o) {
  proto::JsonWriter json;
  json.begin_object().key("pid").number(std::int64_t{*o.pid});
  if (!o.pattern.empty()) json.key("glob").string(o.pattern);
  if (o.count) json.key("limit").number(*o.count);
  return json.end_object().text();
}

std::string location_params(const Options& o) {
  proto::JsonWriter json;
  return json.begin_object()
      .key("pid")
      .number(std::int64_t{*o.pid})
      .key("location")
      .string(o.pattern)
      .end_object()
      .text();
}

std::string lines_params(const Options& o) {
  proto::JsonWriter json;
  json.begin_object().key("pid").number(std::int64_t{*o.pid}).key("file").string(o.pattern);
  if (o.count) json.key("limit").number(*o.count);
  return json.end_object().text();
}

// ---- lines of text --------------------------------------------------------------------------------------------------

std::string attached_line(JsonView target) { return "attached to " + target_line(target); }

std::string probe_line(JsonView probe) {
  return fmt::format("{}  id {}  {}  {}  {}", display(probe["name"].string()), probe["id"].u64_or(0),
                     display(probe["address"].string()), display(probe["symbol"].string()), probe["state"].string());
}

std::string optimize_line(JsonView result) {
  return fmt::format("jump optimisation is {}", result["optimize"].boolean_or(false) ? "on" : "off");
}

std::string added_line(JsonView probe) { return "added " + probe_line(probe); }

std::string whole_text(JsonView result) {
  auto text = members_text(result);
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

// ---- ask and print --------------------------------------------------------------------------------------------------

// One request: what to ask, which array of the reply holds the objects to print (empty: the reply itself is the one
// object), and how an object reads as text (nullptr: not at all, `done` says it).
struct Query {
  Command command;
  const char* method;
  std::string (*params)(const Options&);
  const char* array;
  std::string (*line)(JsonView);
  const char* done;
  // For people, who look at a terminal or ask with --verbose: the names of the columns, and more of them.
  std::string (*header)() = nullptr;
  std::string (*wide_line)(JsonView) = nullptr;
};
constexpr Query kQueries[] = {
    {Command::attach, "target.attach", attach_params, "", attached_line, ""},
    {Command::detach, "target.detach", pid_params, "", nullptr, "detached"},
    {Command::ps, "target.list", no_params, "targets", target_line, ""},
    {Command::add, "probe.add", add_params, "probes", added_line, ""},
    {Command::list, "probe.list", pid_params, "probes", list_line, "", list_header, wide_list_line},
    {Command::profile, "probe.profile", pid_params, "probes", profile_line, "", profile_header, wide_profile_line},
    {Command::arm, "daemon.arm", no_params, "", nullptr, "armed"},
    {Command::disarm, "daemon.disarm", no_params, "", nullptr, "disarmed"},
    {Command::optimize, "daemon.optimize", optimize_params, "", optimize_line, ""},
    {Command::functions, "symbols.functions", functions_params, "functions", function_line, "", functions_header,
     function_line},
    {Command::vars, "symbols.variables", location_params, "variables", variable_line, "", variables_header,
     variable_line},
    {Command::lines, "symbols.lines", lines_params, "lines", line_line, "", lines_header, line_line},
    {Command::status, "daemon.status", no_params, "", whole_text, ""},
};

constexpr Query kUsdtQuery{Command::functions, "symbols.usdt", functions_params, "probes", usdt_line, "",
                           usdt_header,        usdt_line};

bool is_wide(const Options& options, const Query& query) {
  return !options.json() && query.wide_line && (options.verbose || ::isatty(STDOUT_FILENO) == 1);
}

void print_object(JsonView object, const Options& options, const Query& query) {
  if (options.json()) return print_line(object.is_object() ? object.text() : "{}");
  const auto line = is_wide(options, query) ? query.wide_line : query.line;
  print_line(line ? line(object) : query.done);
}

// What an answer says beside its lines.
void comment(const Document& reply, const Options& options) {
  const auto probes = reply["probes"];
  if (options.command == Command::add) {
    const auto skipped = skipped_summary(reply["skipped"], options.verbose);
    if (!skipped.empty() && (options.verbose || options.json())) report_skipped(reply["skipped"], options.json());
    if (!skipped.empty() && !options.json()) note(skipped);
    if (!options.json()) note_of_probes(probes);
    for (const auto& definition : options.probes)
      if (definition.starts_with("-:") && !options.json()) print_line("removed " + display(definition.substr(2)));
  }
  if (reply["truncated"].boolean_or(false) && !options.json() && !options.count)
    note("there are more than an answer has room for: name fewer, with a narrower GLOB or one module");
  const bool tells_state = options.command == Command::add || options.command == Command::list;
  if (tells_state && !options.json() && shows_disarmed(probes)) note(fmt::format("{} ({})", kDisarmed, kArmHint));
}

Error nothing_matches(const Options& options) {
  const bool is_glob = options.pattern.find_first_of("*?[") != std::string::npos;
  const auto what = fmt::format("no {} matches {} in process {}", options.usdt ? "static probe" : "function",
                                options.pattern, *options.pid);
  if (is_glob || options.usdt)
    return {Reason::no_such_symbol, what, "without a GLOB all are listed; quote it, or the shell may expand it", {}};
  return {
      Reason::no_such_symbol,
      what,
      fmt::format("names are matched whole: try '*{}*'; inlined functions have none, and a stripped file shows only "
                  "what it exports: `probectl trace -p {} -e {}` says more",
                  options.pattern, *options.pid, options.pattern),
      {}};
}

int print_array(const Document& reply, const Options& options, const Query& query) {
  std::size_t printed = 0;
  reply[query.array].each_element([&](JsonView object) {
    if (printed++ == 0 && is_wide(options, query)) print_line(query.header());
    print_object(object, options, query);
    return true;
  });
  const bool may_be_none = options.command == Command::list || options.command == Command::profile;
  if (printed == 0 && may_be_none && is_wide(options, query)) print_line(query.header());
  comment(reply, options);
  if (printed == 0 && options.command == Command::functions && !options.pattern.empty())
    return fail(nothing_matches(options), options.json());
  if (printed == 0 && options.usdt && !options.json())
    note(fmt::format("process {} has no static probes", *options.pid));
  return finish_output(options);
}

int run_query(Connection& connection, const Options& options, const Query& query, const WaitLimit& limit) {
  auto reply = connection.call(query.method, query.params(options), limit);
  if (!reply) return fail_call(connection, reply.error(), options);
  if (*query.array != '\0') return print_array(*reply, options, query);
  print_object(reply->view(), options, query);
  if (report_failed((*reply)["failed"], options.json()) > 0) return 1;
  return finish_output(options);
}

int run_query(Connection& connection, const Options& options, const WaitLimit& limit) {
  if (options.usdt) return run_query(connection, options, kUsdtQuery, limit);
  for (const auto& query : kQueries)
    if (query.command == options.command) return run_query(connection, options, query, limit);
  return fail({Reason::internal, "this sub-command has no implementation", "", {}}, options.json());
}

// functions, vars, lines change nothing: they may bring a daemon of their own.
int run_look_up(const Options& options) {
  auto signals = Signals::install();
  if (!signals) return fail(signals.error(), options.json());
  std::optional<PrivateDaemon> daemon;
  auto connection = reach_daemon(options, *signals, daemon);
  if (!connection) return fail(connection.error(), options.json(), failure_word(nullptr, connection.error()));
  return run_query(*connection, options, {.deadline = {}, .interrupt_fd = signals->fd(), .ignore_interrupt = {}});
}

// ---- stream ---------------------------------------------------------------------------------------------------------

std::string subscribe_params(const Options& o) {
  proto::JsonWriter json;
  json.begin_object();
  if (o.pid) json.key("pid").number(std::int64_t{*o.pid});
  if (!o.names.empty()) {
    json.key("probes").begin_array();
    for (const auto& name : o.names) json.string(name);
    json.end_array();
  }
  return json.key("withHits").boolean(true).end_object().text();
}

// What is named and isn't there, or is gone: it would be waited for without a word, perhaps for ever.
std::optional<Error> why_not_streamable(JsonView probes, const Options& options) {
  const auto selection = select_probes(probes, options.names);
  if (auto unknown = unknown_names_error(selection, options)) return unknown;
  if (!selection.unknown_ids.empty())
    return Error{Reason::no_such_probe,
                 fmt::format("there is no probe {} (it may be gone already)", selection.unknown_ids.front()),
                 "`probectl list` shows those there are",
                 {}};
  std::string gone, why;
  const std::set<std::string> wanted(selection.ids.begin(), selection.ids.end());
  std::size_t left = 0;
  probes.each_element([&](JsonView probe) {
    if (!wanted.contains(std::string(probe["id"].text()))) return true;
    if (probe["state"].raw_string() != "gone") return ++left, true;
    gone = probe["name"].string();
    why = probe["stateReason"].string();
    return true;
  });
  if (options.names.empty() || left > 0) return std::nullopt;
  return Error{Reason::no_such_probe,
               fmt::format("probe {} is gone: there is nothing to stream", gone),
               why.empty() ? "its code was unloaded; `probectl enable` looks for it again" : why,
               {}};
}

bool is_meant(JsonView probe, const Options& options) {
  const auto names_it = [&](const std::string& name) { return names_probe(name, probe); };
  return options.names.empty() || std::ranges::any_of(options.names, names_it);
}

std::size_t count_disabled(JsonView probes, const Options& options) {
  std::size_t count = 0;
  probes.each_element([&](JsonView probe) {
    count += is_meant(probe, options) && probe["state"].raw_string() == "disabled";
    return true;
  });
  return count;
}

// A stream of whatever comes may be started before there is anything: it waits, and says for what.
void note_what_is_missing(JsonView probes, const Options& options) {
  bool any = false;
  probes.each_element([&](JsonView) { return any = true, false; });
  if (options.names.empty() && !any) note("there are no probes yet; waiting for some");
  const std::size_t disabled = count_disabled(probes, options);
  if (disabled > 0)
    note(fmt::format("{} disabled: nothing comes of {} until `probectl enable`",
                     disabled == 1 ? "one of these probes is" : fmt::format("{} of these probes are", disabled),
                     disabled == 1 ? "it" : "them"));
  if (shows_disarmed(probes)) note(fmt::format("{} ({})", kDisarmed, kArmHint));
}

int end_stream(Connection& connection, Stream& stream, Output& output, std::uint64_t id, const Options& options) {
  const WaitLimit limit{Clock::now() + std::chrono::seconds(10), -1, {}};
  // Whether the code is still there is looked at for whoever asks for a list, and told to this subscription.
  if (connection.alive()) std::ignore = connection.call("probe.list", pid_params(options), limit);
  if (connection.alive())  // what was on its way arrives with this call; a failure shows in alive()
    if (auto ended = connection.call("events.unsubscribe", fmt::format("{{\"subscription\":{}}}", id), limit); !ended)
      note(ended.error().message);
  stream.finish();
  note_missed(stream.missed_in_stream(), stream.has_returns());
  std::fputs(fmt::format("delivered={} missed={}\n", stream.printed(), stream.missed()).c_str(), stderr);
  if (output.state() == Output::State::failed) return fail(output.error(), options.json());
  return stream.failure() ? fail_call(connection, *stream.failure(), options) : 0;
}

// The probes of a stream by id, and whether they are gone.
std::map<std::uint64_t, bool> probes_of(JsonView probes, const Options& options) {
  std::map<std::uint64_t, bool> ids;
  probes.each_element([&](JsonView probe) {
    if (is_meant(probe, options)) ids.emplace(probe["id"].u64_or(0), probe["state"].raw_string() == "gone");
    return true;
  });
  return ids;
}

// One subscription after the other, to one daemon after the other.
class Subscriber {
 public:
  Subscriber(Connection& connection, Stream& stream, const Options& options)
      : connection_(connection), stream_(stream), options_(options) {}

  Result<void> subscribe() {
    auto probes = connection_.call("probe.list", pid_params(options_), stream_.interruptible());
    if (!probes) return std::move(probes).error();
    if (auto error = why_not_streamable((*probes)["probes"], options_); error && id_ == 0) return *std::move(error);
    stream_.learn((*probes)["probes"]);
    note_what_is_missing((*probes)["probes"], options_);
    note_what_has_gone((*probes)["probes"]);
    auto subscribed = connection_.call("events.subscribe", subscribe_params(options_), stream_.interruptible());
    if (!subscribed) return std::move(subscribed).error();
    id_ = (*subscribed)["subscription"].u64_or(0);
    const auto started = (*subscribed)["startedNs"].u64_or(0), hits = (*subscribed)["hits"].u64_or(0);
    // The same daemon, when only the connection had ended: it has counted what this has been told of, too.
    const auto known = started == daemon_started_ ? hits_then_ + (told() - told_then_) : 0;
    hits_missed_ = hits - std::min(hits, known);
    daemon_started_ = started, hits_then_ = hits;
    probes_ = probes_of((*probes)["probes"], options_);
    return {};
  }

  // False: no other daemon has come, or not with the probes; or the stream is to end anyway.
  bool come_back() {
    if (connection_.alive() || !stream_.failure() || options_.reconnect == 0) return false;
    const auto lost = Clock::now();
    const auto path = socket_path(options_.socket);
    const auto before = probes_;
    note(fmt::format("the daemon at {} {}; waiting {} s for another one", path, stream_.how_daemon_went(),
                     options_.reconnect));
    if (!stream_.reconnect(path, std::chrono::seconds(options_.reconnect))) return false;
    if (auto subscribed = subscribe(); !subscribed) return stream_.fail(std::move(subscribed).error()), false;
    const auto is_back = [this](const auto& probe) { return probes_.contains(probe.first); };
    if (!before.empty() && std::ranges::none_of(before, is_back))
      return stream_.fail({Reason::no_such_probe,
                           "the daemon that is back has none of the probes",
                           "add them again; probed --keep-probes keeps those of probectl add",
                           {}}),
             false;
    stream_.add_missed(hits_missed_);
    told_then_ = told();
    const std::chrono::duration<double> gap = Clock::now() - lost;
    const std::string told =
        hits_missed_ > 0 ? fmt::format("; {} that were counted are missed here", count_of(hits_missed_, "hit")) : "";
    note(fmt::format("a daemon is back after {:.3f} s: what was hit without one is not counted{}", gap.count(), told));
    return true;
  }

  std::uint64_t id() const { return id_; }

 private:
  std::uint64_t told() const { return stream_.received() + stream_.missed(); }
  // Behind a restart: those that were there before.
  void note_what_has_gone(JsonView probes) const {
    probes.each_element([this](JsonView probe) {
      const auto before = probes_.find(probe["id"].u64_or(0));
      if (before == probes_.end() || before->second || probe["state"].raw_string() != "gone") return true;
      const auto why = display(probe["stateReason"].string());
      note(fmt::format("{} is gone{}", probe_reference(probe), why.empty() ? "" : ": " + why));
      return true;
    });
  }

  Connection& connection_;
  Stream& stream_;
  const Options& options_;
  std::uint64_t id_ = 0;
  std::uint64_t daemon_started_ = 0;  // the one that it listens to
  std::uint64_t hits_then_ = 0;       // that it had counted when this began
  std::uint64_t told_then_ = 0;       // events that had come or been missed by then
  std::uint64_t hits_missed_ = 0;     // that were counted, with nobody listening, just before
  std::map<std::uint64_t, bool> probes_;
};

// What a stream is told of the ends of its probes.
void take_end(const Notification& notification, Stream& stream, const Options& options) {
  const auto& [method, params] = notification;
  if (method == "probe.removed") stream.say(display(params["message"].string()));
  if (method == "target.exited") {
    const auto pid = params["pid"].u64_or(0);
    stream.say(fmt::format("PID {} ended{}; its probes are gone", pid, how_it_ended(params)));
    if (options.pid && pid == static_cast<std::uint64_t>(*options.pid)) stream.end(End::target_gone);
  }
  if (method == "target.execed")
    stream.say(fmt::format("PID {} runs a new program now; its probes are gone", params["pid"].u64_or(0)));
  if (method == "target.detached")
    stream.say(fmt::format("somebody detached PID {}; its probes are gone", params["pid"].u64_or(0)));
  if (method != "events.ended") return;
  stream.say("nothing is left to stream");
  stream.end(End::target_gone);
}

int run_stream(Connection& connection, const Options& options) {
  auto signals = Signals::install();
  if (!signals) return fail(signals.error(), options.json());
  auto output = open_output(options);
  if (!output) return fail(output.error(), options.json());
  Stream stream(connection, *output, *signals, options);
  Subscriber subscriber(connection, stream, options);
  stream.on_other([&](const Notification& notification) {
    take_end(notification, stream, options);
    if (notification.method == "probe.added") stream.learn_added(notification.params);
    if (notification.method == "probe.returned") stream.learn(notification.params["probes"]);
    if (notification.method == "probe.unplaced")
      stream.say("still pending: " + display(notification.params["message"].string()));
    if (notification.method == "probe.switched") stream.say(display(notification.params["message"].string()));
    if (notification.method == "probe.gone") stream.say(how_they_went(notification.params, false));
    if (notification.method == "daemon.switched") stream.say(how_it_was_switched(notification.params));
    if (notification.method == "probe.disabled")
      stream.say("disabled: " + display(notification.params["message"].string()));
  });
  // Nobody tells of the end of a process in which there are no probes.
  const UniqueFd process = options.pid ? open_pidfd(*options.pid) : UniqueFd();
  stream.watch(process.get(), [&stream] { stream.end_soon(End::target_gone); });
  if (auto subscribed = subscriber.subscribe(); !subscribed) return fail_call(connection, subscribed.error(), options);
  do stream.run();
  while (subscriber.come_back());
  return end_stream(connection, stream, *output, subscriber.id(), options);
}

}  // namespace

int run_command(const Options& options) {
  if (options.command == Command::trace) return run_trace(options);
  if (may_spawn_for_look_up(options)) return run_look_up(options);
  auto connection = Connection::connect(socket_path(options.socket));
  if (!connection) return fail(connection.error(), options.json(), failure_word(nullptr, connection.error()));
  if (options.command == Command::stream) return run_stream(*connection, options);
  if (const auto status = run_selection(*connection, options)) return *status;
  return run_query(*connection, options, {});
}

}  // namespace probed::client
