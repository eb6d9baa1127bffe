// The daemon's answers as text for people: one function for each thing that is listed. Pure.
#pragma once

#include <string>

#include "client/json_view.hpp"

namespace probed::client {

// "0x55d0c8a4f2b0  p  processCommand+0x0  redis-server  probes/cmd  [OPTIMIZED]"
std::string list_line(JsonView probe);
// The same and what it takes to act on the probe: "  id 3  pid 1447  if argc > 1".
std::string wide_list_line(JsonView probe);
// The kernel's kprobe_profile columns, name, hits, missed, and filtered.
std::string profile_line(JsonView probe);
std::string wide_profile_line(JsonView probe);
// "redis-server (PID 1447): 4 threads, 2 probes, /usr/bin/redis-server"
std::string target_line(JsonView target);
std::string function_line(JsonView function);
// The names of the columns.
std::string list_header();
std::string profile_header();
std::string variable_line(JsonView variable);  // kind, name, type, why it has no value
std::string variables_header();
std::string line_line(JsonView line);  // address, line, function, file, module
std::string lines_header();
std::string usdt_header();
std::string usdt_line(JsonView probe);  // first address, places, arguments, PROVIDER:NAME, module
std::string functions_header();
// "my/h (id 3, PID 1447)"
std::string probe_reference(JsonView probe);
// "key: value" for each member, values as they are; strings without quotes.
std::string members_text(JsonView object);
// "1 probe", "3 probes"
std::string count_of(std::uint64_t count, std::string_view singular);

}  // namespace probed::client
