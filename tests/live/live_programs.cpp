// Real programs as targets: each is traced under load, says the right things, and goes on unharmed.
#include <doctest/doctest.h>

#include <map>
#include <sstream>

#include "tests/live/probing.hpp"
#include "tests/live/servers.hpp"

namespace probed::live {
namespace {

// Traces some hits of a busy process with the command line, as a person would, and checks that it is left as it was.
struct Traced {
  CommandResult result;
  std::vector<Json> events;
};

Traced trace(const Daemon& daemon, pid_t pid, const std::vector<std::string>& probes, int count) {
  std::vector<std::string> args = {"trace",      "-p", std::to_string(pid), "--json",
                                   "--duration", "30", "--count",           std::to_string(count)};
  for (const std::string& probe : probes) {
    args.push_back("-e");
    args.push_back(probe);
  }
  Traced traced{probectl(daemon, args), {}};
  CHECK_MESSAGE(traced.result.ok(), traced.result.err);
  traced.events = json_lines(traced.result.out);
  return traced;
}

// A busy server opens and closes connections and files as it likes: those are not ours to compare.
TargetState under_load(TargetState before) {
  before.fds.clear();
  return before;
}

void check_count_line(const Traced& traced, int count) {
  CHECK(traced.events.size() == static_cast<std::size_t>(count));
  const std::string line = "hits=" + std::to_string(count) + " delivered=" + std::to_string(count) + " missed=0";
  CHECK_MESSAGE(traced.result.err.find(line) != std::string::npos, traced.result.err);
}

}  // namespace

TEST_CASE("redis-server under load is traced at processCommand, text and JSON, and the server never notices") {
  if (!RedisServer::available()) SKIP_TEST("redis-server is not installed");
  Daemon daemon;
  RedisServer redis;
  redis.start_load();
  const TargetState before = state_of(redis.pid());
  const Traced traced =
      trace(daemon, redis.pid(), {"p:cmd processCommand c=$arg1 same=" ARG1 " argc=+88(" ARG1 "):s32"}, 200);
  check_count_line(traced, 200);
  for (const Json& event : traced.events) {
    CHECK(event.at("probe") == "probes/cmd");
    CHECK(event.at("symbol") == "processCommand+0x0");
    CHECK(event.at("comm") == "redis-server");
    CHECK(event.at("args").at("c") == event.at("args").at("same"));
    CHECK(event.at("args").at("argc").get<int>() >= 1);
  }
  const CommandResult text = probectl(daemon, {"trace", "-p", std::to_string(redis.pid()), "-e",
                                               "p:cmd processCommand c=$arg1", "--count", "5", "--duration", "30"});
  CHECK(text.ok());
  CHECK(text.out.find("] ") != std::string::npos);
  CHECK(text.out.find(": cmd: (processCommand+0x0) c=0x") != std::string::npos);
  CHECK(left_unharmed(redis.pid(), under_load(before)));
  redis.stop_load();
  CHECK(redis.command({"SET", "k", "v"}) == "+OK");
  CHECK(redis.healthy());
}

TEST_CASE("an nginx worker under load is traced in libc and in itself, and every page it serves is right") {
  if (!NginxServer::available()) SKIP_TEST("nginx is not installed");
  Daemon daemon;
  NginxServer nginx;
  REQUIRE(nginx.healthy());
  const pid_t worker = nginx.worker();
  REQUIRE(worker > 0);
  const TargetState before = state_of(worker);
  HttpLoad load(nginx);
  const Traced traced = trace(daemon, worker, {"p:fd libc:writev fd=$arg1:s32 n=$arg3:s32"}, 200);
  check_count_line(traced, 200);
  for (const Json& event : traced.events) CHECK(event.at("args").at("fd").get<int>() > 2);
  load.stop();
  CHECK(load.good() > 0);
  CHECK(load.bad() == 0);
  CHECK(left_unharmed(worker, under_load(before)));
  CHECK(nginx.healthy());
}

TEST_CASE("a postgres backend under pgbench is traced, and the database goes on") {
  if (!PostgresServer::available()) SKIP_TEST("postgres is not installed");
  Daemon daemon;
  PostgresServer postgres;
  postgres.start_load(2);
  // The backends that run queries show their client in their title. Stripped, but it exports what extensions may call.
  // pgbench looks around first over a connection that it closes again: only one that has been there for a while will
  // do.
  pid_t backend = 0;
  std::map<pid_t, Clock::time_point> seen;
  REQUIRE(eventually([&] {
    std::istringstream children(
        read_file("/proc/" + std::to_string(postgres.pid()) + "/task/" + std::to_string(postgres.pid()) + "/children"));
    for (pid_t pid = 0; children >> pid;) {
      if (read_file("/proc/" + std::to_string(pid) + "/cmdline").find("[local] SELECT") == std::string::npos) continue;
      if (Clock::now() - seen.try_emplace(pid, Clock::now()).first->second > Millis{500}) backend = pid;
    }
    return backend != 0;
  }));
  const TargetState before = state_of(backend);
  const Traced traced = trace(daemon, backend, {"p:q pg_parse_query sql=+0($arg1):string"}, 100);
  check_count_line(traced, 100);
  for (const Json& event : traced.events) CHECK(event.at("args").at("sql").get<std::string>().size() > 3);
  CHECK(left_unharmed(backend, under_load(before)));
  postgres.stop_load();
  CHECK(postgres.healthy());
}

TEST_CASE("python3 is traced in its allocator and computes what it would have computed") {
  if (!PythonProgram::available()) SKIP_TEST("python3 is not installed");
  Daemon daemon;
  PythonProgram python(
      "import sys\nprint('ready', flush=True)\nsys.stdin.readline()\n"
      "s = 0\nfor i in range(200000):\n  s += len(str(i)) + hash((i, i + 1)) % 7\nprint(s, flush=True)\n");
  PythonProgram reference(
      "import sys\nprint('ready', flush=True)\nsys.stdin.readline()\n"
      "s = 0\nfor i in range(200000):\n  s += len(str(i)) + hash((i, i + 1)) % 7\nprint(s, flush=True)\n");
  Process tracer(probectl_argv(
      daemon, {"trace", "-p", std::to_string(python.pid()), "-e", "p:m libc:malloc n=$arg1:u64", "-o", "/dev/null"}));
  REQUIRE(tracer.next_error_line().value_or("").starts_with("armed 1 probe"));
  python.send("go\n");
  reference.send("go\n");
  const auto got = python.next_line(Millis{60'000});
  const auto wanted = reference.next_line(Millis{60'000});
  REQUIRE(got);
  CHECK(got == wanted);
  CHECK(python.wait() == Exit{0, 0});
  CHECK(tracer.wait() == Exit{0, 0});
}

TEST_CASE("static, static-pie, non-PIE, musl and Go programs are traced with exact counts and right results") {
  Daemon daemon;
  for (const char* name : {"counter-static-pie", "counter-nopie", "counter-musl"}) {
    CAPTURE(name);
    if (!target_runs(name)) {
      report_skip(__FILE__, std::string(name) + " could not be built on this machine");
      continue;
    }
    Target target(name, {"4", "200"});
    RpcClient client(daemon.socket());
    const Json probe = add(client, target.pid(), {"p:w work a=$arg1:s32"}).at(0);
    target.go();
    const TargetReport report = target.finish();
    CHECK(report.ok());
    const Json view = client.call("probe.profile", {{"pid", target.pid()}}).at("probes").at(0);
    CHECK(view.at("hits") == 800);
  }
  if (!target_runs("goworker")) SKIP_TEST("go is not installed");
  Target go("goworker", {"8", "500"});
  RpcClient client(daemon.socket());
  add(client, go.pid(), {"p:w main.work"});
  go.go();
  CHECK(go.finish().ok());
  CHECK(client.call("probe.profile", {{"pid", go.pid()}}).at("probes").at(0).at("hits") == 4000);
}

TEST_CASE("a stripped binary takes file offsets and addresses") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  // The unstripped twin knows where work() is; both have the same code at the same offsets.
  Target named("counter", {"1", "50"});
  const Json probe = add(client, named.pid(), {"p:w work"}).at(0);
  const std::uint64_t address = std::stoull(probe.at("address").get<std::string>(), nullptr, 16);
  std::uint64_t offset = 0;
  for (const std::string& mapping : state_of(named.pid()).executable_mappings) {
    if (mapping.find("/counter") == std::string::npos) continue;
    const std::uint64_t start = std::stoull(mapping, nullptr, 16);
    const std::string maps = read_file("/proc/" + std::to_string(named.pid()) + "/maps");
    const std::size_t line = maps.find(mapping.substr(0, mapping.find(' ')));
    REQUIRE(line != std::string::npos);
    const std::size_t field = maps.find(' ', maps.find(' ', line) + 1) + 1;
    offset = address - start + std::stoull(maps.substr(field), nullptr, 16);
  }
  REQUIRE(offset != 0);
  named.go();
  CHECK(named.finish().ok());
  Target stripped("counter-stripped", {"1", "50"});
  char definition[64];
  std::snprintf(definition, sizeof definition, "p:w counter-stripped:0x%llx a=$arg1:s32 b=$arg2:s64",
                static_cast<unsigned long long>(offset));
  add(client, stripped.pid(), {definition});
  stripped.go();
  CHECK(stripped.finish().ok());
  CHECK(client.call("probe.profile", {{"pid", stripped.pid()}}).at("probes").at(0).at("hits") == 50);
}

}  // namespace probed::live
