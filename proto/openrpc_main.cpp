// Prints the OpenRPC description, for proto/openrpc.json. Needed when the method tables change.
#include <cstdio>

#include "proto/openrpc.hpp"

int main() { return std::fputs(probed::proto::openrpc_document().c_str(), stdout) < 0 ? 1 : 0; }
