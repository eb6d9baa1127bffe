// Signals and probes: whatever a program does with signals, SIGTRAP included, it does with probes in its code as well.
// The targets check every count, value and mask themselves; here the hits must equal what the instructions counted.
#include <doctest/doctest.h>
#include <signal.h>

#include <sstream>

#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

const bool kTiers[] = {false, true};  // boosted, stepped

std::uint64_t reported(const TargetReport& report, const char* key) {
  return static_cast<std::uint64_t>(report.value(key));
}

// ---- storms ---------------------------------------------------------------------------------------------------------

void run_storm(const std::vector<std::string>& arguments, bool step) {
  CAPTURE(step);
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched target("sigstorm", arguments);
  const std::vector<Json> probes =
      add(client, target.pid(), {"tick", "tock", "handler_tick", "work", "work+0x" SECOND}, {{"x-step", step}});
  target.target.go();
  const TargetReport report = target.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, target.target.errors());
  // Who jumps out of a handler may never execute what its thread was about to.
  const bool jumps = arguments.size() >= 3;
  const std::uint64_t hits = counts_of(client, probes[0]).hits, ticks = reported(report, "ticks");
  CHECK_MESSAGE((hits == ticks || (jumps && !kCountsAtOnce && hits > ticks)), hits << " hits, " << ticks << " ticks");
  CHECK(counts_of(client, probes[2]).hits == reported(report, "handler_ticks"));
  if (!jumps) CHECK(counts_of(client, probes[1]).hits == reported(report, "tocks"));
  if (!jumps) CHECK(counts_of(client, probes[3]).hits == counts_of(client, probes[4]).hits);
}

TEST_CASE("queued, timer's and process-wide signals arrive once, in order and intact, at every point of a hit") {
  for (const bool step : kTiers) {
    run_storm({"1", "400"}, step);
    run_storm({"4", "200"}, step);
  }
}

TEST_CASE("handlers that leave by siglongjmp may interrupt a hit anywhere") {
  for (const bool step : kTiers) run_storm({"3", "200", "jump"}, step);
}

TEST_CASE("signals arrive once and in order while probes come and go and the process is attached and let go") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  for (int rounds = 0; rounds <= 10;) {
    Watched target("sigstorm", {"3", "1500"});
    target.target.go();
    for (; target.target.running(); ++rounds) {
      const Json params =
          add_params(target.pid(), {"tick", "tock", "handler_tick", "work"}, {{"x-step", rounds % 2 == 1}});
      const Json answer = client.request("probe.add", params);
      if (answer.contains("result")) client.request("probe.remove", ids_of(answer.at("result").at("probes")));
    }
    const TargetReport report = target.target.finish();
    CHECK_MESSAGE(report.ok(), report.out, target.target.errors());
  }
}

// ---- SIGTRAP --------------------------------------------------------------------------------------------------------

const std::vector<std::string> kScenarios = {
    "handler_in_place", "blocked_alone", "blocked_with_all", "blocked_and_killed",      "waited_for",
    "suspended",        "ignored",       "not_deferred",     "reset_on_delivery",       "jumped_out_of",
    "set_to_default",   "in_children",   "in_threads",       "default_and_all_blocked", "ignored_in_threads"};

// Each in a process of its own, so that none profits from what another has shown us.
void run_scenario(const std::string& name, bool step, bool storm, const std::vector<std::string>& arguments = {}) {
  CAPTURE(name);
  CAPTURE(step);
  CAPTURE(storm);
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched traps("traps", arguments);
  const std::string action = traps.ask("action");
  const std::vector<Json> probes =
      add(client, traps.pid(), {"tick", "one_byte_tick", "own_breakpoint" BEHIND_BREAKPOINT}, {{"x-step", step}});
  // A hit with SIGTRAP blocked that takes longer than the time between two signals would begin again for ever.
  const auto pause = scaled(scaled(Millis{2}));
  if (storm) CHECK(traps.ask("storm " + std::to_string(pause.count() * 1000 + 3)) == "storm ok");
  CHECK_MESSAGE(traps.ask(name + (storm ? " 5" : " 20")) == name + " ok", traps.target.errors());
  if (storm) CHECK(traps.ask("storm 0") == "storm ok");
  const std::vector<Json> removed = remove_all(client, probes);
  CHECK_MESSAGE(traps.unharmed(), traps.harm());
  CHECK(traps.ask("action") == action);
  traps.target.send("end\n");
  const TargetReport report = traps.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, traps.target.errors());
  CHECK(removed[0].at("hits") == reported(report, "ticks"));
  CHECK(removed[1].at("hits") == reported(report, "one_byte_ticks"));
}

TEST_CASE("SIGTRAP handled, blocked, pending, ignored, waited for: probes change nothing about it") {
  for (const std::string& name : kScenarios) run_scenario(name, false, false);
}

TEST_CASE("SIGTRAP handled, blocked, pending, ignored, waited for: nor do probes that step") {
  for (const std::string& name : kScenarios) run_scenario(name, true, false);
}

TEST_CASE("SIGTRAP handled, blocked, pending, ignored, waited for: nor when other signals come all the time") {
  for (const std::string& name : kScenarios)
    for (const bool step : kTiers) run_scenario(name, step, true);
}

TEST_CASE("a thread that blocks SIGTRAP alone before it is traced, at its default action, goes on blocking it") {
  for (const bool step : kTiers)
    for (const bool storm : {false, true}) run_scenario("left_blocked", step, storm, {"blocking"});
}

// What it blocks was known when the probes were added; between the stop in which that was learnt and the first hit it
// goes on, with no breakpoint of ours in the text.
TEST_CASE("a thread that blocks SIGTRAP alone goes on blocking it when probes are many, and switched off and on") {
  for (const bool step : kTiers)
    for (const std::string many : {"", "libc:s*"}) {
      CAPTURE(step);
      CAPTURE(many);
      Daemon daemon;
      RpcClient client(daemon.socket());
      Watched traps("traps", {"blocking", "beside"});
      std::vector<std::string> definitions{"tick", "one_byte_tick"};
      if (!many.empty()) definitions.push_back(many);
      const std::vector<Json> probes = add(client, traps.pid(), definitions, {{"x-step", step}});
      CHECK((many.empty() || probes.size() > 64));
      CHECK_MESSAGE(traps.ask("left_blocked 20") == "left_blocked ok", traps.target.errors());
      const auto off_and_on = [&](const char* off, const char* on, const Json& whom) {
        client.call(off, whom);
        // It makes calls meanwhile, for longer than what was found about its probes is kept.
        for (const auto until = Clock::now() + Millis{250}; Clock::now() < until;) traps.ask("action");
        client.call(on, whom);
        CHECK_MESSAGE(traps.ask("left_blocked 20") == "left_blocked ok", off, traps.target.errors());
      };
      off_and_on("probe.disable", "probe.enable", {{"all", true}});
      off_and_on("daemon.disarm", "daemon.arm", Json::object());
      traps.target.send("end\n");
      CHECK(traps.target.finish().ok());
    }
}

// Threads that block everything have the handler reset all the time; what makes that harmless is that nobody runs while
// it is put back. A thread that can't be stopped, as it waits for the child that has its memory, doesn't run either.
TEST_CASE("a program's own SIGTRAP reaches its handler while another thread waits where nothing interrupts it") {
  for (const std::string mode : {"", "vforks"}) {
    CAPTURE(mode);
    Daemon daemon;
    RpcClient client(daemon.socket());
    Target target("own_traps", mode.empty() ? std::vector<std::string>{} : std::vector<std::string>{mode});
    const std::vector<Json> probes =
        client
            .call("probe.add",
                  {{"pid", target.pid()}, {"probes", {{{"definition", "work"}, {"optimize", false}}}}, {"maxRate", 0}})
            .at("probes");
    const auto is_hit = [&] { return counts_of(client, probes[0]).hits > 5000; };
    CHECK(eventually([&] { return is_hit() || !target.running(); }, Millis{60'000}));  // an emulated machine's time
    target.send("end\n");
    const TargetReport report = target.finish();
    CHECK_MESSAGE(report.ok(), report.out, target.errors());
    CHECK(report.value("handled") > 100);
  }
}

// The page of a landing stays in a program that may have saved it as its action
// (daemon/tracer/signals/actions_landing.cpp).
bool unharmed_but_for_landing(Watched& target) {
  return eventually([&] {
    std::istringstream harm(target.harm());
    for (std::string line; std::getline(harm, line);)
      if (!line.starts_with("new executable mapping") && !line.starts_with("new injected mapping")) return false;
    return true;
  });
}

TEST_CASE("a process that arranges for SIGTRAP is attached, probed and let go in the middle of it, again and again") {
  for (const std::string& name : kScenarios) {
    CAPTURE(name);
    Daemon daemon;
    RpcClient client(daemon.socket());
    Watched traps("traps");
    const std::string action = traps.ask("action");
    traps.target.send(name + " 400\n");
    std::optional<std::string> answer;
    for (int round = 0; !answer && round < 3000; ++round) {
      const Json added =
          client.request("probe.add", add_params(traps.pid(), {"tick", "one_byte_tick"}, {{"x-step", round % 2 == 1}}));
      if (added.contains("result")) client.request("probe.remove", ids_of(added.at("result").at("probes")));
      answer = traps.target.next_line(Millis{1});
    }
    if (!answer) answer = traps.target.next_line();
    CHECK_MESSAGE(answer == name + " ok", traps.target.errors());
    CHECK_MESSAGE(unharmed_but_for_landing(traps), traps.harm());
    // A program that saved its action while we were there may put it back, mark or landing, when we no longer are.
    const std::string left = traps.ask("action");
    CHECK_MESSAGE((left == action || left == "action 1 " MARKED_FLAGS " 0" || left == "action 1 4c000004 0"), left);
  }
}

// What a thread in a detour gets waits until it has left, and its mask isn't its own until then. It goes on into a
// system call, or a fault, right behind.
TEST_CASE("a thread that blocks SIGTRAP makes its calls, and handles its faults, with the mask that it has set") {
  for (const std::string mode : {"", "filter"}) {
    CAPTURE(mode);
    Daemon daemon;
    RpcClient client(daemon.socket());
    Target target("leaving", mode.empty() ? std::vector<std::string>{} : std::vector<std::string>{mode});
    const auto until = Clock::now() + scaled(Millis{3'000});
    int optimised = 0;
    while (Clock::now() < until && target.running()) {
      const std::vector<Json> probes = add(client, target.pid(), {"libc:getppid", "p:l load"});
      const auto is_jump = [&] {
        const Json all = client.call("probe.list").at("probes");
        return std::ranges::any_of(all, [](const Json& p) { return p.at("tier") == "optimized"; });
      };
      optimised += eventually(is_jump, Millis{200});
      eventually([&] { return counts_of(client, probes[0]).hits > 20'000; }, Millis{200});
      remove_all(client, probes);  // with its last probe it is let go
    }
    MESSAGE(optimised << " times with jumps");
    if (kHasJumps) CHECK(optimised > 0);
    target.send("end\n");
    const TargetReport report = target.finish();
    CHECK_MESSAGE(report.ok(), report.out, target.errors());
    CHECK(report.value("alarms") > 10);
    CHECK(report.value("faults") > 10);
  }
}

TEST_CASE("a program that is to die of its own SIGTRAP does, after one call of its handler") {
  for (const char* name : {"crash_signal", "crash_sigaction", "crash_resethand", "crash_blocked_breakpoint"})
    for (const bool step : kTiers) {
      CAPTURE(name);
      CAPTURE(step);
      Daemon daemon;
      RpcClient client(daemon.socket());
      Watched traps("traps");
      add(client, traps.pid(), {"tick", "one_byte_tick"}, {{"x-step", step}});
      CHECK(traps.ask(name) == "handler");
      CHECK(traps.target.wait() == Exit{-1, SIGTRAP});
    }
}

TEST_CASE("what ignores SIGTRAP hands that on to the program it executes") {
  for (const char* name : {"exec_ignoring", "exec_ignoring_in_threads"})
    for (const bool step : kTiers) {
      CAPTURE(name);
      CAPTURE(step);
      Daemon daemon;
      RpcClient client(daemon.socket());
      Watched traps("traps");
      add(client, traps.pid(), {"tick", "one_byte_tick"}, {{"x-step", step}});
      traps.target.send(std::string(name) + "\n");
      CHECK(traps.target.wait() == Exit{42, 0});
    }
}

// ---- job control ----------------------------------------------------------------------------------------------------

pid_t child_of(Target& jobs) {
  const auto line = jobs.next_line();
  REQUIRE(line);
  REQUIRE(line->starts_with("child "));
  return std::stoi(line->substr(6));
}

TEST_CASE(
    "a shell sees each stop and each continuation of a job once, and a stopped one rests, whatever its probes do") {
  for (const bool step : kTiers) {
    CAPTURE(step);
    Daemon daemon;
    RpcClient client(daemon.socket());
    Target jobs("jobs", {"120"});
    const pid_t child = child_of(jobs);
    const std::vector<Json> probes = add(client, child, {"tick", "work"}, {{"x-step", step}});
    jobs.go();
    const TargetReport report = jobs.finish();
    CHECK_MESSAGE(report.ok(), report.out, jobs.errors());
  }
}

TEST_CASE("a shell sees each stop and each continuation of a job once while it is attached and let go") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Target jobs("jobs", {"400"});
  const pid_t child = child_of(jobs);
  jobs.go();
  int rounds = 0;
  for (; jobs.running() && rounds < 5000; ++rounds) {
    const Json answer = client.request("probe.add", add_params(child, {"tick", "work"}, {{"x-step", rounds % 2 == 1}}));
    if (answer.contains("result")) client.request("probe.remove", ids_of(answer.at("result").at("probes")));
  }
  CHECK(rounds > 10);
  const TargetReport report = jobs.finish();
  CHECK_MESSAGE(report.ok(), report.out, jobs.errors());
}

TEST_CASE("no child is left when everything was torn down") { CHECK(joined(children_left()) == ""); }

}  // namespace
}  // namespace probed::live
