// K11 on real processes: programs whose stack pointer points to no stack or to the last bytes of one, or that step
// themselves and would see a jump's step. They compute and see what they do without us, and no call is lost.
#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>

#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

struct Stacks {
  // What the program answers to `command` when nobody looks, and with a probe at `definition`.
  Stacks(const std::string& definition, const std::string& command, bool becomes_jump)
      : client(daemon.socket()), target("stacks") {
    const std::string alone = target.ask(command);
    CHECK(alone.find(" ok,") != std::string::npos);
    probe = add(client, target.pid(), {definition}).at(0);
    if (becomes_jump) CHECK(eventually([&] { return tier() == "optimized"; }));
    if (!becomes_jump) CHECK(eventually([&] { return !reason().empty(); }));
    for (int i = 0; i < 3; ++i) CHECK(target.ask(command) == alone);
  }
  std::string tier() { return list_probes(client).at(0).value("tier", ""); }
  std::string reason() { return list_probes(client).at(0).value("tierReason", ""); }
  TargetReport end() {
    target.target.send("end\n");
    TargetReport report = target.target.finish();
    CHECK_MESSAGE(report.ok(), report.out, target.target.errors());
    return report;
  }

  Daemon daemon;
  RpcClient client;
  Watched target;
  Json probe;
};

TEST_CASE("K11: where the stack pointer is an ordinary register a probe stays a breakpoint, and says why") {
  Stacks stacks("sum_by_pop_add value=%dx", "pop 50", false);
  CHECK(stacks.tier() != "optimized");
  CHECK(stacks.reason().find("stack pointer") != std::string::npos);
  CHECK(counts_of(stacks.client, stacks.probe).hits * 4 == static_cast<std::uint64_t>(stacks.end().value("pops")) * 3);
}

TEST_CASE("K11: a program that steps itself sees the same steps, and its probes become breakpoints") {
  for (const char* const definition : {"stepped n=$arg1", "r:left stepped result=$retval", "stepped+4", "stepped+16",
                                       "stepped+18 ax=%ax", "stepped_calls ax=%ax", "step_through+11"}) {
    const std::string probe = definition;
    CAPTURE(probe);
    Stacks stacks(probe, "step 20", true);
    CHECK(stacks.tier() != "optimized");
    CHECK(stacks.reason().find("steps itself") != std::string::npos);
    CHECK(counts_of(stacks.client, stacks.probe).hits == 60);
    stacks.end();
  }
}

TEST_CASE("a program that steps itself sees the same steps of an instruction that repeats, or shows or sets the flag") {
  for (const char* const definition : {"stepped_repeats", "step_through+1", "step_through+10", "step_through+25"}) {
    const std::string probe = definition;
    CAPTURE(probe);
    Stacks stacks(probe, "step 20", false);
    CHECK(counts_of(stacks.client, stacks.probe).hits == 60);
    stacks.end();
  }
}

// What each kind of instruction answers, alone and with a probe on it.
std::string steps_told(Watched& target, const std::string& kind) { return target.ask(kind) + ", " + target.ask(kind); }

TEST_CASE("a program that steps itself traps where it does alone, whatever instruction is probed, on every tier") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  std::istringstream kinds(Watched("steps").ask("kinds"));
  if (!executes_32bit_code()) report_skip(__FILE__, "int 0x80: this kernel has no calls for 32-bit code");
  for (std::string kind; kinds >> kind;) {
    CAPTURE(kind);
    if (!executes_32bit_code() && (kind == "int80" || kind.starts_with("old_"))) continue;
    const std::string tiers[] = {"stepped", "boosted", "optimized"};
    for (const std::string& tier : tiers) {
      CAPTURE(tier);
      Watched target("steps");
      const std::string alone = steps_told(target, kind);
      if (kind == "cpuid" && alone.find(" 2 ") == alone.npos) {
        report_skip(__FILE__, "cpuid: this virtual machine leaves out the trap behind it");
        target.target.send("end\n");
        CHECK(target.target.finish().ok());
        break;
      }
      Json params = add_params(target.pid(), {"step_" + kind}, {{"x-step", tier == "stepped"}});
      if (tier == "boosted") params["probes"][0] = {{"definition", "step_" + kind}, {"optimize", false}};
      const Json answer = client.request("probe.add", params);
      REQUIRE_MESSAGE(answer.contains("result"), answer.dump());
      const Json probe = answer.at("result").at("probes").at(0);
      const auto shown = [&] { return list_probes(client, target.pid()).at(0); };
      if (tier == "optimized")
        CHECK(
            eventually([&] { return shown().value("tier", "") == tier || !shown().value("tierReason", "").empty(); }));
      CHECK(steps_told(target, kind) == alone);
      CHECK(counts_of(client, probe).hits >= 2);
      remove_all(client, {probe});
      target.target.send("end\n");
      CHECK(target.target.finish().ok());
    }
  }
}

TEST_CASE("K11: on the last bytes of a stack a jump turns into a breakpoint, and no fault is seen") {
  for (const std::string definition : {"at_edge n=$arg1", "r:left at_edge result=$retval"}) {
    CAPTURE(definition);
    Stacks stacks(definition, "edge 50", true);
    CHECK(stacks.tier() != "optimized");
    CHECK(stacks.reason().find("no room") != std::string::npos);
    CHECK(counts_of(stacks.client, stacks.probe).hits * 4 ==
          static_cast<std::uint64_t>(stacks.end().value("edges")) * 3);
  }
}

TEST_CASE("a wait that was entered by int 0x80 is not ended by tracers that come and go") {
  if (!executes_32bit_code()) SKIP_TEST("this kernel has no calls for 32-bit code (ia32_emulation)");
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched target("stacks");
  int cycles = 0;
  for (int i = 0; i < 10; ++i) {
    target.target.send("wait 10\n");
    for (int cycle = 0; cycle < 8; ++cycle) {
      const Json answer = client.request("probe.add", add_params(target.pid(), {"stepped"}));
      if (!answer.contains("result")) continue;  // still being let go of, on a busy machine
      remove_all(client, answer.at("result").at("probes"));
      ++cycles;
    }
    CHECK(target.target.next_line().value_or("").starts_with("wait ok,"));
  }
  CHECK(cycles > 10);
  target.target.send("end\n");
  const TargetReport report = target.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, target.target.errors());
}

TEST_CASE("no child is left when everything was torn down") { CHECK(joined(children_left()) == ""); }

}  // namespace
}  // namespace probed::live
