// U5 on real processes: fork and its kin, exec, exit.
#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <set>

#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

// A family target with probes on work(), one of them on an instruction whose copy lies in injected memory.
struct Family {
  Daemon daemon;
  RpcClient client{daemon.socket()};
  Watched target{"family"};
  std::vector<Json> probes;
  pid_t pid() const { return target.pid(); }

  explicit Family(const Json& more = Json::object())
      : probes(add(client, pid(), {"p:entry work a=$arg1:s32", "p:inside work+0x" INSIDE}, more)) {}

  // Orders a child and returns its pid; it stands in a read() until let_go().
  pid_t child(const std::string& how) {
    const std::string line = target.ask(how);
    REQUIRE(line.starts_with("child "));
    return std::stoi(line.substr(6));
  }
  std::string let_go() { return target.ask("go on"); }
  void quit() {
    target.target.send("quit\n");
    const TargetReport report = target.target.finish();
    CHECK_MESSAGE(report.ok(), report.out, target.target.errors());
  }
};

std::size_t hits_of(const std::vector<Json>& events, pid_t pid) {
  return static_cast<std::size_t>(
      std::count_if(events.begin(), events.end(), [pid](const Json& event) { return event.at("pid") == pid; }));
}

// Children that have memory of their own.
const std::string kCopies[] = {"fork", "fork-exec", "vfork-exec", "spawn"};
// Children that run in their parent's memory.
const std::string kSharers[] = {"vfork", "clone-vm", "clone-vfork"};

TEST_CASE("U5: a child with memory of its own has no probes, clean text, no injected memory and no tracer") {
  Family family;
  Events events(family.client);
  for (const std::string& how : kCopies) {
    CAPTURE(how);
    const pid_t child = family.child(how);
    CHECK(joined(text_differences(child)) == "");
    CHECK(tracer_of(child) == 0);
    const TargetState state = state_of(child);
    CHECK(state.injected_mappings == family.target.before.injected_mappings);
    CHECK(has_breakpoint(family.pid(), address_of(family.probes[0])));  // the parent's stay
    CHECK(family.let_go() == "reaped 42");
  }
  CHECK(family.target.ask("call 3") == "called 3");
  events.end();
  CHECK(events.of(family.probes[0]).size() == 3);
  CHECK(hits_of(events.all(), family.pid()) == events.all().size());
  remove_all(family.client, family.probes);
  CHECK(family.target.unharmed());
  family.quit();
}

TEST_CASE("U5: a child that shares its parent's memory shares the probes, and its hits bear its own pid") {
  Family family;
  Events events(family.client);
  for (const std::string& how : kSharers) {
    CAPTURE(how);
    const std::size_t before = events.of(family.probes[0]).size();
    const pid_t child = family.child(how);
    CHECK(has_breakpoint(child, address_of(family.probes[0])));
    CHECK(family.let_go() == "reaped 42");
    CHECK(events.reach(2 * (before + 5)));
    CHECK(events.of(family.probes[0]).size() == before + 5);
    CHECK(hits_of(events.of(family.probes[0]), child) == 5);
  }
  remove_all(family.client, family.probes);
  CHECK(family.target.unharmed());
  family.quit();
}

TEST_CASE("U5: every way to make a process works under a probe, with right exit codes and an exact count of hits") {
  for (const bool step : {false, true}) {
    CAPTURE(step);
    Daemon daemon;
    RpcClient client(daemon.socket());
    Watched forker("forker", {"10"});
    const Json probe = add(client, forker.pid(), {"work"}, {{"x-step", step}}).at(0);
    forker.target.go();
    const TargetReport report = forker.target.finish();
    CHECK_MESSAGE(report.ok(), report.out, forker.target.errors());
    CHECK(report.value("children") == 100);
    CHECK(counts_of(client, probe).hits == static_cast<std::uint64_t>(report.value("calls")));
  }
}

// The kernel tells a tracer nothing of such a child (kernel/fork.c), so it keeps its copies of the breakpoints, and of
// the landing that takes it past them.
TEST_CASE("U5: a child that a tracer can't follow at all (CLONE_UNTRACED) is not killed by its parent's probes") {
  Family family;
  family.child("clone-untraced");
  CHECK(family.let_go() == "reaped 42");
  remove_all(family.client, family.probes);
  CHECK(family.target.unharmed());
}

TEST_CASE("U5: on request a forked child is followed, with the same probes") {
  Family family(Json{{"followFork", true}});
  Events events(family.client);
  const pid_t child = family.child("fork");
  CHECK(tracer_of(child) == family.daemon.pid());
  CHECK(has_breakpoint(child, address_of(family.probes[0])));
  CHECK(family.let_go() == "reaped 42");
  CHECK(family.target.ask("call 2") == "called 2");
  CHECK(events.reach(2 * 7));
  events.end();
  CHECK(hits_of(events.of(family.probes[0]), child) == 5);
  CHECK(hits_of(events.of(family.probes[0]), family.pid()) == 2);
  CHECK(counts_of(family.client, family.probes[0]).hits == 7);
  remove_all(family.client, family.probes);
  CHECK(family.target.unharmed());
  family.quit();
}

TEST_CASE("U5: removing the probes cleans the followed child as well as its parent") {
  Family family(Json{{"followFork", true}});
  const pid_t child = family.child("fork");
  remove_all(family.client, family.probes);
  CHECK(family.target.unharmed());
  CHECK(eventually([&] { return tracer_of(child) == 0; }));
  CHECK(joined(text_differences(child)) == "");
  CHECK(state_of(child).injected_mappings == family.target.before.injected_mappings);
  CHECK(family.let_go() == "reaped 42");
  family.quit();
}

TEST_CASE("U5: many rounds of every way to make a process work with fork being followed") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched forker("forker", {"10"});
  const Json probe = add(client, forker.pid(), {"work"}, {{"followFork", true}}).at(0);
  forker.target.go();
  const TargetReport report = forker.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, forker.target.errors());
  // Of the children with memory of their own, three of six execute another image: their calls are made there.
  CHECK(counts_of(client, probe).hits ==
        static_cast<std::uint64_t>(report.value("calls") + report.value("child_calls") / 2));
}

TEST_CASE("U5: exec ends every probe, the new image is clean, and removing them later does nothing") {
  for (const std::string& how : {std::string("exec"), std::string("thread-exec")}) {
    CAPTURE(how);
    Family family;
    Events events(family.client, {{"pid", family.pid()}});
    CHECK(family.target.ask("call 1") == "called 1");
    CHECK(family.target.ask(how) == "ready " + std::to_string(family.pid()) + " family");
    CHECK(eventually([&] { return tracer_of(family.pid()) == 0; }));
    CHECK(text_restored(family.pid()));
    CHECK(state_of(family.pid()).injected_mappings.empty());
    CHECK(family.target.ask("call 10") == "called 10");
    events.end();
    CHECK(events.of(family.probes[0]).size() == 1);
    for (const Json& probe : list_probes(family.client)) CHECK(probe.at("state") == "gone");
    CHECK(family.client.request("probe.remove", ids_of(family.probes)).contains("result"));
    CHECK(list_probes(family.client).empty());
    CHECK(family.client.request("probe.remove", ids_of(family.probes)).contains("result"));
    // The new image can be probed like any other.
    const Json again = add(family.client, family.pid(), {"work"}).at(0);
    CHECK(family.target.ask("call 2") == "called 2");
    CHECK(counts_of(family.client, again).hits == 2);
    remove_all(family.client, {again});
    CHECK(text_restored(family.pid()));
    family.quit();
  }
}

struct End {
  std::string command;
  Exit exit;
  std::string key;
  int value;
};
const End kEnds[] = {
    {"exit 7", {7, 0}, "code", 7},
    {"thread-exit 9", {9, 0}, "code", 9},
    {"raise 9", {-1, SIGKILL}, "signal", SIGKILL},
    {"raise 15", {-1, SIGTERM}, "signal", SIGTERM},
    {"raise 5", {-1, SIGTRAP}, "signal", SIGTRAP},
};

TEST_CASE("U5: a process can be attached to in the middle of an exec among many threads as at any other time") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  int attached = 0;
  for (int i = 0; i < 6; ++i) {
    Target target("lifecycle", {"crowd", "100"});
    const Json pid{{"pid", target.pid()}};
    target.go();
    while (target.running()) {
      const Json answer = client.request("target.attach", pid);
      attached += answer.contains("result") ? 1 : 0;
      // It has ended, then, and isn't to be had a moment later either.
      if (answer.contains("error"))
        CHECK_MESSAGE(client.request("target.attach", pid).contains("error"), answer.dump());
      client.request("target.detach", pid);
    }
    const TargetReport report = target.finish(Millis{60'000});
    CHECK_MESSAGE(report.ok(), report.out, report.exit);
  }
  CHECK(attached > 60);
  CHECK(client.call("target.list").at("targets").empty());
}

TEST_CASE("U5: a target's end keeps its exit status, ends every probe, and removing them later does nothing") {
  for (const End& end : kEnds) {
    CAPTURE(end.command);
    Family family;
    Events events(family.client);
    CHECK(family.target.ask("call 4") == "called 4");
    family.target.target.send(end.command + "\n");
    CHECK(family.target.target.wait() == end.exit);
    const auto all_gone = [&] {
      for (const Json& probe : list_probes(family.client))
        if (probe.at("state") != "gone") return false;
      return true;
    };
    CHECK(eventually(all_gone));
    CHECK(counts_of(family.client, family.probes[0]).hits == 4);
    events.end();
    CHECK(events.of(family.probes[0]).size() == 4);
    CAPTURE(Json(events.others()).dump());
    REQUIRE(events.others().size() == 1);
    CHECK(events.others()[0].at("method") == "target.exited");
    CHECK(events.others()[0].at("params") == Json{{"pid", family.pid()}, {end.key, end.value}});
    CHECK(family.client.request("probe.remove", ids_of(family.probes)).contains("result"));
    CHECK(list_probes(family.client).empty());
    CHECK(family.client.call("target.list").at("targets").empty());
  }
}

TEST_CASE("U5: a target that is killed while its threads hit probes is gone for good, and the daemon goes on") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  for (int i = 0; i < 5; ++i) {
    Watched counter("counter", {"8", "0"});
    const Json probe = add(client, counter.pid(), {"work"}, {{"x-step", i % 2 == 0}}).at(0);
    counter.target.go();
    CHECK(eventually([&] { return counts_of(client, probe).hits > 100; }));
    counter.target.signal(SIGKILL);
    CHECK(counter.target.wait() == Exit{-1, SIGKILL});
    CHECK(eventually([&] { return client.call("target.list").at("targets").empty(); }));
    remove_all(client, {probe});
  }
  CHECK(client.call("daemon.status").at("probes") == 0);
}

TEST_CASE("no child is left when everything was torn down") { CHECK(joined(children_left()) == ""); }

}  // namespace
}  // namespace probed::live
