// Who goes first on a busy machine: the tracer thread, by a real-time priority where that is allowed; and that this
// neither takes the machine nor is inherited; and what is told of it.
//
// Thread: the test's own.
#include <doctest/doctest.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

constexpr int kFirst = SCHED_RR | SCHED_RESET_ON_FORK;

// The thread of a process by its name; 0: there is none.
pid_t thread_called(pid_t pid, const std::string& name) {
  for (const auto& [tid, state] : thread_states(pid))
    if (read_file("/proc/" + std::to_string(pid) + "/task/" + std::to_string(tid) + "/comm") == name + "\n") return tid;
  return 0;
}

// It is a process of its own where that may be.
pid_t tracer_in(pid_t daemon) {
  const pid_t apart = tracer_process_of(daemon);
  return apart != 0 ? apart : thread_called(daemon, "tracer");
}

int level_of(pid_t tid) {
  sched_param param{};
  return ::sched_getparam(tid, &param) == 0 ? param.sched_priority : -1;
}

// Nanoseconds that a thread has run.
std::uint64_t used_by(pid_t tid) {
  std::istringstream schedstat(read_file("/proc/" + std::to_string(tid) + "/schedstat"));
  std::uint64_t ran = 0;
  schedstat >> ran;
  return ran;
}

bool may_be_realtime() { return run_command({"chrt", "--rr", "1", "true"}).ok(); }

// A daemon as one that may not do everything: `prefix` starts it.
struct Limited {
  explicit Limited(std::vector<std::string> prefix) {
    prefix.insert(prefix.end(), {required_environment("PROBED_BIN"), "--socket", socket});
    process = std::make_unique<Process>(prefix);
    REQUIRE(eventually([&] { return process->errors().find("listening on") != std::string::npos; }));
  }
  TempDir dir;
  const std::string socket = dir / "p.sock";
  std::unique_ptr<Process> process;
};

std::size_t times_said(const std::string& text, const std::string& what) {
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST_CASE("the tracer thread has the lowest real-time priority, and nothing inherits it") {
  if (!may_be_realtime()) SKIP_TEST("no real-time priority may be had here");
  Daemon daemon;
  RpcClient client(daemon.socket());
  const pid_t tracer = tracer_in(daemon.pid());
  REQUIRE(tracer != 0);
  CHECK(::sched_getscheduler(tracer) == kFirst);
  CHECK(level_of(tracer) == ::sched_get_priority_min(SCHED_RR));
  Watched counter("counter", {"2", "100"});
  const auto probes = add(client, counter.pid(), {"work"}, {{"x-step", true}});
  CHECK(::sched_getscheduler(counter.pid()) == SCHED_OTHER);
  CHECK(::sched_getscheduler(daemon.pid()) == SCHED_OTHER);  // the Asio thread: nobody waits for it
  counter.target.go();
  CHECK(counter.target.finish().ok());
}

TEST_CASE(
    "a storm of breakpoints doesn't take the machine: the tracer waits in line with others, and goes first again") {
  if (!may_be_realtime()) SKIP_TEST("no real-time priority may be had here");
  Daemon daemon;
  RpcClient client(daemon.socket());
  const pid_t tracer = tracer_in(daemon.pid());
  Watched counter("counter", {"3", "0"});
  const auto probes = add(client, counter.pid(), {"work"}, {{"x-step", true}, {"maxRate", 0}});
  const auto first = [&] { return ::sched_getscheduler(tracer) == kFirst; };
  REQUIRE(first());
  // Where the target gets too little of the processors to keep the tracer busy, nothing has to be taken away.
  const auto began = Clock::now();
  const std::uint64_t used_before = used_by(tracer);
  const auto asks_for_little = [&] {
    const auto passed = static_cast<std::uint64_t>(std::chrono::nanoseconds(Clock::now() - began).count());
    return passed > 4'000'000'000 && (used_by(tracer) - used_before) / 6 < passed / 10;
  };
  counter.target.go();
  for (int i = 0; i < 5; ++i) {
    CAPTURE(i);
    CHECK(eventually([&] { return !first() || asks_for_little(); }, Millis{30'000}));
    CHECK(eventually(first, Millis{30'000}));
  }
  counter.target.send("end\n");
  const TargetReport report = counter.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, counter.target.errors());
  CHECK(eventually(first));
}

TEST_CASE("without the right to a real-time priority the tracer has a short time slice, or nothing, and says so once") {
  if (::geteuid() != 0) SKIP_TEST("needs root, to give rights away");
  Limited limited({"setpriv", "--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice"});
  RpcClient client(limited.socket);
  const pid_t tracer = tracer_in(limited.process->pid());
  CHECK(::sched_getscheduler(tracer) == (SCHED_OTHER | SCHED_RESET_ON_FORK));
  Watched counter("counter", {"2", "100"});
  add(client, counter.pid(), {"work"});
  counter.target.go();
  CHECK(counter.target.finish().ok());
  CHECK(times_said(limited.process->errors(), "may not have a real-time priority") == 1);
}

TEST_CASE("a limit of real-time priorities is right enough, without any capability") {
  if (::geteuid() != 0 || !may_be_realtime() || !run_command({"prlimit", "--rtprio=2", "true"}).ok())
    SKIP_TEST("needs root, real-time priorities, and to set limits");
  Limited limited({"prlimit", "--rtprio=2", "setpriv", "--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice"});
  RpcClient client(limited.socket);
  const pid_t tracer = tracer_in(limited.process->pid());
  CHECK(::sched_getscheduler(tracer) == kFirst);
  CHECK(level_of(thread_called(limited.process->pid(), "urgency")) == level_of(tracer) + 1);
}

// ---- what is told of it ---------------------------------------------------------------------------------------------

// Takes every processor for a while, before all that has no real-time priority.
void take_all_processors() {
  run_command({"chrt", "-f", "60", "timeout", "0.2", "chrt", "-f", "50", "sh", "-c",
               "n=$(nproc); while [ $n -gt 1 ]; do (while :; do :; done) & n=$((n - 1)); done; while :; do :; done"});
}

TEST_CASE("what the tracer goes first by is told to everybody") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  const Json status = client.call("daemon.status");
  const std::string priority = status.at("priority");
  if (may_be_realtime()) CHECK(priority == "realtime");
  CHECK((priority == "realtime" || priority == "nice" || priority == "slice" || priority == "none"));
  CHECK(status.at("longestWaitNs") <= status.at("starvedNs"));
}

TEST_CASE("that the tracer has waited for a processor is told in the status, and at the end of a trace") {
  if (::geteuid() != 0 || !may_be_realtime()) SKIP_TEST("needs root, to give rights away, and real-time priorities");
  Limited limited({"setpriv", "--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice"});
  RpcClient client(limited.socket);
  CHECK(client.call("daemon.status").at("priority") != "realtime");
  Watched counter("counter", {"1", "0"});
  Process trace({required_environment("PROBECTL_BIN"), "--socket", limited.socket, "trace", "-p",
                 std::to_string(counter.pid()), "-e", "work", "--no-optimize", "-o", "/dev/null"});
  REQUIRE(eventually([&] { return trace.errors().find("armed 1 probe") != std::string::npos; }));
  counter.target.go();
  const auto has_starved = [&] {
    take_all_processors();
    return client.call("daemon.status").at("starvedNs") > 0;
  };
  CHECK(eventually(has_starved, Millis{30'000}));
  const Json status = client.call("daemon.status");
  CHECK(status.at("starvedNs") >= 20'000'000);
  CHECK(status.at("longestWaitNs") >= 20'000'000);
  CHECK(status.at("longestWaitNs") <= status.at("starvedNs"));
  trace.signal(SIGINT);
  CHECK(trace.wait(Millis{30'000}) == Exit{0, 0});
  CHECK_MESSAGE(times_said(trace.errors(), "probed waited") == 1, trace.errors());
  counter.target.send("end\n");
  CHECK(counter.target.finish().ok());
}

}  // namespace
}  // namespace probed::live
