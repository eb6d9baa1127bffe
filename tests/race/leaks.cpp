// Attach, probe, let go, thousands of times: nothing may be left over, in the daemon or in the target. Prints figures.
//
// PROBED_TEST_CYCLES=N: so many cycles (default 300; before a release 10000).
// Thread: the test's own.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/prctl.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

namespace fs = std::filesystem;

// What the daemon inherits: a huge page, which the kernel makes of some small ones when it likes, would look like a
// leak.
[[maybe_unused]] const int no_huge_pages = ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);

int cycles() { return chosen_cycles(300); }

struct Figures {
  long anonymous_kb = 0, size_kb = 0, fds = 0, threads = 0, mappings = 0, shared = 0;
};
std::ostream& operator<<(std::ostream& out, const Figures& f) {
  return out << "RssAnon " << f.anonymous_kb << " kB, VmSize " << f.size_kb << " kB, " << f.fds << " descriptors, "
             << f.threads << " threads, " << f.mappings << " mappings, " << f.shared << " of them shared";
}

long entries_of(const std::string& directory) {
  std::error_code error;
  long n = 0;
  for (const auto& entry : fs::directory_iterator(directory, error)) n += !entry.path().empty();
  return n;
}

Figures figures_of(pid_t pid) {
  const std::string proc = "/proc/" + std::to_string(pid) + "/";
  Figures figures;
  std::istringstream status(read_file(proc + "status"));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) figures.anonymous_kb = std::atol(line.c_str() + 8);
    if (line.starts_with("VmSize:")) figures.size_kb = std::atol(line.c_str() + 7);
  }
  figures.fds = entries_of(proc + "fd");
  figures.threads = entries_of(proc + "task");
  std::istringstream maps(read_file(proc + "maps"));
  for (std::string line; std::getline(maps, line); ++figures.mappings) {
    std::string range, access;
    std::istringstream(line) >> range >> access;
    figures.shared += access.ends_with('s');
  }
  return figures;
}

// What allocators keep for later, and a leak of a hundred bytes a cycle is more.
constexpr long kSlackKb = 1024;

// The first fifth warms caches up: what grows after that would grow for ever.
template <class Cycle>
void daemon_grows_not(const Daemon& daemon, int count, Cycle cycle) {
  Figures warm;
  const auto began = Clock::now();
  for (int i = 0; i < count; ++i) {
    if (i == count / 5) warm = figures_of(daemon.pid());
    cycle(i);
  }
  const auto took = std::chrono::duration_cast<Millis>(Clock::now() - began);
  Figures end;
  eventually([&] {
    end = figures_of(daemon.pid());
    return end.fds <= warm.fds && end.threads <= warm.threads && end.shared <= warm.shared;
  });
  MESSAGE(count << " cycles in " << took.count() << " ms");
  MESSAGE("daemon after a fifth of them: " << warm);
  MESSAGE("daemon after all of them:     " << end);
  // Not "equal": the look between two cycles may have caught a descriptor that the cycle before was about to close.
  CHECK(end.fds <= warm.fds);
  CHECK(end.threads <= warm.threads);
  CHECK(end.shared <= warm.shared);
  // Anonymous memory: pages of files that haven't been touched before are no leak.
  // A sanitizer keeps what has been freed, and reports what hasn't been at the daemon's end.
  if (std::getenv("PROBED_TEST_SANITIZED"))
    MESSAGE("not judged: the memory of a daemon with a sanitizer");
  else
    CHECK(end.anonymous_kb <= warm.anonymous_kb + kSlackKb);
}

const std::vector<std::string> kProbes = {"work", "work+0x" SECOND, "libc:write", "libc:getppid"};

void one_cycle(const Daemon& daemon, std::unique_ptr<RpcClient>& client, pid_t pid, int i) {
  if (i % 10 == 0) client = std::make_unique<RpcClient>(daemon.socket());
  const std::vector<Json> probes = add(*client, pid, kProbes, {{"x-step", i % 2 == 0}});
  if (i % 4 == 0) client->call("probe.disable", ids_of(probes));
  if (i % 4 == 1) return void(remove_all(*client, probes));  // with its last probe it is let go
  client->call("target.detach", {{"pid", pid}});
}

TEST_CASE("D4: a process that is attached, probed and let go again and again is what it was, and so is the daemon") {
  Daemon daemon;
  std::unique_ptr<RpcClient> client;
  Watched counter("counter", {"2", "0"});
  counter.target.go();
  REQUIRE(counter.runs_threads(3));
  const Figures before = figures_of(counter.pid());
  daemon_grows_not(daemon, cycles(), [&](int i) { one_cycle(daemon, client, counter.pid(), i); });
  CHECK(left_unharmed(counter.pid(), counter.before));
  const Figures after = figures_of(counter.pid());
  MESSAGE("target before: " << before);
  MESSAGE("target after:  " << after);
  CHECK(after.size_kb == before.size_kb);
  CHECK(after.mappings == before.mappings);
  CHECK(after.fds == before.fds);
  CHECK(after.threads == before.threads);
  CHECK(client->call("target.list").at("targets").empty());
  counter.target.go();
  const TargetReport report = counter.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, counter.target.errors());
}

TEST_CASE("D4: adding and removing probes again and again leaves no slot behind while the process stays attached") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"2", "0"});
  counter.target.go();
  add(client, counter.pid(), {"work"});
  Figures warm;
  daemon_grows_not(daemon, cycles(), [&](int i) {
    remove_all(client, add(client, counter.pid(), kProbes, {{"x-step", true}}));
    if (i == cycles() / 5) warm = figures_of(counter.pid());
  });
  const Figures after = figures_of(counter.pid());
  // While detours of the last cycle wait for a round, the next may need an area of code more; but not one a cycle.
  CHECK(after.size_kb <= warm.size_kb + 64);
  CHECK(after.mappings <= warm.mappings + 2);
  counter.target.go();
  const TargetReport report = counter.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, counter.target.errors());
}

TEST_CASE("D4: jumps that are made and taken out again and again use the same memory") {
  NEEDS_JUMPS();
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"2", "0"});
  counter.target.go();
  add(client, counter.pid(), {"libc:getpid"});
  Figures warm;
  // 16 KiB of code hold some sixty of them.
  constexpr int kTimes = 200;
  const std::vector<std::string> several{"work $arg1 $arg2 $arg3 $arg4", "libc:getppid $arg1 $arg2 $arg3 $arg4",
                                         "libc:getuid $arg1 $arg2 $arg3 $arg4", "libc:getgid $arg1 $arg2 $arg3 $arg4",
                                         "libc:geteuid $arg1 $arg2 $arg3 $arg4"};
  for (int i = 0; i < kTimes; ++i) {
    const std::vector<Json> probes = add(client, counter.pid(), several);
    REQUIRE(eventually([&] {
      const Json all = client.call("probe.list").at("probes");
      return std::ranges::all_of(all, [](const Json& p) { return p.at("tier") == "optimized"; });
    }));
    remove_all(client, probes);
    if (i == kTimes / 10) warm = figures_of(counter.pid());
  }
  const Figures after = figures_of(counter.pid());
  CHECK(after.mappings <= warm.mappings + 1);
  CHECK(after.size_kb <= warm.size_kb + 16);
  counter.target.go();
  const TargetReport report = counter.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, counter.target.errors());
}

TEST_CASE("D4: many processes that are let go, end or are killed while probed leave nothing in the daemon") {
  Daemon daemon;
  std::unique_ptr<RpcClient> client;
  daemon_grows_not(daemon, std::max(cycles() / 5, 20), [&](int i) {
    Process target({target_path("confined"), "free"});
    REQUIRE(target.next_line().value_or("").starts_with("ready "));
    if (i % 10 == 0) client = std::make_unique<RpcClient>(daemon.socket());
    add(*client, target.pid(), kProbes, {{"x-step", i % 2 == 0}});
    if (i % 3 == 0) client->call("target.detach", {{"pid", target.pid()}});
    if (i % 3 == 1) target.signal(SIGKILL);
    target.send("go\nend\n");
    CHECK(target.wait() == (i % 3 == 1 ? Exit{-1, SIGKILL} : Exit{0, 0}));
  });
  CHECK(eventually([&] { return client->call("target.list").at("targets").empty(); }));
  CHECK(daemon.stop() == Exit{0, 0});
}

}  // namespace
}  // namespace probed::live
