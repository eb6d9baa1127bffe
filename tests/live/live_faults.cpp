// Arguments behind bad pointers: a jump's detour raises SIGSEGV or SIGBUS for each, whatever the program does with
// these signals. The target checks every handler, mask and value itself; here the hits must equal what it counted.
#include <doctest/doctest.h>

#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

constexpr const char* kProbe = "point value=+0($arg1):u64";

bool is_optimised(RpcClient& client) {
  return eventually([&] { return list_probes(client).at(0).value("tier", "") == "optimized"; });
}

void run_scenario(const std::string& name, const std::vector<std::string>& arguments, const std::string& rounds) {
  CAPTURE(name);
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched faults("faults", arguments);
  const std::vector<Json> probes = add(client, faults.pid(), {kProbe});
  REQUIRE_MESSAGE(is_optimised(client), list_probes(client).at(0).dump());
  RpcClient listener(daemon.socket());  // or the detour would only count
  Events events(listener);
  CHECK_MESSAGE(faults.ask(name + " " + rounds) == name + " ok", faults.target.errors());
  const std::vector<Json> removed = remove_all(client, probes);
  CHECK_MESSAGE(faults.unharmed(), faults.harm());
  faults.target.send("end\n");
  const TargetReport report = faults.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, faults.target.errors());
  CHECK(removed[0].at("hits") == static_cast<std::uint64_t>(report.value("points")));
}

TEST_CASE(
    "exception table: SIGSEGV and SIGBUS handled, blocked, pending, ignored: bad pointers change nothing about them") {
  NEEDS_JUMPS();
  for (const char* name : {"handler_in_place", "blocked_alone", "blocked_with_all", "blocked_and_killed", "ignored",
                           "default_and_all_blocked", "in_children"})
    run_scenario(name, {}, "20");
}

TEST_CASE(
    "exception table: threads that handle and block SIGSEGV at once keep their masks, and their handler is called") {
  NEEDS_JUMPS();
  for (const char* name : {"in_threads", "in_threads_alone"}) run_scenario(name, {}, "50");
}

TEST_CASE("exception table: what a program has done about SIGSEGV before it is traced stays so") {
  NEEDS_JUMPS();
  run_scenario("left_ignored", {"ignoring"}, "5");
  run_scenario("left_blocked", {"blocking"}, "5");
}

TEST_CASE("exception table: a program that faults itself is attached and let go in the middle of it, again and again") {
  NEEDS_JUMPS();
  for (const char* name : {"handler_in_place", "blocked_alone", "blocked_with_all", "in_children", "in_threads"}) {
    CAPTURE(name);
    Daemon daemon;
    RpcClient client(daemon.socket());
    Watched faults("faults");
    RpcClient listener(daemon.socket());
    Events events(listener);
    faults.target.send(std::string(name) + " 400\n");
    std::optional<std::string> answer;
    for (int round = 0; !answer && round < 300; ++round) {
      const Json added = client.request("probe.add", add_params(faults.pid(), {kProbe}));
      // Every other time it stays long enough to become a jump.
      answer = faults.target.next_line(Millis{round % 2 == 0 ? 1 : 20});
      if (added.contains("result")) client.request("probe.remove", ids_of(added.at("result").at("probes")));
    }
    if (!answer) answer = faults.target.next_line();
    CHECK_MESSAGE(answer == std::string(name) + " ok", faults.target.errors());
    CHECK_MESSAGE(faults.unharmed(), faults.harm());
  }
}

TEST_CASE("no child is left when everything was torn down") { CHECK(joined(children_left()) == ""); }

}  // namespace
}  // namespace probed::live
