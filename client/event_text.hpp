// An event as one line of text, in ftrace's layout:
//
//   redis-server-1447 [001] 1038282.286875123: cmd: (processCommand+0x0) c=0x7f0e5c argc=3
//   redis-server-1447 [001] 1038282.286878006: myret: (call+0x9e <- processCommand) $retval=0
//   redis-server-1447 [001] 1038282.286879210: myret: (call+0x9e <- caller by tail call) $retval=(none)
//
// comm-tid, cpu, time (seconds of CLOCK_MONOTONIC, unless Times says otherwise), probe name without its group, place,
// arguments. Everything that comes from the target passes through display.hpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "client/json_view.hpp"

namespace probed::client {

enum class Times : std::uint8_t {
  mono,   // 1038282.286875123, seconds of CLOCK_MONOTONIC
  wall,   // 14:03:59.286875123, the time of day here
  delta,  // +0.000002883, seconds since the event in the line before
};

class EventText {
 public:
  explicit EventText(Times times = Times::mono) : times_(times) {}

  // Takes the argument types of these probes (an array of views as probe.add and probe.list give them). An event alone
  // does not tell a string "0x10" from a hexadecimal value; without types, what looks like one is taken for one.
  void learn(JsonView probe_views);
  // The same of the probes that a probe.added tells of.
  void learn_added(JsonView params);

  // Appends the line and its LF.
  void append(std::string& out, std::string_view event_json);

 private:
  enum class Notation : std::uint8_t { guess, string, character, bare };
  using Notations = std::unordered_map<std::string, Notation>;  // by undecoded argument name

  static Notation notation_of(std::string_view type);
  static Notations notations_of(JsonView args);
  static void append_value(std::string& out, JsonView value, Notation notation, std::string_view null);
  void append_args(std::string& out, JsonView args, std::uint64_t probe_id, std::string_view null) const;
  void append_time(std::string& out, std::uint64_t time);
  void append_time_of_day(std::string& out, std::uint64_t time);

  Times times_;
  std::optional<std::uint64_t> before_;  // the last event's time
  std::uint64_t wall_ahead_ = 0;         // nanoseconds that the wall's clock is ahead of CLOCK_MONOTONIC, modulo 2^64,
  std::optional<std::uint64_t> looked_;  // at this time of CLOCK_MONOTONIC
  std::uint64_t second_ = 0;             // of the wall's clock, and how it is written
  std::string second_text_;
  std::unordered_map<std::uint64_t, Notations> types_;  // by probe id
};

}  // namespace probed::client
