// See event_text.hpp.
#include "client/event_text.hpp"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "client/display.hpp"

namespace probed::client {
namespace {

struct Fields {
  JsonView probe, id, pid, tid, comm, cpu, time, ip, symbol, args, func, tail_call;
};

struct FieldName {
  std::string_view key;
  JsonView Fields::*field;
};
constexpr FieldName kFields[] = {
    {"probe", &Fields::probe},   {"id", &Fields::id},     {"pid", &Fields::pid},   {"tid", &Fields::tid},
    {"comm", &Fields::comm},     {"cpu", &Fields::cpu},   {"time", &Fields::time}, {"ip", &Fields::ip},
    {"symbol", &Fields::symbol}, {"args", &Fields::args}, {"func", &Fields::func}, {"tail_call", &Fields::tail_call},
};

Fields read_fields(std::string_view event_json) {
  Fields fields;
  JsonView(event_json).each_member([&](std::string_view key, JsonView value) {
    for (const auto& [name, field] : kFields)
      if (key == name) fields.*field = value;
    return true;
  });
  return fields;
}

// Bytes of an argument; one that has so many may have been longer (PROTOCOL.md).
constexpr std::size_t kMostString = 512;

// Without escapes the raw text is the decoded text: no copy.
template <class Append>
void with_decoded(JsonView string, Append append) {
  const auto raw = string.raw_string();
  if (raw.find('\\') == std::string_view::npos)
    append(raw);
  else
    append(std::string_view(string.string()));
}

void append_string(std::string& out, JsonView string) {
  with_decoded(string, [&](std::string_view bytes) { append_display(out, bytes); });
}

constexpr std::uint64_t kSecond = 1'000'000'000;

void append_seconds(std::string& out, std::uint64_t nanoseconds) {
  fmt::format_to(std::back_inserter(out), "{}.{:09}: ", nanoseconds / kSecond, nanoseconds % kSecond);
}

std::uint64_t now(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * kSecond + static_cast<std::uint64_t>(time.tv_nsec);
}

void append_place(std::string& out, const Fields& fields) {
  out.append(" (");
  append_string(out, fields.symbol.is_string() ? fields.symbol : fields.ip);
  if (fields.func.is_string()) {
    out.append(" <- ");
    append_string(out, fields.func);
    if (fields.tail_call.exists()) out.append(" by tail call");
  }
  out.push_back(')');
}

bool looks_like_hex(std::string_view text) {
  if (text.size() < 3 || text.size() > 18 || text.substr(0, 2) != "0x") return false;
  return text.find_first_not_of("0123456789abcdef", 2) == std::string_view::npos;
}

}  // namespace

EventText::Notation EventText::notation_of(std::string_view type) {
  type = type.substr(0, type.find('['));  // an array prints as its elements do
  if (type == "string" || type == "ustring") return Notation::string;
  return type == "char" ? Notation::character : Notation::bare;
}

EventText::Notations EventText::notations_of(JsonView args) {
  Notations notations;
  args.each_element([&](JsonView arg) {
    notations[std::string(arg["name"].raw_string())] = notation_of(arg["type"].raw_string());
    return true;
  });
  return notations;
}

void EventText::learn(JsonView probe_views) {
  probe_views.each_element([&](JsonView probe) {
    types_[probe["id"].u64_or(0)] = notations_of(probe["args"]);
    return true;
  });
}

void EventText::learn_added(JsonView params) {
  const Notations notations = notations_of(params["args"]);
  params["ids"].each_element([&](JsonView id) {
    types_[id.u64_or(0)] = notations;
    return true;
  });
}

void EventText::append_value(std::string& out, JsonView value, Notation notation, std::string_view null) {
  if (value.is_null()) {
    out.append(null);
  } else if (value.is_array()) {
    out.push_back('{');
    value.each_element([&, separate = false](JsonView element) mutable {
      if (std::exchange(separate, true)) out.push_back(',');
      append_value(out, element, notation, null);
      return true;
    });
    out.push_back('}');
  } else if (value.is_object()) {
    append_json_display(out, value.text());
  } else if (!value.is_string()) {
    append_display(out, value.text());
  } else {
    if (notation == Notation::guess) notation = looks_like_hex(value.raw_string()) ? Notation::bare : Notation::string;
    with_decoded(value, [&](std::string_view bytes) {
      if (notation == Notation::string) {
        append_quoted_display(out, bytes);
        if (bytes.size() >= kMostString) out.append("...");
        return;
      }
      if (notation == Notation::character) out.push_back('\'');
      append_display(out, bytes);
      if (notation == Notation::character) out.push_back('\'');
    });
  }
}

void EventText::append_args(std::string& out, JsonView args, std::uint64_t probe_id, std::string_view null) const {
  const auto known = types_.find(probe_id);
  args.each_member([&](std::string_view name, JsonView value) {
    auto notation = Notation::guess;
    if (known != types_.end())
      if (const auto type = known->second.find(std::string(name)); type != known->second.end()) notation = type->second;
    out.push_back(' ');
    if (name.find('\\') == std::string_view::npos) {
      append_display(out, name);
    } else {
      std::string decoded;
      json::append_decoded(decoded, name);
      append_display(out, decoded);
    }
    out.push_back('=');
    append_value(out, value, notation, null);
    return true;
  });
}

// The clocks drift apart, and the wall's may be set: they are compared anew for each second of events.
void EventText::append_time_of_day(std::string& out, std::uint64_t time) {
  if (!looked_ || time - *looked_ >= kSecond) {
    looked_ = time;
    wall_ahead_ = now(CLOCK_REALTIME) - now(CLOCK_MONOTONIC);
  }
  const std::uint64_t wall = time + wall_ahead_;
  if (second_text_.empty() || wall / kSecond != second_) {
    second_ = wall / kSecond;
    const auto seconds = static_cast<time_t>(second_);
    tm parts{};
    ::localtime_r(&seconds, &parts);
    second_text_ = fmt::format("{:02}:{:02}:{:02}", parts.tm_hour, parts.tm_min, parts.tm_sec);
  }
  fmt::format_to(std::back_inserter(out), "{}.{:09}: ", second_text_, wall % kSecond);
}

void EventText::append_time(std::string& out, std::uint64_t time) {
  if (times_ == Times::mono) return append_seconds(out, time);
  if (times_ == Times::wall) return append_time_of_day(out, time);
  const std::uint64_t before = before_.value_or(time);
  before_ = time;
  out.push_back(time >= before ? '+' : '-');
  append_seconds(out, time >= before ? time - before : before - time);
}

void EventText::append(std::string& out, std::string_view event_json) {
  const auto fields = read_fields(event_json);
  const auto thread = fields.tid.exists() ? fields.tid : fields.pid;
  append_string(out, fields.comm);
  fmt::format_to(std::back_inserter(out), "-{} [{:03}] ", thread.u64_or(0), fields.cpu.u64_or(0));
  append_time(out, fields.time.u64_or(0));
  with_decoded(fields.probe, [&](std::string_view name) {
    const auto slash = name.find('/');
    append_display(out, slash == std::string_view::npos ? name : name.substr(slash + 1));
  });
  out.push_back(':');
  append_place(out, fields);
  // What a function returns that ends by a tail call isn't known yet: that is no fault.
  append_args(out, fields.args, fields.id.u64_or(0), fields.tail_call.exists() ? "(none)" : "(fault)");
  out.push_back('\n');
}

}  // namespace probed::client
