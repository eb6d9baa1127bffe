// Jumps in programs that do what few do: no clock, memory that never comes, signals queued to a thread that blocks
// SIGTRAP, job control while probes come and go, data among the code.
#include <doctest/doctest.h>
#include <signal.h>

#include <cstdlib>
#include <cstring>

#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

std::string tier_of(RpcClient& client) { return list_probes(client).at(0).value("tier", ""); }
std::string reason_of_tier(RpcClient& client) { return list_probes(client).at(0).value("tierReason", ""); }

struct Odd {
  explicit Odd(const std::string& definition)
      : client(daemon.socket()),
        listener(daemon.socket()),
        target("odd"),
        probes(add(client, target.pid(), {definition})) {
    if (kHasJumps) CHECK(eventually([&] { return tier_of(client) == "optimized"; }));
    events.emplace(listener);  // or a detour would only count
  }
  // All calls were hits, and the program has checked itself. (It opens and handles things meanwhile, so it isn't as it
  // was.)
  void end() {
    const std::vector<Json> removed = remove_all(client, probes);
    target.target.send("end\n");
    const TargetReport report = target.target.finish();
    CHECK_MESSAGE(report.ok(), report.out, target.target.errors());
    CHECK(removed[0].at("hits") == static_cast<std::uint64_t>(report.value("points")));
  }

  Daemon daemon;
  RpcClient client, listener;
  Watched target;
  std::vector<Json> probes;
  std::optional<Events> events;
};

TEST_CASE("K11: a program that has switched the time stamp counter off falls back to breakpoints, unharmed") {
  NEEDS_JUMPS();
  Odd odd("point value=$arg1");
  const std::string answer = odd.target.ask("no-clock 200");
  if (answer == "no-clock none") {
    MESSAGE("skipped: this machine lets a process read the time stamp counter after PR_TSC_SIGSEGV");
  } else {
    CHECK(answer == "no-clock ok");
    CHECK(tier_of(odd.client) != "optimized");
    CHECK(reason_of_tier(odd.client).find("time stamp counter") != std::string::npos);
  }
  odd.end();
}

TEST_CASE(
    "K11: threads that may not write to ordinary memory (pkeys) run through jumps unharmed, and become breakpoints") {
  NEEDS_JUMPS();
  Daemon daemon;
  RpcClient client(daemon.socket()), listener(daemon.socket());
  // The kernel's own writing to struct rseq would end such a thread.
  SpawnOptions options;
  options.environment = {"GLIBC_TUNABLES=glibc.pthread.rseq=0"};
  Target target("odd", {}, options);
  const auto probes = add(client, target.pid(), {"compartment_point c=$arg1"});
  CHECK(eventually([&] { return tier_of(client) == "optimized"; }));
  Events events(listener);
  target.send("keys 200\n");
  const auto answer = target.next_line();
  if (answer == "keys none") {
    MESSAGE("skipped: this processor or kernel has no protection keys");
  } else {
    CHECK(answer == "keys ok");
    CHECK(eventually([&] { return tier_of(client) != "optimized"; }));
    CHECK(reason_of_tier(client).find("protection key") != std::string::npos);
  }
  const auto removed = remove_all(client, probes);
  target.send("end\n");
  const TargetReport report = target.finish();
  CHECK_MESSAGE(report.ok(), report.out, target.errors());
  CHECK(removed[0].at("hits") == static_cast<std::uint64_t>(report.value("entered")));
}

TEST_CASE("K11: a program that locks all its memory has no more of it locked by jumps") {
  NEEDS_JUMPS();
  Daemon daemon;
  RpcClient client(daemon.socket());
  Target target("odd");
  target.send("lock 0\n");
  const auto locked = target.next_line();
  if (locked != "lock ok") {
    MESSAGE("skipped: mlockall() is refused here");
  } else {
    const auto kib = [&](const char* name) {
      const std::string status = read_file("/proc/" + std::to_string(target.pid()) + "/status");
      return std::atol(status.c_str() + status.find(name) + std::strlen(name));
    };
    const long before = kib("VmLck:"), rss = kib("VmRSS:");
    const auto probes = add(client, target.pid(), {"point"});
    CHECK(eventually([&] { return tier_of(client) == "optimized"; }));
    constexpr long kCode = 4 << 10;
    CHECK(kib("VmLck:") < before + kCode);
    CHECK(kib("VmRSS:") < rss + kCode);
    remove_all(client, probes);
  }
  target.send("end\n");
  CHECK(target.finish().ok());
}

TEST_CASE("exception table: memory that never comes is absent after a while, and the program goes on") {
  Odd odd("point value=+0($arg1):u64");
  odd.target.target.send("waiting 50\n");
  const auto answer = odd.target.target.next_line(kPatience);
  if (answer == "waiting none") {
    MESSAGE("skipped: this kernel or its policy gives us no userfaultfd");
  } else {
    CHECK(answer == "waiting ok");
    CHECK(tier_of(odd.client) != "optimized");
  }
  odd.end();
}

TEST_CASE("K11: signals queued to a thread that blocks SIGTRAP and runs through a jump come all, in order, as sent") {
  Odd odd("point value=$arg1");
  odd.target.target.send("queue 300\n");
  const auto answer = odd.target.target.next_line(3 * kPatience);
  CHECK_MESSAGE(answer == "queue ok", odd.target.target.errors());
  odd.end();
}

TEST_CASE("SIGSTOP and SIGCONT in quick turns while probes come and go: the last SIGCONT holds") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"2", "0"});
  add(client, counter.pid(), {"work"});
  counter.target.go();
  for (int round = 0; round < 300; ++round) {
    const std::vector<Json> more = round % 3 == 0 ? add(client, counter.pid(), {"libc:getppid"}) : std::vector<Json>();
    for (int i = 0; i < 5; ++i) {
      counter.target.signal(SIGSTOP);
      counter.target.signal(SIGCONT);
    }
    if (!more.empty()) remove_all(client, more);
  }
  const auto hits = [&] { return list_probes(client).at(0).at("hits").get<std::uint64_t>(); };
  const std::uint64_t before = hits();
  CHECK(eventually([&] { return hits() > before; }));
  counter.target.go();
  const TargetReport report = counter.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, counter.target.errors());
}

}  // namespace
}  // namespace probed::live
