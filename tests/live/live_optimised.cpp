// K11, K12, K14 and the ring on real processes: probes whose hits don't stop the program. What is recorded must be what
// a breakpoint would have recorded, counted exactly, whatever the program does meanwhile.
#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <map>
#include <set>

#include "arch/arch.hpp"
#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

Json view_of(RpcClient& client, const Json& probe) {
  for (const Json& view : list_probes(client))
    if (view.at("id") == probe.at("id")) return view;
  return {};
}

bool reaches_tier(RpcClient& client, const Json& probe, const std::string& tier) {
  return eventually([&] { return view_of(client, probe).value("tier", "") == tier; });
}

// Adds them and waits until jumps lead to all of them.
std::vector<Json> add_optimised(RpcClient& client, pid_t pid, const std::vector<std::string>& definitions,
                                const Json& more = Json::object()) {
  std::vector<Json> probes = add(client, pid, definitions, more);
  for (Json& probe : probes) {
    const bool reached = reaches_tier(client, probe, "optimized");
    REQUIRE_MESSAGE(reached, view_of(client, probe).dump());
  }
  return probes;
}

bool has_jump(pid_t pid, const Json& probe) {
  const std::uint64_t address = address_of(probe);
  return arch::native::decode(bytes_at(pid, address, arch::kMaxInsnLength), address).flow == arch::Flow::jump;
}

std::string reason(RpcClient& client, const Json& probe) { return view_of(client, probe).value("tierReason", ""); }

TEST_CASE("K11: a probe is armed as a breakpoint, becomes a jump by itself, and leaves no trace when it is removed") {
  NEEDS_JUMPS();
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"1", "1000"});
  const auto probes = add_optimised(client, counter.pid(), {"work"});
  CHECK(has_jump(counter.pid(), probes.at(0)));
  remove_all(client, probes);
  CHECK(counter.unharmed());
  counter.target.go();
  CHECK(counter.target.finish().ok());
}

TEST_CASE(
    "K11: probes that share a place say why it has no jump, each for itself, and still do when others have gone") {
  NEEDS_JUMPS();
  const std::string asked = "it was added so (optimize: false)";
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"1", "1000"});
  const auto unoptimised = [](const char* definition) { return Json{{"definition", definition}, {"optimize", false}}; };
  const Json plain =
      client.call("probe.add", {{"pid", counter.pid()}, {"probes", {unoptimised("p:a work"), unoptimised("p:b work")}}})
          .at("probes");
  for (const Json& probe : plain) CHECK(reason(client, probe) == asked);
  client.call("probe.disable", ids_of(plain));
  remove_all(client, {plain[1]});
  CHECK(reason(client, plain[0]) == asked);
  client.call("probe.enable", ids_of({plain[0]}));
  const auto other = add(client, counter.pid(), {"p:c work"});
  CHECK(eventually([&] { return reason(client, other[0]).starts_with("another probe at the same place"); }));
  remove_all(client, {plain[0]});
  CHECK(reaches_tier(client, other[0], "optimized"));
  remove_all(client, other);
  CHECK(counter.unharmed());
}

TEST_CASE("K12: threads that hit a jump give exactly one event a call, each with its own thread and arguments") {
  NEEDS_JUMPS();
  // As many as the rings hold, should nobody look at them meanwhile. Forty threads are more than the channel has lanes:
  // the rest share one.
  struct Load {
    std::size_t threads, calls;
  };
  for (const auto& [threads, calls_each] : {Load{1, 1500}, Load{8, 1500}, Load{40, 60}}) {
    CAPTURE(threads);
    Daemon daemon;
    RpcClient client(daemon.socket());
    Watched counter("counter", {std::to_string(threads), std::to_string(calls_each)});
    Events events(client);
    const Json probe =
        add_optimised(client, counter.pid(), {"work number=$arg1:s32 call=$arg2:s64 text=+0($arg3):string"}).at(0);
    counter.target.go();
    CHECK(events.reach(threads * calls_each, Millis{40'000}));
    const TargetReport report = counter.target.finish();
    CHECK_MESSAGE(report.ok(), report.out, counter.target.errors());
    events.end();
    const Counts counts = counts_of(client, probe);
    CHECK(counts == Counts{threads * calls_each, 0, 0});
    CHECK(events.told_delivered() == counts.hits);

    CHECK(events.told_missed() == 0);

    static const char* const kTexts[] = {"alpha", "beta", "", "delta"};
    std::map<pid_t, std::set<std::pair<long, long>>> calls;
    std::map<pid_t, std::uint64_t> last;
    std::size_t wrong = 0;
    for (const Json& event : events.all()) {
      const long call = event.at("args").at("call");
      calls[event.at("tid")].emplace(event.at("args").at("number"), call);
      wrong += event.at("args").at("text") != kTexts[call & 3];
      wrong += event.at("comm") != "counter" || event.at("pid") != counter.pid();
      const std::uint64_t time = event.at("time");
      wrong += time < std::exchange(last[event.at("tid")], time);
    }
    CHECK(wrong == 0);
    CHECK(calls.size() == threads);
    std::set<long> numbers;
    for (const auto& [tid, seen] : calls) {
      CHECK(seen.size() == calls_each);
      CHECK(seen.begin()->first == seen.rbegin()->first);
      numbers.insert(seen.begin()->first);
    }
    CHECK(numbers.size() == threads);
  }
}

TEST_CASE(
    "ring: a burst of 100,000 hits waits for a daemon that doesn't run, and then for a client that doesn't read") {
  NEEDS_JUMPS();
  constexpr std::size_t kBurst = 100'000;
  for (const std::size_t threads : {1, 8}) {
    CAPTURE(threads);
    Daemon daemon;
    RpcClient client(daemon.socket()), reader(daemon.socket());
    Watched target("burst", {std::to_string(threads), std::to_string(kBurst / threads)});
    Events events(reader);
    const Json probe = add_optimised(client, target.pid(), {"work number=$arg1:s32 call=$arg2:s64"}).at(0);
    ::kill(daemon.pid(), SIGSTOP);
    target.target.go();
    const std::string said = target.target.next_line(Millis{40'000}).value_or("nothing");
    ::kill(daemon.pid(), SIGCONT);
    REQUIRE(said == "calls " + std::to_string(kBurst));
    // All are taken out of the ring before the reader looks at any of them.
    CHECK(eventually([&] { return counts_of(client, probe) == Counts{kBurst, 0, 0}; }, Millis{40'000}));
    CHECK(events.reach(kBurst, Millis{40'000}));
    target.target.send("end\n");
    const TargetReport report = target.target.finish();
    CHECK_MESSAGE(report.ok(), report.out, target.target.errors());
    events.end();
    CHECK(events.told_delivered() == kBurst);
    CHECK(events.told_missed() == 0);
  }
}

TEST_CASE("ring: ten million hits that nobody listens to are counted in the target, exactly") {
  NEEDS_JUMPS();
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"4", "2500000"});
  const auto probes = add_optimised(client, counter.pid(), {"work number=$arg1:s32"});
  counter.target.go();
  const TargetReport report = counter.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, counter.target.errors());
  CHECK(list_probes(client).at(0).at("hits") == 10'000'000);
}

TEST_CASE("ring: when hits come faster than they are taken, every one is either delivered or counted as missed") {
  NEEDS_JUMPS();
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"2", "300000"});
  Events events(client);
  const Json probe = add_optimised(client, counter.pid(), {"work number=$arg1:s32 call=$arg2:s64"}).at(0);
  counter.target.go();
  const TargetReport report = counter.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, counter.target.errors());
  CHECK(eventually([&] { return counts_of(client, probe).hits == 600'000; }));
  events.end();
  CHECK(events.told_delivered() + events.told_missed() == 600'000);
  CHECK(events.all().size() == events.told_delivered());
  CHECK(events.missed() == events.told_missed());
}

TEST_CASE("ring: the profile counts every hit there has been, also those that nobody has taken out of a ring yet") {
  NEEDS_JUMPS();
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched user("dlopener");
  const std::string opened = user.ask("open");
  REQUIRE(opened.starts_with("opened 0x"));
  Events events(client);
  const Json probe = add_optimised(client, user.pid(), {opened.substr(7) + " x=$arg1:s32"}).at(0);
  for (std::uint64_t calls = 3; calls <= 60; calls += 3) {
    CHECK(user.ask("call 3").starts_with("called 3 "));
    CHECK(counts_of(client, probe).hits == calls);
  }
  events.end();
  CHECK(events.told_delivered() + events.told_missed() == 60);
  user.target.send("quit\n");
  CHECK(user.target.finish().ok());
}

TEST_CASE("fetch programs: filters turn hits away in the target or in the daemon, and are counted exactly") {
  NEEDS_JUMPS();
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"2", "4000"});
  Events events(client);
  const auto filtered = [](const char* definition, const char* filter) {
    return Json{{"definition", definition}, {"filter", filter}};
  };
  const Json added = client.call(
      "probe.add", {{"pid", counter.pid()},
                    {"probes", Json::array({filtered("p:t/number work call=$arg2:s64", "call < 100"),
                                            filtered("p:t/text work text=+0($arg3):string", "text ~ \"*eta\""),
                                            filtered("p:t/none work call=$arg2:s64", "call < 0")})}});
  for (const Json& probe : added.at("probes")) CHECK(reaches_tier(client, probe, "optimized"));
  counter.target.go();
  CHECK(counter.target.finish().ok());
  CHECK(eventually([&] { return counts_of(client, added.at("probes")[1]) == Counts{2000, 0, 6000}; }));
  CHECK(counts_of(client, added.at("probes")[0]) == Counts{200, 0, 7800});
  CHECK(counts_of(client, added.at("probes")[2]) == Counts{0, 0, 8000});
  events.end();
  CHECK(events.of(added.at("probes")[0]).size() == 200);
  CHECK(events.of(added.at("probes")[1]).size() == 2000);
  for (const Json& event : events.of(added.at("probes")[1])) CHECK(event.at("args").at("text") == "beta");
}

TEST_CASE("exception table: memory that can't be read is null in the event, and no signal of it reaches the program") {
  NEEDS_JUMPS();
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"2", "500"});
  Events events(client);
  add_optimised(client, counter.pid(),
                {"work call=$arg2:s64 bad=+0($arg2):u32 worse=+8(+0($arg1)):string fine=+0($arg3):string"});
  counter.target.go();
  CHECK(events.reach(1000));
  const TargetReport report = counter.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, counter.target.errors());
  for (const Json& event : events.all()) {
    CHECK(event.at("args").at("bad").is_null());
    CHECK(event.at("args").at("worse").is_null());
    CHECK(event.at("args").at("fine").is_string());
  }
}

TEST_CASE("K11: the global switch and probes' own wishes decide at once; disabling takes the jump out") {
  NEEDS_JUMPS();
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"2", "0"});
  const Json plain = Json{{"definition", "work"}};
  const Json kept = Json{{"definition", "libc:getppid"}, {"optimize", false}};
  const Json added = client.call("probe.add", {{"pid", counter.pid()}, {"probes", Json::array({plain, kept})}});
  const Json work = added.at("probes")[0], stays = added.at("probes")[1];
  counter.target.go();
  CHECK(reaches_tier(client, work, "optimized"));
  CHECK(view_of(client, stays).at("tier") == "boosted");
  CHECK(reason(client, stays).find("optimize") != std::string::npos);
  for (int i = 0; i < 20; ++i) {
    client.call("daemon.optimize", {{"enabled", false}});
    CHECK(view_of(client, work).at("tier") == "boosted");
    CHECK_FALSE(has_jump(counter.pid(), work));
    client.call("daemon.optimize", {{"enabled", true}});
    CHECK(reaches_tier(client, work, "optimized"));
    client.call("probe.disable", {{"ids", {work.at("id")}}});
    CHECK_FALSE(has_jump(counter.pid(), work));
    CHECK_FALSE(has_breakpoint(counter.pid(), address_of(work)));
    // A thread that was preempted in the detour may still count its hit; nobody enters any more.
    CHECK(eventually([&] {
      const Counts now = counts_of(client, work);
      client.call("daemon.status");
      return counts_of(client, work) == now;
    }));
    client.call("probe.enable", {{"ids", {work.at("id")}}});
    CHECK(reaches_tier(client, work, "optimized"));
  }
  CHECK(client.call("daemon.status").at("optimized") == 1);
  CHECK(client.call("daemon.status").at("longestPauseNs") > 0);
  const auto removed = remove_all(client, {work, stays});
  counter.target.send("stop\n");
  const TargetReport report = counter.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, counter.target.errors());
  CHECK(removed.at(0).at("hits") <= report.value("calls"));
}

TEST_CASE("K11: a neighbour in the region, or another probe at the place, makes a jump give way and come back") {
  NEEDS_JUMPS();
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"2", "0"});
  counter.target.go();
  const auto work = add_optimised(client, counter.pid(), {"work"}).at(0);
  // The second instruction of the function, which the jump covers.
  Json neighbour;
  for (int offset = 1; offset < 5 && neighbour.is_null(); ++offset) {
    const Json answer = client.request("probe.add", add_params(counter.pid(), {"work+" + std::to_string(offset)}));
    if (answer.contains("result")) neighbour = answer.at("result").at("probes")[0];
  }
  if (!neighbour.is_null()) {
    // The first may do with two bytes and a second jump in padding; or stay a breakpoint, and say why.
    CHECK(eventually([&] { return view_of(client, work).at("tier") == "optimized" || !reason(client, work).empty(); }));
    for (const Json& probe : {neighbour, work}) {
      const auto before = counts_of(client, probe).hits;
      CHECK(eventually([&] { return counts_of(client, probe).hits > before + 10; }));
    }
    remove_all(client, {neighbour});
    CHECK(reaches_tier(client, work, "optimized"));
  }
  const auto second = add_optimised(client, counter.pid(), {"work number=$arg1:s32"}).at(0);
  CHECK(reaches_tier(client, work, "optimized"));
  const auto before = counts_of(client, second).hits;
  CHECK(eventually([&] { return counts_of(client, second).hits > before + 1000; }));
  remove_all(client, {work, second});
  counter.target.send("stop\n");
  CHECK(counter.target.finish().ok());
}

TEST_CASE("U5: children of a program with jumps run without them; followed ones record into a channel of their own") {
  NEEDS_JUMPS();
  for (const bool follow : {false, true}) {
    CAPTURE(follow);
    Daemon daemon;
    RpcClient client(daemon.socket());
    Watched forker("forker", {"20"});
    if (follow) client.call("target.attach", {{"pid", forker.pid()}, {"followFork", true}});
    const Json probe = add_optimised(client, forker.pid(), {"work"}).at(0);
    forker.target.go();
    const TargetReport report = forker.target.finish();
    CHECK_MESSAGE(report.ok(), report.out, forker.target.errors());
    // Half of the copies execute another program before they call it.
    const long long expected = report.value("calls") + (follow ? report.value("child_calls") / 2 : 0);
    CHECK(eventually([&] { return counts_of(client, probe).hits == static_cast<std::uint64_t>(expected); }));
    CHECK(counts_of(client, probe).hits == static_cast<std::uint64_t>(expected));
  }
}

TEST_CASE("signals: a storm of them over optimised probes loses none, doubles none, and changes no count") {
  NEEDS_JUMPS();
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched storm("sigstorm", {"4", "300"});
  const auto probes = add(client, storm.pid(), {"tick", "tock", "handler_tick"});
  storm.target.go();
  const TargetReport report = storm.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, storm.target.errors());
  for (const Json& probe : probes) {
    const std::string name = std::string(probe.at("symbol"));
    const long long made = report.value(name.substr(0, name.find('+')) + "s");
    CHECK_MESSAGE(counts_of(client, probe).hits == static_cast<std::uint64_t>(made), name);
  }
}

TEST_CASE("detaching, removing and killing under fire leave a program with jumps as it was") {
  NEEDS_JUMPS();
  for (const std::string way : {"remove", "detach", "end"}) {
    CAPTURE(way);
    for (int round = 0; round < 5; ++round) {
      Daemon daemon;
      auto client = std::make_unique<RpcClient>(daemon.socket());
      Watched counter("counter", {"16", "0"});
      counter.target.go();
      CHECK(counter.runs_threads(17));
      const auto probes = add_optimised(*client, counter.pid(), {"work number=$arg1:s32 text=+0($arg3):string"});
      if (way == "remove") remove_all(*client, probes);
      if (way == "detach") client->call("target.detach", {{"pid", counter.pid()}});
      if (way == "end") CHECK(daemon.stop() == Exit{0, 0});
      CHECK(counter.unharmed());
      counter.target.send("stop\n");
      const TargetReport report = counter.target.finish();
      CHECK_MESSAGE(report.ok(), report.out, counter.target.errors());
    }
  }
}

TEST_CASE("the memory that jumps record into takes no descriptor that another thread of the program could see") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched target("descriptors");
  int become = 0;
  for (int i = 0; i < 10; ++i) {
    target.target.send("lowest 100000\n");
    std::optional<std::string> answer;
    while (!answer) {
      const std::vector<Json> probes = add(client, target.pid(), {"work"});
      become += reaches_tier(client, probes.at(0), "optimized");
      remove_all(client, probes);
      answer = target.target.next_line(Millis(0));
    }
    CHECK(*answer == "lowest ok");
  }
  CHECK(become >= 10);
  target.target.send("end\n");
  const TargetReport report = target.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, target.target.errors());
}

TEST_CASE("a thread that can't be stopped keeps jumps from being made as long as it is there, and that is said") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Target target("soaked", {"2"});
  target.go();
  target.send("fork\n");
  REQUIRE(target.next_line());
  REQUIRE(eventually([&] {
    return std::ranges::any_of(thread_states(target.pid()), [](const auto& thread) { return thread.second == 'D'; });
  }));
  const std::vector<Json> probes = add(client, target.pid(), {"work"});
  CHECK(eventually([&] { return reason(client, probes[0]).find("can't be stopped") != std::string::npos; }));
  CHECK(counts_of(client, probes[0]).hits > 0);
  target.send("join\n");
  CHECK(target.next_line());
  CHECK(reaches_tier(client, probes[0], "optimized"));
  remove_all(client, probes);
  target.send("quit\n");
  CHECK(target.finish().ok());
}

// ---- many at once ---------------------------------------------------------------------------------------------------

TEST_CASE("of all functions of the C library those that a program calls all the time are jumps when they are armed") {
  if (!kHasJumps) SKIP_TEST("no jumps here");
  Daemon daemon;
  RpcClient client(daemon.socket());
  Process caller({"sh", "-c", "exec yes > /dev/null"});
  REQUIRE(eventually([&] { return read_file("/proc/" + std::to_string(caller.pid()) + "/comm") == "yes\n"; }));
  // A machine that does other things may keep one of the threads that are needed from doing it in time.
  const auto hot_are_jumps = [&] {
    const std::vector<Json> added = add(client, caller.pid(), {"libc:*"}, {{"maxRate", 0}});
    REQUIRE(added.size() > 1000);
    std::set<std::uint64_t> hot, jumps;
    for (const Json& probe : added)
      if (probe.at("tier") == "optimized") jumps.insert(probe.at("id").get<std::uint64_t>());
    const auto know_hot = [&] {
      for (const Json& probe : list_probes(client))
        if (probe.at("tier") == "optimized" && probe.at("hits") > 1000) hot.insert(probe.at("id").get<std::uint64_t>());
      return !hot.empty();
    };
    CHECK(eventually(know_hot));
    remove_all(client, added);
    return std::ranges::includes(jumps, hot);
  };
  CHECK(eventually(hot_are_jumps, Millis{20'000}));
  CHECK(caller.running());
}

}  // namespace
}  // namespace probed::live
