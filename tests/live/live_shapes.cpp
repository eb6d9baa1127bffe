// Every instruction that a tracer may get wrong, probed in real programs on both breakpoint tiers: the program checks
// its own answers, and the hits are counted exactly.
#include <doctest/doctest.h>
#include <signal.h>

#include <sstream>

#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

struct Shape {
  std::string symbol;
  std::uint64_t hits;  // in one call
};

// Those that this CPU can run.
std::vector<Shape> shapes() {
  std::vector<Shape> out;
  std::istringstream lines(run_command({target_path("counter"), "--list-shapes"}).out);
  for (Shape shape; lines >> shape.symbol >> shape.hits;) out.push_back(shape);
  return out;
}

struct Run {
  std::string program;
  int threads, rounds;
  bool step;
};

void run_shapes(const Run& run) {
  CAPTURE(run.program);
  CAPTURE(run.threads);
  CAPTURE(run.step);
  const std::vector<Shape> all = shapes();
  REQUIRE(all.size() > kShapeFunctions / 2);
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched target(run.program, {std::to_string(run.threads), "10", std::to_string(run.rounds)});
  std::vector<std::string> definitions;
  for (const Shape& shape : all) definitions.push_back(shape.symbol);
  const std::vector<Json> probes = add(client, target.pid(), definitions, {{"x-step", run.step}});
  target.target.go();
  const TargetReport report = target.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, target.target.errors());
  CHECK(report.value("shape_rounds") == run.threads * run.rounds);
  for (std::size_t i = 0; i < all.size(); ++i) {
    CAPTURE(all[i].symbol);
    CHECK(counts_of(client, probes[i]).hits ==
          all[i].hits * static_cast<std::uint64_t>(run.threads) * static_cast<std::uint64_t>(run.rounds));
  }
}

TEST_CASE("every odd first instruction works boosted, in one thread and in several at once") {
  run_shapes({"counter", 1, 50, false});
  run_shapes({"counter", 8, 20, false});
}

TEST_CASE("every odd first instruction works stepped, in one thread and in several at once") {
  run_shapes({"counter", 1, 50, true});
  run_shapes({"counter", 8, 20, true});
}

TEST_CASE("every odd first instruction works in programs that are linked in other ways") {
  for (const char* program : {"counter-nopie", "counter-static-pie", "counter-stripped", "counter-musl"})
    for (const bool step : {false, true}) {
      if (target_runs(program))
        run_shapes({program, 2, 10, step});
      else
        report_skip(__FILE__, std::string(program) + " was not built: its compiler is missing here");
    }
}

// Every start of an instruction in the shapes and their drivers: the second instruction of a shape is as odd as its
// first.
TEST_CASE("every instruction of every shape can be probed at once, and the program's answers stay right") {
  constexpr unsigned kLongest = 48;  // bytes; no shape is longer
  for (const bool step : {false, true}) {
    CAPTURE(step);
    Daemon daemon;
    RpcClient client(daemon.socket());
    Watched target("counter", {"2", "10", "10"});
    std::vector<Json> probes;
    for (const Shape& shape : shapes())
      for (unsigned offset = 0; offset < kLongest; ++offset) {
        Json answer = client.request("probe.add",
                                     add_params(target.pid(), {shape.symbol + "+" + hex(offset)}, {{"x-step", step}}));
        if (answer.contains("result")) {
          probes.push_back(answer.at("result").at("probes").at(0));
          continue;
        }
        const std::string reason = reason_of(answer.at("error"));
        if (reason == "bad-definition") break;  // behind its end
        CHECK(reason == "not-instruction-boundary");
      }
    CHECK(probes.size() > kShapeInsns);
    target.target.go();
    const TargetReport report = target.target.finish();
    CHECK_MESSAGE(report.ok(), report.out, target.target.errors());
    for (const Json& probe : probes) CHECK(counts_of(client, probe).hits % 2 == 0);  // two threads do the same
  }
}

TEST_CASE("probes on every odd instruction come and go while the program runs them, and leave it unharmed") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  std::vector<std::string> definitions;
  for (const Shape& shape : shapes()) definitions.push_back(shape.symbol);
  for (int round = 0; round < 6; ++round) {
    Watched target("counter", {"2", "1", "3000"});
    target.target.go();
    for (bool alive = true; alive;) {
      const Json answer =
          client.request("probe.add", add_params(target.pid(), definitions, {{"x-step", round % 2 == 1}}));
      alive = answer.contains("result");
      if (alive) client.request("probe.remove", ids_of(answer.at("result").at("probes")));
    }
    const TargetReport report = target.target.finish();
    CHECK_MESSAGE(report.ok(), report.out, target.target.errors());
  }
}

TEST_CASE("signals of every kind arrive as they would, with probes in the code they interrupt and in their handlers") {
  for (const bool step : {false, true}) {
    CAPTURE(step);
    Daemon daemon;
    RpcClient client(daemon.socket());
    Watched target("signals", {"60"});
    const std::vector<Json> probes =
        add(client, target.pid(), {"work", "work+0x" SECOND, "work_in_handler", "faulting_load"}, {{"x-step", step}});
    target.target.go();
    const TargetReport report = target.target.finish();
    CHECK_MESSAGE(report.ok(), report.out, target.target.errors());
    CHECK(counts_of(client, probes[0]).hits == static_cast<std::uint64_t>(report.value("calls")));
    CHECK(counts_of(client, probes[1]).hits == static_cast<std::uint64_t>(report.value("calls")));
    CHECK(counts_of(client, probes[2]).hits == static_cast<std::uint64_t>(report.value("handler_calls")));
    CHECK(counts_of(client, probes[3]).hits == static_cast<std::uint64_t>(report.value("faults")));
  }
}

TEST_CASE("handlers and the instructions that faults and traps lead to can be probed, and each signal arrives once") {
  for (const bool step : {false, true}) {
    CAPTURE(step);
    Daemon daemon;
    RpcClient client(daemon.socket());
    Watched target("signals", {"60"});
    const std::vector<Json> probes =
        add(client, target.pid(),
            {"work_in_handler", "faulting_load", "faulting_load_after", "hit_own_breakpoint" BEHIND_BREAKPOINT},
            {{"x-step", step}});
    target.target.go();
    const TargetReport report = target.target.finish();
    CHECK_MESSAGE(report.ok(), report.out, target.target.errors());
    CHECK(counts_of(client, probes[0]).hits == static_cast<std::uint64_t>(report.value("handler_calls")));
    CHECK(counts_of(client, probes[1]).hits == 60);
    CHECK(counts_of(client, probes[2]).hits == 60);
    CHECK(counts_of(client, probes[3]).hits == 60);
  }
}

TEST_CASE("threads that sleep in system calls are not disturbed by attaching, adding, removing and letting go") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched target("sleeper");
  for (int round = 0; round < 10; ++round) {
    remove_all(client, add(client, target.pid(), {"work"}));
    remove_all(client, add(client, target.pid(), {"work", "main"}, {{"x-step", true}}));
    CHECK(target.unharmed());
  }
  const Json probe = add(client, target.pid(), {"work"}).at(0);
  target.target.go();
  const TargetReport report = target.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, target.target.errors());
  CHECK(counts_of(client, probe).hits == 1);
}

TEST_CASE("a stopped process stays stopped under a tracer, and goes on when it is told to") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched target("family");
  const auto state = [&] {
    const std::string stat = read_file("/proc/" + std::to_string(target.pid()) + "/stat");
    return stat.substr(stat.rfind(')') + 2, 1);
  };
  target.target.signal(SIGSTOP);
  REQUIRE(eventually([&] { return state() == "T"; }));
  const std::vector<Json> probes = add(client, target.pid(), {"work"});
  target.target.send("call 3\n");
  remove_all(client, probes);
  CHECK(eventually([&] { return tracer_of(target.pid()) == 0; }));
  // Let go, it takes part in the group stop anew (kernel/ptrace.c, __ptrace_unlink): a moment of R on the way.
  CHECK(eventually([&] { return state() == "T"; }));
  const std::vector<Json> again = add(client, target.pid(), {"work"});
  CHECK(counts_of(client, again[0]).hits == 0);
  target.target.signal(SIGCONT);
  CHECK(target.target.next_line() == "called 3");
  CHECK(counts_of(client, again[0]).hits == 3);
  remove_all(client, again);
  CHECK(target.unharmed());
}

TEST_CASE("no child is left when everything was torn down") { CHECK(joined(children_left()) == ""); }

}  // namespace
}  // namespace probed::live
