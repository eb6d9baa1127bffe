// See commands.hpp. With --json the daemon's own objects are printed, byte for byte, one a line.
#include "client/probectl/commands.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "client/display.hpp"
#include "client/probectl/report.hpp"
#include "client/probectl/stream.hpp"
#include "client/probectl/trace.hpp"
#include "client/views.hpp"
#include "proto/json.hpp"

namespace probed::client {
namespace {

// ---- parameters -----------------------------------------------------------------------------------------------------

std::string no_params(const Options&) { return "{}"; }

std::string pid_params(const Options& o) {
  proto::JsonWriter json;
  json.begin_object();
  if (o.pid) json.key("pid").number(std::int64_t{*o.pid});
  return json.end_object().text();
}

std::string attach_params(const Options& o) {
  proto::JsonWriter json;
  json.begin_object().key("pid").number(std::int64_t{*o.pid});
  if (o.follow_fork) json.key("followFork").boolean(true);
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
    json.end_object();
  }
  json.end_array().key("persist").boolean(true);
  if (o.follow_fork) json.key("followFork").boolean(true);
  return json.end_object().text();
}

std::string optimize_params(const Options& o) { return fmt::format("{{\"enabled\":{}}}", o.switch_on); }

bool is_id(std::string_view text) {
  if (text.size() > 1 && text.front() == '0') return false;
  return !text.empty() && text.size() < 20 && text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::string format_params(const Options& o) {
  proto::JsonWriter json;
  const auto& which = o.names.front();
  json.begin_object().key(is_id(which) ? "id" : "name");
  if (is_id(which))
    json.raw(which);
  else
    json.string(which);
  return json.end_object().text();
}

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
  return json.begin_object().key("pid").number(std::int64_t{*o.pid}).key("file").string(o.pattern).end_object().text();
}

// ---- lines of text --------------------------------------------------------------------------------------------------

std::string attached_line(JsonView target) { return "attached to " + target_line(target); }

std::string probe_line(JsonView probe) {
  return fmt::format("{}  id {}  {}  {}  {}", display(probe["name"].string()), probe["id"].u64_or(0),
                     display(probe["address"].string()), display(probe["symbol"].string()), probe["state"].string());
}

std::string changed_line(JsonView probe) {
  return fmt::format("{}  id {}  hits {}  missed {}", display(probe["name"].string()), probe["id"].u64_or(0),
                     probe["hits"].u64_or(0), probe["missed"].u64_or(0));
}

std::string optimize_line(JsonView result) {
  return fmt::format("jump optimisation is {}", result["optimize"].boolean_or(false) ? "on" : "off");
}

std::string added_line(JsonView probe) { return "added " + probe_line(probe); }

// The kernel's format file, as far as it makes sense here: common fields, an empty line, the probe's own.
std::string format_text(JsonView result) {
  auto text = fmt::format("name: {}\nID: {}\nformat:", display(result["name"].string()), result["id"].u64_or(0));
  std::string own;
  result["fields"].each_element([&](JsonView field) {
    auto& part = field["common"].boolean_or(false) ? text : own;
    part += fmt::format("\n\tfield:{} {};", display(field["type"].string()), display(field["name"].string()));
    return true;
  });
  return own.empty() ? text : text + '\n' + own;
}

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
};
constexpr Query kQueries[] = {
    {Command::attach, "target.attach", attach_params, "", attached_line, ""},
    {Command::detach, "target.detach", pid_params, "", nullptr, "detached"},
    {Command::ps, "target.list", no_params, "targets", target_line, ""},
    {Command::add, "probe.add", add_params, "probes", added_line, ""},
    {Command::list, "probe.list", pid_params, "probes", list_line, ""},
    {Command::profile, "probe.profile", pid_params, "probes", profile_line, ""},
    {Command::format, "probe.format", format_params, "", format_text, ""},
    {Command::arm, "daemon.arm", no_params, "", nullptr, "armed"},
    {Command::disarm, "daemon.disarm", no_params, "", nullptr, "disarmed"},
    {Command::optimize, "daemon.optimize", optimize_params, "", optimize_line, ""},
    {Command::functions, "symbols.functions", functions_params, "functions", function_line, ""},
    {Command::vars, "symbols.variables", location_params, "", whole_text, ""},
    {Command::lines, "symbols.lines", lines_params, "", whole_text, ""},
    {Command::status, "daemon.status", no_params, "", whole_text, ""},
};

void print_line(std::string_view line) {
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fputc('\n', stdout);
}

void print_object(JsonView object, const Options& options, const Query& query) {
  if (options.json())
    print_line(object.is_object() ? object.text() : "{}");
  else
    print_line(query.line ? query.line(object) : query.done);
}

int finish_output(const Options& options) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return 0;
  return fail({Reason::internal, fmt::format("writing the answer failed: {}", text_of_errno(errno)), "", {}},
              options.json());
}

int fail_call(const Connection& connection, const Error& error, const Options& options) {
  return fail(error, options.json(), failure_word(&connection, error), {options.probes, options.filter});
}

int run_query(Connection& connection, const Options& options, const Query& query) {
  auto reply = connection.call(query.method, query.params(options));
  if (!reply) return fail_call(connection, reply.error(), options);
  if (*query.array == '\0') {
    print_object(reply->view(), options, query);
  } else {
    (*reply)[query.array].each_element([&](JsonView object) {
      print_object(object, options, query);
      return true;
    });
  }
  return finish_output(options);
}

// ---- remove, enable, disable ----------------------------------------------------------------------------------------

struct Change {
  Command command;
  const char* method;
  const char* done;
};
constexpr Change kChanges[] = {
    {Command::remove, "probe.remove", "removed"},
    {Command::enable, "probe.enable", "enabled"},
    {Command::disable, "probe.disable", "disabled"},
};

bool is_named(JsonView probe, const std::string& which) {
  if (is_id(which)) return probe["id"].text() == which;
  const auto name = probe["name"].string();
  return name == which || name.substr(name.find('/') + 1) == which;
}

// Ids and names are asked for apart, as the protocol takes one kind at a time.
std::vector<std::string> selections(const Options& options) {
  if (options.all) return {"{\"all\":true}"};
  proto::JsonWriter ids, names;
  ids.begin_object().key("ids").begin_array();
  names.begin_object().key("names").begin_array();
  std::size_t id_count = 0;
  for (const auto& which : options.names) is_id(which) ? (++id_count, ids.raw(which)) : names.string(which);
  std::vector<std::string> params;
  if (id_count > 0) params.push_back(ids.end_array().end_object().text());
  if (id_count < options.names.size()) params.push_back(names.end_array().end_object().text());
  return params;
}

int run_change(Connection& connection, const Options& options, const Change& change) {
  std::vector<std::string> unmatched = options.names;
  for (const auto& params : selections(options)) {
    auto reply = connection.call(change.method, params);
    if (!reply) return fail_call(connection, reply.error(), options);
    (*reply)["probes"].each_element([&](JsonView probe) {
      print_line(options.json() ? std::string(probe.text()) : fmt::format("{} {}", change.done, changed_line(probe)));
      std::erase_if(unmatched, [&](const std::string& which) { return is_named(probe, which); });
      return true;
    });
  }
  for (const auto& which : unmatched) note(fmt::format("no probe '{}' (it may be gone already)", which));
  return finish_output(options);
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
  return json.end_object().text();
}

int end_stream(Connection& connection, Stream& stream, Output& output, std::uint64_t id, const Options& options) {
  const WaitLimit limit{Clock::now() + std::chrono::seconds(10), -1, {}};
  if (connection.alive())  // what was on its way arrives with this call; a failure shows in alive()
    if (auto ended = connection.call("events.unsubscribe", fmt::format("{{\"subscription\":{}}}", id), limit); !ended)
      note(ended.error().message);
  stream.finish();
  std::fputs(fmt::format("delivered={} missed={}\n", stream.delivered(), stream.missed()).c_str(), stderr);
  if (output.state() == Output::State::failed) return fail(output.error(), options.json());
  return stream.failure() ? fail_call(connection, *stream.failure(), options) : 0;
}

int run_stream(Connection& connection, const Options& options) {
  auto signals = Signals::install();
  if (!signals) return fail(signals.error(), options.json());
  auto output = options.out_file.empty() ? Result<Output>(Output()) : Output::to_file(options.out_file);
  if (!output) return fail(output.error(), options.json());
  Stream stream(connection, *output, *signals, options);
  auto probes = connection.call("probe.list", pid_params(options), stream.interruptible());
  if (!probes) return fail_call(connection, probes.error(), options);
  stream.learn((*probes)["probes"]);
  auto subscribed = connection.call("events.subscribe", subscribe_params(options), stream.interruptible());
  if (!subscribed) return fail_call(connection, subscribed.error(), options);
  stream.run();
  return end_stream(connection, stream, *output, (*subscribed)["subscription"].u64_or(0), options);
}

}  // namespace

int run_command(const Options& options) {
  if (options.command == Command::trace) return run_trace(options);
  auto connection = Connection::connect(socket_path(options.socket));
  if (!connection) return fail(connection.error(), options.json(), failure_word(nullptr, connection.error()));
  if (options.command == Command::stream) return run_stream(*connection, options);
  for (const auto& change : kChanges)
    if (change.command == options.command) return run_change(*connection, options, change);
  for (const auto& query : kQueries)
    if (query.command == options.command) return run_query(*connection, options, query);
  return fail({Reason::internal, "this sub-command has no implementation", "", {}}, options.json());
}

}  // namespace probed::client
