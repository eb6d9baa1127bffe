// What the user typed, checked. Pure: no system call, nothing printed.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "client/event_text.hpp"

namespace probed::client {

enum class Command {
  trace,
  attach,
  detach,
  ps,
  add,
  remove,
  enable,
  disable,
  list,
  profile,
  stream,
  format,
  arm,
  disarm,
  optimize,
  functions,
  vars,
  lines,
  status,
};

enum class OutputFormat { text, json };

// One struct for all sub-commands: each reads the members its options fill.
struct Options {
  Command command = Command::status;
  std::string socket;  // --socket; empty: not given
  OutputFormat format = OutputFormat::text;
  Times times = Times::mono;  // of text
  bool json() const { return format == OutputFormat::json; }

  std::optional<pid_t> pid;
  std::string target_name;                // -n
  std::vector<std::string> command_line;  // after "--"
  std::vector<std::string> probes;        // definitions
  std::vector<std::string> names;         // NAME or ID
  std::string filter;
  std::string pattern;                     // GLOB or LOCATION
  std::string out_file;                    // -o
  bool append = false, overwrite = false;  // when something is in it
  std::optional<bool> sort;                // events in the order of their times; unset: at a terminal
  std::optional<std::uint64_t> count;
  std::optional<double> seconds;
  std::optional<std::uint64_t> max_rate;  // hits a second; 0: any number
  std::optional<std::uint64_t> expire;    // seconds
  std::uint64_t reconnect = 5;            // seconds to wait for a daemon that has gone; 0: not at all
  bool follow_fork = false, no_optimize = false, no_spawn = false, disabled = false, all = false, pending = false;
  bool verbose = false;
  bool usdt = false;       // functions: static probes instead
  bool switch_on = false;  // optimize on
};

// What to print instead of doing anything: help, version, or why the usage is wrong (status 2).
struct Exit {
  int status = 0;
  std::string out, err;
};

// args: without the program's own name.
std::variant<Options, Exit> parse_options(std::vector<std::string> args);

}  // namespace probed::client
