// probectl as scripts and people use it: exit codes, errors, every way to begin and to end a trace, and what is left.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <stdexcept>
#include <thread>

#include "proto/base/fd.hpp"
#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

namespace fs = std::filesystem;

using Arguments = std::vector<std::string>;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  for (std::size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
    out.push_back(text.substr(at, end - at));
  return out;
}

Arguments operator+(Arguments left, const Arguments& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

struct Account {
  long long hits = -1, delivered = -1, missed = -1;
};
// The "hits=H delivered=D missed=M" line.
Account account_of(const std::string& errors) {
  std::smatch found;
  if (!std::regex_search(errors, found, std::regex("hits=(\\d+) delivered=(\\d+) missed=(\\d+)\n"))) return {};
  return {std::stoll(found[1]), std::stoll(found[2]), std::stoll(found[3])};
}

// A `probectl trace` at work.
class Trace {
 public:
  Trace(const Daemon& daemon, const Arguments& arguments)
      : process_(probectl_argv(daemon, Arguments{"trace"} + arguments)) {}
  explicit Trace(const Arguments& arguments)
      : process_(Arguments{required_environment("PROBECTL_BIN"), "trace"} + arguments) {}
  Process& process() { return process_; }

  // The line that begins with "armed"; "" when the trace ended without one.
  std::string armed() {
    while (const auto line = process_.next_error_line(Millis{20'000}))
      if (line->starts_with("armed ")) return *line;
    return "";
  }
  std::optional<Exit> end(int number) {
    process_.signal(number);
    return process_.wait(Millis{20'000});
  }
  Account account() { return account_of(process_.errors()); }
  std::size_t printed() { return lines_of(process_.output()).size(); }

 private:
  Process process_;
};

std::string text_of(pid_t pid) { return std::to_string(pid); }

// Gone, or a zombie that waits for a reaper that isn't us.
bool has_ended(pid_t pid) {
  const std::string stat = read_file("/proc/" + text_of(pid) + "/stat");
  return stat.empty() || stat.substr(stat.rfind(')') + 2, 1) == "Z";
}

// ---- exit codes and errors ------------------------------------------------------------------------------------------

struct Outcome {
  Arguments arguments;
  int code;
  std::string reason;  // with --json; "": there is no error
};

TEST_CASE("exit codes: 0 for what was done, 1 for what failed, 2 for wrong usage; an error is one object with --json") {
  Daemon daemon;
  Watched target("family");
  const std::string pid = text_of(target.pid());
  const Outcome outcomes[] = {
      {{"--version"}, 0, ""},
      {{"--help"}, 0, ""},
      {{"trace", "--help"}, 0, ""},
      {{"list"}, 0, ""},
      {{"ps"}, 0, ""},
      {{"status"}, 0, ""},
      {{"remove", "999999"}, 0, ""},  // already gone
      {{"functions", "-p", pid, "work"}, 0, ""},
      {{"add", "-p", pid, "wrok"}, 1, "no-such-symbol"},
      {{"add", "-p", pid, "work %nosuch"}, 1, "bad-definition"},
      {{"add", "-p", pid, "work", "--filter", "a =="}, 1, "bad-filter"},
      {{"add", "-p", pid, "r work+4"}, 1, "bad-definition"},
      {{"trace", "-p", pid, "-e", "work+0x1"}, 1, "not-instruction-boundary"},
      {{"trace", "-p", "4194304", "-e", "work"}, 1, "no-such-process"},
      {{"trace", "-n", "no-such-program-anywhere", "-e", "work"}, 1, "no-such-process"},
      {{"trace", "-e", "work", "--", "/no/such/program"}, 1, "bad-params"},
      {{"attach", "4194304"}, 1, "no-such-process"},
      {{"detach", pid}, 1, "not-attached"},
      {{"format", "nobody"}, 1, "no-such-probe"},
      {{"remove", "nobody"}, 1, "no-such-probe"},
      {{"enable", "nobody"}, 1, "no-such-probe"},
      {{"list", "-p", "4194304"}, 1, "no-such-process"},
      {{"profile", "-p", "4194304"}, 1, "no-such-process"},
      {{"stream", "-p", "4194304"}, 1, "no-such-process"},
      {{"functions", "-p", pid, "no_such_*"}, 1, "no-such-symbol"},
      {{"functions", "-p", pid, "nowhere:*"}, 1, "no-such-module"},
      {{"vars", "-p", pid, "wrok"}, 1, "no-such-symbol"},
      {{}, 2, "bad-params"},
      {{"dance"}, 2, "bad-params"},
      {{"list", "--nosuch"}, 2, "bad-params"},
      {{"add", "-p", pid}, 2, "bad-params"},
      {{"add", "work"}, 2, "bad-params"},
      {{"trace", "-p", pid}, 2, "bad-params"},
      {{"trace", "-e", "work"}, 2, "bad-params"},
      {{"trace", "-p", pid, "-n", "family", "-e", "work"}, 2, "bad-params"},
      {{"trace", "-p", "zero", "-e", "work"}, 2, "bad-params"},
      {{"trace", "-p", pid, "-e", "work", "--count", "0"}, 2, "bad-params"},
      {{"trace", "-p", pid, "-e", "work", "--format", "xml"}, 2, "bad-params"},
      {{"optimize", "maybe"}, 2, "bad-params"},
      {{"remove"}, 2, "bad-params"},
      {{"remove", "--all", "one"}, 2, "bad-params"},
  };
  for (const Outcome& row : outcomes) {
    CAPTURE(Json(row.arguments).dump());
    const CommandResult plain = probectl(daemon, row.arguments);
    CAPTURE(plain.err);
    CHECK(plain.exit == Exit{row.code, 0});
    const CommandResult json = probectl(daemon, row.arguments + Arguments{"--json"});
    if (!row.arguments.empty() && row.arguments.back() == "/no/such/program")
      continue;  // --json is the command's there
    CAPTURE(json.err);
    CHECK(json.exit == Exit{row.code, 0});
    if (row.reason.empty()) continue;
    CHECK(plain.err.starts_with("probectl: "));
    CHECK(plain.out.empty());
    std::vector<Json> errors = json_lines(json.err);
    std::erase_if(errors, [](const Json& line) { return !line.is_object() || !line.contains("error"); });
    REQUIRE(errors.size() == 1);
    const Json error = errors[0].at("error");
    CHECK(error.at("reason") == row.reason);
    CHECK(!error.at("message").get<std::string>().empty());
    CHECK(!error.value("hint", "").empty());
  }
  CHECK(target.unharmed());
}

TEST_CASE("an error in a definition shows the definition with a caret under the fault, and its column with --json") {
  Daemon daemon;
  Watched target("family");
  const Arguments command = {"add", "-p", text_of(target.pid()), "p:x work a=%nosuch"};
  const CommandResult plain = probectl(daemon, command);
  CHECK(plain.err.find("\n  p:x work a=%nosuch\n             ^\n") != std::string::npos);
  const CommandResult json = probectl(daemon, command + Arguments{"--json"});
  CHECK(parse_json(json.err).at("error").at("column") == 11);
}

TEST_CASE("without a daemon: everything but trace says so, and so does trace with --no-spawn") {
  TempDir dir;
  const std::string nowhere = dir / "none";
  for (const Arguments& arguments :
       {Arguments{"list"}, {"status"}, {"add", "-p", "2", "work"}, {"trace", "--no-spawn", "-p", "2", "-e", "work"}}) {
    const CommandResult result =
        run_command(Arguments{required_environment("PROBECTL_BIN"), "--socket", nowhere} + arguments);
    CHECK(result.exit == Exit{1, 0});
    CHECK(result.err.find(nowhere) != std::string::npos);
  }
}

// The default socket is the machine's: a mount namespace has one of its own. $1 probed, $2 probectl, $3 what is done.
const char* const kOwnRun = R"(
mount -t tmpfs none /run && mkdir -m 755 /run/probed || exit 99
"$1" 2>/dev/null & daemon=$!
unset PROBED_SOCKET XDG_RUNTIME_DIR
until "$2" status >/dev/null 2>&1; do kill -0 $daemon || exit 98; sleep 0.02; done
as_nobody() { setpriv --reuid=nobody --regid=nogroup --clear-groups -- "$@"; }
eval "$3"; status=$?
kill $daemon 2>/dev/null; wait $daemon
exit $status)";

TEST_CASE("at the default socket a daemon that isn't for this user is as good as none; one that was named is not") {
  if (::geteuid() != 0) SKIP_TEST("needs root");
  const std::string probectl = required_environment("PROBECTL_BIN");
  SpawnOptions as_nobody;
  as_nobody.user = "nobody";
  as_nobody.directory = "/";
  if (!run_command({probectl, "--version"}, as_nobody).ok()) SKIP_TEST("nobody may not execute " + probectl);
  const auto in_own_run = [&](const std::string& what) {
    return run_command({"/usr/bin/unshare", "--mount", "/bin/sh", "-c", kOwnRun, "sh",
                        required_environment("PROBED_BIN"), probectl, what});
  };
  const CommandResult possible = in_own_run("true");
  if (possible.exit == Exit{1, 0} || possible.exit == Exit{99, 0}) SKIP_TEST("no mount namespace: " + possible.err);
  REQUIRE_MESSAGE(possible.ok(), possible.err);
  const std::string refused = "this user may not use the daemon at /run/probed/probed.sock; starting a private one";
  const CommandResult traced = in_own_run(R"(as_nobody "$2" trace -e libc:write -- /bin/echo hello)");
  CHECK_MESSAGE(traced.ok(), traced.err);
  CHECK_MESSAGE(traced.err.find(refused + " for this trace") != std::string::npos, traced.err);
  CHECK_MESSAGE(traced.err.find("hits=1 delivered=1 missed=0") != std::string::npos, traced.err);
  const CommandResult looked_up = in_own_run(R"(as_nobody /bin/sh -c '"$0" functions -p $$ libc:fwrite' "$2")");
  CHECK_MESSAGE(looked_up.ok(), looked_up.err);
  CHECK_MESSAGE(looked_up.err.find(refused + " for this look-up") != std::string::npos, looked_up.err);
  // A daemon that was killed leaves its socket.
  const CommandResult stale =
      in_own_run(R"(kill -9 $daemon; wait $daemon; "$2" trace -e libc:write -- /bin/echo hello)");
  CHECK_MESSAGE(stale.ok(), stale.err);
  CHECK_MESSAGE(stale.err.find("no daemon answers at /run/probed/probed.sock; starting") != std::string::npos,
                stale.err);
  for (const std::string named :
       {R"(as_nobody "$2" --socket /run/probed/probed.sock trace -e libc:write -- /bin/echo hello)",
        R"(as_nobody env PROBED_SOCKET=/run/probed/probed.sock "$2" trace -e libc:write -- /bin/echo hello)",
        R"(as_nobody "$2" trace --no-spawn -e libc:write -- /bin/echo hello)", R"(as_nobody "$2" list)"}) {
    CAPTURE(named);
    const CommandResult result = in_own_run(named);
    CHECK(result.exit == Exit{1, 0});
    CHECK_MESSAGE(result.err.find("Permission denied (run as root; probed --socket-mode 0660") != std::string::npos,
                  result.err);
    CHECK(result.out == "");
  }
}

TEST_CASE("a daemon that refuses its options at the default socket leaves nothing in /run") {
  if (::geteuid() != 0) SKIP_TEST("needs root");
  const char* const try_it = R"(
mount -t tmpfs none /run || exit 99
unset PROBED_SOCKET XDG_RUNTIME_DIR
"$1" --socket-group no-such-group-here && exit 97
ls -A /run)";
  const CommandResult refused =
      run_command({"/usr/bin/unshare", "--mount", "/bin/sh", "-c", try_it, "sh", required_environment("PROBED_BIN")});
  if (refused.exit == Exit{1, 0} || refused.exit == Exit{99, 0}) SKIP_TEST("no mount namespace: " + refused.err);
  CHECK(refused.ok());
  CHECK_MESSAGE(refused.err.find("no-such-group-here") != std::string::npos, refused.err);
  CHECK(refused.out == "");
}

TEST_CASE("the socket may be named by the environment") {
  Daemon daemon;
  SpawnOptions options;
  options.environment = {"PROBED_SOCKET=" + daemon.socket()};
  CHECK(run_command({required_environment("PROBECTL_BIN"), "status"}, options).ok());
}

TEST_CASE("with --json every sub-command prints one object a line") {
  Daemon daemon;
  Watched target("family");
  const std::string pid = text_of(target.pid());
  const Arguments commands[] = {
      {"attach", pid},
      {"ps"},
      {"add", "-p", pid, "p:a work", "p:b work+0x" SECOND},
      {"list"},
      {"profile"},
      {"format", "a"},
      {"disable", "a"},
      {"enable", "a"},
      {"functions", "-p", pid, "w*"},
      {"status"},
      {"disarm"},
      {"arm"},
      {"optimize", "off"},
      {"remove", "a", "b"},
      {"detach", pid},
  };
  for (const Arguments& command : commands) {
    CAPTURE(Json(command).dump());
    const CommandResult result = probectl(daemon, command + Arguments{"--json"});
    CHECK_MESSAGE(result.ok(), result.err);
    CHECK(!result.out.empty());
    for (const std::string& line : lines_of(result.out)) CHECK(parse_json(line).is_object());
    CHECK(result.out.ends_with("\n"));
  }
  CHECK(target.unharmed());
}

TEST_CASE("a name that is only part of a probe's is told with those that it is part of") {
  Daemon daemon;
  Watched target("family");
  CHECK(probectl(daemon, {"add", "-p", text_of(target.pid()), "work", "work+0x" SECOND}).ok());
  for (const Arguments& command : {Arguments{"stream", "work"}, {"remove", "ork"}, {"enable", "p_work"}}) {
    const CommandResult result = probectl(daemon, command);
    CHECK(result.exit == Exit{1, 0});
    CHECK_MESSAGE(result.err.find("there is probes/p_work_0 (id ") != std::string::npos, result.err);
  }
  CHECK(probectl(daemon, {"remove", "--all"}).ok());
  CHECK(target.unharmed());
}

// ---- the ends of a trace --------------------------------------------------------------------------------------------

struct Stop {
  std::string name;
  int signal;
};
const Stop kStops[] = {{"^C", SIGINT}, {"SIGTERM", SIGTERM}, {"SIGHUP", SIGHUP}};

// Ignored when the tests run under nohup: probectl would respect that.
const auto kHangup = ::signal(SIGHUP, SIG_DFL);

TEST_CASE("a trace that is interrupted has restored the target before it exits") {
  Daemon daemon;
  for (const Stop& stop : kStops) {
    CAPTURE(stop.name);
    Watched target("family");
    Trace trace(daemon, {"-p", text_of(target.pid()), "-e", "work", "-e", "work+0x" SECOND, "-e", "libc:getpid"});
    CHECK(trace.armed() == "armed 3 probes in PID " + text_of(target.pid()));
    CHECK(tracer_of(target.pid()) == daemon.pid());
    CHECK(target.ask("call 4") == "called 4");
    CHECK(eventually([&] { return trace.printed() == 8; }));
    CHECK(trace.end(stop.signal) == Exit{0, 0});
    CHECK(target.harm() == "");  // at once
    CHECK(trace.account().hits == 8);
    CHECK(target.ask("call 2") == "called 2");
    CHECK(trace.printed() == 8);
  }
}

TEST_CASE(
    "a trace that is interrupted in full flow has restored the target before it exits, and accounts for each hit") {
  Daemon daemon;
  Watched counter("counter", {"4", "0"});
  counter.target.go();
  REQUIRE(counter.runs_threads(5));
  Trace trace(daemon, {"-p", text_of(counter.pid()), "-e", "work", "-e", "work+0x" SECOND});
  CHECK(trace.armed() != "");
  CHECK(eventually([&] { return trace.printed() > 1000; }));
  CHECK(trace.end(SIGINT) == Exit{0, 0});
  CHECK(counter.harm() == "");
  const Account account = trace.account();
  CHECK(account.hits == account.delivered + account.missed);
  CHECK(account.delivered == static_cast<long long>(trace.printed()));
  counter.target.go();
  CHECK(counter.target.finish().ok());
}

TEST_CASE("--count N prints exactly N events, however many threads hit, and lets the target go") {
  Daemon daemon;
  Watched counter("counter", {"8", "0"});
  counter.target.go();
  REQUIRE(counter.runs_threads(9));
  for (const int count : {1, 7, 1000}) {
    CAPTURE(count);
    Trace trace(daemon,
                {"-p", text_of(counter.pid()), "-e", "work", "-e", "work+0x" SECOND, "--count", std::to_string(count)});
    CHECK(trace.process().wait(Millis{20'000}) == Exit{0, 0});
    CHECK(counter.harm() == "");
    CHECK(trace.printed() == static_cast<std::size_t>(count));
    const Account account = trace.account();
    CHECK(account.hits == count);
    CHECK(account.delivered == count);
    CHECK(account.missed == 0);
  }
  counter.target.go();
  CHECK(counter.target.finish().ok());
}

// A terminal, and what has been written to it. Give its other end to a program as descriptor 3.
class Terminal {
 public:
  Terminal() : master_(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
    if (!master_ || ::grantpt(master_.get()) != 0 || ::unlockpt(master_.get()) != 0)
      throw std::runtime_error("no pseudo-terminal");
    slave_.reset(::open(::ptsname(master_.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
  }
  ~Terminal() { text(); }
  int fd() const { return slave_.get(); }
  // Once the program has it.
  void start() {
    slave_.reset();
    reader_ = std::thread([this] {
      char buffer[65536];
      // EIO: nobody has it open for writing any more.
      for (ssize_t got; (got = ::read(master_.get(), buffer, sizeof buffer)) > 0;)
        text_.append(buffer, static_cast<std::size_t>(got));
    });
  }
  // When the program has ended.
  const std::string& text() {
    if (reader_.joinable()) reader_.join();
    return text_;
  }

 private:
  UniqueFd master_, slave_;
  std::string text_;
  std::thread reader_;
};

// Events that were printed behind one that is later.
long long out_of_order(const std::string& text, std::size_t& events) {
  static const std::regex time("\\] (\\d+)\\.(\\d{9}): ");
  long long latest = 0, wrong = 0;
  for (std::sregex_iterator at(text.begin(), text.end(), time), end; at != end; ++at, ++events) {
    const long long now = std::stoll((*at)[1]) * 1'000'000'000 + std::stoll((*at)[2]);
    wrong += now < latest ? 1 : 0;
    latest = std::max(latest, now);
  }
  return wrong;
}

TEST_CASE("at a terminal the events of several threads are in the order of their times, but for those that it counts") {
  Daemon daemon;
  Watched counter("counter", {"4", "1500"});
  Terminal terminal;
  SpawnOptions options;
  options.pass_fds = {terminal.fd()};
  Process trace(Arguments{"/bin/sh", "-c", "exec \"$@\" >&3", "sh"} +
                    probectl_argv(daemon, {"trace", "-p", text_of(counter.pid()), "-e", "work"}),
                options);
  terminal.start();
  CHECK(eventually([&] { return trace.errors().find("armed 1 probe") != std::string::npos; }));
  counter.target.go();
  CHECK(counter.target.finish().ok());
  CHECK(trace.wait() == Exit{0, 0});
  const std::string errors = trace.errors();
  std::smatch told;
  const bool some = std::regex_search(errors, told, std::regex("(\\d+) events? came more than"));
  std::size_t events = 0;
  CHECK(out_of_order(terminal.text(), events) == (some ? std::stoll(told[1]) : 0));
  CHECK(events == 6000);
  CHECK(account_of(errors).delivered == 6000);
}

TEST_CASE("--duration S ends a trace after S seconds") {
  Daemon daemon;
  Watched target("family");
  const auto start = Clock::now();
  Trace trace(daemon, {"-p", text_of(target.pid()), "-e", "work", "--duration", "0.5"});
  CHECK(trace.armed() != "");
  CHECK(target.ask("call 2") == "called 2");
  CHECK(trace.process().wait() == Exit{0, 0});
  CHECK(Clock::now() - start >= Millis{500});
  CHECK(target.harm() == "");
  CHECK(trace.account().hits == 2);
}

TEST_CASE("a trace ends with its target, with every event printed") {
  Daemon daemon;
  Watched counter("counter", {"4", "500"});
  Trace trace(daemon, {"-p", text_of(counter.pid()), "-e", "work", "--json"});
  CHECK(trace.armed() != "");
  counter.target.go();
  CHECK(counter.target.finish().ok());
  CHECK(trace.process().wait() == Exit{0, 0});
  CHECK(trace.account().hits == 2000);
  CHECK(trace.account().missed == 0);
  CHECK(json_lines(trace.process().output()).size() == 2000);
}

TEST_CASE("a trace says how many calls of its return probes ended without a return") {
  for (const bool ends : {false, true}) {
    CAPTURE(ends);
    Daemon daemon;
    Watched returns("returns");
    Trace trace(daemon, {"-p", text_of(returns.pid()), "-e", "r:gone deep n", "-e", "r:back catcher n"});
    CHECK(trace.armed() != "");
    CHECK(returns.ask("throw 5") == "throw done 5");
    if (ends) {
      returns.target.send("quit\n");
      CHECK(returns.target.finish().ok());
    } else {
      trace.process().signal(SIGINT);
    }
    CHECK(trace.process().wait() == Exit{0, 0});
    CHECK(trace.account().hits == 1);
    const std::string said = trace.process().errors();
    CHECK_MESSAGE(said.find("probectl: 6 calls ended without a return") != std::string::npos, said);
    CHECK_MESSAGE(said.find("unmatched") == std::string::npos, said);
  }
}

TEST_CASE("a count that is used up between two return probes of a function: the other one's call has returned, too") {
  Daemon daemon;
  for (const char* count : {"1", "2", "3"}) {
    Watched target("family");
    Trace trace(daemon, {"-p", text_of(target.pid()), "-e", "r:a work", "-e", "r:b work", "--count", count});
    REQUIRE(trace.armed() != "");
    CHECK(target.ask("call 9") == "called 9");
    CHECK(trace.process().wait() == Exit{0, 0});
    CHECK_MESSAGE(trace.process().errors().find("without a return") == std::string::npos, trace.process().errors());
    CHECK(target.unharmed());
  }
}

TEST_CASE("a trace ends when its target executes another program") {
  Daemon daemon;
  Watched target("family");
  Trace trace(daemon, {"-p", text_of(target.pid()), "-e", "work"});
  CHECK(trace.armed() != "");
  CHECK(target.ask("call 3") == "called 3");
  CHECK(target.ask("exec") == "ready " + text_of(target.pid()) + " family");
  CHECK(trace.process().wait() == Exit{0, 0});
  CHECK(trace.account().hits == 3);
  CHECK(tracer_of(target.pid()) == 0);
  CHECK(target.ask("call 3") == "called 3");
}

TEST_CASE("a trace whose reader goes away cleans up and ends") {
  Daemon daemon;
  Watched counter("counter", {"2", "0"});
  counter.target.go();
  REQUIRE(counter.runs_threads(3));
  const CommandResult result =
      run_command({"/bin/sh", "-c", R"("$0" --socket "$1" trace -p "$2" -e work | head -n 3)",
                   required_environment("PROBECTL_BIN"), daemon.socket(), text_of(counter.pid())});
  CHECK(lines_of(result.out).size() == 3);
  CHECK(counter.unharmed());
  counter.target.go();
  CHECK(counter.target.finish().ok());
}

TEST_CASE("a trace that is killed in mid-stream takes its probes with it, and nothing else") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"4", "0"}), other("family");
  const Json kept = add(client, other.pid(), {"p:kept work"}).at(0);
  const Json beside = add(client, counter.pid(), {"p:beside " ORDINARY_SHAPE}).at(0);
  counter.target.go();
  REQUIRE(counter.runs_threads(5));
  Trace trace(daemon, {"-p", text_of(counter.pid()), "-e", "work"});
  CHECK(trace.armed() != "");
  CHECK(eventually([&] { return trace.printed() > 100; }));
  CHECK(trace.end(SIGKILL) == Exit{-1, SIGKILL});
  CHECK(eventually([&] { return list_probes(client).size() == 2; }));
  CHECK(has_breakpoint(counter.pid(), address_of(beside)));
  client.call("daemon.optimize", {{"enabled", false}});  // a jump changes more than one byte
  CHECK(eventually([&] { return text_differences(counter.pid()).size() == 1; }));
  CHECK(other.ask("call 5") == "called 5");
  CHECK(counts_of(client, kept).hits == 5);
  counter.target.go();
  CHECK(counter.target.finish().ok());
}

// ---- ways to begin --------------------------------------------------------------------------------------------------

// A counter under a name that no other process has.
struct NamedCounter {
  TempDir dir;
  std::string name = "pt-" + text_of(::getpid());
  std::vector<std::unique_ptr<Process>> processes;
  NamedCounter() { fs::copy_file(target_path("counter"), dir / name); }
  Process& start(const Arguments& arguments) {
    processes.push_back(std::make_unique<Process>(Arguments{dir / name} + arguments));
    REQUIRE(processes.back()->next_line().value_or("").starts_with("ready "));
    return *processes.back();
  }
};

TEST_CASE("-n NAME traces the one process of that name; with two of them it is told to choose") {
  Daemon daemon;
  NamedCounter named;
  Process& first = named.start({"1", "20"});
  {
    Process& second = named.start({"1", "20"});
    const CommandResult both = probectl(daemon, {"trace", "-n", named.name, "-e", "work"});
    CHECK(both.exit == Exit{1, 0});
    CHECK(both.err.find(text_of(first.pid())) != std::string::npos);
    CHECK(both.err.find(text_of(second.pid())) != std::string::npos);
    named.processes.pop_back();
  }
  Trace trace(daemon, {"-n", named.name, "-e", "work"});
  CHECK(trace.armed() == "armed 1 probe in PID " + text_of(first.pid()));
  first.send("go\n");
  CHECK(first.wait() == Exit{0, 0});
  CHECK(trace.process().wait() == Exit{0, 0});
  CHECK(trace.account().hits == 20);
}

TEST_CASE("-- CMD is traced from its first instruction to its end, its own input and output untouched") {
  Daemon daemon;
  TempDir dir;
  const std::string file = dir / "events";
  Trace trace(daemon, {"-e", "p:first main", "-e", "p:call work i=$arg2:s64", "-e", "libc:getppid", "--json", "-o",
                       file, "--", target_path("counter"), "2", "50", "10"});
  CHECK(trace.armed().starts_with("armed 3 probes in PID "));
  CHECK(trace.process().next_line().value_or("").starts_with("ready "));
  trace.process().send("go\n");
  CHECK(trace.process().wait(Millis{20'000}) == Exit{0, 0});
  CHECK(trace.process().output().find("\nresult ok\n") != std::string::npos);
  const std::vector<Json> events = json_lines(read_file(file));
  const auto count = [&](const std::string& probe) {
    return std::ranges::count_if(events, [&](const Json& event) { return event.at("probe") == probe; });
  };
  CHECK(count("probes/first") == 1);
  CHECK(count("probes/call") == 100);
  CHECK(count("probes/p_getppid_0") == 20);
  CHECK(trace.account().hits == 121);
}

TEST_CASE("-- CMD goes on untraced and unharmed when the trace ends first") {
  Daemon daemon;
  Trace trace(daemon, {"-e", "work", "--count", "5", "-o", "/dev/null", "--", target_path("counter"), "1", "0"});
  const std::string armed = trace.armed();
  REQUIRE(armed.starts_with("armed 1 probe in PID "));
  const pid_t pid = std::stoi(armed.substr(21));
  CHECK(trace.process().next_line().value_or("").starts_with("ready "));
  trace.process().send("go\n");
  CHECK(trace.process().wait(Millis{20'000}) == Exit{0, 0});
  CHECK(trace.account().hits == 5);
  CHECK(tracer_of(pid) == 0);
  CHECK(joined(text_differences(pid)) == "");
  trace.process().send("stop\n");
  CHECK(eventually([&] { return has_ended(pid); }));
}

TEST_CASE("-- CMD that ends by the signal which ends the trace, as by ^C at a terminal: that is said") {
  Daemon daemon;
  for (int i = 0; i < 4; ++i) {
    Trace trace(daemon, {"-e", "p:w work", "--", target_path("family")});
    const std::string armed = trace.armed();
    REQUIRE(armed != "");
    const pid_t pid = std::stoi(armed.substr(armed.find("PID ") + 4));
    ::kill(pid, SIGINT);
    trace.process().signal(SIGINT);
    CHECK(trace.process().wait() == Exit{0, 0});
    CHECK_MESSAGE(trace.process().errors().find("ended (killed by signal 2)") != std::string::npos,
                  trace.process().errors());
  }
}

TEST_CASE("a trace of a process that is stopped, or has children already, says so") {
  Daemon daemon;
  Target sleeper("sleeper");
  const auto traced = [&](pid_t pid, const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"trace", "-p", std::to_string(pid), "-e", "libc:getppid", "--duration", "0.05"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CommandResult result = probectl(daemon, arguments);
    CHECK_MESSAGE(result.ok(), result.err);
    return result.err;
  };
  const std::string pid = std::to_string(sleeper.pid());
  CHECK(traced(sleeper.pid(), {"--follow-fork"}).find("PID " + pid + " is stopped") == std::string::npos);
  sleeper.signal(SIGSTOP);
  REQUIRE(eventually([&] { return thread_states(sleeper.pid())[sleeper.pid()] == 'T'; }));
  CHECK(traced(sleeper.pid(), {}).find("PID " + pid + " is stopped") != std::string::npos);
  sleeper.signal(SIGCONT);
  Process parent({"/bin/sh", "-c", "sleep 1000 & echo $!; read line; kill $!; exit 0"});
  const std::string child = parent.next_line().value_or("");
  const std::string said = traced(parent.pid(), {"--follow-fork"});
  CHECK_MESSAGE(said.find("not followed: trace it by its own PID (" + child + ")") != std::string::npos, said);
  CHECK(traced(parent.pid(), {}).find("followed") == std::string::npos);
  parent.send("end\n");
  CHECK(parent.wait() == Exit{0, 0});
}

TEST_CASE("-- CMD whose probes are refused does not run") {
  Daemon daemon;
  TempDir dir;
  const std::string proof = dir / "proof";
  const CommandResult result =
      probectl(daemon, {"trace", "-e", "no_such_function_anywhere", "--", "/bin/sh", "-c", "touch " + proof});
  CHECK(result.exit == Exit{1, 0});
  CHECK(result.err.find("no_such_function_anywhere") != std::string::npos);
  CHECK_FALSE(fs::exists(proof));
  CHECK(probectl(daemon, {"ps"}).out.empty());
}

TEST_CASE("a trace without a daemon starts a private one, says so, and leaves nothing of it behind") {
  TempDir dir;
  SpawnOptions options;
  options.environment = {"XDG_RUNTIME_DIR=" + dir.path()};
  for (const bool interrupted : {true, false}) {
    CAPTURE(interrupted);
    Watched target("family");
    Process trace({required_environment("PROBECTL_BIN"), "--socket", dir / "none", "trace", "-p", text_of(target.pid()),
                   "-e", "work", "--json"},
                  options);
    const std::string note = trace.next_error_line().value_or("");
    CHECK(note.find("private") != std::string::npos);
    CHECK(trace.next_error_line() == "armed 1 probe in PID " + text_of(target.pid()));
    const pid_t daemon = tracer_of(target.pid());
    REQUIRE(daemon > 0);
    CHECK(daemon != trace.pid());
    CHECK(target.ask("call 3") == "called 3");
    CHECK(eventually([&] { return json_lines(trace.output()).size() == 3; }));
    trace.signal(interrupted ? SIGINT : SIGKILL);
    CHECK(trace.wait() == (interrupted ? Exit{0, 0} : Exit{-1, SIGKILL}));
    if (interrupted) {
      CHECK(has_ended(daemon));
      CHECK(target.harm() == "");
      CHECK(fs::is_empty(dir.path()));
    }
    CHECK(eventually([&] { return has_ended(daemon); }));  // a killed probectl's daemon notices by the end of its pipe
    CHECK(fs::is_empty(dir.path()));
    CHECK(target.unharmed());
    CHECK(target.ask("call 3") == "called 3");
  }
}

// ---- output ---------------------------------------------------------------------------------------------------------

TEST_CASE("-o FILE gets the events and leaves the terminal quiet") {
  Daemon daemon;
  TempDir dir;
  Watched target("family");
  const std::string file = dir / "events";
  Trace trace(daemon, {"-p", text_of(target.pid()), "-e", "p:w work", "-o", file, "--count", "6"});
  CHECK(trace.armed() != "");
  CHECK(target.ask("call 6") == "called 6");
  CHECK(trace.process().wait() == Exit{0, 0});
  CHECK(trace.process().output().empty());
  CHECK(lines_of(read_file(file)).size() == 6);
  const CommandResult refused =
      probectl(daemon, {"trace", "-p", text_of(target.pid()), "-e", "work", "-o", dir / "no/such/folder"});
  CHECK(refused.exit == Exit{1, 0});
  CHECK(target.unharmed());
}

TEST_CASE("-o FILE is opened anew on SIGHUP, so that it can be renamed without a lost event") {
  Daemon daemon;
  Watched target("family");
  TempDir dir;
  const std::string file = dir / "events", old = dir / "events.1";
  REQUIRE(probectl(daemon, {"add", "-p", std::to_string(target.pid()), "p:one work"}).ok());
  Process stream(probectl_argv(daemon, {"stream", "one", "-o", file}));
  REQUIRE(eventually([&] { return probectl(daemon, {"status"}).out.find("subscriptions: 1\n") != std::string::npos; }));
  CHECK(target.ask("call 3") == "called 3");
  CHECK(eventually([&] { return lines_of(read_file(file)).size() == 3; }));
  fs::rename(file, old);
  CHECK(target.ask("call 4") == "called 4");
  stream.signal(SIGHUP);
  CHECK(eventually([&] { return fs::exists(file); }));
  CHECK(target.ask("call 5") == "called 5");
  // Truncated by somebody else: no hole of zeros in front.
  CHECK(eventually([&] { return lines_of(read_file(file) + read_file(old)).size() == 12; }));
  fs::resize_file(file, 0);
  CHECK(target.ask("call 1") == "called 1");
  CHECK(eventually([&] { return lines_of(read_file(file)).size() == 1; }));
  CHECK(read_file(file).find('\0') == std::string::npos);
  stream.signal(SIGTERM);
  CHECK_MESSAGE((stream.wait() == Exit{0, 0}), stream.errors());
  CHECK(stream.errors().find("delivered=13 missed=0") != std::string::npos);
  CHECK(probectl(daemon, {"remove", "--all"}).ok());
}

TEST_CASE("trace --json prints the daemon's event objects, one a line; --filter counts only what passes") {
  Daemon daemon;
  Watched target("family");
  Trace trace(daemon,
              {"-p", text_of(target.pid()), "-e", "p:w work b=$arg2:s64", "--filter", "b >= 5 && b != 7", "--json"});
  CHECK(trace.armed() != "");
  CHECK(target.ask("call 10") == "called 10");
  CHECK(eventually([&] { return trace.printed() == 4; }));
  CHECK(trace.end(SIGINT) == Exit{0, 0});
  std::vector<long> seen;
  for (const Json& event : json_lines(trace.process().output())) {
    CHECK(event.size() == 10);
    CHECK(event.at("probe") == "probes/w");
    seen.push_back(event.at("args").at("b"));
  }
  CHECK(seen == std::vector<long>{5, 6, 8, 9});
  CHECK(trace.account().hits == 4);
  CHECK_MESSAGE(trace.process().errors().find("a filter turned 6 more away") != std::string::npos,
                trace.process().errors());
}

TEST_CASE("--follow-fork traces the children too") {
  Daemon daemon;
  Watched target("family");
  Trace trace(daemon, {"-p", text_of(target.pid()), "-e", "work", "--follow-fork", "--json"});
  CHECK(trace.armed() != "");
  const std::string child = target.ask("fork");
  REQUIRE(child.starts_with("child "));
  CHECK(target.ask("go on") == "reaped 42");
  CHECK(eventually([&] { return trace.printed() == 5; }));
  CHECK(trace.end(SIGINT) == Exit{0, 0});
  for (const Json& event : json_lines(trace.process().output())) CHECK(text_of(event.at("pid")) == child.substr(6));
  CHECK(target.unharmed());
}

// ---- probes that stay -----------------------------------------------------------------------------------------------

TEST_CASE("probes of probectl add outlive it: listed, switched, profiled, streamed and removed by later commands") {
  Daemon daemon;
  Watched target("family");
  const std::string pid = text_of(target.pid());
  const CommandResult added = probectl(daemon, {"add", "-p", pid, "p:one work a=$arg1:s32", "p:two work+0x" SECOND});
  REQUIRE_MESSAGE(added.ok(), added.err);
  CHECK(lines_of(added.out).size() == 2);
  CHECK(lines_of(probectl(daemon, {"list"}).out).size() == 2);
  CHECK(probectl(daemon, {"ps"}).out.find("family (PID " + pid + ")") != std::string::npos);
  CHECK(target.ask("call 3") == "called 3");
  CHECK(probectl(daemon, {"disable", "two"}).ok());
  CHECK(target.ask("call 2") == "called 2");
  const std::string profile = probectl(daemon, {"profile", "-p", pid}).out;
  CHECK(std::regex_search(profile, std::regex("probes/one +5 +0 +0\n")));
  CHECK(std::regex_search(profile, std::regex("probes/two +3 +0 +0\n")));
  CHECK(probectl(daemon, {"list"}).out.find("probes/two  [DISABLED]") != std::string::npos);

  Process stream(probectl_argv(daemon, {"stream", "one", "--count", "2"}));
  REQUIRE(eventually([&] { return probectl(daemon, {"status"}).out.find("subscriptions: 1\n") != std::string::npos; }));
  CHECK(target.ask("call 2") == "called 2");
  CHECK(stream.wait() == Exit{0, 0});
  CHECK(lines_of(stream.output()).size() == 2);
  CHECK(stream.output().find("one: (work+0x0) a=3") != std::string::npos);
  CHECK(stream.errors().find("delivered=2 missed=0\n") != std::string::npos);

  CHECK(probectl(daemon, {"remove", "one"}).ok());
  CHECK(lines_of(probectl(daemon, {"list"}).out).size() == 1);
  CHECK(probectl(daemon, {"remove", "--all"}).ok());
  CHECK(probectl(daemon, {"list"}).out.empty());
  CHECK(target.harm() == "");
}

TEST_CASE("probectl add takes all probes or none") {
  Daemon daemon;
  Watched target("family");
  const std::string pid = text_of(target.pid());
  const CommandResult refused = probectl(daemon, {"add", "-p", pid, "work", "wrok"});
  CHECK(refused.exit == Exit{1, 0});
  CHECK(refused.err.find("wrok") != std::string::npos);
  CHECK(probectl(daemon, {"list"}).out.empty());
  CHECK(target.unharmed());
}

TEST_CASE("a trace is told when others switch or remove its probes, and a stream, too") {
  Daemon daemon;
  Watched target("family");
  const std::string pid = text_of(target.pid());
  Process stream(probectl_argv(daemon, {"stream", "-p", pid}));
  REQUIRE(eventually([&] { return probectl(daemon, {"status"}).out.find("subscriptions: 1\n") != std::string::npos; }));
  Trace trace(daemon, {"-p", pid, "-e", "p:mine work"});
  REQUIRE(trace.armed() != "");
  const auto says = [](Process& who, const std::string& text) {
    return eventually([&] { return who.errors().find(text) != std::string::npos; });
  };
  struct Row {
    Arguments command;
    std::string said;
  };
  const std::string mine = "probes/mine (process " + pid + ")";
  for (const Row& row : {Row{{"disable", "mine"}, mine + " was disabled by another client"},
                         Row{{"enable", "mine"}, mine + " was enabled by another client"},
                         Row{{"disarm"}, "another client has disarmed the daemon"},
                         Row{{"arm"}, "the daemon is armed again"}, Row{{"remove", "mine"}, mine + " was removed"}}) {
    CAPTURE(row.said);
    CHECK(probectl(daemon, row.command).ok());
    CHECK(says(trace.process(), row.said));
    CHECK(says(stream, row.said));
  }
  // That it was enabled when it was added goes without saying.
  const std::string all = stream.errors();
  CHECK_MESSAGE(all.find("enabled by") == all.rfind("enabled by"), all);
  // Nothing is left that could be hit.
  CHECK(trace.process().wait(Millis{20'000}) == Exit{0, 0});
  CHECK(trace.process().errors().find("no probe is left that could be hit") != std::string::npos);
  CHECK(stream.wait(Millis{20'000}) == Exit{0, 0});
  CHECK(target.unharmed());
}

TEST_CASE("probectl disarm and arm switch every probe and keep each one's state") {
  Daemon daemon;
  Watched target("family");
  const std::string pid = text_of(target.pid());
  REQUIRE(probectl(daemon, {"add", "-p", pid, "p:one work", "--no-optimize"}).ok());
  REQUIRE(probectl(daemon, {"add", "-p", pid, "p:two work+0x" SECOND, "--disabled", "--no-optimize"}).ok());
  CHECK(text_differences(target.pid()).size() == 1);
  CHECK(probectl(daemon, {"disarm"}).ok());
  CHECK(text_differences(target.pid()).empty());
  CHECK(probectl(daemon, {"status"}).out.find("armed: false") != std::string::npos);
  CHECK(probectl(daemon, {"arm"}).ok());
  CHECK(text_differences(target.pid()).size() == 1);
  CHECK(probectl(daemon, {"detach", pid}).ok());
  CHECK(target.unharmed());
  CHECK(probectl(daemon, {"list"}).out.empty());
}

TEST_CASE("no child is left when everything was torn down") { CHECK(joined(children_left()) == ""); }

}  // namespace
}  // namespace probed::live
