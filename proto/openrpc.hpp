// The OpenRPC 1.2.6 description of the protocol, made from the method tables.
#pragma once

#include <string>

namespace probed::proto {

// Indented by two spaces, one line feed at the end: what proto/openrpc.json holds.
std::string openrpc_document();
// The same on one line: what rpc.discover answers. Made once.
const std::string& openrpc_text();

}  // namespace probed::proto
