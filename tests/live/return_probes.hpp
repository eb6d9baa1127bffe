// What the tests of return probes share: a target whose functions are left in every way, and what is counted of them.
//
// Thread: the test's own.
#pragma once

#include "tests/live/probing.hpp"

namespace probed::live {

// tests/targets/returns.cpp
struct Returns {
  explicit Returns(const std::string& name = "returns", const std::string& directory = "")
      : target(name, {}, in(directory)) {}
  Target target;
  TargetState before = state_of(target.pid());
  pid_t pid() const { return target.pid(); }
  static SpawnOptions in(const std::string& directory) {
    SpawnOptions options;
    options.directory = directory;
    return options;
  }
  std::string ask(const std::string& command) {
    target.send(command + "\n");
    return target.next_line(Millis{60'000}).value_or("(no answer)");
  }
  bool ends_well() {
    target.send("quit\n");
    return target.finish().ok();
  }
};

// Of a probe, from probe.profile.
struct Calls {
  std::uint64_t hits = 0, missed = 0, filtered = 0, abandoned = 0, unmatched = 0;
  bool operator==(const Calls&) const = default;
};
inline std::ostream& operator<<(std::ostream& out, const Calls& c) {
  return out << c.hits << " hits, " << c.missed << " missed, " << c.filtered << " filtered, " << c.abandoned
             << " abandoned, " << c.unmatched << " unmatched";
}
inline Calls calls_of(RpcClient& client, const Json& probe) {
  const Json profile = client.call("probe.profile");
  for (const Json& row : profile.at("probes"))
    if (row.at("id") == probe.at("id"))
      return {row.at("hits"), row.at("missed"), row.at("filtered"), row.at("abandoned"), row.at("unmatched")};
  FAIL("the profile lacks a probe");
  return {};
}

struct Session {
  explicit Session(const std::string& name = "returns") : program(name) {}
  Daemon daemon;
  RpcClient client{daemon.socket()};
  Returns program;
  Json add_one(const std::string& definition, const Json& more = Json::object()) {
    return add(client, program.pid(), {definition}, more).at(0);
  }
  Calls calls(const Json& probe) { return calls_of(client, probe); }
  bool leaves_no_harm() {
    client.call("target.detach", {{"pid", program.pid()}});
    return left_unharmed(program.pid(), program.before, PageCopies::may_stay) && program.ends_well();
  }
};

}  // namespace probed::live
