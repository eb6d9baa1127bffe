// U4 on real processes: any number of threads, each hit counted once and told by its thread.
#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <set>

#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

std::map<pid_t, std::size_t> hits_by_thread(const std::vector<Json>& events) {
  std::map<pid_t, std::size_t> count;
  for (const Json& event : events) ++count[event.at("tid").get<pid_t>()];
  return count;
}

struct Tier {
  std::string name;
  bool step;
  std::size_t calls;
};
const Tier kTiers[] = {{"boosted", false, 250}, {"stepped", true, 60}};

TEST_CASE("U4: sixty-four threads calling a probed function exactly N times give exactly 64 N hits") {
  constexpr std::size_t kThreads = 64;
  for (const Tier& tier : kTiers) {
    CAPTURE(tier.name);
    Daemon daemon;
    RpcClient client(daemon.socket());
    Watched counter("counter", {std::to_string(kThreads), std::to_string(tier.calls)});
    const Json probe =
        add(client, counter.pid(), {"work number=$arg1:s32 call=$arg2:s64"}, {{"x-step", tier.step}}).at(0);
    Events events(client);
    counter.target.go();
    CHECK(events.reach(kThreads * tier.calls, Millis{40'000}));
    const TargetReport report = counter.target.finish();
    CHECK_MESSAGE(report.ok(), report.out, counter.target.errors());
    events.end();
    const Counts counts = counts_of(client, probe);
    CHECK(counts.hits == kThreads * tier.calls);
    CHECK(events.told_delivered() + events.told_missed() == counts.hits);
    CHECK(events.all().size() == events.told_delivered());
    CHECK(events.missed() == events.told_missed());

    // Each thread hit on its own, each of its calls once.
    std::map<pid_t, std::set<std::pair<long, long>>> calls;
    for (const Json& event : events.all())
      calls[event.at("tid")].emplace(event.at("args").at("number"), event.at("args").at("call"));
    CHECK(calls.size() == kThreads);
    std::set<long> numbers;
    for (const auto& [tid, seen] : calls) {
      CHECK(seen.size() == tier.calls);
      CHECK(seen.begin()->first == seen.rbegin()->first);  // one thread, one number
      numbers.insert(seen.begin()->first);
    }
    CHECK(numbers.size() == kThreads);
  }
}

TEST_CASE("U4: adding and removing probes while sixty-four threads hit another one harms nothing and loses no hit") {
  constexpr std::size_t kThreads = 64;
  Daemon daemon;
  RpcClient counting(daemon.socket()), churning(daemon.socket());
  Watched counter("counter", {std::to_string(kThreads), "0"});
  const Json probe = add(counting, counter.pid(), {"work"}).at(0);
  counter.target.go();
  // Where they come and go: the same address, the next instruction, one that needs a copy, one in the loop.
  const std::vector<std::string> places = {"work", "work+0x" SECOND, "work+0x" INSIDE, "work+0x20"};
  std::uint64_t hits = 0;
  // A thousand take a minute and a half on two processors: each makes the jump of the one that is hit give way.
  for (int i = 0, n = chosen_cycles(150); i < n; ++i) {
    const std::vector<Json> added = add(churning, counter.pid(), {places[static_cast<std::size_t>(i) % places.size()]});
    hits += remove_all(churning, added).at(0).at("hits").get<std::uint64_t>();
  }
  CHECK(hits > 0);
  CHECK(list_probes(churning).size() == 1);
  counter.target.go();
  const TargetReport report = counter.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, counter.target.errors());
  CHECK(counts_of(counting, probe).hits == static_cast<std::uint64_t>(report.value("calls")));
}

TEST_CASE("U4: a process is attached, probed and released again and again while its threads run, and stays right") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"16", "0"});
  counter.target.go();
  REQUIRE(counter.runs_threads(17));
  for (int i = 0; i < 20; ++i)
    remove_all(client, add(client, counter.pid(), {"work", "work+0x" INSIDE}, {{"x-step", i % 2 == 1}}));
  CHECK(counter.unharmed());
  counter.target.go();
  CHECK(counter.target.finish().ok());
}

TEST_CASE("U4: threads that live for microseconds are hit once each, whichever of them creates the other") {
  constexpr std::size_t kThreads = 1500;
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched threads("threads", {std::to_string(kThreads)});
  const Json probe = add(client, threads.pid(), {"work i=$arg1:s32"}).at(0);
  Events events(client);
  threads.target.go();
  CHECK(events.reach(kThreads, Millis{40'000}));
  const TargetReport report = threads.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, threads.target.errors());
  events.end();
  CHECK(counts_of(client, probe).hits == kThreads);
  std::set<long> seen;
  for (const Json& event : events.all()) {
    CHECK(event.at("tid") != threads.pid());
    seen.insert(event.at("args").at("i").get<long>());
  }
  CHECK(seen.size() == kThreads);
}

TEST_CASE("U4: a probe that is added later is shared by the threads there are, and by those that come") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"8", "0"});
  const Json early = add(client, counter.pid(), {"p:early work"}).at(0);
  counter.target.go();
  REQUIRE(counter.runs_threads(9));
  const Json late = add(client, counter.pid(), {"p:late work+0x" SECOND}).at(0);
  Events events(client, {{"probes", {"late"}}});
  CHECK(eventually(
      [&] {
        events.reach(events.all().size() + 1);
        return hits_by_thread(events.all()).size() == 8;
      },
      Millis{30'000}));
  events.end();
  for (const Json& event : events.all()) CHECK(event.at("id") == late.at("id"));
  counter.target.go();
  const TargetReport report = counter.target.finish();
  CHECK(report.ok());
  CHECK(counts_of(client, early).hits == static_cast<std::uint64_t>(report.value("calls")));
}

TEST_CASE("U4: probes are added to and removed from a program that creates threads all the time") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched threads("threads", {"4000"});
  const Json probe = add(client, threads.pid(), {"p:steady work"}).at(0);
  threads.target.go();
  int rounds = 0;
  for (; threads.target.running() && rounds < 2000; ++rounds) {
    const Json answer = client.request("probe.add", add_params(threads.pid(), {"work+0x" SECOND}));
    if (answer.contains("result")) remove_all(client, answer.at("result").at("probes"));
  }
  CHECK(rounds > 5);
  const TargetReport report = threads.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, threads.target.errors());
  CHECK(counts_of(client, probe).hits == 4000);
}

TEST_CASE("no child is left when everything was torn down") { CHECK(joined(children_left()) == ""); }

}  // namespace
}  // namespace probed::live
