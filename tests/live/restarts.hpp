// What tests of one daemon after the other share.
#pragma once

#include <string>

#include "tests/live/probing.hpp"

namespace probed::live {

// Nobody traces it and its text is its own. What a killed daemon had mapped stays, and so may the handler of SIGTRAP.
inline bool let_go(Watched& target) { return tracer_of(target.pid()) == 0 && text_restored(target.pid()); }

// The probe of that name, as it is listed; null: there is none.
inline Json named(RpcClient& client, const std::string& name) {
  for (const Json& probe : list_probes(client))
    if (probe.at("name") == name) return probe;
  return {};
}

// Waits until it has just so many.
inline bool hits(RpcClient& client, const std::string& name, std::uint64_t count) {
  return eventually([&] {
    const Json probe = named(client, name);
    return probe.is_object() && probe.at("hits") == count;
  });
}

// Waits until that is on its standard error.
inline bool says(Process& process, const std::string& what) {
  return eventually([&] { return process.errors().find(what) != std::string::npos; });
}

}  // namespace probed::live
