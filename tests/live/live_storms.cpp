// Tasks that come to life and end in every way the kernel knows, under probes that stay, and under probes that come and
// go. The target checks every one of its children and threads; here the hits must equal what it says it did.
//
// Thread: the test's own.
#include <doctest/doctest.h>
#include <signal.h>

#include <random>

#include "tests/live/probing.hpp"
#include "tests/live/servers.hpp"

namespace probed::live {
namespace {

// What counts() can know of a scenario's calls of work(): those in the address space, and those in copies of it, too.
enum class Exact { all, own, none };

struct Scenario {
  std::string name;
  int rounds;        // under probes that stay
  int churn_rounds;  // under probes that come and go
  Exact exact;
};
const Scenario kScenarios[] = {
    {"threads", 300, 1500, Exact::all}, {"tree", 4, 12, Exact::all},    {"vfork", 20, 60, Exact::own},
    {"spawn", 20, 60, Exact::own},      {"clones", 12, 40, Exact::all}, {"exec", 15, 60, Exact::none},
    {"leader", 100, 400, Exact::all},   {"exits", 15, 40, Exact::none}, {"kills", 15, 40, Exact::none},
};

// work() first; then what the storms themselves are made of.
const std::vector<std::string> kProbes = {"work",        "libc:fork",    "libc:vfork",          "libc:clone",
                                          "libc:_exit",  "libc:waitpid", "libc:pthread_create", "libc:malloc",
                                          "libc:execve", "libc:write",   "libc:pthread_join"};

bool all_gone(RpcClient& client) {
  return eventually([&] { return client.call("target.list").at("targets").empty(); });
}

void run_steady(const Scenario& scenario, bool follow, bool step) {
  const std::string name = scenario.name;
  CAPTURE(name);
  CAPTURE(follow);
  CAPTURE(step);
  Daemon daemon;
  RpcClient client(daemon.socket());
  Target target("lifecycle", {scenario.name, std::to_string(scenario.rounds)});
  client.call("target.attach", {{"pid", target.pid()}, {"followFork", follow}});
  const Json probe = add(client, target.pid(), kProbes, {{"x-step", step}}).at(0);
  target.go();
  const TargetReport report = target.finish();
  CHECK_MESSAGE(report.ok(), report.out, target.errors(), report.exit);
  long long wanted = report.value("calls");
  if (follow && scenario.exact == Exact::all) wanted += report.value("child_calls");
  if (scenario.exact != Exact::none) CHECK(counts_of(client, probe).hits == static_cast<std::uint64_t>(wanted));
  CHECK(all_gone(client));
  CHECK(daemon.stop() == Exit{0, 0});
}

// What one client may do to a process at any moment. A refusal is fine: it may just be ending.
void disturb(RpcClient& client, pid_t pid, std::mt19937& random) {
  const Json more{{"x-step", random() % 2 == 0}};
  if (random() % 4 == 0) client.request("target.attach", {{"pid", pid}, {"followFork", random() % 2 == 0}});
  const Json added = client.request("probe.add", add_params(pid, kProbes, more));
  if (random() % 3 == 0) client.request("daemon.disarm");
  if (added.contains("result") && random() % 2 == 0)
    client.request("probe.remove", ids_of(added.at("result").at("probes")));
  client.request("daemon.arm");
  if (random() % 2 == 0) client.request("target.detach", {{"pid", pid}});
}

TEST_CASE("U5: whatever way tasks are made and end, each does what it would without probes, and each call is a hit") {
  for (const Scenario& scenario : kScenarios)
    for (const bool follow : {false, true}) run_steady(scenario, follow, follow);
}

TEST_CASE("U9: tasks are made and end in every way while their process is attached, probed and let go") {
  const auto seed = std::random_device()();
  MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  for (const Scenario& scenario : kScenarios) {
    const std::string name = scenario.name;
    CAPTURE(name);
    Daemon daemon;
    RpcClient client(daemon.socket());
    // On a full machine one run may be over before anything was done to it.
    int rounds = 0;
    for (int run = 0; rounds <= 2 && run < 20; ++run) {
      Target target("lifecycle", {scenario.name, std::to_string(scenario.churn_rounds)});
      target.go();
      for (int i = 0; target.running() && i < 3000; ++i, ++rounds) disturb(client, target.pid(), random);
      const TargetReport report = target.finish();
      CHECK_MESSAGE(report.ok(), report.out, target.errors(), report.exit);
    }
    CHECK(rounds > 2);
    CHECK(all_gone(client));
    CHECK(daemon.stop() == Exit{0, 0});
  }
}

TEST_CASE("U5: a process killed at any moment of its storm takes nothing with it") {
  const auto seed = std::random_device()();
  MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  Daemon daemon;
  RpcClient client(daemon.socket());
  for (const Scenario& scenario : kScenarios) {
    const std::string name = scenario.name;
    CAPTURE(name);
    // In the middle of an exec there is a moment in which a thread has two ids.
    for (int i = 0; i < (name == "exec" ? 30 : 4); ++i) {
      Target target("lifecycle", {scenario.name, "100000"});
      target.go();
      client.request("target.attach", {{"pid", target.pid()}, {"followFork", i % 2 == 0}});
      const Json added = client.request("probe.add", add_params(target.pid(), kProbes));
      target.next_line(
          Millis{1 + static_cast<long>(random() % 20)});  // a random moment; it says nothing before its end
      target.signal(SIGKILL);
      CHECK(target.wait() == Exit{-1, SIGKILL});
    }
    CHECK_MESSAGE(all_gone(client), client.call("target.list").dump());
  }
  CHECK(daemon.stop() == Exit{0, 0});
}

// ---- stress-ng ------------------------------------------------------------------------------------------------------

struct Stressor {
  std::vector<std::string> arguments;
  std::vector<std::string> probes;
};
const Stressor kStressors[] = {
    {{"--clone", "2", "--clone-ops", "60"}, {"libc:clone", "libc:waitpid", "libc:_exit"}},
    {{"--fork", "2", "--fork-ops", "60"}, {"libc:fork", "libc:waitpid", "libc:_exit"}},
    {{"--vfork", "2", "--vfork-ops", "60"}, {"libc:vfork", "libc:waitpid", "libc:_exit"}},
    {{"--signal", "2", "--signal-ops", "2000"}, {"libc:signal", "libc:sigaction", "libc:getpid"}},
    {{"--sigq", "2", "--sigq-ops", "500"}, {"libc:sigqueue", "libc:sigwaitinfo"}},
    {{"--pthread", "2", "--pthread-ops", "300"}, {"libc:pthread_create", "libc:pthread_join", "libc:pthread_kill"}},
    {{"--mmap", "2", "--mmap-ops", "20", "--mmap-bytes", "1m"}, {"libc:mmap", "libc:munmap", "libc:mprotect"}},
};

TEST_CASE("stress-ng's own checks pass under probes on what its stressors call, followed over fork") {
  if (find_program("stress-ng").empty()) SKIP_TEST("stress-ng is not installed");
  Daemon daemon;
  TempDir work;
  for (const Stressor& stressor : kStressors) {
    CAPTURE(stressor.arguments[0]);
    std::vector<std::string> arguments{"trace", "--follow-fork", "-o", "/dev/null"};
    for (const std::string& probe : stressor.probes) arguments.insert(arguments.end(), {"-e", probe});
    arguments.insert(arguments.end(), {"--", find_program("stress-ng"), "--verify", "--temp-path", work.path(),
                                       "--timeout", "60", "--no-rand-seed"});
    arguments.insert(arguments.end(), stressor.arguments.begin(), stressor.arguments.end());
    const CommandResult result = probectl(daemon, arguments);
    CHECK_MESSAGE(result.ok(), result.err, result.exit);
    CHECK_MESSAGE(result.err.find("successful run completed") != std::string::npos, result.err);
    CHECK_MESSAGE(result.err.find("hits=0 ") == std::string::npos, result.err);
  }
}

TEST_CASE("no child is left when everything was torn down") { CHECK(joined(children_left()) == ""); }

}  // namespace
}  // namespace probed::live
