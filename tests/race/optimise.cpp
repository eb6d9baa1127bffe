// A region rewritten under threads that run through it: breakpoint, jump, breakpoint, original, over and over. Every
// call must compute what it computes without us, and be counted once or not at all.
//
// PROBED_TEST_CYCLES=N: so many times (default 400; 10,000 is the long run).
#include <doctest/doctest.h>

#include <cstdlib>
#include <thread>

#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

TEST_CASE("K11: eight threads run through a region while it is optimised and unoptimised") {
  NEEDS_JUMPS();
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

TEST_CASE("K11: jumps that are being built when they are switched off are not written afterwards") {
  NEEDS_JUMPS();
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"1", "1", "7"});
  const Json added =
      client.call("probe.add", {{"pid", counter.pid()}, {"probes", Json::array({Json{{"definition", "libc:_IO_*"}}})}});
  const auto optimized = [&] { return client.call("daemon.status").at("optimized").get<unsigned>(); };
  for (unsigned after_ms = 0; after_ms < 20; ++after_ms) {
    CAPTURE(after_ms);
    client.call("daemon.optimize", {{"enabled", true}});
    // Wherever the batch is by then; nothing tells from outside.
    std::this_thread::sleep_for(Millis(after_ms));
    client.call("daemon.optimize", {{"enabled", false}});
    CHECK_FALSE(eventually([&] { return optimized() != 0; }, Millis(50)));
  }
  client.call("daemon.optimize", {{"enabled", true}});
  CHECK(eventually([&] { return optimized() > 100; }));
  remove_all(client, added.at("probes"));
  counter.target.go();
  CHECK(counter.target.finish().ok());
}

}  // namespace
}  // namespace probed::live
