// Records to JSON, appended to a caller's buffer: no allocation beyond the buffer's growth.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "daemon/events/record.hpp"
#include "daemon/lang/definition.hpp"

namespace probed::events {

// What stays the same for all of a probe's events; made once per probe.
struct EventSchema {
  std::string probe_json;   // "\"probes/cmd\"": the full name, already a JSON string
  std::string symbol_json;  // "\"processCommand+0x0\"", already a JSON string
  std::vector<lang::FetchArg> args;
  std::vector<std::string> arg_names_json;
};

EventSchema make_schema(std::string_view full_name, std::string_view symbol_and_offset,
                        std::span<const lang::FetchArg> args);

// Appends
// {"probe":...,"id":...,"pid":...,"tid":...,"comm":...,"cpu":...,"time":...,"ip":"0x...","symbol":...,"args":{...}}.
// Keys exactly in this order. `symbolize` turns the value of a `symbol` typed argument into text; may be empty.
using Symbolizer = std::string (*)(const void* context, std::uint64_t address);
void append_event_json(std::string& out, const EventSchema& schema, const RecordHeader& header,
                       std::span<const std::byte> packed, Symbolizer symbolize = nullptr,
                       const void* context = nullptr);

// Appends a JSON string. Bytes that are no UTF-8 are escaped losslessly as U+DC80..U+DCFF lone surrogates ("\udc80" for
// byte 0x80), as Python's surrogateescape does.
void append_json_string(std::string& out, std::string_view bytes);

}  // namespace probed::events
