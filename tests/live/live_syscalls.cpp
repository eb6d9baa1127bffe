// First law, for system calls: whoever waits in one is not disturbed by a tracer that comes, probes and goes. EINTR and
// early returns are fatal in the target (tests/targets/calls.c).
#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <optional>

#include "arch/arch.hpp"
#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

// Their kernel code keeps the time when they are to end (restart_block, absolute limits, limits that are written back):
// a stop doesn't make them any later. The others begin anew, see daemon/LIMITS.md.
const std::vector<std::string> kExact = {"poll_timed",  "ppoll_timed",     "select_timed",
                                         "timerfd",     "nanosleep",       "clock_nanosleep",
                                         "futex_timed", "mq_timedreceive", "nanosleep_inline"};
const std::vector<std::string> kBegunAnew = {
    "epoll_wait_timed", "epoll_pwait_timed", "epoll_pwait2_timed", "ppoll_constant", "recvmsg_timed",
    "send_timed",       "accept_timed",      "sigtimedwait",       "semtimedop",     "io_getevents"};

// The kernel goes on with some calls in another's name, which is left in a register (daemon/LIMITS.md); where the
// thread stays traced it gets its own back.
constexpr bool kLetGoChangesRegister = arch::native::kRestartNumber.has_value();

struct WaitingProgram : Watched {
  WaitingProgram() : Watched("calls") {
    before.fds.clear();  // some of its threads make and close one for each wait
  }
};

void check_report(Watched& calls, const TargetReport& report) {
  CHECK_MESSAGE(report.ok(), report.out, calls.target.errors());
}

// One life of a tracer, as seen by the target: attached, armed, disarmed, let go. False: it was still going.
bool come_and_go(RpcClient& client, pid_t pid, bool step) {
  const Json answer = client.request("probe.add", add_params(pid, {"work", "main"}, {{"x-step", step}}));
  if (!answer.contains("result")) return false;
  client.call("probe.remove", ids_of(answer.at("result").at("probes")));
  return true;
}

TEST_CASE("forty-odd kinds of waiting survive a thousand tracers: no EINTR, no early end, and time that is kept") {
  constexpr int kCycles = 1000;
  const Millis limit = scaled(Millis{30'000});
  Daemon daemon;
  RpcClient client(daemon.socket());
  WaitingProgram calls;
  const Clock::time_point begin = Clock::now();
  int cycles = 0;
  while (cycles < kCycles && Clock::now() - begin < limit && calls.target.running())
    cycles += come_and_go(client, calls.pid(), cycles % 2 == 1);
  const auto took = std::chrono::duration_cast<Millis>(Clock::now() - begin);
  MESSAGE(cycles << " tracers in " << took.count() << " ms");
  CHECK(cycles > kCycles / 5);  // all of them unless this machine is very busy
  CHECK_MESSAGE(calls.unharmed(), calls.harm());
  calls.target.send("stop\n");
  const TargetReport report = calls.target.finish();
  check_report(calls, report);
  for (const std::string& name : kExact) {
    CAPTURE(name);
    CHECK(report.value("late_" + name) < std::max<long>(took.count() / 4, 500));
    CHECK(report.value("rounds_" + name) > 3);
  }
  for (const std::string& name : kBegunAnew) {
    CAPTURE(name);
    CHECK(report.value("late_" + name) < took.count() + 2000);
    CHECK(report.value("rounds_" + name) > 0);
  }
}

TEST_CASE("probes that come and go under an attached process disturb nobody who waits in it") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  WaitingProgram calls;
  const std::vector<Json> kept = add(client, calls.pid(), {"p:kept main"});
  for (int i = 0; i < 300; ++i) {
    const std::vector<Json> probes = add(client, calls.pid(), {"work"}, {{"x-step", i % 2 == 1}});
    client.call("probe.disable", ids_of(probes));
    client.call("probe.enable", ids_of(probes));
    remove_all(client, probes);
  }
  remove_all(client, kept);
  CHECK_MESSAGE(calls.unharmed(), calls.harm());
  calls.target.send("stop\n");
  const TargetReport report = calls.target.finish();
  check_report(calls, report);
  CHECK(report.value("changed") <= (kLetGoChangesRegister ? 1 : 0));  // it is let go once
  // Nobody was stopped more than once at the end, or chosen too often to map memory.
  for (const std::string& name : kExact) CHECK(report.value("late_" + name) < 1000);
}

TEST_CASE("the libc functions that wait can be probed while others wait in them") {
  for (const bool step : {false, true}) {
    CAPTURE(step);
    Daemon daemon;
    RpcClient client(daemon.socket());
    WaitingProgram calls;
    std::vector<Json> probes;
    std::string refused;
    // The functions, and the system call instructions in some of them: a thread then waits inside a slot.
    for (const char* definition : {"libc:epoll_wait", "libc:poll", "libc:clock_nanosleep", "libc:sigtimedwait",
                                   "libc:semtimedop", "libc:recvmsg", "libc:accept", "libc:select", "libc:syscall"}) {
      const Json answer = client.request("probe.add", add_params(calls.pid(), {definition}, {{"x-step", step}}));
      if (answer.contains("result"))
        probes.push_back(answer.at("result").at("probes").at(0));
      else
        refused += answer.at("error").dump() + "\n";
    }
    REQUIRE_MESSAGE(probes.size() > 5, refused);
    CHECK(eventually([&] {
      for (const Json& probe : probes)
        if (counts_of(client, probe).hits > 20) return true;
      return false;
    }));
    remove_all(client, probes);
    CHECK_MESSAGE(calls.unharmed(), calls.harm());
    calls.target.send("stop\n");
    const TargetReport report = calls.target.finish();
    check_report(calls, report);
  }
}

TEST_CASE("a signal that the program ignores interrupts nobody who waits") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  WaitingProgram calls;
  const std::vector<Json> kept = add(client, calls.pid(), {"work"}, {{"x-step", true}});
  for (int round = 0; round < 20; ++round) {
    for (const auto& [tid, state] : thread_states(calls.pid()))
      for (const int ignored : {SIGWINCH, SIGURG}) tgkill(calls.pid(), tid, ignored);
    calls.target.signal(SIGCONT);  // every thread hears of that
  }
  remove_all(client, kept);
  CHECK_MESSAGE(calls.unharmed(), calls.harm());
  calls.target.send("stop\n");
  check_report(calls, calls.target.finish());
}

TEST_CASE("a handler interrupts a call as it does without a tracer, and nothing else does") {
  const Millis limit = scaled(Millis{5'000});
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched target("interrupted");
  const Clock::time_point begin = Clock::now();
  int cycles = 0;
  while (Clock::now() - begin < limit && target.target.running())
    cycles += come_and_go(client, target.pid(), cycles % 2 == 1);
  CHECK(cycles > 10);
  target.target.send("\n");
  const TargetReport report = target.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, target.target.errors());
  const long long interrupted = report.value("interrupted"), otherwise = report.value("otherwise");
  MESSAGE(cycles << " tracers; calls interrupted by handlers: " << interrupted << ", by others: " << otherwise
                 << "; signals unnoticed: " << report.value("unnoticed"));
  // Where a handler may just have come back, a call that was entered unseen isn't made again (daemon/LIMITS.md).
  CHECK(otherwise <= (arch::native::kRegistersTellCall ? 0 : interrupted / 100));
  CHECK(interrupted > 100);
  CHECK(report.value("unnoticed") <= interrupted / 100);
}

// One life of a daemon that adds thousands of probes to a target and is killed so long after it began; nullopt: it
// isn't killed before it is through, and this is how long that took.
Millis arm_and_die(Target& target, std::optional<Millis> kill_after) {
  Daemon daemon;
  RpcClient client(daemon.socket());
  const Clock::time_point begin = Clock::now();
  const auto passed = [&] { return std::chrono::duration_cast<Millis>(Clock::now() - begin); };
  const Json params = add_params(target.pid(), {"p:l libc:*"});
  if (kill_after) {
    REQUIRE(client.send_raw(request_text("probe.add", params) + "\n"));
    eventually([&] { return passed() >= *kill_after; }, *kill_after + Millis{100});
  } else {
    client.call("probe.add", params);
  }
  const Millis took = passed();
  daemon.kill();
  CHECK(eventually([&] { return guard_of(daemon.socket() + ".state") == 0; }));
  return took;
}

// Every byte is the program's own again, too. Arming goes on for a while behind the answer: jumps.
TEST_CASE("a daemon that is killed while it arms leaves everybody asleep") {
  const int kills = chosen_cycles(8);
  for (const std::string threads : {"8", "100"}) {
    CAPTURE(threads);
    Target whole("asleep", {threads});
    const Millis all = 3 * arm_and_die(whole, std::nullopt);
    for (int kill = 0; kill < kills; ++kill) {
      Target target("asleep", {threads});
      const Millis after = all * kill / kills;
      CAPTURE(after.count());
      arm_and_die(target, after);
      CHECK(joined(text_differences(target.pid())) == "");
      CHECK(vdso_difference(target.pid()) == "");
      target.go();
      const TargetReport report = target.finish();
      CHECK_MESSAGE(report.ok(), report.out, target.errors());
    }
  }
}

TEST_CASE("what fails behind a SIGSTOP and SIGCONT without a tracer fails with one") {
  for (const std::string how : {"untraced", "probed", "probed while stopped"}) {
    CAPTURE(how);
    Daemon daemon;
    RpcClient client(daemon.socket());
    Target target("interrupted", {"strictly"});
    const auto are = [&](std::string_view states) {
      return eventually([&] {
        return std::ranges::all_of(thread_states(target.pid()), [&](const auto& thread) {
          return states.find(thread.second) != std::string_view::npos;
        });
      });
    };
    // No jumps, for which all threads are stopped some time later. Those that were for the probes wait again.
    const auto probe = [&] { add(client, target.pid(), {"work", "main"}, {{"x-step", true}}); };
    if (how == "probed") probe();
    REQUIRE(are("S"));
    target.signal(SIGSTOP);
    REQUIRE(are("Tt"));
    if (how == "probed while stopped") probe();
    target.signal(SIGCONT);
    const TargetReport report = target.finish();
    CHECK(report.exit == Exit{1, 0});
    // Each of the eight, but for two that poll and one that had a handler run just then.
    std::size_t failed = 0;
    const std::string said = "-1 (Interrupted system call)";
    for (std::size_t at = report.out.find(said); at != std::string::npos; at = report.out.find(said, at + 1)) ++failed;
    CHECK_MESSAGE(failed >= 5, report.out);
  }
}

TEST_CASE("no child is left when everything was torn down") { CHECK(joined(children_left()) == ""); }

}  // namespace
}  // namespace probed::live
