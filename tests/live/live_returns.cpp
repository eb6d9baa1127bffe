// Return probes on real processes: every way out of a function, what an event says, what is counted instead.
#include <doctest/doctest.h>
#include <sys/syscall.h>

#include <algorithm>

#include "tests/live/return_probes.hpp"

namespace probed::live {
namespace {

// ---- what an event says ---------------------------------------------------------------------------------------------

TEST_CASE("a return event has the value, the caller, the function and the time that the call took") {
  Session s;
  const Json probe = s.add_one("r:out fib n=$arg1:s64 ret=$retval:s64");
  CHECK(probe.at("kind") == "r");
  CHECK(probe.at("symbol") == "fib+0x0");
  CHECK_FALSE(probe.contains("places"));
  Events events(s.client);
  CHECK(s.program.ask("fib 4") == "fib done 3");
  REQUIRE(events.reach(9));
  const Json& last = events.all().back();
  CHECK(last.at("func") == "fib");
  CHECK(last.at("args") == Json({{"n", 4}, {"ret", 3}}));
  CHECK(last.at("duration").get<std::uint64_t>() > 0);
  CHECK(last.at("symbol").get<std::string>().starts_with("main+0x"));
  CHECK(last.at("ret_ip").get<std::string>().starts_with("0x"));
  CHECK_FALSE(last.contains("tail_call"));
  CHECK(events.all().front().at("symbol").get<std::string>().starts_with("fib+0x"));
  CHECK(s.calls(probe) == Calls{9, 0, 0, 0, 0});
  CHECK(s.leaves_no_harm());
}

TEST_CASE("recursion: each return belongs to its own call, and a call lasts as long as those below it") {
  Session s;
  const Json probe = s.add_one("fib%return n=$arg1:s64 ret=$retval:s64");
  Events events(s.client);
  CHECK(s.program.ask("fib 15") == "fib done 610");
  REQUIRE(events.reach(1973));  // 2 * fib(16) - 1
  struct Call {
    long long n, ret;
    std::uint64_t duration;
  };
  std::vector<Call> stack;  // returned, and not yet taken by their caller
  bool nested = true;
  for (const Json& event : events.all()) {
    Call call{event.at("args").at("n"), event.at("args").at("ret"), event.at("duration")};
    if (call.n < 2) {
      nested &= call.ret == call.n;
    } else {
      REQUIRE(stack.size() >= 2);
      const Call second = stack.back(), first = stack[stack.size() - 2];
      stack.resize(stack.size() - 2);
      nested &= first.n == call.n - 1 && second.n == call.n - 2 && call.ret == first.ret + second.ret &&
                call.duration > first.duration + second.duration;
    }
    stack.push_back(call);
  }
  CHECK(nested);
  CHECK(stack.size() == 1);
  CHECK(s.calls(probe) == Calls{1973, 0, 0, 0, 0});
  CHECK(s.leaves_no_harm());
}

TEST_CASE("arguments of the entry are reported at the return; memory is read when it is asked for") {
  Session s;
  const Json probe = s.add_one(
      "r:out fill now=+0($arg1):string before=$entry(+0($arg1)):string n=$arg2:s32 ret=$retval:s64 who=$comm");
  const Json notes = probe.value("notes", Json::array());
  REQUIRE(notes.size() == 1);  // only of the one that may surprise
  CHECK_MESSAGE(notes.at(0).get<std::string>().starts_with("now is the text that stands there when"), notes.dump());
  Events events(s.client);
  CHECK(s.program.ask("fill") == "fill done 5");
  REQUIRE(events.reach(1));
  CHECK(events.all().at(0).at("args") ==
        Json({{"now", "xxxxx"}, {"before", "before"}, {"n", 5}, {"ret", 5}, {"who", "returns"}}));
  CHECK(s.leaves_no_harm());
}

TEST_CASE("the text of a return event names the place it returns to and the function") {
  Daemon daemon;
  Returns program;
  Process trace(probectl_argv(
      daemon, {"trace", "-p", std::to_string(program.pid()), "-e", "r:myret add $retval:s64", "--count", "1"}));
  REQUIRE(eventually([&] { return trace.errors().find("armed 1 probe") != std::string::npos; }));
  CHECK(program.ask("threads 1") == "threads done 4");
  CHECK(trace.wait() == Exit{0, 0});
  CHECK(trace.output().find(": myret: (") != std::string::npos);
  CHECK(trace.output().find(" <- add) $retval=1\n") != std::string::npos);
  CHECK(program.ends_well());
}

TEST_CASE("a tail call ends the call that makes it; the function that it leads to returns by itself") {
  Session s;
  const auto probes = add(s.client, s.program.pid(),
                          {"r:caller caller $retval", "r:through through $retval", "r:cond conditional $retval:s64",
                           "r:sw switcher $retval:s64", "r:callee callee $retval:s64"});
  Events events(s.client);
  CHECK(s.program.ask("tail 3") == "tail done 336");
  REQUIRE(events.reach(10));
  const auto check = [&](std::size_t probe, std::size_t index, const Json& value) {
    const Json event = events.of(probes.at(probe)).at(index);
    CHECK(event.contains("tail_call") == value.is_null());
    CHECK(event.at("args").at("$retval") == value);
  };
  check(0, 0, nullptr);
  check(1, 0, nullptr);
  check(2, 0, 4);        // conditional(3) returns by itself,
  check(2, 1, nullptr);  // conditional(103) doesn't
  check(3, 0, 96);
  check(3, 1, nullptr);  // case 6
  const auto callee = events.of(probes.at(4));
  REQUIRE(callee.size() == 4);
  CHECK(callee.at(0).at("args").at("$retval") == 8);
  CHECK(callee.at(0).at("ret_ip") == events.of(probes.at(0)).at(0).at("ret_ip"));
  for (const Json& probe : probes) CHECK(s.calls(probe).unmatched + s.calls(probe).abandoned == 0);
  CHECK(s.leaves_no_harm());
}

// ---- calls that don't return ----------------------------------------------------------------------------------------

TEST_CASE("exceptions, longjmp, pthread_exit and cancellation abandon calls, and harm nobody") {
  for (const std::string name : {"returns", "returns-guarded"}) {
    CAPTURE(name);
    Session s(name);
    const std::string frames = s.program.ask("frames 20");
    const auto probes = add(s.client, s.program.pid(),
                            {"r:deep deep", "r:re rethrower", "r:catch catcher", "r:jump jumper", "r:set setter",
                             "r:leave leaver", "r:cancel canceled", "r:frames frames"});
    const auto calls = [&](std::size_t i) { return s.calls(probes.at(i)); };
    CHECK(s.program.ask("throw 100") == "throw done 100");
    CHECK(s.program.ask("jump 10") == "jump done 10");
    CHECK(s.program.ask("leave 4") == "leave done 0");
    CHECK(s.program.ask("cancel") == "cancel done -1");
    CHECK(s.program.ask("frames 20") == frames);
    CHECK(calls(0) == Calls{0, 0, 0, 101, 0});
    CHECK(calls(1) == Calls{0, 0, 0, 1, 0});
    CHECK(calls(2) == Calls{1, 0, 0, 0, 0});
    CHECK(calls(3) == Calls{0, 0, 0, 11, 0});
    CHECK(calls(4) == Calls{1, 0, 0, 0, 0});
    CHECK(calls(5) == Calls{0, 0, 0, 5, 0});
    // Cancelled before it got there, or in there.
    CHECK(calls(6).hits + calls(6).unmatched == 0);
    CHECK(calls(6).abandoned <= 1);
    CHECK(calls(7) == Calls{21, 0, 0, 0, 0});
    CHECK(s.leaves_no_harm());
  }
}

TEST_CASE("a handler on a stack of its own that jumps out takes only its own calls along") {
  Session s;
  const Json handler = s.add_one("r:handler in_handler $retval:s64"), raiser = s.add_one("r:raiser raiser"),
             setter = s.add_one("r:setter sig_setter");
  for (int i = 0; i < 3; ++i) CHECK(s.program.ask("sigjump 1") == "sigjump done 1");
  CHECK(s.calls(setter) == Calls{3, 0, 0, 0, 0});
  CHECK(s.calls(raiser) == Calls{0, 0, 0, 3, 0});
  // The last one that jumped isn't known to be gone: nothing has stood on that stack since.
  CHECK(s.calls(handler) == Calls{3, 0, 0, 2, 0});
  CHECK(s.leaves_no_harm());
}

TEST_CASE("coroutines: a call goes on where it was left, in another thread as well") {
  Session s;
  const Json probe = s.add_one("r:step step id=$arg1:s64 left=$arg2:s64 ret=$retval:s64");
  Events events(s.client);
  CHECK(s.program.ask("coroutines 10") == "coroutines done 21");
  REQUIRE(events.reach(22));
  bool right = true;
  for (const Json& event : events.all()) {
    const Json& a = event.at("args");
    right &= a.at("ret") == a.at("id").get<int>() + a.at("left").get<int>();
  }
  CHECK(right);
  CHECK(s.calls(probe) == Calls{22, 0, 0, 0, 0});
  CHECK(s.leaves_no_harm());
}

TEST_CASE("threads: every call of each returns once") {
  Session s;
  const Json probe = s.add_one("r:add add a=$arg1:s64 ret=$retval:s64");
  Events events(s.client);
  CHECK(s.program.ask("threads 300") == "threads done 180600");
  REQUIRE(events.reach(1200));
  CHECK(std::ranges::all_of(
      events.all(), [](const Json& e) { return e.at("args").at("ret") == e.at("args").at("a").get<int>() + 1; }));
  CHECK(s.calls(probe) == Calls{1200, 0, 0, 0, 0});
  CHECK(s.leaves_no_harm());
}

TEST_CASE("a return of a call that had begun before is counted, and is no event") {
  Session s;
  CHECK(s.program.ask("block") == "block done 0");
  const std::string tasks = "/proc/" + std::to_string(s.program.pid()) + "/task";
  REQUIRE(eventually([&] {  // the second thread waits in read()
    const CommandResult stacks = run_command({"sh", "-c", "cat " + tasks + "/*/syscall"});
    return stacks.out.find("\n" + std::to_string(SYS_read) + " ") != std::string::npos;
  }));
  const Json probe = s.add_one("r:blocked blocked $retval");
  CHECK(s.program.ask("unblock") == "unblock done 5");
  CHECK(s.calls(probe) == Calls{0, 0, 0, 0, 1});
  // Disabled in the middle: what it knows of the call is forgotten, and not given to the next.
  CHECK(s.program.ask("block") == "block done 0");
  s.client.call("probe.disable", ids_of({probe}));
  s.client.call("probe.enable", ids_of({probe}));
  CHECK(s.program.ask("unblock") == "unblock done 5");
  const Calls now = s.calls(probe);
  CHECK(now.hits + now.unmatched == 2);  // it may have got there after the probe was back
  CHECK(s.leaves_no_harm());
}

// ---- what is kept and what isn't ------------------------------------------------------------------------------------

TEST_CASE("a filter on the entry's arguments decides there, one on the value at the return") {
  Session s;
  const auto with = [&](const std::string& definition, const std::string& filter) {
    return s.client
        .call("probe.add", {{"pid", s.program.pid()}, {"probes", {{{"definition", definition}, {"filter", filter}}}}})
        .at("probes")
        .at(0);
  };
  const Json entry = with("r:e fib n=$arg1:s64", "n > 2"),
             value = with("r:v fib n=$arg1:s64 ret=$retval:s64", "ret == 0");
  CHECK(s.program.ask("fib 6") == "fib done 8");
  CHECK(s.calls(entry) == Calls{7, 0, 18, 0, 0});
  CHECK(s.calls(value) == Calls{5, 0, 20, 0, 0});
  CHECK(s.leaves_no_harm());
}

TEST_CASE("MAXACTIVE bounds the calls that are kept; the others are missed") {
  Session s;
  const Json probe = s.add_one("r3:few fib n=$arg1:s64");
  Events events(s.client);
  CHECK(s.program.ask("fib 6") == "fib done 8");
  const Calls calls = s.calls(probe);
  CHECK(calls.hits == 25);
  CHECK(calls.missed > 0);
  CHECK(calls.unmatched + calls.abandoned == 0);
  events.end();
  CHECK(events.all().size() + events.missed() == 25);
  // These are always the fourth.
  CHECK(std::ranges::none_of(events.all(), [](const Json& e) { return e.at("args").at("n").get<int>() < 2; }));
  CHECK(s.leaves_no_harm());
}

TEST_CASE("a limit counts the calls that MAXACTIVE makes missed, too") {
  for (const bool optimize : {true, false}) {
    CAPTURE(optimize);
    Session s;
    const Json added = s.client
                           .call("probe.add", {{"pid", s.program.pid()},
                                               {"probes", {{{"definition", "r1:few fib"}, {"optimize", optimize}}}},
                                               {"limit", 7}})
                           .at("probes")
                           .at(0);
    CHECK(s.program.ask("fib 6") == "fib done 8");
    CHECK(eventually([&] { return list_probes(s.client).at(0).at("state") == "disabled"; }));
    CHECK(s.calls(added).hits == 7);
    CHECK(s.leaves_no_harm());
  }
}

TEST_CASE("the result of a function's copy by the compiler, which may return nothing: that is said") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Process program({target_path("copied")});
  REQUIRE(program.next_line() == "ready");
  const auto notes_of = [&](const char* definition) {
    const Json answer =
        client.request("probe.add", {{"pid", program.pid()}, {"probes", {{{"definition", definition}}}}});
    REQUIRE_MESSAGE(answer.contains("result"), answer.dump());
    const Json& probe = answer.at("result").at("probes").at(0);
    return std::pair(probe.at("symbol").get<std::string>(), probe.value("notes", Json::array()).dump());
  };
  const auto [symbol, notes] = notes_of("r:with clamped $retval");
  if (symbol.find(".isra.") == std::string::npos) SKIP_TEST("this compiler has made no such copy: " + symbol);
  CHECK_MESSAGE(notes.find("may be nothing but what the register holds") != std::string::npos, notes);
  CHECK(notes_of("r:without clamped value").second.find("the register holds") == std::string::npos);
  client.call("target.detach", {{"pid", program.pid()}});
}

TEST_CASE("MAXACTIVE counts no call that has been left without a return") {
  Session s;
  const Json probe = s.add_one("r1:one halfway n=$arg1:s64");
  Events events(s.client);
  CHECK(s.program.ask("half 101") == "half done 2500");
  events.end();
  CHECK(events.all().size() == 50);
  const Calls calls = s.calls(probe);
  CHECK(calls.hits == 50);
  CHECK(calls.missed + calls.unmatched == 0);
  CHECK(calls.abandoned >= 50);  // of the last one it may not be known
  CHECK(s.leaves_no_harm());
}

TEST_CASE("what was missed while nobody listened is no later stream's") {
  Session s;
  const Json probe = s.add_one("r3:few fib n=$arg1:s64");
  for (const int stream : {1, 2}) {
    CAPTURE(stream);
    CHECK(s.program.ask("fib 7") == "fib done 13");
    const Calls before = s.calls(probe);
    CHECK(before.missed > 0);
    Events events(s.client);
    CHECK(s.program.ask("fib 6") == "fib done 8");
    events.end();
    const Calls after = s.calls(probe);
    CHECK(events.missed() == after.missed - before.missed);
    CHECK(events.all().size() + events.missed() == after.hits - before.hits);
  }
  CHECK(s.leaves_no_harm());
}

TEST_CASE("globs, disabling, a limit and removal mean a function's places as one") {
  Session s;
  const auto probes = add(s.client, s.program.pid(), {"r:lib/ [cf]al*r $retval", "r:all libc:str*"});
  CHECK(probes.size() > 50);
  CHECK(std::ranges::all_of(probes, [](const Json& p) { return p.at("kind") == "r"; }));
  remove_all(s.client, probes);
  CHECK(list_probes(s.client, s.program.pid()).empty());
  CHECK(text_restored(s.program.pid()));

  const Json limited = s.add_one("r:few fib", {{"limit", 4}});
  CHECK(s.program.ask("fib 6") == "fib done 8");
  CHECK(s.calls(limited).hits == 4);
  CHECK(list_probes(s.client, s.program.pid()).at(0).at("state") == "disabled");
  s.client.call("probe.remove", ids_of({limited}));

  const Json probe = s.add_one("r:two fib");
  s.client.call("probe.disable", ids_of({probe}));
  CHECK(text_restored(s.program.pid()));
  CHECK(s.program.ask("fib 3") == "fib done 2");
  s.client.call("probe.enable", ids_of({probe}));
  CHECK(s.program.ask("fib 3") == "fib done 2");
  CHECK(s.calls(probe) == Calls{5, 0, 0, 0, 0});
  CHECK(s.leaves_no_harm());
}

TEST_CASE("what has no return is refused") {
  Session s;
  const auto refused = [&](const std::string& definition) {
    const Json error = add_error(s.client, s.program.pid(), {"p:ok add", definition});
    CHECK(list_probes(s.client, s.program.pid()).empty());
    return reason_of(error) + ": " + error.value("message", "");
  };
  CHECK(refused("r:x libc:abort").starts_with("unsupported-instruction: "));
  CHECK(refused("r:x libc:abort").find("never returns") != std::string::npos);
  // A call that longjmp has ended can't be told from the next one.
  CHECK(refused("r:x spin_until").find("begins at its first instruction") != std::string::npos);
  // Ways out that no probe would be on.
  CHECK(refused("r:x runner").find("runs on into") != std::string::npos);
  CHECK(refused("r:x popper").find("off the stack") != std::string::npos);
  CHECK(refused("r:x stack_switcher").find("off the stack") != std::string::npos);
  CHECK(s.program.ask("odd 4") == "odd done 36");
  CHECK(refused("r:x fib+4").starts_with("bad-definition: "));
  CHECK(refused("p:x fib $entry($arg1)").starts_with("bad-definition: "));
  CHECK(refused("p:x fib $retval").starts_with("bad-definition: "));
  CHECK(left_unharmed(s.program.pid(), s.program.before, PageCopies::may_stay));
  CHECK(s.program.ends_well());
}

TEST_CASE("a followed child's calls are its parent's, and end in it as well") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched forker("forker");
  const Json probe = add(client, forker.pid(), {"r:w work $retval:s32"}, {{"followFork", true}}).at(0);
  Events events(client);
  forker.target.go();
  CHECK(forker.target.finish().ok());
  events.end();
  CHECK(std::ranges::any_of(events.all(), [&](const Json& e) { return e.at("pid") != forker.pid(); }));
}

TEST_CASE("Go: calls are known on stacks that move and goroutines that change their thread") {
  if (!target_runs("goworker")) SKIP_TEST("tests/targets/goworker needs go");
  Daemon daemon;
  RpcClient client(daemon.socket());
  // Every depth once, and some again: an emulated processor takes most of a minute for that.
  const int calls = 70;
  Watched program("goworker", {"4", std::to_string(calls)});
  const auto probes =
      add(client, program.pid(),
          {"r:deep main.deep depth=" GO_RESULT ":s64",
           "r:work main.work ret=" GO_RESULT ":s64 a=$entry(" GO_ARG1 "):s64 b=$entry(" GO_ARG2 "):s64"});
  Events events(client);
  program.target.go();
  CHECK(program.target.finish().ok());
  events.end();
  std::uint64_t deep = 0;
  for (int i = 0; i < calls; ++i) deep += static_cast<std::uint64_t>(i % 64 + 1);
  bool right = true;
  for (const Json& e : events.of(probes.at(1))) {
    const Json& a = e.at("args");
    right &= a.at("ret") == a.at("a").get<long>() * 31 + a.at("b").get<long>() * 17;
  }
  CHECK(right);
  CHECK(events.of(probes.at(0)).size() + events.of(probes.at(1)).size() + events.missed() == 4 * (deep + calls));
}

}  // namespace
}  // namespace probed::live
