// A region rewritten under threads that run through it: breakpoint, jump, breakpoint, original, over and over. Every
// call must compute what it computes without us, and be counted once or not at all.
//
// PROBED_TEST_CYCLES=N: so many times (default 400; 10,000 is the long run).
#include <doctest/doctest.h>

#include <cstdlib>

#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

TEST_CASE("K11: eight threads run through a region while it is optimised and unoptimised") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"8", "0"});
  counter.target.go();
  CHECK(counter.runs_threads(9));
  const Json probe = add(client, counter.pid(), {"work number=$arg1:s32 call=$arg2:s64"}).at(0);
  const auto tier = [&] { return std::string(list_probes(client).at(0).at("tier")); };
  unsigned reached = 0;
  const auto wanted = static_cast<unsigned>(chosen_cycles(400));
  for (unsigned i = 0; i < wanted && counter.target.running(); ++i) {
    client.call("daemon.optimize", {{"enabled", true}});
    reached += eventually([&] { return tier() == "optimized"; }) ? 1 : 0;
    if (i % 3 == 0) client.call("daemon.optimize", {{"enabled", false}});
    if (i % 3 == 1) client.call("daemon.disarm"), client.call("daemon.arm");
    if (i % 3 == 2) {
      client.call("probe.disable", {{"ids", {probe.at("id")}}});
      client.call("probe.enable", {{"ids", {probe.at("id")}}});
    }
  }
  CHECK(reached == wanted);
  MESSAGE("longest pause: " << client.call("daemon.status").at("longestPauseNs") << " ns");
  remove_all(client, {probe});
  CHECK(counter.unharmed());
  counter.target.send("stop\n");
  const TargetReport report = counter.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, counter.target.errors());
}

}  // namespace
}  // namespace probed::live
