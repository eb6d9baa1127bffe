// The harness and the targets themselves, without any tracer: a target that fails here would blame the daemon for
// nothing, and a check that can't fail would prove nothing.
#include "tests/live/harness.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <unistd.h>

#include <thread>

#include "tests/live/servers.hpp"

namespace probed::live {
namespace {

struct UntracedRun {
  const char* name;
  std::vector<std::string> arguments;
  const char* key;  // of its report
  long long value;
};
const UntracedRun kRuns[] = {
    {"counter", {"4", "20000", "20"}, "calls", 80000},
    {"counter-nopie", {"2", "1000", "8"}, "calls", 2000},
    {"counter-static-pie", {"2", "1000", "8"}, "calls", 2000},
    {"counter-stripped", {"2", "1000", "8"}, "calls", 2000},
    {"counter-musl", {"2", "1000", "8"}, "calls", 2000},
    {"counter32", {}, "calls", 1000},
    {"goworker", {"4", "2000"}, "calls", 8000},
    {"forker", {"10"}, "children", 100},
    {"threads", {"500"}, "calls", 500},
    {"signals", {"50"}, "own_breakpoint", 50},
    {"sleeper", {}, "sleepers", 13},
};

TEST_CASE("every target does its own sums right when nobody traces it") {
  for (const UntracedRun& run : kRuns) {
    CAPTURE(run.name);
    if (!target_runs(run.name)) {
      report_skip(__FILE__, std::string(run.name) +
                                " was not built, its compiler is missing here, or this kernel does not execute it");
      continue;
    }
    Target target(run.name, run.arguments);
    target.go();
    const TargetReport report = target.finish();
    CHECK_MESSAGE(report.ok(), report.out, target.errors());
    CHECK(report.value(run.key) == run.value);
  }
}

TEST_CASE("a target that executes itself gets ready a second time under the same pid") {
  Target target("forker", {"--exec"});
  target.go();
  CHECK(target.next_line() == "ready " + std::to_string(target.pid()) + " forker-second");
  target.go();
  const TargetReport report = target.finish();
  CHECK(report.ok());
  CHECK(report.value("calls") == 100);
}

TEST_CASE("dlopener obeys its commands") {
  Target target("dlopener");
  target.send("open\ncall 5\nclose\nloop 10\nquit\n");
  CHECK(target.next_line().value_or("").starts_with("opened 0x"));
  CHECK(target.next_line() == "called 5 85");
  CHECK(target.next_line() == "closed");
  CHECK(target.next_line() == "looped 10 30");
  CHECK(target.finish().ok());
}

TEST_CASE("values prints one JSON object for each call it makes") {
  Target target("values");
  target.go();
  const TargetReport report = target.finish();
  CHECK(report.ok());
  const std::vector<Json> lines = json_lines(report.out);
  REQUIRE(lines.size() == 26);
  CHECK(lines[0].at("globals").at("g_s64") == -1234567890123456789);
  CHECK(lines[1].at("args").at("b") == -2);
}

TEST_CASE("lone surrogates for bytes that are no UTF-8 can be read and stay distinct") {
  CHECK(parse_json(R"("\udcff\udc80")") == parse_json(R"("\uf7ff\uf780")"));
  CHECK(parse_json(R"("\\udcff")") == Json("\\udcff"));          // an escaped backslash is not an escape
  CHECK(parse_json(R"("\ud83d\udc80")") == Json("\U0001F480"));  // a pair is left alone
  CHECK(parse_json("{").is_discarded());
}

TEST_CASE("a target ends by itself when its test goes away") {
  Target target("counter");
  target.close_input();
  CHECK(target.wait() == Exit{3, 0});
}

TEST_CASE("a changed text byte, a new mapping, a new descriptor and a stop all count as harm") {
  Target target("counter");
  const TargetState before = state_of(target.pid());
  CHECK(harm_done(target.pid(), before).empty());
  CHECK(tracer_of(target.pid()) == 0);

  // Write one byte of its text the way a tracer does.
  const std::string line = *before.executable_mappings.begin();
  const unsigned long start = std::stoul(line, nullptr, 16);
  const UniqueFd memory(::open(("/proc/" + std::to_string(target.pid()) + "/mem").c_str(), O_RDWR | O_CLOEXEC));
  if (!memory) SKIP_TEST("writing /proc/PID/mem of a child is not permitted here");
  char byte = 0;
  REQUIRE(::pread(memory.get(), &byte, 1, static_cast<off_t>(start)) == 1);
  const char changed = static_cast<char>(byte ^ 1);
  REQUIRE(::pwrite(memory.get(), &changed, 1, static_cast<off_t>(start)) == 1);
  CHECK(text_differences(target.pid()).size() == 1);
  CHECK(harm_done(target.pid(), before).size() == 2);  // the byte, and the private page
  REQUIRE(::pwrite(memory.get(), &byte, 1, static_cast<off_t>(start)) == 1);
  CHECK(harm_done(target.pid(), before, PageCopies::may_stay).empty());
  CHECK(harm_done(target.pid(), before).size() == 1);  // the bytes are right, the page is still a private copy
}

TEST_CASE("a tracer is found whichever of its threads traces, and its going is seen") {
  Target target("counter");
  pid_t seen = -2;
  std::thread tracer([&] {
    if (::ptrace(PTRACE_SEIZE, target.pid(), nullptr, nullptr) == 0) seen = tracer_of(target.pid());
  });
  tracer.join();  // a tracer thread that ends lets go of its tracees
  CHECK(seen == ::getpid());
  CHECK(eventually([&] { return tracer_of(target.pid()) == 0; }));
  target.go();
  CHECK(target.finish().ok());
}

TEST_CASE("mappings of a library that was loaded since show as a difference") {
  Target target("dlopener");
  const TargetState before = state_of(target.pid());
  target.send("open\n");
  target.next_line();
  CHECK(harm_done(target.pid(), before).size() == 1);
  target.send("close\n");
  target.next_line();
  CHECK(left_unharmed(target.pid(), before));
}

TEST_CASE("a process that is gone is reported as gone") {
  Target target("counter");
  const TargetState before = state_of(target.pid());
  target.signal(SIGKILL);
  CHECK(target.wait() == Exit{-1, SIGKILL});
  CHECK(harm_done(target.pid(), before) == std::vector<std::string>{"the target is gone"});
}

TEST_CASE("eventually gives up at its deadline and says whether the condition came true") {
  int asked = 0;
  CHECK(eventually([&] { return ++asked == 3; }));
  CHECK_FALSE(eventually([] { return false; }, Millis{30}));
}

TEST_CASE("commands report output, errors, exit code and deadline") {
  const CommandResult result = run_command({"/bin/sh", "-c", "echo out; echo err >&2; exit 7"});
  CHECK(result.exit == Exit{7, 0});
  CHECK(result.out == "out\n");
  CHECK(result.err == "err\n");
  CHECK(run_command({"/bin/sleep", "100"}, {}, Millis{50}).exit == Exit{-1, SIGKILL});
  CHECK(run_command({"/no/such/program"}).exit == Exit{127, 0});
}

TEST_CASE("a redis-server with load on it answers, and goes away with its test") {
  if (!RedisServer::available()) SKIP_TEST("redis-server is not installed");
  RedisServer server;
  server.start_load();
  CHECK(eventually([&] { return server.command({"GET", "key:__rand_int__"}).starts_with("$3"); }));
  server.stop_load();
  CHECK(server.command({"SET", "a", "bc"}) == "+OK");
  CHECK(server.command({"GET", "a"}) == "$2\r\nbc");
}

TEST_CASE("an nginx with load on it serves its page") {
  if (!NginxServer::available()) SKIP_TEST("nginx is not installed");
  NginxServer server;
  CHECK(server.worker() > 0);
  HttpLoad load(server);
  CHECK(eventually([&] { return load.good() > 20; }));
  load.stop();
  CHECK(load.bad() == 0);
}

TEST_CASE("a postgres with load on it answers") {
  if (!PostgresServer::available()) SKIP_TEST("postgres or pgbench is not installed");
  PostgresServer server;
  server.start_load();
  CHECK(server.healthy());
}

TEST_CASE("a python3 program gets ready and reads its input") {
  if (!PythonProgram::available()) SKIP_TEST("python3 is not installed");
  PythonProgram program("print('ready'); print(int(input()) * 2)");
  program.send("21\n");
  CHECK(program.next_line() == "42");
  CHECK(program.wait() == Exit{0, 0});
}

TEST_CASE("no child is left when everything was torn down") { CHECK(children_left() == std::vector<std::string>{}); }

}  // namespace
}  // namespace probed::live
