// K11 on real processes: punned jumps, which take the bytes behind the probed instruction as they are for the rest of
// their distance. Hot places where the code leaves no room for any other jump get one.
#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>

#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

// For the daemons that these tests start.
[[maybe_unused]] const int kAllowed = setenv("PROBED_PUNNED_JUMPS", "1", 1);

const std::vector<std::string> kPlaces = {"p:one pun_one+9 n=%di", "p:two pun_two+4 n=%di", "p:three pun_three+5 m=%si",
                                          "p:four pun_four+5 n=%di"};

bool all_in_tier(RpcClient& client, const std::string& tier) {
  return eventually(
      [&] { return std::ranges::all_of(list_probes(client), [&](const Json& p) { return p.at("tier") == tier; }); });
}

bool runs(Watched& puns) {
  puns.target.go();
  return puns.runs_threads(5);
}

// The target goes on for ever; stops it and says whether all of its sums were right.
TargetReport stopped(Watched& puns) {
  puns.target.send("stop\n");
  TargetReport report = puns.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, puns.target.errors());
  return report;
}

TEST_CASE("K11: places without room get a punned jump once they are hot; every hit counts, before and after") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched puns("puns", {"4", "0"});
  const auto probes = add(client, puns.pid(), kPlaces);
  for (const Json& probe : list_probes(client)) CHECK(probe.at("tier") != "optimized");
  REQUIRE(runs(puns));
  REQUIRE(all_in_tier(client, "optimized"));
  for (const Json& probe : probes) CHECK(bytes_at(puns.pid(), address_of(probe), 1).at(0) == 0xe9);
  Events events(client, {{"probes", {"one"}}});
  REQUIRE(events.reach(1000));
  events.end();
  for (const Json& event : events.all()) CHECK(event.at("args").at("n").is_string());
  const TargetReport report = stopped(puns);
  for (const Json& probe : probes) {
    CAPTURE(probe.dump());
    CHECK(counts_of(client, probe).hits == static_cast<std::uint64_t>(report.value("calls")));
  }
}

TEST_CASE("K11: a return at such a place is a punned jump as well") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched puns("puns", {"4", "0"});
  const Json probe = add(client, puns.pid(), {"r:ret pun_two n=$arg1:s32 $retval:s32"}).at(0);
  REQUIRE(runs(puns));
  Events events(client);
  REQUIRE(events.reach(3000));
  events.end();
  const auto right = [](const Json& e) {
    const long long n = e.at("args").at("n");
    return e.at("args").at("$retval") == 0xe111 + std::min(n, 0LL);
  };
  CHECK(std::ranges::all_of(events.all(), right));
  stopped(puns);
}

TEST_CASE("K11: a probe in the bytes that a punned jump has taken makes it give way and come back") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched puns("puns", {"4", "0"});
  const auto probes = add(client, puns.pid(), kPlaces);
  REQUIRE(runs(puns));
  REQUIRE(all_in_tier(client, "optimized"));
  // What stands behind the four: each executed at every call.
  for (const std::string behind : {"pun_one+10", "pun_two+6", "pun_three+8", "pun_four+9"}) {
    CAPTURE(behind);
    const Json neighbour = add(client, puns.pid(), {"p:behind " + behind}).at(0);
    for (const Json& probe : {neighbour, probes.at(0), probes.at(3)}) {
      const auto before = counts_of(client, probe).hits;
      CHECK(eventually([&] { return counts_of(client, probe).hits > before + 500; }));
    }
    remove_all(client, {neighbour});
    CHECK(all_in_tier(client, "optimized"));
  }
  const TargetReport report = stopped(puns);
  for (const Json& probe : probes)
    CHECK(counts_of(client, probe).hits == static_cast<std::uint64_t>(report.value("calls")));
}

TEST_CASE("K11: a program that changes what a punned jump has taken as it is goes on; the breakpoint is back") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched puns("puns", {"4", "0", "rewrite"});
  const auto probes = add(client, puns.pid(), {kPlaces.front()});
  REQUIRE(runs(puns));
  REQUIRE(all_in_tier(client, "optimized"));
  puns.target.send("rewrite\n");
  REQUIRE(eventually([&] { return list_probes(client).at(0).at("tier") != "optimized"; }));
  const Json now = list_probes(client).at(0);
  CHECK_MESSAGE(now.at("tierReason").get<std::string>().find("changes what is behind it") != std::string::npos,
                now.dump());
  const auto before = counts_of(client, probes.at(0)).hits;
  CHECK(eventually([&] { return counts_of(client, probes.at(0)).hits > before + 500; }));
  const TargetReport report = stopped(puns);
  CHECK(counts_of(client, probes.at(0)).hits == static_cast<std::uint64_t>(report.value("calls")));
}

TEST_CASE("K11: a followed child has punned jumps of its own") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched puns("puns", {"4", "0", "fork"});
  client.call("target.attach", {{"pid", puns.pid()}, {"followFork", true}});
  const Json probe = add(client, puns.pid(), {kPlaces.front()}).at(0);
  REQUIRE(runs(puns));
  REQUIRE(all_in_tier(client, "optimized"));
  puns.target.send("fork\n");
  const pid_t child = only_child_of(puns.pid());
  REQUIRE(child != 0);
  // Until it has hit, it may still have the parent's jumps, which are about to be taken out.
  Events events(client);
  while (events.all().empty() || events.all().back().at("pid") != child) REQUIRE(events.reach(events.all().size() + 1));
  events.end();
  CHECK(eventually([&] { return bytes_at(child, address_of(probe), 1).at(0) == 0xe9; }));
  CHECK(bytes_at(puns.pid(), address_of(probe), 1).at(0) == 0xe9);
  stopped(puns);
}

TEST_CASE("K11: threads run through punned jumps while they come and go") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched puns("puns", {"4", "0"});
  REQUIRE(runs(puns));
  const auto probes = add(client, puns.pid(), kPlaces);
  for (int i = 0; i < 30; ++i) {
    client.call("daemon.optimize", {{"enabled", true}});
    CHECK(all_in_tier(client, "optimized"));
    if (i % 3 == 0) client.call("daemon.optimize", {{"enabled", false}});
    if (i % 3 == 1) client.call("daemon.disarm"), client.call("daemon.arm");
    if (i % 3 == 2) client.call("probe.disable", ids_of(probes)), client.call("probe.enable", ids_of(probes));
  }
  remove_all(client, probes);
  CHECK(puns.unharmed());
  stopped(puns);
}

TEST_CASE("K11: a program whose punned jumps lose their daemon goes on; its text is its own again") {
  for (const std::string way : {"kill", "detach", "end"}) {
    CAPTURE(way);
    for (int round = 0; round < 3; ++round) {
      Daemon daemon;
      auto client = std::make_unique<RpcClient>(daemon.socket());
      Watched puns("puns", {"4", "0"});
      REQUIRE(runs(puns));
      add(*client, puns.pid(), kPlaces);
      REQUIRE(all_in_tier(*client, "optimized"));
      if (way == "kill") daemon.process().signal(SIGKILL);
      if (way == "detach") client->call("target.detach", {{"pid", puns.pid()}});
      if (way == "end") CHECK(daemon.stop() == Exit{0, 0});
      CHECK(eventually([&] { return tracer_of(puns.pid()) == 0; }));
      CHECK(text_restored(puns.pid()));
      if (way != "kill") CHECK(puns.unharmed());
      stopped(puns);
    }
  }
}

}  // namespace
}  // namespace probed::live
