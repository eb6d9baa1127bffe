// Targets in places that something has been taken away from: system calls, memory, files, the view of the machine.
// Each is probed, counted and let go as any other, or the probe is refused with a reason; none is harmed.
//
// Thread: the test's own.
#include <doctest/doctest.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>

#include "tests/live/probing.hpp"
#include "tests/live/servers.hpp"

namespace probed::live {
namespace {

namespace fs = std::filesystem;

constexpr int kLacking = 77;  // confined.c: this kernel has no such mode
constexpr int kCalls = 100;   // of each round
const Exit kWell{0, 0};
const Exit kNotHere{kLacking, 0};

std::string ask(Process& target, const std::string& command) {
  target.send(command + "\n");
  return target.next_line().value_or("(no answer)");
}

// One round without probes, one under each tier, one after everything was taken out again.
void traced_and_let_go(Process& target, pid_t pid) {
  const std::string done = "done " + std::to_string(kCalls) + " 0";
  const TargetState before = state_of(pid);
  CHECK(ask(target, "go") == done);
  Daemon daemon;
  RpcClient client(daemon.socket());
  for (const bool step : {false, true}) {
    CAPTURE(step);
    const std::vector<Json> probes = add(client, pid, {"work a=$arg1:s32", "libc:write"}, {{"x-step", step}});
    CHECK(ask(target, "go") == done);
    CHECK(counts_of(client, probes[0]).hits == kCalls);
    CHECK(counts_of(client, probes[1]).hits == 1);
    remove_all(client, probes);
    CHECK(ask(target, "go") == done);
    client.request("target.detach", {{"pid", pid}});
    CHECK(left_unharmed(pid, before));
  }
  CHECK(ask(target, "go") == done);
  CHECK(daemon.stop() == Exit{0, 0});
}

bool in_call(pid_t pid, long number) {
  return read_file("/proc/" + std::to_string(pid) + "/syscall").starts_with(std::to_string(number) + " ");
}

void end_well(Process& target) {
  target.send("end\n");
  CHECK_MESSAGE(target.wait() == kWell, target.errors());
  CHECK(target.output().find("result ok") != std::string::npos);
}

bool got_ready(Process& target, const std::string& mode) {
  const auto line = target.next_line();
  if (line && line->starts_with("ready ")) return true;
  const auto exit = target.wait();
  REQUIRE_MESSAGE(exit == kNotHere, mode, " ", target.errors());
  report_skip(__FILE__, mode + ": not on this machine: " + target.errors());
  return false;
}

TEST_CASE(
    "processes under seccomp, without executable memory of their own, chrooted or hidden are probed as any other") {
  for (const std::string mode : {"free", "strict", "filter", "mdwe", "chroot", "mounts", "nodump"}) {
    CAPTURE(mode);
    Process target({target_path("confined"), mode});
    if (!got_ready(target, mode)) continue;
    traced_and_let_go(target, target.pid());
    end_well(target);
  }
}

TEST_CASE("processes in pid, mount and user namespaces of their own are probed by the pid that they have here") {
  const std::vector<std::vector<std::string>> worlds = {{"--pid", "--fork", "--mount-proc"},
                                                        {"--user", "--map-root-user", "--fork"},
                                                        {"--user", "--map-root-user", "--pid", "--mount", "--net",
                                                         "--ipc", "--uts", "--cgroup", "--fork", "--mount-proc"}};
  for (const auto& world : worlds) {
    CAPTURE(joined(world));
    std::vector<std::string> argv{find_program("unshare"), "--kill-child"};
    argv.insert(argv.end(), world.begin(), world.end());
    argv.insert(argv.end(), {target_path("confined"), "free"});
    Process wrapper(argv);
    if (!wrapper.next_line().value_or("").starts_with("ready ")) {
      report_skip(__FILE__, "unshare: " + wrapper.errors());
      continue;
    }
    traced_and_let_go(wrapper, only_child_of(wrapper.pid()));
    end_well(wrapper);
  }
}

TEST_CASE("children made in a pid namespace of their own are followed, and released, by their pids here") {
  for (const bool follow : {false, true}) {
    CAPTURE(follow);
    Process wrapper({find_program("unshare"), "--kill-child", "--pid", "--fork", "--mount-proc",
                     target_path("lifecycle"), "clones", "10"});
    if (!wrapper.next_line().value_or("").starts_with("ready ")) SKIP_TEST("unshare: " + wrapper.errors());
    Daemon daemon;
    RpcClient client(daemon.socket());
    const pid_t pid = only_child_of(wrapper.pid());
    client.call("target.attach", {{"pid", pid}, {"followFork", follow}});
    const Json probe = add(client, pid, {"work"}).at(0);
    wrapper.send("go\n");
    CHECK_MESSAGE(wrapper.wait(Millis{30'000}) == kWell, wrapper.errors());
    const TargetReport report{{0, 0}, wrapper.output()};
    CHECK(counts_of(client, probe).hits ==
          static_cast<std::uint64_t>(report.value("calls") + (follow ? report.value("child_calls") : 0)));
  }
}

TEST_CASE("a program whose file was deleted, or replaced by another, is probed where its own code is") {
  for (const bool replaced : {false, true}) {
    CAPTURE(replaced);
    TempDir dir;
    const std::string path = dir / "confined";
    fs::copy_file(target_path("confined"), path);
    Process target({path, "free"});
    REQUIRE(got_ready(target, "free"));
    fs::remove(path);
    if (replaced) fs::copy_file(target_path("counter"), path);
    traced_and_let_go(target, target.pid());
    end_well(target);
  }
}

TEST_CASE("static programs, position independent or not, are probed with exact counts and left as they were") {
  for (const char* name : {"counter-static", "counter-static-pie", "counter-musl"}) {
    CAPTURE(name);
    if (!target_runs(name)) {
      report_skip(__FILE__, std::string(name) + " could not be built on this machine");
      continue;
    }
    Daemon daemon;
    RpcClient client(daemon.socket());
    Watched target(name, {"1", "200"});
    const std::vector<Json> probes = add(client, target.pid(), {"work", "work+0x" SECOND});
    target.target.go();
    const TargetReport report = target.target.finish();
    CHECK_MESSAGE(report.ok(), report.out, target.target.errors());
    CHECK(counts_of(client, probes[0]).hits == 200);
  }
}

// ---- no memory left -------------------------------------------------------------------------------------------------

rlim_t mapped_bytes(pid_t pid) {
  std::istringstream statm(read_file("/proc/" + std::to_string(pid) + "/statm"));
  rlim_t pages = 0;
  statm >> pages;
  return pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
}

void limit_memory(pid_t pid, rlim_t bytes) {
  rlimit limit{};
  REQUIRE(prlimit(pid, RLIMIT_AS, nullptr, &limit) == 0);
  limit.rlim_cur = bytes;
  REQUIRE(prlimit(pid, RLIMIT_AS, &limit, nullptr) == 0);
}

TEST_CASE("a process that may map no more memory: probes are refused with the reason, and it is left as it was") {
  Process target({target_path("confined"), "free"});
  REQUIRE(got_ready(target, "free"));
  const pid_t pid = target.pid();
  const TargetState before = state_of(pid);
  limit_memory(pid, mapped_bytes(pid));
  {
    Daemon daemon;
    RpcClient client(daemon.socket());
    const Json error = add_error(client, pid, {"work", "libc:write"}, {{"x-step", true}});
    CHECK_MESSAGE(reason_of(error) == "out-of-memory", error);
    CHECK(hint_of(error).find("ulimit -v") != std::string::npos);
    CHECK(list_probes(client).empty());
    CHECK(ask(target, "go") == "done 100 0");
    // What needs no memory of the target's still works.
    const Json error_of_plain = add_error(client, pid, {"work"});
    CHECK((error_of_plain.is_null() || reason_of(error_of_plain) == "out-of-memory"));
    CHECK(ask(target, "go") == "done 100 0");
    client.request("target.detach", {{"pid", pid}});
    CHECK(left_unharmed(pid, before));
    limit_memory(pid, RLIM_INFINITY);
    add(client, pid, {"work"}, {{"x-step", true}});
    limit_memory(pid, mapped_bytes(pid));  // letting go needs none, either
    client.request("target.detach", {{"pid", pid}});
    CHECK(left_unharmed(pid, before));
  }
  end_well(target);
}

TEST_CASE("a process that may map little more memory keeps it: its probes stay breakpoints, and say why") {
  Process target({target_path("confined"), "free"});
  REQUIRE(got_ready(target, "free"));
  const rlim_t before = mapped_bytes(target.pid());
  limit_memory(target.pid(), before + (24 << 20));
  {
    Daemon daemon;
    RpcClient client(daemon.socket());
    add(client, target.pid(), {"work"});
    CHECK(eventually(
        [&] { return list_probes(client).at(0).value("tierReason", "").find("ulimit -v") != std::string::npos; }));
    CHECK(mapped_bytes(target.pid()) < before + (4 << 20));
    CHECK(ask(target, "go") == "done 100 0");
  }
  end_well(target);
}

// ---- other users ----------------------------------------------------------------------------------------------------

TEST_CASE("a set-user-ID program that an unprivileged trace executes has no privileges, and that is said") {
  if (::geteuid() != 0 || !::getpwnam("nobody")) SKIP_TEST("needs root and a user nobody");
  const std::string command = required_environment("PROBECTL_BIN");
  SpawnOptions options;
  options.user = "nobody";
  options.directory = "/";
  if (!run_command({command, "--version"}, options).ok()) SKIP_TEST("nobody may not execute " + command);
  TempDir dir;
  REQUIRE(::chmod(dir.path().c_str(), 0755) == 0);
  struct statvfs mount {};
  if (::statvfs(dir.path().c_str(), &mount) != 0 || (mount.f_flag & ST_NOSUID) != 0)
    SKIP_TEST(dir.path() + " is mounted nosuid");
  // Where the tracer isn't to blame there is nothing to say.
  const std::string plain = dir / "plain";
  fs::copy_file(target_path("confined"), plain);
  REQUIRE(::chmod(plain.c_str(), 04755) == 0);
  const CommandResult restricted =
      run_command({command, "trace", "--pending", "-e", "work", "--", "setpriv", "--reuid=nobody", "--regid=nogroup",
                   "--clear-groups", "--no-new-privs", plain, "free"});
  CHECK_MESSAGE(restricted.ok(), restricted.err);
  CHECK_MESSAGE(restricted.err.find("runs without the privileges") == std::string::npos, restricted.err);
  for (const auto& [mode, privileged] : {std::pair(04755, true), std::pair(02755, true), std::pair(0755, false)}) {
    CAPTURE(mode);
    const std::string path = dir / "confined";
    fs::copy_file(target_path("confined"), path, fs::copy_options::overwrite_existing);
    REQUIRE(::chmod(path.c_str(), static_cast<mode_t>(mode)) == 0);
    for (const bool through_a_shell : {false, true}) {
      CAPTURE(through_a_shell);
      std::vector<std::string> argv{command, "trace", "--pending", "-e", "work", "--"};
      if (through_a_shell)
        argv.insert(argv.end(), {"/bin/sh", "-c", "exec \"$0\" free </dev/null", path});
      else
        argv.insert(argv.end(), {path, "free"});
      const CommandResult result = run_command(argv, options);
      CHECK(result.ok());
      CHECK_MESSAGE(
          (result.err.find("runs without the privileges that its file gives") != std::string::npos) == privileged,
          result.err);
    }
  }
}

TEST_CASE("a setuid program is probed by root with its privileges, and refused to who may not trace it") {
  const passwd* user = ::getpwnam("nobody");
  if (::geteuid() != 0 || !user) SKIP_TEST("needs root and a user nobody");
  TempDir dir;
  const std::string path = dir / "confined";
  fs::copy_file(target_path("confined"), path);
  REQUIRE((::chmod(dir.path().c_str(), 0755) == 0 && ::chmod(path.c_str(), 04755) == 0));
  SpawnOptions options;
  options.user = "nobody";
  options.directory = "/";
  Process target({path, "free"}, options);
  REQUIRE(got_ready(target, "free"));
  const std::string status = read_file("/proc/" + std::to_string(target.pid()) + "/status");
  REQUIRE_MESSAGE(status.find("Uid:\t" + std::to_string(user->pw_uid) + "\t0\t0\t0") != std::string::npos,
                  "/tmp is mounted nosuid?\n", status);
  const std::string command = required_environment("PROBECTL_BIN");
  if (run_command({command, "--version"}, options).ok()) {
    const CommandResult refused =
        run_command({command, "trace", "--count", "1", "-p", std::to_string(target.pid()), "-e", "work"}, options);
    CHECK(refused.exit == Exit{1, 0});
    CHECK_MESSAGE(refused.err.find("may not") != std::string::npos, refused.err);
  } else {
    report_skip(__FILE__, "nobody may not execute " + command);
  }
  traced_and_let_go(target, target.pid());
  end_well(target);
}

TEST_CASE("a seccomp filter that an unprivileged daemon may not suspend: probes that need a call there are refused") {
  if (::geteuid() != 0 || !::getpwnam("nobody")) SKIP_TEST("needs root and a user nobody");
  SpawnOptions options;
  options.user = "nobody";
  options.directory = "/";
  const std::string command = required_environment("PROBECTL_BIN");
  if (!run_command({command, "--version"}, options).ok()) SKIP_TEST("nobody may not execute " + command);
  for (const std::string mode : {"strict", "filter"}) {
    CAPTURE(mode);
    Process target({target_path("confined"), mode}, options);
    REQUIRE(got_ready(target, mode));
    const TargetState before = state_of(target.pid());
    const CommandResult refused = run_command({command, "trace", "--count", "1", "-p", std::to_string(target.pid()),
                                               "-e", "work+0x" SECOND, "-e", "libc:write"},
                                              options);
    CHECK(refused.exit == Exit{1, 0});
    CHECK_MESSAGE(refused.err.find("seccomp") != std::string::npos, refused.err);
    CHECK(left_unharmed(target.pid(), before));
    CHECK(ask(target, "go") == "done 100 0");
    end_well(target);
  }
}

// A daemon as a sandboxed unit or a container would run it. No private one of the harness: it is the filter's child.
TEST_CASE("a daemon under a seccomp filter warns of it, and a refusal names it as the cause, not a capability") {
  if (::geteuid() != 0) SKIP_TEST("needs root");
  TempDir dir;
  const std::string socket = dir / "s";
  Process daemon({target_path("filtered"), required_environment("PROBED_BIN"), "--socket", socket});
  const std::string warning = daemon.next_error_line().value_or("");
  CHECK_MESSAGE(warning.find("warning: this daemon runs under a seccomp filter") != std::string::npos, warning);
  REQUIRE(eventually([&] { return daemon.errors().find("listening on") != std::string::npos; }));
  Process target({target_path("confined"), "filter"});
  REQUIRE(got_ready(target, "filter"));
  const TargetState before = state_of(target.pid());
  {
    RpcClient client(socket);
    const Json error = add_error(client, target.pid(), {"work+0x" SECOND, "libc:write"});
    const std::string message = error.value("message", "(added)");
    CHECK_MESSAGE(message.find("because it runs under one itself") != std::string::npos, message);
    CHECK(message.find("CAP_SYS_ADMIN") == std::string::npos);
  }
  CHECK(left_unharmed(target.pid(), before));
  CHECK(ask(target, "go") == "done 100 0");
  end_well(target);
  daemon.signal(SIGTERM);
  CHECK(daemon.wait() == Exit{0, 0});
  CHECK(Daemon().process().errors().find("seccomp") == std::string::npos);
}

// The settings of a unit file, by name; lines that a backslash joins aren't used in ours.
std::map<std::string, std::string> settings_of(const std::string& path) {
  std::map<std::string, std::string> settings;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);)
    if (const auto equals = line.find('='); equals != std::string::npos && line[0] != '#')
      settings[line.substr(0, equals)] = line.substr(equals + 1);
  return settings;
}

TEST_CASE("the shipped unit installs no seccomp filter, leaves the guard alone, and has what the daemon needs") {
  const std::string units = required_environment("SOURCE_DIR") + "/packaging/systemd/";
  auto settings = settings_of(units + "probed.service");
  // systemd.exec(5): what is implemented with one. DynamicUser= implies RestrictSUIDSGID=.
  for (const char* filtering :
       {"SystemCallFilter", "SystemCallArchitectures", "SystemCallLog", "SystemCallErrorNumber",
        "RestrictAddressFamilies", "RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID",
        "MemoryDenyWriteExecute", "LockPersonality", "PrivateDevices", "ProtectKernelTunables", "ProtectKernelModules",
        "ProtectKernelLogs", "ProtectClock", "ProtectHostname", "DynamicUser"})
    CHECK_MESSAGE(!settings.contains(filtering), std::string(filtering), "= installs a seccomp filter");
  CHECK(settings["KillMode"] == "control-group");  // "mixed" kills the guard
  CHECK(settings["OOMPolicy"] == "continue");
  CHECK(settings["StartLimitIntervalSec"] == "0");
  CHECK(settings["RestartSec"] == "1");
  CHECK(settings["NotifyAccess"] == "main");
  for (const char* needed :
       {"CAP_SYS_PTRACE", "CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE", "CAP_KILL", "CAP_SETUID", "CAP_SETGID", "CAP_SYS_NICE"})
    CHECK_MESSAGE(settings["CapabilityBoundingSet"].find(needed) != std::string::npos, std::string(needed));
  for (const char* places : {"/run", "/tmp"})  // ProtectSystem=strict: what killed private daemons have left is there
    CHECK_MESSAGE(settings["ReadWritePaths"].find(places) != std::string::npos, std::string(places));
  const std::string analyze = find_program("systemd-analyze");
  if (analyze.empty()) SKIP_TEST("systemd-analyze is not installed");
  TempDir dir;
  for (const std::string name : {"probed.service", "probed.socket"}) {
    std::string text = read_file(units + name);
    if (const auto at = text.find("/usr/sbin/probed"); at != std::string::npos) text.replace(at, 16, "/bin/true");
    REQUIRE(write_file(dir / name, text));
  }
  const CommandResult verified =
      run_command({analyze, "verify", "--man=no", dir / "probed.service", dir / "probed.socket"});
  CHECK(verified.ok());
  CHECK(verified.err == "");
}

// What a seccomp filter is told of where a system call comes from, and a SIGSYS handler as si_call_addr. The program
// would be killed, or count a wrong answer.
TEST_CASE("a probed system call is seen where the program makes it, by seccomp filters and by handlers of SIGSYS") {
  for (const std::string mode : {"place", "trap"}) {
    CAPTURE(mode);
    Process target({target_path("confined"), mode});
    if (!got_ready(target, mode)) continue;
    const auto go = [&] {
      const std::string answer = ask(target, "go");
      CHECK_MESSAGE(answer.starts_with("done 100 0 "), answer);
      return std::strtoull(answer.substr(answer.rfind(' ') + 1).c_str(), nullptr, 10);
    };
    go();
    Daemon daemon;
    RpcClient client(daemon.socket());
    for (const bool step : {false, true}) {
      CAPTURE(step);
      const std::vector<Json> probes = add(client, target.pid(), {"called_here number=" RESULT}, {{"x-step", step}});
      const auto hits = [&] { return counts_of(client, probes[0]).hits; };
      const auto calls_before = go();
      CHECK(eventually([&] { return in_call(target.pid(), SYS_read); }));
      const auto hits_before = hits();
      for (int round = 0; round < 5; ++round) {
        for (int i = 0; i < 10; ++i) remove_all(client, add(client, target.pid(), {"work"}));  // interrupts it
        const auto calls = go() - calls_before;
        CHECK(eventually([&] { return in_call(target.pid(), SYS_read); }));
        CHECK(hits() - hits_before == calls);
      }
      remove_all(client, probes);
    }
    client.request("target.detach", {{"pid", target.pid()}});
    go();
    end_well(target);
  }
}

TEST_CASE("no child is left when everything was torn down") { CHECK(joined(children_left()) == ""); }

}  // namespace
}  // namespace probed::live
