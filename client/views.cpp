// See views.hpp.
#include "client/views.hpp"

#include <fmt/format.h>

#include "client/display.hpp"

namespace probed::client {
namespace {

struct Tag {
  std::string_view key, value, text;
  bool only_armed;  // the tier of a probe that is not in place is no more than a plan
};
constexpr Tag kTags[] = {
    {"tier", "optimized", "[OPTIMIZED]", true}, {"tier", "boosted", "[BOOSTED]", true},
    {"state", "disabled", "[DISABLED]", false}, {"state", "gone", "[GONE]", false},
    {"state", "pending", "[PENDING]", false},
};

std::string tags(JsonView probe) {
  const bool armed = probe["state"].raw_string() == "enabled" && probe["armed"].boolean_or(true);
  std::string out;
  for (const auto& tag : kTags)
    if (probe[tag.key].raw_string() == tag.value && (armed || !tag.only_armed)) out.append("  ").append(tag.text);
  return out;
}

std::string identity(JsonView probe) {
  return fmt::format("  id {}  pid {}", probe["id"].u64_or(0), probe["pid"].u64_or(0));
}

// A column is never empty, so that columns can be counted.
std::string column(JsonView value) {
  const auto text = value.is_string() ? display(value.string()) : display(value.text());
  return text.empty() ? "-" : text;
}

}  // namespace

std::string list_line(JsonView probe) {
  return fmt::format("{}  {}  {}  {}  {}{}", column(probe["address"]), column(probe["kind"]), column(probe["symbol"]),
                     column(probe["module"]), column(probe["name"]), tags(probe));
}

std::string wide_list_line(JsonView probe) {
  auto line = list_line(probe) + identity(probe);
  const auto filter = display(probe["filter"].string()), own = display(probe["condition"].string());
  const bool both = !filter.empty() && !own.empty();
  if (both) line += "  if (" + own + ") && (" + filter + ")";
  if (!both && filter + own != "") line += "  if " + filter + own;
  if (const auto unwatched = probe["unwatched"]["total"].u64(); unwatched.value_or(0) > 0)
    line +=
        fmt::format("  (not counted for {:.3f} s in all: there was no daemon)", static_cast<double>(*unwatched) / 1e9);
  for (const char* reason : {"stateReason", "tierReason"})
    if (const auto why = display(probe[reason].string()); !why.empty()) line += "  (" + why + ")";
  return line;
}

std::string list_header() { return "ADDRESS  KIND  SYMBOL  MODULE  NAME  [TAGS]  ID  PROCESS  FILTER"; }

std::string profile_line(JsonView probe) {
  auto line = fmt::format("  {:<44} {:>15} {:>15} {:>15}", column(probe["name"]), probe["hits"].u64_or(0),
                          probe["missed"].u64_or(0), probe["filtered"].u64_or(0));
  if (!probe["abandoned"].exists()) return line;
  return line + fmt::format("  abandoned {}  unmatched {}", probe["abandoned"].u64_or(0), probe["unmatched"].u64_or(0));
}

std::string wide_profile_line(JsonView probe) { return profile_line(probe) + identity(probe); }

std::string profile_header() {
  return fmt::format("  {:<44} {:>15} {:>15} {:>15}  ID  PROCESS", "NAME", "HITS", "MISSED", "FILTERED");
}

std::string functions_header() { return fmt::format("{:<14}  {:>7}  NAME  MODULE", "ADDRESS", "BYTES"); }

std::string probe_reference(JsonView probe) {
  return fmt::format("{} (id {}, PID {})", column(probe["name"]), probe["id"].u64_or(0), probe["pid"].u64_or(0));
}

std::string target_line(JsonView target) {
  auto line = fmt::format("{} (PID {}): {}, {}, {}", column(target["comm"]), target["pid"].u64_or(0),
                          count_of(target["threads"].u64_or(0), "thread"),
                          count_of(target["probes"].u64_or(0), "probe"), column(target["exe"]));
  return target["followFork"].boolean_or(false) ? line + ", follows forks" : line;
}

std::string function_line(JsonView function) {
  return fmt::format("{}  {:>7}  {}  {}", column(function["address"]), column(function["size"]),
                     column(function["name"]), column(function["module"]));
}

std::string variable_line(JsonView variable) {
  auto line =
      fmt::format("{:<9}  {}  {}", column(variable["kind"]), column(variable["name"]), column(variable["type"]));
  const auto absent = display(variable["absent"].string());
  return absent.empty() ? line : fmt::format("{}  ({})", line, absent);
}

std::string variables_header() { return fmt::format("{:<9}  NAME  TYPE", "KIND"); }

std::string line_line(JsonView line) {
  return fmt::format("{}  {:>6}  {}  {}  {}", column(line["address"]), line["line"].u64_or(0), column(line["function"]),
                     column(line["file"]), column(line["module"]));
}

std::string lines_header() { return fmt::format("{:<14}  {:>6}  FUNCTION  FILE  MODULE", "ADDRESS", "LINE"); }

std::string usdt_header() {
  return fmt::format("{:<14}  {:>6}  {:>9}  PROVIDER:NAME  MODULE", "ADDRESS", "PLACES", "ARGUMENTS");
}

std::string usdt_line(JsonView probe) {
  std::size_t places = 0;
  std::string first;
  probe["addresses"].each_element([&](JsonView address) {
    if (places++ == 0) first = column(address);
    return true;
  });
  return fmt::format("{}  {:>6}  {:>9}  {}:{}  {}", first, places, probe["arguments"].u64_or(0),
                     column(probe["provider"]), column(probe["name"]), column(probe["module"]));
}

std::string members_text(JsonView object) {
  std::string out;
  object.each_member([&](std::string_view key, JsonView value) {
    out += fmt::format("{}: {}\n", display(key), column(value));
    return true;
  });
  return out;
}

std::string count_of(std::uint64_t count, std::string_view singular) {
  return fmt::format("{} {}{}", count, singular, count == 1 ? "" : "s");
}

}  // namespace probed::client
