// Return probes as jumps, on real processes: what a pair of detours says of a call must be what a pair of breakpoints
// would have said, counted exactly, whatever becomes of the call and of the tier meanwhile.
//
// Thread: the test's own.
#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <thread>

#include "tests/live/return_probes.hpp"

namespace probed::live {
namespace {

Json view_of(RpcClient& client, const Json& probe) {
  for (const Json& view : list_probes(client))
    if (view.at("id") == probe.at("id")) return view;
  return Json::object();
}

// Adds them and waits until jumps lead to all of their places.
std::vector<Json> add_optimised(Session& s, const std::vector<std::string>& definitions) {
  std::vector<Json> probes = add(s.client, s.program.pid(), definitions);
  for (const Json& probe : probes) {
    const bool reached = eventually([&] { return view_of(s.client, probe).value("tier", "") == "optimized"; });
    REQUIRE_MESSAGE(reached, view_of(s.client, probe).dump());
  }
  return probes;
}

std::string reason(Session& s, const Json& probe) { return view_of(s.client, probe).value("tierReason", ""); }

TEST_CASE("fib(25) as a jump: a hit for each call, counted or streamed") {
  NEEDS_JUMPS();
  constexpr std::uint64_t kCalls = 242'785;  // 2 * fib(26) - 1
  Session s;
  const Json probe = add_optimised(s, {"r:out fib n=$arg1:s64 ret=$retval:s64"}).at(0);
  for (std::uint64_t round = 1; round <= 3; ++round) {
    CHECK(s.program.ask("fib 25") == "fib done 75025");
    CHECK(s.calls(probe) == Calls{round * kCalls, 0, 0, 0, 0});
  }
  Events events(s.client);
  CHECK(s.program.ask("fib 25") == "fib done 75025");
  events.end();
  const Calls calls = s.calls(probe);
  CHECK(calls.hits == 4 * kCalls);
  CHECK(calls.unmatched + calls.abandoned == 0);
  CHECK(events.all().size() + events.missed() == kCalls);
  CHECK(s.leaves_no_harm());
}

TEST_CASE("recursion as a jump: each return belongs to its own call, and lasts as long as those below it") {
  NEEDS_JUMPS();
  Session s;
  const Json probe = add_optimised(s, {"r:out fib n=$arg1:s64 ret=$retval:s64"}).at(0);
  Events events(s.client);
  CHECK(s.program.ask("fib 15") == "fib done 610");
  REQUIRE(events.reach(1973));
  struct Call {
    long long n, ret;
    std::uint64_t duration;
  };
  std::vector<Call> stack;
  bool nested = true;
  for (const Json& event : events.all()) {
    const Call call{event.at("args").at("n"), event.at("args").at("ret"), event.at("duration")};
    if (call.n >= 2) {
      REQUIRE(stack.size() >= 2);
      const Call second = stack.back(), first = stack[stack.size() - 2];
      stack.resize(stack.size() - 2);
      nested &= first.n == call.n - 1 && second.n == call.n - 2 && call.ret == first.ret + second.ret &&
                call.duration > first.duration + second.duration;
    } else {
      nested &= call.ret == call.n;
    }
    stack.push_back(call);
  }
  CHECK(nested);
  CHECK(stack.size() == 1);
  CHECK(s.calls(probe) == Calls{1973, 0, 0, 0, 0});
  CHECK(s.leaves_no_harm());
}

TEST_CASE("both tiers say the same of a call: memory then and now, texts, names, results, tail calls") {
  NEEDS_JUMPS();
  const std::vector<std::string> definitions{
      "r:fill fill now=+0($arg1):string before=$entry(+0($arg1)):string n=$arg2:s32 ret=$retval:s64 who=$comm "
      "bad=+0($arg2)",
      "r:call caller a=$arg1:s64 ret=$retval:s64 text=+0($retval):string", "r:fib fib n=$arg1:s64 ret=$retval:s64"};
  std::vector<Json> seen;
  for (const bool optimise : {false, true}) {
    Session s;
    s.client.call("daemon.optimize", {{"enabled", optimise}});
    if (optimise)
      add_optimised(s, definitions);
    else
      add(s.client, s.program.pid(), definitions);
    Events events(s.client);
    for (const std::string command : {"fill", "tail 5", "fib 8", "fill"}) s.program.ask(command);
    events.end();
    CHECK(events.missed() == 0);
    Json said = Json::array();
    for (const Json& e : events.all())
      said.push_back({e.at("probe"), e.at("args"), e.at("func"), e.at("symbol"), e.value("tail_call", false)});
    seen.push_back(said);
    CHECK(s.leaves_no_harm());
  }
  CHECK(seen.at(0).size() > 60);
  CHECK(seen.at(0) == seen.at(1));
}

TEST_CASE("calls that end otherwise are abandoned, and none of their returns is another's") {
  NEEDS_JUMPS();
  for (const std::string name : {"returns", "returns-guarded"}) {
    CAPTURE(name);
    Session s(name);
    // What follows the endbr64 of an entry is kept free: not all of them have room for a jump there besides their
    // exits'.
    const std::vector<std::string> returns{"r:deep deep", "r:set setter", "r:frames frames"};
    const auto probes = name == "returns" ? add_optimised(s, returns) : add(s.client, s.program.pid(), returns);
    const auto others = add(s.client, s.program.pid(), {"r:jump jumper", "r:catch catcher", "r:leave leaver"});
    for (std::uint64_t round = 1; round <= 5; ++round) {
      CHECK(s.program.ask("throw 100") == "throw done 100");
      CHECK(s.program.ask("jump 10") == "jump done 10");
      CHECK(s.program.ask("leave 4") == "leave done 0");
      s.program.ask("frames 20");
      CHECK(s.calls(probes.at(0)) == Calls{0, 0, 0, 101 * round, 0});
      CHECK(s.calls(probes.at(1)) == Calls{round, 0, 0, 0, 0});
      CHECK(s.calls(probes.at(2)) == Calls{21 * round, 0, 0, 0, 0});
      CHECK(s.calls(others.at(0)) == Calls{0, 0, 0, 11 * round, 0});
      CHECK(s.calls(others.at(1)) == Calls{round, 0, 0, 0, 0});
      CHECK(s.calls(others.at(2)) == Calls{0, 0, 0, 5 * round, 0});
    }
    CHECK(s.leaves_no_harm());
  }
}

TEST_CASE("coroutines: calls on stacks of their own, which go on in other threads, each return once") {
  NEEDS_JUMPS();
  Session s;
  const Json probe = add_optimised(s, {"r:step step id=$arg1:s64 left=$arg2:s64 ret=$retval:s64"}).at(0);
  Events events(s.client);
  for (int round = 0; round < 5; ++round) CHECK(s.program.ask("coroutines 10") == "coroutines done 21");
  REQUIRE(events.reach(110));
  CHECK(std::ranges::all_of(events.all(), [](const Json& e) {
    const Json& a = e.at("args");
    return a.at("ret") == a.at("id").get<int>() + a.at("left").get<int>();
  }));
  CHECK(s.calls(probe) == Calls{110, 0, 0, 0, 0});
  CHECK(s.leaves_no_harm());
}

TEST_CASE("coroutines on an array of a thread's own stack, which two threads go on with: each call returns as itself") {
  NEEDS_JUMPS();
  for (int round = 0; round < 3; ++round) {
    Session s;
    const Json probe = add_optimised(s, {"r:handed handed n=$arg1:s64 ret=$retval:s64"}).at(0);
    Events events(s.client);
    CHECK(s.program.ask("borrowed 201") == "borrowed done 20301");
    REQUIRE(events.reach(201));
    CHECK(std::ranges::all_of(
        events.all(), [](const Json& e) { return e.at("args").at("ret") == e.at("args").at("n").get<int>() + 1; }));
    CHECK(s.calls(probe) == Calls{201, 0, 0, 0, 0});
    CHECK(s.leaves_no_harm());
  }
}

TEST_CASE("eight threads while the probe becomes a jump and a breakpoint again and again: every call is a hit") {
  NEEDS_JUMPS();
  Session s;
  const Json probe = add_optimised(s, {"r:work counted n=$arg1:s64 ret=$retval:s64"}).at(0);
  constexpr std::uint64_t kCalls = 8 * 20'000;
  for (std::uint64_t round = 1; round <= 3; ++round) {
    bool done = false, optimise = false;
    std::string answer;
    std::thread calls([&] {
      answer = s.program.ask("eight 20000");
      std::atomic_ref(done).store(true);
    });
    for (; !std::atomic_ref(done).load(); optimise = !optimise) {
      s.client.call("daemon.optimize", {{"enabled", optimise}});
      if (optimise)
        eventually([&] { return std::atomic_ref(done).load() || view_of(s.client, probe).at("tier") == "optimized"; });
    }
    calls.join();
    CHECK(answer == "eight done 19751012560000");  // 8 times the sum of 12345 * i + 1 below 20000
    CHECK(s.calls(probe) == Calls{round * kCalls, 0, 0, 0, 0});
  }
  CHECK(s.leaves_no_harm());
}

TEST_CASE("calls that are open when their probe becomes a jump, or a breakpoint, return as their own") {
  NEEDS_JUMPS();
  Session s;
  const Json probe = add_optimised(s, {"r:out fib n=$arg1:s64 ret=$retval:s64"}).at(0);
  CHECK(s.program.ask("start") == "start done 0");
  Events events(s.client);
  for (int round = 0; round < 30; ++round) {
    s.client.call("daemon.optimize", {{"enabled", round % 2 == 1}});
    REQUIRE(events.reach(events.all().size() + 50));
  }
  s.client.call("probe.disable", ids_of({probe}));
  CHECK(s.program.ask("rest") == "rest done 0");
  events.end();
  CHECK(std::ranges::all_of(events.all(), [](const Json& e) {
    const int n = e.at("args").at("n"), ret = e.at("args").at("ret");
    return ret == (n < 2 ? n : n - 1);  // of 0 to 3
  }));
  const Calls calls = s.calls(probe);
  CHECK(calls.unmatched + calls.abandoned == 0);
  CHECK(s.leaves_no_harm());
}

TEST_CASE("a filter turns calls away at the entry, or at the return, without a record") {
  NEEDS_JUMPS();
  Session s;
  const auto with = [&](const std::string& definition, const std::string& filter) {
    return s.client
        .call("probe.add", {{"pid", s.program.pid()}, {"probes", {{{"definition", definition}, {"filter", filter}}}}})
        .at("probes")
        .at(0);
  };
  const std::vector<Json> probes{with("r:e fib n=$arg1:s64", "n > 2"),
                                 with("r:v fib n=$arg1:s64 ret=$retval:s64", "ret == 0"),
                                 with("r:b fib n=$arg1:s64 ret=$retval:s64", "n == 1 && ret == 1")};
  for (const Json& probe : probes)
    REQUIRE(eventually([&] { return view_of(s.client, probe).value("tier", "") == "optimized"; }));
  CHECK(s.program.ask("fib 6") == "fib done 8");
  CHECK(s.calls(probes.at(0)) == Calls{7, 0, 18, 0, 0});
  CHECK(s.calls(probes.at(1)) == Calls{5, 0, 20, 0, 0});
  CHECK(s.calls(probes.at(2)) == Calls{8, 0, 17, 0, 0});
  CHECK(s.leaves_no_harm());
}

TEST_CASE("how long a call took is an argument and decides in a filter, on both tiers") {
  NEEDS_JUMPS();
  for (const bool optimise : {false, true}) {
    CAPTURE(optimise);
    Session s;
    s.client.call("daemon.optimize", {{"enabled", optimise}});
    const auto with = [&](const std::string& filter) {
      const Json one = {{"definition", "r fib n=$arg1:s64 $duration"}, {"filter", filter}};
      return s.client.call("probe.add", {{"pid", s.program.pid()}, {"probes", {one}}}).at("probes").at(0);
    };
    const Json all = with("duration < 1000000000000"), none = with("duration >= 1000000000000"),
               some = with("duration > 2000 && n > 0");
    for (const Json& probe : {all, none, some})
      REQUIRE(eventually([&] { return !optimise || view_of(s.client, probe).value("tier", "") == "optimized"; }));
    Events events(s.client);
    CHECK(s.program.ask("fib 15") == "fib done 610");
    const Calls chosen = s.calls(some);
    events.end();
    CHECK(s.calls(all) == Calls{1973, 0, 0, 0, 0});
    CHECK(s.calls(none) == Calls{0, 0, 1973, 0, 0});
    CHECK(chosen.hits + chosen.filtered == 1973);
    CHECK(chosen.hits > 0);
    CHECK(chosen.filtered >= 610 - 233);  // fib(0)
    CHECK(events.of(all).size() == 1973);
    CHECK(events.of(none).empty());
    CHECK(events.of(some).size() == chosen.hits);
    const auto says_the_same = [](const Json& e) { return e.at("args").at("duration") == e.at("duration"); };
    CHECK(std::ranges::all_of(events.all(), says_the_same));
    CHECK(std::ranges::all_of(events.of(some), [](const Json& e) { return e.at("duration") > 2000; }));
    CHECK(s.leaves_no_harm());
  }
}

TEST_CASE("what stays a breakpoint says why") {
  NEEDS_JUMPS();
  Session s;
  const Json bounded = s.add_one("r3:few fib"), leap = s.add_one("r:leap through"), tiny = s.add_one("r:tiny add");
  const auto says = [&](const Json& probe, const std::string& what) {
    return eventually([&] { return reason(s, probe).find(what) != std::string::npos; });
  };
  CHECK(says(bounded, "MAXACTIVE"));
  CHECK(says(leap, "indirect jump"));
  // Its own return may be in the bytes that a jump at its entry would take.
  if (kBreakpointCoversInsn)
    CHECK(eventually([&] { return view_of(s.client, tiny).value("tier", "") == "optimized"; }));
  else
    CHECK(says(tiny, "another probe"));
  // One whose jump was put off may become one between the two questions.
  CHECK(eventually([&] {
    const auto all = list_probes(s.client);
    const auto jumps = std::ranges::count_if(all, [](const Json& probe) { return probe.at("tier") == "optimized"; });
    return s.client.call("daemon.status").at("optimized") == jumps;
  }));
  CHECK(s.leaves_no_harm());
}

TEST_CASE("a daemon that is killed while calls ask for it leaves a program that goes on") {
  NEEDS_JUMPS();
  for (int round = 0; round < 3; ++round) {
    Session s;
    add_optimised(s, {"r:step step", "r:fib fib", "r:deep deep"});
    const auto trace = [&] { return tracer_of(s.program.pid()); };
    s.program.target.send("coroutines 200\ncoroutines 200\ncoroutines 200\n");
    REQUIRE(s.program.target.next_line(Millis{60'000}) == "coroutines done 401");
    kill_daemon(s.daemon.pid(), round == 0 ? Killed::daemon : Killed::with_tracer);
    CHECK(eventually([&] { return trace() == 0; }));
    for (int i = 0; i < 2; ++i) CHECK(s.program.target.next_line(Millis{60'000}) == "coroutines done 401");
    CHECK(s.program.ask("throw 20") == "throw done 20");
    CHECK(s.program.ask("fib 10") == "fib done 55");
    CHECK(s.program.ends_well());
  }
}

TEST_CASE("children forked when daemon and guard are dead, which share the calls' memory, do as they would without") {
  NEEDS_JUMPS();
  for (int round = 0; round < 5; ++round) {
    Session s;
    add_optimised(s, {"r:fib fib n=$arg1:s64 ret=$retval:s64"});
    Events events(s.client);
    CHECK(s.program.ask("fib 10") == "fib done 55");
    const pid_t guard = guard_of(s.daemon.socket() + ".state");
    REQUIRE(guard > 0);
    kill_daemon(s.daemon.pid(), Killed::with_guard, guard);
    CHECK(s.daemon.process().wait());
    CHECK(s.program.ask("children 22") == "children done 0");
    CHECK(s.program.ask("fib 10") == "fib done 55");
    const CommandResult recovered =
        run_command({required_environment("PROBED_BIN"), "--recover", "--socket", s.daemon.socket()});
    CHECK_MESSAGE(recovered.ok(), recovered.err);
    CHECK(s.program.ask("children 15") == "children done 0");
    CHECK(text_restored(s.program.pid()));
    CHECK(s.program.ends_well());
  }
}

}  // namespace
}  // namespace probed::live
