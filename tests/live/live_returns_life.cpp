// Return probes while code comes and goes, tasks are made and end, and probes are switched in the
// middle of calls: the program computes what it would without, and what is counted is exact.
//
// Thread: the test's own.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/live/return_probes.hpp"

namespace probed::live {
namespace {

Json listed(RpcClient& client, const Json& probe) {
  for (const Json& p : list_probes(client))
    if (p.at("id") == probe.at("id")) return p;
  return Json::object();
}
std::string state_in_list(RpcClient& client, const Json& probe) {
  return listed(client, probe).value("state", "absent");
}
bool becomes(RpcClient& client, const Json& probe, const std::string& state) {
  return eventually([&] { return state_in_list(client, probe) == state; });
}

// ---- code that comes and goes ---------------------------------------------------------------------------------------

TEST_CASE("a pending return probe waits for its library, comes back each time it is loaded, and keeps its id") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched user("dlopener");
  const Json params{
      {"pid", user.pid()},
      {"probes", {{{"definition", "r:plug plugin.so:plugin_work x=$arg1:s32 ret=$retval:s32"}, {"pending", true}}}}};
  const Json probe = client.call("probe.add", params).at("probes").at(0);
  CHECK(probe.at("state") == "pending");
  Events events(client);
  std::uint64_t hits = 0;
  for (int round = 0; round < 3; ++round) {
    CHECK(user.ask("open").starts_with("opened"));
    CHECK(becomes(client, probe, "enabled"));
    CHECK(user.ask("call 4") == "called 4 54");
    hits += 4;
    CHECK(calls_of(client, probe) == Calls{hits, 0, 0, 0, 0});
    CHECK(user.ask("close") == "closed");
    CHECK(becomes(client, probe, "pending"));
  }
  REQUIRE(events.reach(12));
  const Json& args = events.all().back().at("args");
  CHECK(args == Json({{"x", 3}, {"ret", 24}}));
  remove_all(client, {probe});
  CHECK(eventually([&] { return tracer_of(user.pid()) == 0; }));
  CHECK(user.ask("loop 5") == "looped 5 15");
  user.target.send("quit\n");
  CHECK(user.target.finish().ok());
}

TEST_CASE("a return probe of a library that is unloaded is gone, does no harm, and can be enabled again or removed") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched user("dlopener");
  const std::string first = user.ask("open");
  const Json probe = add(client, user.pid(), {"r:plug plugin.so:plugin_work ret=$retval:s32"}).at(0);
  CHECK(user.ask("call 3") == "called 3 30");
  CHECK(user.ask("close") == "closed");
  CHECK(becomes(client, probe, "gone"));
  CHECK(client.call("probe.enable", ids_of({probe})).at("failed").size() == 1);
  CHECK(user.ask("loop 20") == "looped 20 60");
  CHECK(calls_of(client, probe) == Calls{3, 0, 0, 0, 0});
  // At the same address again, most likely.
  const bool same = user.ask("open") == first;
  const Json enabled = client.call("probe.enable", ids_of({probe}));
  CHECK(enabled.contains("failed") == !same);
  CHECK(user.ask("call 3") == "called 3 30");
  CHECK(calls_of(client, probe) == Calls{same ? 6u : 3u, 0, 0, 0, 0});
  remove_all(client, {probe});
  CHECK(user.ask("loop 3") == "looped 3 9");
  user.target.send("quit\n");
  CHECK(user.target.finish().ok());
}

// mapper's functions in two pages of its own text.
struct OwnText {
  Watched mapper{"mapper"};
  OwnText() { CHECK(mapper.ask("map own").starts_with("mapped 0x")); }
  bool does(const std::string& command) {
    const std::string answer = mapper.ask(command);
    if (answer != "done " + command) MESSAGE("mapper: " << command << ": " << answer);
    return answer == "done " + command;
  }
  bool ends_well() {
    mapper.target.send("quit\n");
    const TargetReport report = mapper.target.finish();
    if (!report.ok()) MESSAGE("mapper: " << report.exit << ' ' << report.out << ' ' << mapper.target.errors());
    return report.ok();
  }
};

TEST_CASE(
    "a function that loses its code to munmap, another mapping or mremap loses its return probe, and nothing else") {
  for (const std::string command : {"unmap", "over", "shrink", "move", "keep"}) {
    CAPTURE(command);
    Daemon daemon;
    RpcClient client(daemon.socket());
    OwnText text;
    const auto probes = add(client, text.mapper.pid(), {"r:first own_first $retval:s32", "r:second own_second"});
    CHECK(text.does("call 2"));
    if (command == "move" || command == "keep")
      CHECK(text.mapper.ask(command).starts_with("moved 0x"));
    else
      CHECK(text.does(command));
    CHECK(state_in_list(client, probes[1]) == "gone");
    CHECK(state_in_list(client, probes[0]) == std::string(command == "shrink" ? "enabled" : "gone"));
    CHECK(text.does("call 2"));
    CHECK(calls_of(client, probes[0]) == Calls{command == "shrink" ? 4u : 2u, 0, 0, 0, 0});
    CHECK(calls_of(client, probes[1]) == Calls{2, 0, 0, 0, 0});
    remove_all(client, probes);
    if (command == "over") CHECK(text.does("check"));
    if (command != "over") CHECK(text.does("call 2"));
    CHECK(text.ends_well());
  }
}

TEST_CASE("code that went unnoticed is not written to when its return probes are switched off or the daemon ends") {
  for (const std::string way : {"probe.disable", "probe.remove", "target.detach", "daemon.disarm", "SIGTERM"}) {
    CAPTURE(way);
    Daemon daemon;
    RpcClient client(daemon.socket());
    OwnText text;
    const auto probes = add(client, text.mapper.pid(), {"r:first own_first", "r:second own_second"});
    // Not in the instant between a look at the code and what is written there (LIMITS.md).
    const auto settled = [](const Json& probe) {
      return probe.value("tier", "") == "optimized" || !probe.value("tierReason", "").empty();
    };
    CHECK(eventually([&] { return std::ranges::all_of(list_probes(client, text.mapper.pid()), settled); }));
    CHECK(text.does("over"));
    if (way == "SIGTERM") {
      daemon.process().signal(15);
      CHECK(daemon.process().wait());
    } else {
      client.call(way, way == "target.detach"   ? Json{{"pid", text.mapper.pid()}}
                       : way == "daemon.disarm" ? Json::object()
                                                : ids_of(probes));
    }
    CHECK(text.does("check"));
    CHECK(text.ends_well());
  }
}

// ---- tasks ----------------------------------------------------------------------------------------------------------

// What of a scenario's calls of work() can be known: those in its address space, and those in copies of it.
enum class Exact { all, own, none };
struct Scenario {
  const char* name;
  int rounds;
  Exact exact;
};
constexpr Scenario kScenarios[] = {
    {"threads", 50, Exact::all}, {"tree", 1, Exact::all},   {"vfork", 5, Exact::own},
    {"spawn", 5, Exact::own},    {"clones", 3, Exact::all}, {"exec", 4, Exact::none},
    {"leader", 20, Exact::all},  {"exits", 4, Exact::none}, {"kills", 4, Exact::none},
};
// work() first; then what returns twice, elsewhere, or not at all.
const std::vector<std::string> kFunctions{
    "r:work work ret=$retval:s64", "r:fork libc:fork",    "r:vfork libc:vfork",           "r:spawn libc:posix_spawn",
    "r:exec libc:execve",          "r:wait libc:waitpid", "r:create libc:pthread_create", "r:join libc:pthread_join",
    "r:malloc libc:malloc",        "r:write libc:write"};

void run_storm(const Scenario& scenario, bool follow) {
  const std::string name = scenario.name;
  CAPTURE(name);
  CAPTURE(follow);
  Daemon daemon;
  RpcClient client(daemon.socket());
  Target target("lifecycle", {name, std::to_string(scenario.rounds)});
  client.call("target.attach", {{"pid", target.pid()}, {"followFork", follow}});
  const Json probe = add(client, target.pid(), kFunctions).at(0);
  target.go();
  const TargetReport report = target.finish(Millis{60'000});
  CHECK_MESSAGE(report.ok(), report.out, target.errors(), report.exit);
  long long wanted = report.value("calls");
  if (follow && scenario.exact == Exact::all) wanted += report.value("child_calls");
  if (scenario.exact != Exact::none)
    CHECK(calls_of(client, probe) == Calls{static_cast<std::uint64_t>(wanted), 0, 0, 0, 0});
  CHECK(eventually([&] { return client.call("target.list").at("targets").empty(); }));
}

TEST_CASE("whatever way tasks are made and end, each call that returns is a hit of its own") {
  for (const Scenario& scenario : kScenarios)
    for (const bool follow : {false, true}) run_storm(scenario, follow);
}

// ---- stacks and calls -----------------------------------------------------------------------------------------------

TEST_CASE(
    "exceptions, jumps, cancellation and unwinding through libraries of which every function has a return probe") {
  const std::vector<std::string> commands{"throw 100", "jump 10",      "sigjump 1",  "leave 4", "cancel",
                                          "unwind 50", "coroutines 6", "threads 20", "tail 3",  "fib 10"};
  for (const std::string name : {"returns", "returns-guarded"}) {
    CAPTURE(name);
    Session s(name);
    const auto answers = [&] {
      std::vector<std::string> all;
      for (const std::string& command : commands) all.push_back(s.program.ask(command));
      return all;
    };
    const auto alone = answers();
    s.program.before = state_of(s.program.pid());  // with the handler of signals that the first cancellation installs
    const auto probes =
        add(s.client, s.program.pid(), {"r:c/ libc:*", "r:gcc/ libgcc_s.so.1:*", "r:cxx/ libstdc++.so.6:*"});
    CHECK(probes.size() > 5000);
    CHECK(answers() == alone);
    CHECK(s.leaves_no_harm());
  }
}

TEST_CASE("fib(25): a hit for each call") {
  constexpr std::uint64_t kCalls = 242'785;  // 2 * fib(26) - 1
  Session s;
  const Json probe = s.add_one("r:out fib n=$arg1:s64");
  CHECK(s.program.ask("fib 25") == "fib done 75025");
  CHECK(s.calls(probe) == Calls{kCalls, 0, 0, 0, 0});
  CHECK(s.leaves_no_harm());
}

TEST_CASE("switched in the middle of calls: no return is credited to another call, and none is harmed") {
  Session s;
  const std::string definition = "r:out fib n=$arg1:s64 ret=$retval:s64";
  Json probe = s.add_one(definition);
  CHECK(s.program.ask("start") == "start done 0");
  Events events(s.client);
  for (int round = 0; round < 40; ++round) {
    REQUIRE(events.reach(events.all().size() + 8));
    if (round % 4 == 3) {
      s.client.call("probe.remove", ids_of({probe}));
      probe = s.add_one(definition);
    } else {
      s.client.call("probe.disable", ids_of({probe}));
      s.client.call("probe.enable", ids_of({probe}));
    }
  }
  s.client.call("probe.disable", ids_of({probe}));
  CHECK(s.program.ask("rest") == "rest done 0");
  events.end();
  const bool right = std::ranges::all_of(events.all(), [](const Json& e) {
    const int n = e.at("args").at("n"), ret = e.at("args").at("ret");
    return ret == (n < 2 ? n : n - 1);  // of 0 to 3
  });
  CHECK(right);
  CHECK(s.leaves_no_harm());
}

}  // namespace
}  // namespace probed::live
