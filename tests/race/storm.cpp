// Everything at once, at random, with a printed seed: clients add, remove, enable, disable, arm, disarm, detach and
// vanish while their targets run, fork, exec, get signals and end. The targets check their own results; a difference is
// harm.
//
// PROBED_TEST_SEED=N repeats a run; PROBED_TEST_SECONDS=N makes it longer (default 8 a storm).
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "tests/live/probing.hpp"
#include "tests/race/environment.hpp"

namespace probed::live {
namespace {

Clock::time_point end_of_storm() {
  return Clock::now() + std::chrono::seconds(from_environment("PROBED_TEST_SECONDS", 8));
}

// Fewer would show nothing: on a full machine a storm goes on until it has done so much, within reason.
constexpr long kLeastBatches = 11, kLeastKilled = 6;
constexpr std::chrono::minutes kLongestStorm{2};

using Definitions = std::vector<std::string>;
const Definitions kAnywhere = {"work", "work a=$arg1:s32 s=+0($arg3):string", "work+4", "libc:getppid"};
const Definitions kInCounter = {"work", "work a=$arg1:s32 s=+0($arg3):string", "work+4", STORM_SHAPES, "libc:getppid"};

// One client doing one random thing after the other to one target. Refusals are fine (work+4 may be no boundary, the
// target may just be being detached by another client); only harm is not.
class Chaos {
 public:
  // added: batches that all of the clients have added.
  Chaos(const Daemon& daemon, pid_t pid, const Definitions& definitions, unsigned random_seed, std::atomic<long>& added)
      : daemon_(daemon), pid_(pid), definitions_(definitions), random_(random_seed), added_(added) {}

  void run_until(Clock::time_point end) {
    auto client = std::make_unique<RpcClient>(daemon_.socket());
    while (Clock::now() < end || (added_ < kLeastBatches && Clock::now() < end + kLongestStorm)) {
      act(*client);
      ++actions_;
      if (one_in(40)) client = std::make_unique<RpcClient>(daemon_.socket());  // vanishes with its probes
    }
  }
  long actions() const { return actions_; }
  const std::map<std::string, long>& refused() const { return refused_; }

 private:
  bool one_in(unsigned n) { return random_() % n == 0; }
  template <class T>
  const T& any(const std::vector<T>& of) {
    return of[random_() % of.size()];
  }

  void act(RpcClient& client) {
    switch (random_() % 10) {
      case 0:
      case 1:
      case 2:
      case 3: return add_some(client);
      case 4:
      case 5: client.request("probe.remove", mine()); return ids_.clear();
      case 6: client.request("probe.disable", mine()); return;
      case 7: client.request("probe.enable", mine()); return;
      case 8:
        if (one_in(4)) client.request("daemon.disarm");
        client.request("daemon.arm");
        return;
      default:
        if (one_in(3)) client.request("target.detach", {{"pid", pid_}});
        client.request("probe.list", {{"pid", pid_}});
    }
  }

  void add_some(RpcClient& client) {
    Json probes = Json::array();
    for (unsigned n = 1 + random_() % 4; n > 0; --n) {
      Json probe = {{"definition", any(definitions_)}, {"disabled", one_in(5)}};
      if (one_in(5)) probe["filter"] = "pid > 1";
      probes.push_back(probe);
    }
    const Json reply = client.request("probe.add", {{"pid", pid_}, {"probes", probes}, {"x-step", one_in(4)}});
    if (!reply.contains("result")) {
      if (reply.contains("error"))
        ++refused_[reply.at("error").at("data").value("reason", "") + ": " +
                   reply.at("error").at("message").get<std::string>()];
      return;
    }
    for (const Json& probe : reply.at("result").at("probes")) ids_.push_back(probe.at("id").get<int>());
    ++added_;
  }

  Json mine() { return {{"ids", ids_}}; }

  const Daemon& daemon_;
  pid_t pid_;
  const Definitions& definitions_;
  std::mt19937 random_;
  std::vector<int> ids_;
  std::atomic<long>& added_;
  long actions_ = 0;
  std::map<std::string, long> refused_;
};

// Two clients per target, until the end; what each did is said, and that probes were really added is checked.
void unleash(const Daemon& daemon, const std::vector<pid_t>& targets, const Definitions& definitions,
             Clock::time_point end) {
  std::vector<std::unique_ptr<Chaos>> clients;
  std::vector<std::thread> threads;
  std::atomic<long> added = 0;
  for (std::size_t i = 0; i < 2 * targets.size(); ++i)
    clients.push_back(
        std::make_unique<Chaos>(daemon, targets[i / 2], definitions, seed() + static_cast<unsigned>(i), added));
  for (auto& client : clients) threads.emplace_back([&client, end] { client->run_until(end); });
  for (auto& thread : threads) thread.join();
  long actions = 0;
  for (auto& client : clients) {
    actions += client->actions();
    for (const auto& [why, times] : client->refused()) MESSAGE(times << " refused: " << why);
  }
  MESSAGE(actions << " actions, " << added << " batches added");
  CHECK(added >= kLeastBatches);
}

}  // namespace

TEST_CASE("U9: sixteen threads running through probes that come and go compute what they would have computed") {
  Daemon daemon;
  Target counter("counter", {"16", "0"});
  const TargetState before = state_of(counter.pid());
  counter.go();
  unleash(daemon, {counter.pid()}, kInCounter, end_of_storm());
  RpcClient(daemon.socket()).request("target.detach", {{"pid", counter.pid()}});
  CHECK(eventually([&] { return tracer_of(counter.pid()) == 0; }));
  CHECK(text_differences(counter.pid()).empty());
  counter.send("stop\n");
  const TargetReport report = counter.finish();
  CHECK_MESSAGE(report.ok(), report.out << "exit " << report.exit.code << " signal " << report.exit.signal);
  CHECK(daemon.stop() == Exit{0, 0});
}

TEST_CASE("U5: processes that fork, vfork, spawn, clone and thread under probes that come and go are not harmed") {
  Daemon daemon;
  Target forker("forker", {"400"});
  Target threads("threads", {"4000"});
  forker.go();
  threads.go();
  unleash(daemon, {forker.pid(), threads.pid()}, kAnywhere, end_of_storm());
  for (const pid_t pid : {forker.pid(), threads.pid()})
    RpcClient(daemon.socket()).request("target.detach", {{"pid", pid}});
  const TargetReport forked = forker.finish(Millis{120'000});
  CHECK_MESSAGE(forked.ok(), forked.out);
  const TargetReport threaded = threads.finish(Millis{120'000});
  CHECK_MESSAGE(threaded.ok(), threaded.out);
  CHECK(daemon.stop() == Exit{0, 0});
}

TEST_CASE("U5: a target killed at any moment leaves the daemon well and its other target unharmed") {
  Daemon daemon;
  Target survivor("counter", {"4", "0"});
  survivor.go();
  std::mt19937 random(seed());
  const auto end = end_of_storm();
  int killed = 0;
  while (Clock::now() < end || (killed < kLeastKilled && Clock::now() < end + kLongestStorm)) {
    Target victim("counter", {"8", "0"});
    victim.go();
    RpcClient client(daemon.socket());
    client.request("probe.add",
                   {{"pid", victim.pid()}, {"probes", {{{"definition", "work"}}, {{"definition", "shape_*"}}}}});
    client.request("probe.add", {{"pid", survivor.pid()}, {"probes", {{{"definition", "work"}}}}});
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));  // a random moment is the point
    kill(victim.pid(), SIGKILL);
    const auto exit = victim.wait();
    REQUIRE(exit);
    CHECK(exit->signal == SIGKILL);
    ++killed;
  }
  MESSAGE(killed << " targets killed");
  CHECK(killed >= kLeastKilled);
  survivor.send("stop\n");
  const TargetReport report = survivor.finish();
  CHECK_MESSAGE(report.ok(), report.out << "exit " << report.exit.code << " signal " << report.exit.signal);
  CHECK(daemon.stop() == Exit{0, 0});
}

}  // namespace probed::live
