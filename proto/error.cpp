// The words and codes of the reasons. One table, so that no reason can lack either.
//
// Thread: any. Invariant: one row for each enumerator, in the enumerators' order; words and codes are part of the
// protocol and never change meaning or get reused.
#include "proto/error.hpp"

#include <array>

#include "proto/jsonrpc.hpp"

namespace probed {
namespace {

struct Row {
  Reason reason;
  std::string_view word;
  int code;
};

constexpr std::array kRows{
    Row{Reason::no_such_process, "no-such-process", -32001},
    Row{Reason::permission_denied, "permission-denied", -32002},
    Row{Reason::already_traced, "already-traced", -32003},
    Row{Reason::existing_breakpoint, "existing-breakpoint", -32004},
    Row{Reason::not_instruction_boundary, "not-instruction-boundary", -32005},
    Row{Reason::blacklisted, "blacklisted", -32006},
    Row{Reason::no_such_symbol, "no-such-symbol", -32007},
    Row{Reason::no_such_module, "no-such-module", -32008},
    Row{Reason::ambiguous_symbol, "ambiguous-symbol", -32009},
    Row{Reason::bad_definition, "bad-definition", -32010},
    Row{Reason::bad_filter, "bad-filter", -32011},
    Row{Reason::unsupported_target, "unsupported-target", -32012},
    Row{Reason::unsupported_instruction, "unsupported-instruction", -32013},
    Row{Reason::unsupported, "unsupported", -32014},
    Row{Reason::unmapped_address, "unmapped-address", -32015},
    Row{Reason::not_executable, "not-executable", -32016},
    Row{Reason::no_such_probe, "no-such-probe", -32017},
    Row{Reason::no_such_subscription, "no-such-subscription", -32018},
    Row{Reason::duplicate_name, "duplicate-name", -32019},
    Row{Reason::not_attached, "not-attached", -32020},
    Row{Reason::target_gone, "target-gone", -32021},
    Row{Reason::out_of_memory, "out-of-memory", -32022},
    Row{Reason::limit_exceeded, "limit-exceeded", -32023},
    Row{Reason::timed_out, "timed-out", -32025},
    Row{Reason::bad_message, "bad-message", proto::kInvalidRequest},
    Row{Reason::unknown_method, "unknown-method", proto::kMethodNotFound},
    Row{Reason::bad_params, "bad-params", proto::kInvalidParams},
    Row{Reason::message_too_long, "message-too-long", -32024},
    Row{Reason::internal, "internal", proto::kInternalError},
};

constexpr bool rows_follow_the_enum() {
  for (std::size_t i = 0; i < kRows.size(); ++i)
    if (static_cast<std::size_t>(kRows[i].reason) != i) return false;
  return kRows.size() == static_cast<std::size_t>(Reason::internal) + 1;
}
static_assert(rows_follow_the_enum(), "a reason lacks its word and code, or stands out of order");

const Row& row(Reason reason) { return kRows[static_cast<std::size_t>(reason)]; }

}  // namespace

std::string_view to_string(Reason reason) { return row(reason).word; }

std::optional<Reason> reason_from_string(std::string_view word) {
  for (const Row& r : kRows)
    if (r.word == word) return r.reason;
  return std::nullopt;
}

int rpc_code(Reason reason) { return row(reason).code; }

}  // namespace probed
