// What somebody meets who has not read the manual: commands without a daemon, daemons with wrong options, typing
// mistakes, forgotten daemons, stripped programs, large globs.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

namespace fs = std::filesystem;

using Arguments = std::vector<std::string>;

std::string text_of(pid_t pid) { return std::to_string(pid); }

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

CommandResult run_probed(const Arguments& arguments, const SpawnOptions& options = {}) {
  Arguments command{required_environment("PROBED_BIN")};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_command(command, options, Millis{10'000});
}

// ---- the daemon's options -------------------------------------------------------------------------------------------

TEST_CASE("probed refuses descriptors it can't use before it listens") {
  TempDir dir;
  const std::string socket = dir / "s";
  for (const char* option : {"--ready-fd", "--lifetime-fd"}) {
    CAPTURE(std::string(option));
    const CommandResult closed = run_probed({"--socket", socket, option, "77"});
    CHECK(closed.exit == Exit{2, 0});
    CHECK(closed.err.starts_with(std::string("probed: error: ") + option + " 77: Bad file descriptor"));
    CHECK_FALSE(fs::exists(socket));
  }
  SpawnOptions file;
  const UniqueFd readable(::open("/etc/passwd", O_RDONLY | O_CLOEXEC));
  file.pass_fds = {readable.get()};
  CHECK(has(run_probed({"--socket", socket, "--lifetime-fd", "3"}, file).err, "it can't be waited for"));
  CHECK(has(run_probed({"--socket", socket, "--ready-fd", "3"}, file).err, "it is not open for writing"));
  CHECK(run_probed({"--socket", socket, "--queue", "3"}).err.starts_with("probed: error: --queue"));
  CHECK_FALSE(fs::exists(socket));
}

TEST_CASE("--state-dir is made, for its user alone, or refused") {
  TempDir dir;
  for (const std::string& wrong : {std::string("/no/such/parent/dir"), std::string("/etc/passwd")}) {
    const CommandResult refused = run_probed({"--socket", dir / "s", "--state-dir", wrong});
    CHECK(refused.exit == Exit{1, 0});
    CHECK(has(refused.err, "--state-dir " + wrong + ": "));
    CHECK_FALSE(fs::exists(dir / "s"));
  }
  Daemon daemon({"--state-dir", dir / "state"});
  CHECK(fs::status(dir / "state").permissions() == fs::perms::owner_all);
}

TEST_CASE("a state directory that others may have written to is refused, the default one too, and left as it is") {
  TempDir dir;
  const std::string state = dir / "s.state", journal = state + "/1-2-3.journal";
  std::string why;
  fs::create_directory(state);
  SUBCASE("others can write to it") {
    why = "others can write to it (mode 0777)";
    fs::permissions(state, fs::perms::all);
  }
  SUBCASE("a symbolic link") {
    why = "it is a symbolic link";
    fs::rename(state, dir / "elsewhere");
    fs::create_directory_symlink(dir / "elsewhere", state);
  }
  SUBCASE("somebody else's") {
    if (::geteuid() != 0) SKIP_TEST("needs root");
    why = "it belongs to user 65534";
    REQUIRE(::chown(state.c_str(), 65534, 65534) == 0);
  }
  REQUIRE(write_file(journal, "x"));
  fs::permissions(journal, fs::perms::owner_read | fs::perms::owner_write);
  const std::string line = "probed: error: the state directory " + state + " is refused: " + why + " (";
  for (const Arguments& more : {Arguments{}, {"--state-dir", state}, {"--keep-probes"}, {"--recover"}}) {
    Arguments arguments{"--socket", dir / "s"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CommandResult refused = run_probed(arguments);
    CHECK(refused.exit == Exit{1, 0});
    CHECK_MESSAGE(refused.err.starts_with(line), refused.err);
    CHECK(std::ranges::count(refused.err, '\n') == 1);
    CHECK_FALSE(fs::exists(dir / "s"));
    CHECK(fs::exists(journal));
    CHECK_FALSE(fs::exists(state + "/lock"));
  }
}

TEST_CASE("a directory that holds what isn't probed's is no state directory, unless probed has worked there") {
  TempDir dir;
  const std::string state = dir / "state";
  fs::create_directory(state);
  fs::permissions(state, fs::perms::owner_all);
  REQUIRE(write_file(state + "/1-2.probes.refused", "x"));
  REQUIRE(write_file(state + "/notes", "x"));
  const CommandResult refused = run_probed({"--socket", dir / "s", "--state-dir", state});
  CHECK(refused.exit == Exit{1, 0});
  CHECK(has(refused.err, state + " is refused: it holds what is not probed's (notes)"));
  CHECK_FALSE(fs::exists(state + "/lock"));
  fs::rename(state + "/notes", state + "/lock");
  fs::permissions(state + "/lock", fs::perms::owner_read | fs::perms::owner_write);
  Daemon daemon({"--state-dir", state});
}

TEST_CASE("what stands in a state directory under a journal's or the lock's name holds up no start") {
  TempDir dir;
  const std::string state = dir / "state", fifo = state + "/x.journal", lock = state + "/lock";
  fs::create_directory(state);
  fs::permissions(state, fs::perms::owner_all);
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  {
    Daemon daemon({"--state-dir", state});
    CHECK(has(daemon.process().errors(),
              fifo + " is not believed, and stays where it is: it is no regular file with one name\n"));
  }
  CHECK(fs::is_fifo(fifo));
  REQUIRE(eventually([&] { return guard_of(state) == 0; }));
  fs::remove(lock);
  REQUIRE(::mkfifo(lock.c_str(), 0600) == 0);
  const CommandResult refused = run_probed({"--socket", dir / "s", "--state-dir", state});
  CHECK(refused.exit == Exit{1, 0});
  CHECK(has(refused.err, state + " is refused: its file named lock: it is no regular file with one name"));
}

TEST_CASE("probed --recover fails when what a private daemon has left can't be put back") {
  TempDir dir;
  const std::string state = dir / "probectl/1/probed.sock.state", journal = state + "/1-2-3.journal";
  REQUIRE(fs::create_directories(state));
  for (const std::string& file : {state + "/lock", journal}) {
    REQUIRE(write_file(file, "x"));
    fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
  }
  SpawnOptions options;
  options.environment = {"XDG_RUNTIME_DIR=" + dir.path()};
  const CommandResult recovered = run_probed({"--recover", "--state-dir", dir / "none"}, options);
  CHECK(recovered.exit == Exit{1, 0});
  CHECK_MESSAGE(has(recovered.err, journal + " "), recovered.err);
  CHECK(has(recovered.err, "nothing else to recover"));
}

TEST_CASE("probed --recover takes a killed private daemon's directory away, also when it is told of that one") {
  TempDir dir;
  const std::string own = dir / "probectl/1", state = own + "/probed.sock.state";
  REQUIRE(fs::create_directories(state));
  REQUIRE(write_file(state + "/lock", ""));
  fs::permissions(state, fs::perms::owner_all);
  fs::permissions(state + "/lock", fs::perms::owner_read | fs::perms::owner_write);
  SpawnOptions options;
  options.environment = {"XDG_RUNTIME_DIR=" + dir.path()};
  const CommandResult recovered = run_probed({"--recover", "--state-dir", state}, options);
  CHECK_MESSAGE(recovered.ok(), recovered.err);
  CHECK_FALSE(fs::exists(own));
}

TEST_CASE("where there is no state directory there is nothing to recover, and none is made") {
  TempDir dir;
  const std::string state = dir / "state";
  const CommandResult recovered = run_probed({"--recover", "--state-dir", state});
  CHECK(recovered.ok());
  CHECK(has(recovered.err, "there is no state directory " + state));
  CHECK_FALSE(fs::exists(state));
}

// Ten seconds after its start at the earliest: nothing is gained by guards that come and go.
TEST_CASE("a guard that is killed is replaced, and its successor cleans up behind the daemon") {
  Daemon daemon;
  const std::string state = daemon.socket() + ".state";
  const pid_t guard = guard_of(state);
  REQUIRE(guard != 0);
  Target target("soaked", {"1"});
  RpcClient client(daemon.socket());
  add(client, target.pid(), {"work"}, Json::object());
  CHECK(::kill(guard, SIGKILL) == 0);
  const auto is_replaced = [&] {
    const pid_t now = guard_of(state);
    return now != 0 && now != guard;
  };
  REQUIRE(eventually(is_replaced, Millis{30'000}));
  CHECK(has(daemon.process().errors(), "the guard has ended: another one takes its place"));
  daemon.process().signal(SIGKILL);
  CHECK(daemon.process().wait());
  CHECK(eventually([&] { return guard_of(state) == 0; }));
  CHECK(text_differences(target.pid()).empty());
  target.go();
  target.send("quit\n");
  CHECK(target.finish().ok());
}

TEST_CASE("a start that fails at its socket leaves no state directory") {
  TempDir dir;
  REQUIRE(write_file(dir / "s", ""));
  CHECK(run_probed({"--socket", dir / "s"}).exit == Exit{1, 0});
  CHECK_FALSE(fs::exists(dir / "s.state"));
}

TEST_CASE("probed says where it listens; as root it makes the default socket's directory") {
  TempDir dir;
  Process named({required_environment("PROBED_BIN"), "--socket", dir / "s"});
  CHECK(named.next_error_line() == "probed: info: listening on " + (dir / "s"));
  const fs::path directory = "/run/probed";
  if (::geteuid() != 0 || fs::exists(directory)) SKIP_TEST("needs root and a machine on which probed is not installed");
  struct Removed {
    ~Removed() {
      std::error_code error;
      fs::remove_all("/run/probed", error);
    }
  } removed;  // whatever fails
  {
    SpawnOptions options;
    options.environment = {"PROBED_SOCKET="};
    Process by_default({required_environment("PROBED_BIN")}, options);
    CHECK(by_default.next_error_line() == "probed: info: listening on /run/probed/probed.sock");
    CHECK((fs::status(directory).permissions() & fs::perms::mask) == fs::perms(0755));
    by_default.signal(SIGTERM);
    CHECK(by_default.wait() == Exit{0, 0});
  }
  CHECK(fs::is_empty(directory));
}

// ---- without a daemon -----------------------------------------------------------------------------------------------

TEST_CASE("functions brings a daemon of its own when none is named and none answers") {
  TempDir dir;
  Watched target("family");
  SpawnOptions nothing_named;
  nothing_named.environment = {"PROBED_SOCKET=", "XDG_RUNTIME_DIR=" + dir.path()};
  const std::string probectl = required_environment("PROBECTL_BIN");
  const CommandResult found = run_command({probectl, "functions", "-p", text_of(target.pid()), "work"}, nothing_named);
  CHECK_MESSAGE(found.ok(), found.err);
  CHECK(has(found.out, "  work  family\n"));
  CHECK(fs::is_empty(dir.path()));
  CHECK(target.harm() == "");
  const bool shared = fs::exists("/run/probed/probed.sock");
  if (!shared) {
    CHECK(has(found.err, "starting a private one for this look-up"));
    const CommandResult forbidden =
        run_command({probectl, "functions", "--no-spawn", "-p", text_of(target.pid())}, nothing_named);
    CHECK(forbidden.exit == Exit{1, 0});
  }
  // Whoever names a daemon means that one.
  SpawnOptions named;
  named.environment = {"PROBED_SOCKET=" + (dir / "none")};
  CHECK(has(run_command({probectl, "functions", "-p", text_of(target.pid())}, named).err, dir / "none"));
}

// ---- names ----------------------------------------------------------------------------------------------------------

TEST_CASE("functions takes MODULE:GLOB as trace does") {
  Daemon daemon;
  Watched target("family");
  const CommandResult found = probectl(daemon, {"functions", "-p", text_of(target.pid()), "libc:nanosl*"});
  CHECK(has(found.out, "  nanosleep  libc.so.6\n"));
  CHECK(probectl(daemon, {"functions", "-p", text_of(target.pid()), "family:nanosl*"}).exit == Exit{1, 0});
}

TEST_CASE("a name that several processes have is told apart by -p, and never chosen among in silence") {
  Daemon daemon;
  Watched one("family"), two("family");
  for (const Watched* each : {&one, &two})
    REQUIRE(probectl(daemon, {"add", "-p", text_of(each->pid()), "p:h work x=$arg1"}).ok());
  const CommandResult unclear = probectl(daemon, {"format", "h"});
  CHECK(unclear.exit == Exit{1, 0});
  CHECK(has(unclear.err, "PID " + text_of(one.pid())));
  CHECK(has(unclear.err, "PID " + text_of(two.pid())));
  CHECK(has(probectl(daemon, {"format", "h", "-p", text_of(two.pid())}).out, "name: probes/h\n"));

  CHECK(probectl(daemon, {"disable", "h", "-p", text_of(two.pid())}).ok());
  CHECK(eventually([&] { return text_differences(two.pid()).empty(); }));
  CHECK(!text_differences(one.pid()).empty());
  CHECK(probectl(daemon, {"remove", "--all", "-p", text_of(one.pid())}).ok());
  CHECK(one.unharmed());
  const std::string left = probectl(daemon, {"list", "--verbose"}).out;
  CHECK(has(left, "  pid " + text_of(two.pid()) + "\n"));
  CHECK_FALSE(has(left, "  pid " + text_of(one.pid()) + "\n"));
  CHECK(probectl(daemon, {"remove", "h"}).ok());
}

TEST_CASE("stream works with ids; what isn't there is refused, what goes is told, and with the last it ends") {
  Daemon daemon;
  Watched target("family");
  REQUIRE(probectl(daemon, {"add", "-p", text_of(target.pid()), "p:one work", "p:two work"}).ok());
  const std::vector<Json> probes = json_lines(probectl(daemon, {"list", "--json"}).out);
  REQUIRE(probes.size() == 2);
  for (const Arguments& missing : {Arguments{"nosuch"}, {"4711"}, {"one", "nosuch"}}) {
    Arguments command{"stream"};
    command.insert(command.end(), missing.begin(), missing.end());
    const CommandResult refused = probectl(daemon, command);
    CHECK(refused.exit == Exit{1, 0});
    CHECK_MESSAGE(has(refused.err, "no probe"), refused.err);
  }
  Process stream(probectl_argv(daemon, {"stream", probes[1].at("id").dump(), "--count", "2"}));
  REQUIRE(eventually([&] { return has(probectl(daemon, {"status"}).out, "subscriptions: 1\n"); }));
  CHECK(target.ask("call 5") == "called 5");
  CHECK(stream.wait() == Exit{0, 0});
  CHECK(has(stream.output(), " two: (work+0x0)\n"));
  CHECK_FALSE(has(stream.output(), " one: "));
  CHECK(stream.next_error_line() == "delivered=2 missed=0");

  Process both(probectl_argv(daemon, {"stream", "one", "two"}));
  REQUIRE(eventually([&] { return has(probectl(daemon, {"status"}).out, "subscriptions: 1\n"); }));
  CHECK(probectl(daemon, {"remove", "one"}).ok());
  CHECK(both.next_error_line() == "probectl: probes/one (process " + text_of(target.pid()) + ") was removed");
  CHECK(target.ask("call 4") == "called 4");
  CHECK(probectl(daemon, {"remove", "two"}).ok());
  CHECK(both.wait() == Exit{0, 0});
  CHECK(both.next_error_line() == "probectl: probes/two (process " + text_of(target.pid()) + ") was removed");
  CHECK(both.next_error_line() == "probectl: nothing is left to stream");
  CHECK(both.next_error_line() == "delivered=4 missed=0");

  // The end of its process, with probes there and without.
  REQUIRE(probectl(daemon, {"add", "-p", text_of(target.pid()), "p:one work"}).ok());
  Watched quiet("family");
  Process named(probectl_argv(daemon, {"stream", "one"})),
      of_process(probectl_argv(daemon, {"stream", "-p", text_of(target.pid())}));
  Process of_quiet(probectl_argv(daemon, {"stream", "-p", text_of(quiet.pid())}));
  REQUIRE(eventually([&] { return has(probectl(daemon, {"status"}).out, "subscriptions: 3\n"); }));
  for (Watched* dying : {&target, &quiet}) {
    dying->target.signal(SIGTERM);
    dying->target.wait();
  }
  for (Process* stream_of_it : {&named, &of_process}) {
    CHECK(stream_of_it->wait() == Exit{0, 0});
    CHECK(has(stream_of_it->errors(), "PID " + text_of(target.pid()) + " ended (killed by signal 15)"));
  }
  CHECK(of_quiet.wait() == Exit{0, 0});
}

TEST_CASE("add takes -:NAME as a definition, and says what it removed") {
  Daemon daemon;
  Watched target("family");
  const std::string pid = text_of(target.pid());
  REQUIRE(probectl(daemon, {"add", "-p", pid, "p:one work"}).ok());
  const CommandResult removed = probectl(daemon, {"add", "-p", pid, "-:one"});
  CHECK_MESSAGE(removed.ok(), removed.err);
  CHECK(removed.out == "removed one\n");
  CHECK(probectl(daemon, {"list"}).out.empty());
  CHECK(target.unharmed());
}

// ---- daemons in the way ---------------------------------------------------------------------------------------------

TEST_CASE("a trace of a disarmed daemon is refused instead of seeing nothing; add and list say so") {
  Daemon daemon;
  Watched target("family");
  const std::string pid = text_of(target.pid());
  REQUIRE(probectl(daemon, {"disarm"}).ok());
  const CommandResult trace = probectl(daemon, {"trace", "-p", pid, "-e", "work", "--duration", "5"});
  CHECK(trace.exit == Exit{1, 0});
  CHECK(has(trace.err, "`probectl arm`"));
  CHECK_FALSE(has(trace.err, "armed 1 probe"));
  const CommandResult added = probectl(daemon, {"add", "-p", pid, "work"});
  CHECK(added.ok());
  CHECK(has(added.err, "the daemon is disarmed"));
  const CommandResult list = probectl(daemon, {"list"});
  CHECK(has(list.err, "the daemon is disarmed"));
  CHECK_FALSE(has(list.out, "[BOOSTED]"));
  REQUIRE(probectl(daemon, {"arm"}).ok());
  CHECK(probectl(daemon, {"list"}).err.empty());
  CHECK(probectl(daemon, {"remove", "--all"}).ok());
  CHECK(eventually([&] { return tracer_of(target.pid()) == 0; }));
  CHECK(text_restored(target.pid()));
}

TEST_CASE("a trace says how its target ended") {
  Daemon daemon;
  Watched target("family");
  Process trace(probectl_argv(daemon, {"trace", "-p", text_of(target.pid()), "-e", "work"}));
  CHECK(trace.next_error_line() == "armed 1 probe in PID " + text_of(target.pid()));
  target.target.signal(SIGTERM);
  CHECK(trace.next_error_line() == "probectl: PID " + text_of(target.pid()) + " ended (killed by signal 15)");
  CHECK(trace.wait() == Exit{0, 0});
}

// Both go to one pipe here, as to one terminal.
TEST_CASE("what a trace says of its target comes after what the target did before") {
  Daemon daemon;
  for (int i = 0; i < 40; ++i) {
    const Arguments trace = probectl_argv(daemon, {"trace", "-e", "r:m main", "--", target_path("counter"), "1", "1"});
    Arguments together{"sh", "-c", "exec \"$@\" 2>&1", "sh"};
    together.insert(together.end(), trace.begin(), trace.end());
    Process both(together);
    REQUIRE(both.send("go\n"));
    CHECK(both.wait() == Exit{0, 0});
    const std::string out = both.output();
    const auto end = out.find(" ended (exit code 0)"), last = out.rfind("<- main)");
    REQUIRE_MESSAGE((end != std::string::npos && last != std::string::npos), out);
    CHECK_MESSAGE(last < end, out);
  }
}

TEST_CASE("hints never lead to a process that has ended with the trace") {
  Daemon daemon;
  const CommandResult refused = probectl(daemon, {"trace", "-e", "nosuch", "--", target_path("family")});
  CHECK(refused.exit == Exit{1, 0});
  CHECK(has(refused.err, "start " + target_path("family") + " by itself"));
}

// ---- programs -------------------------------------------------------------------------------------------------------

TEST_CASE("a function that is not found in a stripped program: that is said") {
  TempDir dir;
  const std::string program = dir / "bare";
  if (!run_command({"strip", "--strip-all", "-o", program, target_path("counter")}).ok()) SKIP_TEST("needs strip");
  Process process({program, "1", "20"});
  REQUIRE(process.next_line().value_or("").starts_with("ready "));
  Daemon daemon;
  const CommandResult refused = probectl(daemon, {"trace", "-p", text_of(process.pid()), "-e", "no_such_thing"});
  CHECK(refused.exit == Exit{1, 0});
  CHECK(has(refused.err, "bare is stripped"));
  CHECK(has(refused.err, "bare:0xFILEOFFSET"));
  const CommandResult lines = probectl(daemon, {"lines", "-p", text_of(process.pid()), "counter.c"});
  const bool none_has_any = has(lines.err, "no debug information in process");  // libraries' may be installed
  CHECK((none_has_any || has(lines.err, "bare itself has none")));
  Watched whole("counter");
  CHECK_FALSE(has(probectl(daemon, {"trace", "-p", text_of(whole.pid()), "-e", "no_such_thing"}).err, "stripped"));
}

// Two seconds here; minutes if anything were done for each pair of probes.
TEST_CASE("K14: forty thousand probes of one glob are armed, streamed and taken out in a short time") {
  Daemon daemon;
  Process many({required_environment("MANY_FUNCTIONS")});
  REQUIRE(many.next_line() == "ready");
  const TargetState before = state_of(many.pid());
  Process trace(probectl_argv(daemon, {"trace", "-p", text_of(many.pid()), "-e", "many_*", "--duration", "0.1"}));
  const auto armed = trace.next_error_line(Millis{25'000});
  CHECK(armed == "armed 40000 probes in PID " + text_of(many.pid()));
  CHECK(trace.wait(Millis{25'000}) == Exit{0, 0});
  CHECK(left_unharmed(many.pid(), before, PageCopies::may_stay));
  many.close_input();
  CHECK(many.wait() == Exit{0, 0});
}

TEST_CASE("with standard input, output and error closed a trace does what it does, and its file has events only") {
  TempDir dir;
  for (const char* closed : {">&-", ">&- 2>&-", "<&- 2>&-", "<&- >&- 2>&-"}) {
    CAPTURE(std::string(closed));
    Target target("counter", {"1", "0"});
    target.go();
    const std::string file = dir / "events";
    const CommandResult traced = run_command({"sh", "-c",
                                              "exec \"$PROBECTL_BIN\" trace --json -p " + text_of(target.pid()) +
                                                  " -e work --count 3 --overwrite -o " + file + " " + closed});
    CHECK(traced.ok());
    std::istringstream lines(read_file(file));
    std::size_t events = 0;
    for (std::string line; std::getline(lines, line); ++events) CHECK_MESSAGE(line.starts_with("{\"probe\""), line);
    CHECK(events == 3);
    target.send("stop\n");
    CHECK(target.finish().ok());
  }
}

TEST_CASE("a limit of file sizes ends no daemon: the journal it keeps from being written is told of") {
  for (const char* limit : {"--fsize=4096", "--fsize=24576"}) {
    CAPTURE(std::string(limit));
    Watched target("family");
    TempDir dir;
    Process daemon({"prlimit", limit, required_environment("PROBED_BIN"), "--socket", dir / "s"});
    REQUIRE(daemon.next_error_line().value_or("").find("listening") != std::string::npos);
    RpcClient client(dir / "s");
    const Json added = client.request("probe.add", add_params(target.pid(), {"libc:str*", "work"}));
    CHECK_MESSAGE(added.is_object(), added.dump());
    CHECK(client.request("daemon.status").contains("result"));
    daemon.signal(SIGTERM);
    CHECK(daemon.wait() == Exit{0, 0});
    CHECK(target.unharmed());
  }
}

TEST_CASE("no child is left when everything was torn down") { CHECK(joined(children_left()) == ""); }

}  // namespace
}  // namespace probed::live
