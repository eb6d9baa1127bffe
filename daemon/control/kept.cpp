#include "daemon/control/kept.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <limits>
#include <set>

#include "daemon/base/own_files.hpp"
#include "daemon/base/process.hpp"
#include "daemon/lang/parse.hpp"
#include "proto/json.hpp"
#include "proto/schema.hpp"

namespace probed::control {
namespace {

using proto::Field;
using proto::Json;
using proto::JsonWriter;
using proto::Type;

constexpr const char* kEnding = ".probes";
constexpr std::string_view kFormat = "probed persistent probes";
constexpr std::uint64_t kVersion = 1;
constexpr std::size_t kMostBytes = 256 << 20;
constexpr std::size_t kMostCode = 15;  // bytes of an instruction

// ---- what a file must be --------------------------------------------------------------------------------------------

constexpr std::uint64_t kMax64 = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kMax32 = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint64_t kMostId = 1u << 31;
constexpr std::uint64_t kMostText = 65536;
constexpr std::uint64_t kMostPid = 4194304;  // PID_MAX_LIMIT, include/linux/threads.h
constexpr bool kMayLack = false;

constexpr Field integer(std::string_view name, std::uint64_t max = kMax64, bool required = true, std::int64_t min = 0) {
  return {.name = name, .type = Type::integer, .required = required, .min = min, .max = max, .description = {}};
}
constexpr Field text(std::string_view name, bool required = true, std::int64_t min = 0) {
  return {.name = name, .type = Type::string, .required = required, .min = min, .max = kMostText, .description = {}};
}
constexpr Field flag(std::string_view name) {
  return {.name = name, .type = Type::boolean, .required = true, .description = {}};
}
constexpr Field record(std::string_view name, std::span<const Field> fields, bool required) {
  return {.name = name, .type = Type::object, .required = required, .description = {}, .fields = fields};
}

constexpr std::array kOwnerFields{integer("user", kMax32), integer("group", kMax32)};
constexpr std::array kUsdtFields{text("provider"), text("name")};
constexpr std::array kLimitFields{integer("batch"), integer("remaining")};
constexpr std::array kPlaceFields{text("code", true, 2), integer("major", kMax32), integer("minor", kMax32),
                                  integer("inode"), integer("offset")};
constexpr std::array kUnwatchedFields{integer("times"), integer("from"), integer("to"), integer("total")};
constexpr Field kMatchField = text("match");
constexpr std::array kProbeFields{integer("id", kMostId, true, 1),
                                  text("group", true, 1),
                                  text("name", true, 1),
                                  text("definition", true, 1),
                                  text("filter"),
                                  text("symbol"),
                                  text("module"),
                                  record("owner", kOwnerFields, true),
                                  flag("many"),
                                  flag("enabled"),
                                  flag("gone"),
                                  flag("optimize"),
                                  flag("pending"),
                                  flag("stepped"),
                                  text("whyDisabled"),
                                  text("whyGone"),
                                  record("usdt", kUsdtFields, kMayLack),
                                  integer("maxRate", kMax64, kMayLack),
                                  integer("expires", kMax64, kMayLack),
                                  record("limit", kLimitFields, kMayLack),
                                  integer("hits"),
                                  integer("missed"),
                                  integer("filtered"),
                                  integer("abandoned"),
                                  integer("unmatched"),
                                  flag("glob"),
                                  integer("from", kMostId, kMayLack, 1),
                                  text("match", kMayLack),
                                  Field{.name = "unwanted",
                                        .type = Type::array,
                                        .required = kMayLack,
                                        .max = 1'000'000,
                                        .description = {},
                                        .items = &kMatchField},
                                  record("place", kPlaceFields, kMayLack),
                                  record("unwatched", kUnwatchedFields, kMayLack)};
constexpr Field kProbeField = record("probe", kProbeFields, true);
constexpr std::array kTargetFields{text("format", true, 1),
                                   integer("version"),
                                   text("boot"),
                                   integer("pid", kMostPid, true, 2),
                                   integer("startTime"),
                                   integer("program"),
                                   flag("followFork"),
                                   record("attachedBy", kOwnerFields, kMayLack),
                                   integer("followed"),
                                   flag("armed"),
                                   flag("optimize"),
                                   integer("attempts"),
                                   Field{.name = "probes",
                                         .type = Type::array,
                                         .required = true,
                                         .max = 1'000'000,
                                         .description = {},
                                         .items = &kProbeField}};
constexpr proto::Method kShape{
    .name = "kept probes", .summary = {}, .params = kTargetFields, .exactly_one = {}, .result = {}, .errors = {}};

Error bad(std::string what) { return {Reason::bad_message, std::move(what)}; }

// ---- writing --------------------------------------------------------------------------------------------------------

std::string hex_of(const std::vector<std::uint8_t>& bytes) {
  std::string out;
  for (const std::uint8_t byte : bytes) out += fmt::format("{:02x}", byte);
  return out;
}

void put(JsonWriter& w, std::string_view key, const Owner& owner) {
  w.key(key).begin_object().key("user").number(std::uint64_t{owner.user});
  w.key("group").number(std::uint64_t{owner.group}).end_object();
}
void put(JsonWriter& w, std::string_view key, std::uint64_t value) { w.key(key).number(value); }
void put(JsonWriter& w, std::string_view key, std::string_view value) { w.key(key).string(value); }
void put(JsonWriter& w, std::string_view key, const std::string& value) { w.key(key).string(value); }
void put(JsonWriter& w, std::string_view key, bool value) { w.key(key).boolean(value); }

void put_place(JsonWriter& w, const Place& place) {
  w.key("place").begin_object();
  put(w, "code", hex_of(place.code));
  put(w, "major", std::uint64_t{place.backing.dev_major});
  put(w, "minor", std::uint64_t{place.backing.dev_minor});
  put(w, "inode", place.backing.inode);
  put(w, "offset", place.backing.offset);
  w.end_object();
}

std::string text_of(const KeptProbe& p) {
  JsonWriter w;
  w.begin_object();
  put(w, "id", std::uint64_t{number(p.id)});
  put(w, "group", p.group);
  put(w, "name", p.name);
  put(w, "definition", p.definition);
  put(w, "filter", p.filter);
  put(w, "symbol", p.symbol);
  put(w, "module", p.module);
  put(w, "owner", p.owner);
  put(w, "many", p.many);
  put(w, "enabled", p.enabled);
  put(w, "gone", p.gone);
  put(w, "optimize", p.optimize);
  put(w, "pending", p.pending);
  put(w, "stepped", p.stepped);
  put(w, "whyDisabled", p.why_disabled);
  put(w, "whyGone", p.why_gone);
  if (p.usdt) {
    w.key("usdt").begin_object();
    put(w, "provider", p.usdt->provider);
    put(w, "name", p.usdt->name);
    w.end_object();
  }
  if (p.max_rate) put(w, "maxRate", *p.max_rate);
  if (p.expires) put(w, "expires", *p.expires);
  if (p.limit) {
    w.key("limit").begin_object();
    put(w, "batch", p.limit->batch);
    put(w, "remaining", p.limit->remaining);
    w.end_object();
  }
  put(w, "hits", p.hits);
  put(w, "missed", p.missed);
  put(w, "filtered", p.filtered);
  put(w, "abandoned", p.abandoned);
  put(w, "unmatched", p.unmatched);
  put(w, "glob", p.glob);
  if (number(p.from) != 0) put(w, "from", std::uint64_t{number(p.from)});
  if (!p.match.empty()) put(w, "match", p.match);
  if (!p.unwanted.empty()) {
    w.key("unwanted").begin_array();
    for (const std::string& match : p.unwanted) w.string(match);
    w.end_array();
  }
  if (!p.place.code.empty()) put_place(w, p.place);
  if (p.unwatched) put_unwatched(w, *p.unwatched);
  w.end_object();
  return std::move(w).text();
}

// ---- reading --------------------------------------------------------------------------------------------------------

Owner owner_of(const Json& json) { return {json["user"].get<uid_t>(), json["group"].get<gid_t>()}; }

std::optional<std::uint64_t> number_at(const Json& json, const char* key) {
  const auto it = json.find(key);
  return it == json.end() ? std::nullopt : std::optional(it->get<std::uint64_t>());
}

Result<Place> place_of(const Json& json) {
  Place place;
  const auto& digits = json["code"].get_ref<const std::string&>();
  for (std::size_t at = 0; at < digits.size(); at += 2) {
    std::uint8_t byte = 0;
    const char* const end = digits.data() + std::min(at + 2, digits.size());
    const auto read = std::from_chars(digits.data() + at, end, byte, 16);
    if (read.ec != std::errc() || read.ptr != digits.data() + at + 2) return bad("a probe's code is no bytes");
    place.code.push_back(byte);
  }
  if (place.code.size() > kMostCode) return bad("a probe's code is longer than an instruction");
  place.backing = {json["major"].get<std::uint32_t>(), json["minor"].get<std::uint32_t>(),
                   json["inode"].get<std::uint64_t>(), json["offset"].get<std::uint64_t>()};
  return place;
}

// Names are what the language takes for names, whoever has written them.
bool is_name(const std::string& group, const std::string& name) {
  const auto parsed = lang::parse_definition("p:" + group + "/" + name + " 0x1");
  return parsed && parsed->group == group && parsed->name == name;
}

Result<KeptProbe> probe_of(const Json& json) {
  KeptProbe p;
  p.id = ProbeId{json["id"].get<std::uint32_t>()};
  for (const auto& [key, member] : {std::pair{"group", &KeptProbe::group},
                                    {"name", &KeptProbe::name},
                                    {"definition", &KeptProbe::definition},
                                    {"filter", &KeptProbe::filter},
                                    {"symbol", &KeptProbe::symbol},
                                    {"module", &KeptProbe::module},
                                    {"whyDisabled", &KeptProbe::why_disabled},
                                    {"whyGone", &KeptProbe::why_gone}})
    p.*member = json[key].get<std::string>();
  for (const auto& [key, member] : {std::pair{"many", &KeptProbe::many},
                                    {"enabled", &KeptProbe::enabled},
                                    {"gone", &KeptProbe::gone},
                                    {"optimize", &KeptProbe::optimize},
                                    {"pending", &KeptProbe::pending},
                                    {"stepped", &KeptProbe::stepped},
                                    {"glob", &KeptProbe::glob}})
    p.*member = json[key].get<bool>();
  for (const auto& [key, member] : {std::pair{"hits", &KeptProbe::hits},
                                    {"missed", &KeptProbe::missed},
                                    {"filtered", &KeptProbe::filtered},
                                    {"abandoned", &KeptProbe::abandoned},
                                    {"unmatched", &KeptProbe::unmatched}})
    p.*member = json[key].get<std::uint64_t>();
  p.owner = owner_of(json["owner"]);
  if (const auto u = json.find("usdt"); u != json.end())
    p.usdt = {(*u)["provider"].get<std::string>(), (*u)["name"].get<std::string>()};
  if (const auto from = json.find("from"); from != json.end()) p.from = ProbeId{from->get<std::uint32_t>()};
  if (const auto match = json.find("match"); match != json.end()) p.match = match->get<std::string>();
  if (const auto unwanted = json.find("unwanted"); unwanted != json.end())
    p.unwanted = unwanted->get<std::set<std::string>>();
  p.max_rate = number_at(json, "maxRate");
  p.expires = number_at(json, "expires");
  if (const auto l = json.find("limit"); l != json.end())
    p.limit = {(*l)["batch"].get<std::uint64_t>(), (*l)["remaining"].get<std::uint64_t>()};
  if (const auto u = json.find("unwatched"); u != json.end())
    p.unwatched = {(*u)["times"].get<std::uint64_t>(), (*u)["from"].get<std::uint64_t>(),
                   (*u)["to"].get<std::uint64_t>(), (*u)["total"].get<std::uint64_t>()};
  if (const auto found = json.find("place"); found != json.end()) {
    auto place = place_of(*found);
    if (!place) return std::move(place).error();
    p.place = std::move(place).value();
  }
  const auto definition = lang::parse_definition(p.definition);
  if (!definition || definition->kind == lang::Kind::remove) return bad("a probe's definition is none");
  if (!is_name(p.group, p.name)) return bad("a probe's name is none");
  return p;
}

std::uint64_t nanoseconds(const timespec& t) {
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(t.tv_nsec);
}
std::uint64_t now_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return nanoseconds(now);
}

}  // namespace

std::uint64_t monotonic_now() { return now_of(CLOCK_MONOTONIC); }

std::string kept_text(const KeptTarget& target, std::set<ProbeId>* left_out) {
  JsonWriter w;
  w.begin_object();
  put(w, "format", kFormat);
  put(w, "version", kVersion);
  put(w, "boot", target.boot);
  put(w, "pid", static_cast<std::uint64_t>(target.id.pid));
  put(w, "startTime", target.id.start_time);
  put(w, "program", target.program);
  put(w, "followFork", target.follow_fork);
  if (target.attached_by) put(w, "attachedBy", *target.attached_by);
  put(w, "followed", target.followed);
  put(w, "armed", target.armed);
  put(w, "optimize", target.optimize);
  put(w, "attempts", target.attempts);
  w.key("probes").begin_array();
  for (const KeptProbe& probe : target.probes) {
    const std::string one = text_of(probe);
    if (one.find("\\udc") == one.npos)  // what no strict reader takes (proto/json.hpp)
      w.raw(one);
    else if (left_out)
      left_out->insert(probe.id);
  }
  w.end_array().end_object();
  return std::move(w).text() + "\n";
}

Result<KeptTarget> read_kept_text(std::string_view text) {
  auto json = proto::parse_json(text);
  if (!json) return bad("it is no JSON: " + json.error().message);
  const Json& all = *json;
  if (!all.is_object() || all.value("format", Json()) != kFormat) return bad("it is no file of persistent probes");
  if (all.value("version", Json()) != kVersion)
    return bad("it was written by another version of probed, in format " + all.value("version", Json()).dump());
  if (auto valid = proto::validate(kShape, all); !valid) return bad(valid.error().message);
  KeptTarget target;
  target.id = {all["pid"].get<pid_t>(), all["startTime"].get<std::uint64_t>()};
  target.boot = all["boot"].get<std::string>();
  target.program = all["program"].get<std::uint64_t>();
  target.follow_fork = all["followFork"].get<bool>();
  if (all.contains("attachedBy")) target.attached_by = owner_of(all["attachedBy"]);
  target.followed = all["followed"].get<std::uint64_t>();
  target.armed = all["armed"].get<bool>();
  target.optimize = all["optimize"].get<bool>();
  target.attempts = all["attempts"].get<std::uint64_t>();
  std::set<ProbeId> ids;
  for (const Json& one : all["probes"]) {
    auto probe = probe_of(one);
    if (!probe) return std::move(probe).error();
    if (!ids.insert(probe->id).second) return bad("two probes have the same id");
    target.probes.push_back(std::move(probe).value());
  }
  return target;
}

// ---- files ----------------------------------------------------------------------------------------------------------

std::string kept_path(const std::string& directory, TargetId target) {
  return fmt::format("{}/{}-{}{}", directory, target.pid, target.start_time, kEnding);
}

Result<void> write_kept(const std::string& path, std::string_view text) {
  const std::string unfinished = path + ".new";
  remove_own_file(unfinished);
  const Own own = open_own_file(unfinished, O_WRONLY | O_CREAT | O_EXCL);
  if (!own) return Error{Reason::internal, fmt::format("cannot write {}: {}", path, own.why())};
  bool written = true;
  while (written && !text.empty()) {
    const ssize_t wrote = ::write(own.fd.get(), text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    written = wrote > 0;
    if (written) text.remove_prefix(static_cast<std::size_t>(wrote));
  }
  if (written && ::rename(unfinished.c_str(), path.c_str()) == 0) return {};
  const int why = errno;
  remove_own_file(unfinished);
  return Error{Reason::internal, fmt::format("cannot write {}: {}", path, std::strerror(why))};
}

// The same pid and start time: another boot's id was seen then, and not another boot (base/process.hpp).
static bool is_there(TargetId id) {
  const auto now = process::target_id(id.pid);
  return now && *now == id;
}

void touch_kept(const std::string& path) { ::utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW); }

std::vector<FoundKept> find_kept(const std::string& directory) {
  std::vector<FoundKept> found;
  std::error_code error;
  const std::uint64_t now = monotonic_now(), now_of_files = now_of(CLOCK_REALTIME);
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string path = entry.path();
    if (path.ends_with(std::string(kEnding) + ".new")) remove_own_file(path);  // its daemon was killed over it
    if (!path.ends_with(kEnding)) continue;
    std::string text;
    const Own own = read_own_file(path, kMostBytes, text);
    FoundKept one{path, own ? read_kept_text(text) : bad(own.why())};
    const std::uint64_t written = nanoseconds(own.file.st_mtim);
    one.last_known = now - std::min(now, now_of_files - std::min(written, now_of_files));
    if (one.target && one.target->boot != process::boot_id() && !is_there(one.target->id)) {
      one.target = bad("it is of before the machine was started again");
      one.other_boot = true;
    }
    found.push_back(std::move(one));
  }
  std::ranges::sort(found, {}, &FoundKept::path);
  return found;
}

void set_aside(const std::string& path) { ::rename(path.c_str(), (path + ".refused").c_str()); }

void drop_kept(const std::string& directory) {
  for (const FoundKept& found : find_kept(directory)) {
    if (found.other_boot) {
      remove_own_file(found.path);
      continue;
    }
    if (!found.target) {
      spdlog::warn("{} is refused: {}", found.path, found.target.error().message);
      set_aside(found.path);
      continue;
    }
    std::string names;
    for (const KeptProbe& probe : found.target->probes)
      names += fmt::format("{}{}/{}", names.empty() ? "" : ", ", probe.group, probe.name);
    spdlog::warn("the persistent probes of process {} end here, as this daemon has no --keep-probes: {}",
                 found.target->id.pid, names.empty() ? "(none)" : names);
    remove_own_file(found.path);
  }
}

}  // namespace probed::control
