// See selection.hpp.
#include "client/probectl/selection.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "client/display.hpp"
#include "client/probectl/answer.hpp"
#include "client/probectl/report.hpp"
#include "client/views.hpp"
#include "proto/json.hpp"

namespace probed::client {
namespace {

struct Change {
  Command command;
  const char* method;
  const char* done;
};
constexpr std::size_t kMostSimilar = 3;
constexpr Change kChanges[] = {
    {Command::remove, "probe.remove", "removed"},
    {Command::enable, "probe.enable", "enabled"},
    {Command::disable, "probe.disable", "disabled"},
};

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "'" : ", '") + word + "'";
  return text;
}

// References to the first probes whose names one of the words is part of: "work" of p_work_0.
std::string similar_to(const std::vector<std::string>& words, JsonView probes) {
  std::string found;
  std::size_t count = 0;
  probes.each_element([&](JsonView probe) {
    const std::string name = probe["name"].string();
    const auto is_part = [&name](const std::string& word) { return name.find(word) != std::string::npos; };
    if (std::ranges::any_of(words, is_part)) found += (count++ == 0 ? "" : ", ") + probe_reference(probe);
    return count < kMostSimilar;
  });
  return found;
}

std::string changed_line(JsonView probe) {
  return fmt::format("{}  id {}  hits {}  missed {}  pid {}", display(probe["name"].string()), probe["id"].u64_or(0),
                     probe["hits"].u64_or(0), probe["missed"].u64_or(0), probe["pid"].u64_or(0));
}

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

std::string ids_params(const std::vector<std::string>& ids) {
  proto::JsonWriter json;
  json.begin_object().key("ids").begin_array();
  for (const auto& id : ids) json.raw(id);
  return json.end_array().end_object().text();
}

// --all -p PID names every probe of PID.
Selection chosen(JsonView probes, const Options& options) {
  if (!options.all) return select_probes(probes, options.names);
  Selection selection;
  probes.each_element([&](JsonView probe) {
    selection.ids.emplace_back(probe["id"].text());
    return true;
  });
  return selection;
}

int run_change(Connection& connection, const Options& options, const Change& change) {
  Selection selection;
  if (!options.all || options.pid) {
    const auto list = connection.call("probe.list", pid_params(options));
    if (!list) return fail_call(connection, list.error(), options);
    selection = chosen((*list)["probes"], options);
  }
  const bool everything = options.all && !options.pid;
  std::size_t failed = 0;
  if (everything || !selection.ids.empty()) {
    const auto reply = connection.call(change.method, everything ? "{\"all\":true}" : ids_params(selection.ids));
    if (!reply) return fail_call(connection, reply.error(), options);
    std::unordered_set<std::string> not_in_place;  // each look into the reply reads all of it
    (*reply)["failed"].each_element([&](JsonView f) { return not_in_place.emplace(f["id"].text()), true; });
    const auto in_place = [&](JsonView probe) { return !not_in_place.contains(std::string(probe["id"].text())); };
    (*reply)["probes"].each_element([&](JsonView probe) {
      if (!options.json() && !in_place(probe)) return true;
      print_line(options.json() ? std::string(probe.text()) : fmt::format("{} {}", change.done, changed_line(probe)));
      return true;
    });
    failed = report_failed((*reply)["failed"], options.json());
  }
  if (!options.json())
    for (const auto& id : selection.unknown_ids) note(fmt::format("no probe {} (it may be gone already)", id));
  const int status = failed > 0 ? 1 : finish_output(options);
  const auto unknown = unknown_names_error(selection, options);
  return unknown ? fail(*unknown, options.json()) : status;
}

// Which one of several is for the user to say: their arguments differ.
Result<std::string> only_one(JsonView probes, const Options& options) {
  const auto selection = select_probes(probes, options.names);
  if (selection.ids.size() == 1) return selection.ids.front();
  const auto& which = options.names.front();
  if (selection.ids.empty())
    return Error{
        Reason::no_such_probe, fmt::format("there is no probe {}", which), "`probectl list` shows those there are", {}};
  std::string all;
  probes.each_element([&](JsonView probe) {
    if (names_probe(which, probe)) all += (all.empty() ? "" : ", ") + probe_reference(probe);
    return true;
  });
  return Error{Reason::bad_params,
               fmt::format("{} probes are named {}: {}", selection.ids.size(), which, all),
               "choose one by its id, or with -p PID",
               {}};
}

int run_format(Connection& connection, const Options& options) {
  const auto list = connection.call("probe.list", pid_params(options));
  if (!list) return fail_call(connection, list.error(), options);
  const auto id = only_one((*list)["probes"], options);
  if (!id) return fail(id.error(), options.json());
  const auto reply = connection.call("probe.format", "{\"id\":" + *id + "}");
  if (!reply) return fail_call(connection, reply.error(), options);
  print_line(options.json() ? reply->text() : format_text(reply->view()));
  return finish_output(options);
}

}  // namespace

bool is_id(std::string_view text) {
  if (text.size() > 1 && text.front() == '0') return false;
  return !text.empty() && text.size() < 20 && text.find_first_not_of("0123456789") == std::string_view::npos;
}

bool names_probe(std::string_view which, JsonView probe) {
  if (is_id(which)) return probe["id"].text() == which;
  const auto name = probe["name"].string();
  return name == which || std::string_view(name).substr(name.find('/') + 1) == which;
}

Selection select_probes(JsonView probes, const std::vector<std::string>& which) {
  Selection selection;
  std::unordered_set<std::string> left(which.begin(), which.end());
  const std::unordered_set<std::string> wanted = left;
  probes.each_element([&](JsonView probe) {
    const std::string id(probe["id"].text()), name = probe["name"].string(), bare = name.substr(name.find('/') + 1);
    // What a pending glob has become is called by its id and name, too.
    const auto from = probe["from"];
    const std::string glob_id(from["id"].text()), glob = from["name"].string(),
                                                  bare_glob = glob.substr(glob.find('/') + 1);
    bool named = false;
    for (const auto& called : {id, name, bare, glob_id, glob, bare_glob}) {
      if (!wanted.contains(called) || (is_id(called) && called != id && called != glob_id)) continue;
      named = true;
      left.erase(called);
    }
    if (named) selection.ids.push_back(id);
    return true;
  });
  for (const auto& word : which)
    if (left.erase(word) > 0) (is_id(word) ? selection.unknown_ids : selection.unknown_names).push_back(word);
  if (!selection.unknown_names.empty()) selection.similar = similar_to(selection.unknown_names, probes);
  return selection;
}

std::optional<Error> unknown_names_error(const Selection& selection, const Options& options) {
  if (selection.unknown_names.empty()) return std::nullopt;
  const auto where = options.pid ? fmt::format(" in process {}", *options.pid) : "";
  const std::string all = "`probectl list` shows those there are";
  const auto hint = selection.similar.empty() ? all : fmt::format("there is {}; {}", selection.similar, all);
  return Error{
      Reason::no_such_probe, fmt::format("no probe is named {}{}", join(selection.unknown_names), where), hint, {}};
}

std::optional<int> run_selection(Connection& connection, const Options& options) {
  if (options.command == Command::format) return run_format(connection, options);
  for (const auto& change : kChanges)
    if (change.command == options.command) return run_change(connection, options, change);
  return std::nullopt;
}

}  // namespace probed::client
