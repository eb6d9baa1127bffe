// Failures that reach a person: a stable machine-readable reason, a message, and what to do about it.
//
// Shared by the daemon (which makes them), the protocol (which carries them: proto/error.hpp has their words and codes)
// and the client (which prints them).
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace probed {

// Why something was refused. Each has its word in the protocol (proto/error.hpp), which never changes meaning.
enum class Reason {
  no_such_process,
  permission_denied,
  already_traced,
  existing_breakpoint,
  not_instruction_boundary,
  blacklisted,
  no_such_symbol,
  no_such_module,
  ambiguous_symbol,
  bad_definition,
  bad_filter,
  unsupported_target,
  unsupported_instruction,
  unsupported,  // a valid request for something this version cannot do
  unmapped_address,
  not_executable,
  no_such_probe,
  no_such_subscription,
  duplicate_name,
  not_attached,
  target_gone,
  out_of_memory,  // no room near the text for injected code, or the target's limits forbid it
  limit_exceeded,
  timed_out,
  bad_message,  // not JSON, or not a JSON-RPC request
  unknown_method,
  bad_params,
  message_too_long,
  internal,
};

struct Error {
  Reason reason = Reason::internal;
  std::string message;                         // what failed, on what, why; one line, no trailing full stop
  std::string hint = {};                       // what to do about it; may be empty
  std::optional<std::size_t> column = {};      // 0-based byte offset of the fault in a definition or filter
  std::optional<std::size_t> definition = {};  // which of a request's definitions is at fault, 0-based, of several
};

}  // namespace probed
