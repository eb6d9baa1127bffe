// See views.hpp.
#include "daemon/api/views.hpp"

#include <array>
#include <concepts>
#include <string_view>

#include "daemon/base/reserve.hpp"
#include "daemon/control/kept.hpp"
#include "proto/error.hpp"
#include "proto/json.hpp"

namespace probed::api {
namespace {

using proto::JsonWriter;

// A view's usual size, with what the message around it needs.
constexpr std::size_t kProbeSize = 400;

std::string room_for(std::size_t probes) {
  std::string room;
  make_room(room, (probes + 1) * kProbeSize);
  return room;
}

void put(JsonWriter& w, std::string_view key, std::string_view value) { w.key(key).string(value); }
void put(JsonWriter& w, std::string_view key, std::same_as<bool> auto value) { w.key(key).boolean(value); }
void put(JsonWriter& w, std::string_view key,
         std::unsigned_integral auto value) requires(!std::same_as<decltype(value), bool>) {
  w.key(key).number(std::uint64_t{value});
}
void put_pid(JsonWriter& w, pid_t pid) { w.key("pid").number(std::int64_t{pid}); }

void put_target(JsonWriter& w, const control::TargetView& t) {
  w.begin_object();
  put_pid(w, t.id.pid);
  put(w, "startTime", t.id.start_time);
  put(w, "comm", t.comm);
  put(w, "exe", t.exe);
  put(w, "threads", t.threads);
  put(w, "probes", t.probes);
  put(w, "followFork", t.follow_fork);
  if (t.children_let_go > 0) put(w, "childrenLetGo", t.children_let_go);
  w.end_object();
}

// Left out when there are none.
void put_notes(JsonWriter& w, const std::vector<std::string>& notes) {
  if (notes.empty()) return;
  w.key("notes").begin_array();
  for (const std::string& note : notes) w.string(note);
  w.end_array();
}

void put_args(JsonWriter& w, const std::vector<control::ArgView>& args) {
  w.key("args").begin_array();
  for (const auto& arg : args) {
    w.begin_object();
    put(w, "name", arg.name);
    put(w, "type", arg.type);
    w.end_object();
  }
  w.end_array();
}

void put_counters(JsonWriter& w, const control::ProbeView& p) {
  put(w, "hits", p.hits);
  put(w, "missed", p.missed);
  put(w, "filtered", p.filtered);
  if (p.unwatched) control::put_unwatched(w, *p.unwatched);
  if (p.kind != "r") return;
  put(w, "abandoned", p.abandoned);
  put(w, "unmatched", p.unmatched);
}

void put_probe(JsonWriter& w, const control::ProbeView& p) {
  w.begin_object();
  put(w, "id", number(p.id));
  put(w, "name", p.name);
  put(w, "kind", p.kind);
  put_pid(w, p.pid);
  w.key("address").address(p.address.value);
  put(w, "symbol", p.symbol);
  if (p.places > 1) put(w, "places", p.places);
  put(w, "module", p.module);
  put(w, "state", p.state);
  if (!p.state_reason.empty()) put(w, "stateReason", p.state_reason);
  put(w, "tier", p.tier);
  if (!p.tier_reason.empty()) put(w, "tierReason", p.tier_reason);
  put(w, "definition", p.definition);
  put(w, "filter", p.filter);
  if (!p.condition.empty()) put(w, "condition", p.condition);
  put_args(w, p.args);
  put_notes(w, p.notes);
  if (p.from) {
    w.key("from").begin_object();
    put(w, "id", number(p.from->id));
    put(w, "name", p.from->name);
    w.end_object();
  }
  put(w, "persist", p.persist);
  put(w, "armed", p.armed);
  if (p.max_rate) put(w, "maxRate", *p.max_rate);
  if (p.expires) put(w, "expires", *p.expires);
  put_counters(w, p);
  w.end_object();
}

void put_profile(JsonWriter& w, const control::ProbeView& p) {
  w.begin_object();
  put(w, "id", number(p.id));
  put(w, "name", p.name);
  put_pid(w, p.pid);
  put_counters(w, p);
  w.end_object();
}

void put_function(JsonWriter& w, const symbols::Function& f) {
  w.begin_object();
  put(w, "name", f.name);
  put(w, "linkageName", f.linkage_name);
  put(w, "module", f.module);
  w.key("address").address(f.address.value);
  put(w, "size", f.size);
  w.end_object();
}

void put_variable(JsonWriter& w, const dwarf::VisibleVariable& v) {
  w.begin_object();
  put(w, "name", v.name);
  put(w, "type", v.type);
  put(w, "kind", v.kind);
  if (!v.absent.empty()) put(w, "absent", v.absent);
  w.end_object();
}

void put_line(JsonWriter& w, const symbols::SourceLine& l) {
  w.begin_object();
  put(w, "file", l.file);
  put(w, "line", l.line);
  w.key("address").address(l.address.value);
  put(w, "function", l.function);
  put(w, "module", l.module);
  w.end_object();
}

void put_usdt(JsonWriter& w, const symbols::UsdtProbe& p) {
  w.begin_object();
  put(w, "provider", p.provider);
  put(w, "name", p.name);
  put(w, "module", p.module);
  put(w, "arguments", p.arguments);
  put(w, "operands", p.argument_text);
  put(w, "semaphore", p.has_semaphore);
  w.key("addresses").begin_array();
  for (const RemoteAddr address : p.addresses) w.address(address.value);
  w.end_array().end_object();
}

void put_skipped(JsonWriter& w, const control::Skipped& s) {
  w.begin_object();
  put(w, "symbol", s.symbol);
  w.key("address").address(s.address.value);
  put(w, "reason", to_string(s.why.reason));
  put(w, "message", s.why.message);
  w.end_object();
}

// Left out when there are none.
void put_failed(JsonWriter& w, const std::vector<control::Failed>& failed) {
  if (failed.empty()) return;
  w.key("failed").begin_array();
  for (const control::Failed& f : failed) {
    w.begin_object();
    put(w, "id", number(f.id));
    put(w, "name", f.name);
    put(w, "reason", to_string(f.why.reason));
    put(w, "message", f.why.message);
    if (!f.why.hint.empty()) put(w, "hint", f.why.hint);
    w.end_object();
  }
  w.end_array();
}

template <class T>
std::string listed(std::string_view key, const std::vector<T>& items, void (*each)(JsonWriter&, const T&),
                   std::string room = {}) {
  JsonWriter w(std::move(room));
  w.begin_object().key(key).begin_array();
  for (const T& item : items) each(w, item);
  w.end_array().end_object();
  return std::move(w).text();
}

// The fields every event has, and those only a return event has, in the order an event shows them.
struct CommonField {
  std::string_view name, type;
  bool returns_only;
};
constexpr std::array kCommonFields{
    CommonField{"probe", "string", false},  CommonField{"id", "u32", false},
    CommonField{"pid", "s32", false},       CommonField{"tid", "s32", false},
    CommonField{"comm", "string", false},   CommonField{"cpu", "u32", false},
    CommonField{"time", "u64", false},      CommonField{"ip", "x64", false},
    CommonField{"symbol", "string", false}, CommonField{"ret_ip", "x64", true},
    CommonField{"func", "string", true},    CommonField{"duration", "u64", true},
    CommonField{"tail_call", "bool", true},
};

void put_field(JsonWriter& w, std::string_view name, std::string_view type, bool common) {
  w.begin_object();
  put(w, "name", name);
  put(w, "type", type);
  put(w, "common", common);
  w.end_object();
}

}  // namespace

std::string target_json(const control::TargetView& target) {
  JsonWriter w;
  put_target(w, target);
  return std::move(w).text();
}

std::string targets_json(const std::vector<control::TargetView>& targets) {
  return listed("targets", targets, put_target);
}
std::string probes_json(const std::vector<control::ProbeView>& probes) {
  return listed("probes", probes, put_probe, room_for(probes.size()));
}
std::string added_json(const control::Added& added) {
  JsonWriter w(room_for(added.probes.size()));
  w.begin_object().key("probes").begin_array();
  for (const auto& probe : added.probes) put_probe(w, probe);
  w.end_array().key("skipped").begin_array();
  for (const auto& skipped : added.skipped) put_skipped(w, skipped);
  w.end_array().end_object();
  return std::move(w).text();
}
std::string changed_json(const control::Changed& changed) {
  JsonWriter w(room_for(changed.probes.size()));
  w.begin_object().key("probes").begin_array();
  for (const auto& probe : changed.probes) put_probe(w, probe);
  w.end_array();
  put_failed(w, changed.failed);
  w.end_object();
  return std::move(w).text();
}
std::string armed_json(bool armed, const std::vector<control::Failed>& failed) {
  JsonWriter w;
  w.begin_object();
  put(w, "armed", armed);
  put_failed(w, failed);
  w.end_object();
  return std::move(w).text();
}
std::string profile_json(const std::vector<control::ProbeView>& probes) {
  return listed("probes", probes, put_profile);
}

std::string format_json(const control::ProbeView& p) {
  JsonWriter w;
  w.begin_object();
  put(w, "id", number(p.id));
  put(w, "name", p.name);
  put(w, "kind", p.kind);
  w.key("fields").begin_array();
  for (const CommonField& f : kCommonFields)
    if (!f.returns_only || p.kind == "r") put_field(w, f.name, f.type, true);
  for (const auto& arg : p.args) put_field(w, arg.name, arg.type, false);
  w.end_array().end_object();
  return std::move(w).text();
}

std::string status_json(const control::Status& s) {
  JsonWriter w;
  w.begin_object();
  put(w, "version", PROBED_VERSION);
  put(w, "armed", s.armed);
  put(w, "optimize", s.optimize);
  put(w, "targets", s.targets);
  put(w, "probes", s.probes);
  put(w, "clients", s.clients);
  put(w, "subscriptions", s.subscriptions);
  put(w, "hits", s.hits);
  put(w, "missed", s.missed);
  put(w, "filtered", s.filtered);
  put(w, "optimized", s.optimized);
  put(w, "longestPauseNs", s.longest_pause_ns);
  put(w, "priority", s.priority);
  put(w, "longestWaitNs", s.longest_wait_ns);
  put(w, "starvedNs", s.starved_ns);
  w.end_object();
  return std::move(w).text();
}

// The first `limit` of them (0: all), as far as there is room for them, and whether that leaves some out. No element is
// shorter than the names in it: what was left out before, for these, is left out here as well.
template <typename T>
static std::string truncated_json(std::string_view key, const std::vector<T>& all, std::size_t limit,
                                  void (*put_one)(JsonWriter&, const T&)) {
  const std::size_t most = limit == 0 ? all.size() : std::min(limit, all.size());
  std::size_t shown = 0;
  JsonWriter w;
  w.begin_object().key(key).begin_array();
  for (; shown < most && w.text().size() < symbols::kMostNames; ++shown) put_one(w, all[shown]);
  w.end_array();
  put(w, "truncated", shown < all.size());
  w.end_object();
  return std::move(w).text();
}

std::string functions_json(const std::vector<symbols::Function>& functions, std::size_t limit) {
  return truncated_json("functions", functions, limit, put_function);
}

std::string variables_json(const std::vector<dwarf::VisibleVariable>& variables) {
  return listed("variables", variables, put_variable);
}

std::string lines_json(const std::vector<symbols::SourceLine>& lines, std::size_t limit) {
  return truncated_json("lines", lines, limit, put_line);
}

std::string usdt_json(const std::vector<symbols::UsdtProbe>& probes, std::size_t limit) {
  return truncated_json("probes", probes, limit, put_usdt);
}

}  // namespace probed::api
