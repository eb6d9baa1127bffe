// The words and codes of the reasons for a failure, as they go over the socket.
#pragma once

#include <optional>
#include <string_view>

#include "proto/base/error.hpp"

namespace probed {

// The protocol's word for a reason, e.g. "no-such-process".
std::string_view to_string(Reason reason);
std::optional<Reason> reason_from_string(std::string_view word);
// The JSON-RPC error code of a reason: the standard ones for malformed requests, one of our own for each of the rest.
int rpc_code(Reason reason);

}  // namespace probed
