// Target programs that are built in several ways, and say themselves what their variables hold.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "tests/live/probing.hpp"

namespace probed::live {

// Those of them that this machine's compilers could build (tests/targets/meson.build).
inline std::vector<std::string> runnable(std::initializer_list<const char*> names) {
  std::vector<std::string> found;
  for (const char* name : names)
    if (target_runs(name)) found.emplace_back(name);
  return found;
}

struct TellingTarget : Watched {
  explicit TellingTarget(const std::string& name) : Watched(name) {}
  Json truth(const std::string& command) { return parse_json(ask(command)); }
  bool ends_well() {
    target.send("quit\n");
    return target.finish().ok();
  }
};

// f(build, optimize, client, user): a target of each build under a daemon of its own, with breakpoints only and with
// jumps allowed.
template <class F>
void in_both_tiers(const std::vector<std::string>& builds, F f) {
  for (const std::string& build : builds) {
    for (const bool optimize : {false, true}) {
      CAPTURE(build);
      CAPTURE(optimize);
      Daemon daemon;
      RpcClient client(daemon.socket());
      if (!optimize) client.call("daemon.optimize", {{"enabled", false}});
      TellingTarget user(build);
      f(build, optimize, client, user);
      CHECK(user.ends_well());
    }
  }
}

}  // namespace probed::live
