// The program itself, run against a fake daemon: exit status, standard output, standard error, what the daemon was
// asked.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "client/probectl/process.hpp"
#include "proto/base/fd.hpp"

namespace probed::client {
namespace {

using Args = std::vector<std::string>;

constexpr int kLimit = 20'000;  // ms until a test gives up on a program

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  if (!value) FAIL(name << " is not set: run this through meson test");
  return value;
}

struct Finished {
  int status = -1;
  std::string out, err;
};

enum class Out { pipe, terminal };

// A running probectl (or fake daemon) with both of its outputs at hand.
class Program {
 public:
  Program(const std::string& path, const Args& args, const Args& variables, Out kind = Out::pipe) {
    int out[2], err[2];
    if (kind == Out::terminal)
      open_terminal(out);
    else
      REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(err, O_CLOEXEC) == 0);
    out_.reset(out[0]), err_.reset(err[0]);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      ::dup2(out[1], 1), ::dup2(err[1], 2);
      ::signal(SIGHUP, SIG_DFL);  // ignored when the tests run under nohup, which probectl would respect
      for (const auto& variable : variables) ::putenv(const_cast<char*>(variable.c_str()));
      std::vector<char*> argv{const_cast<char*>(path.c_str())};
      for (const auto& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
      argv.push_back(nullptr);
      ::execv(path.c_str(), argv.data());
      ::_exit(99);
    }
    ::close(out[1]), ::close(err[1]);
    pidfd_ = open_pidfd(pid_);
  }
  ~Program() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  void send(int signal) const { ::kill(pid_, signal); }
  void close_stdout() { out_.reset(); }

  // Reads standard error until it contains this.
  void wait_for_err(std::string_view text) {
    while (finished_.err.find(text) == std::string::npos)
      if (!read_some()) FAIL("ended without saying '" << text << "': " << finished_.err);
  }
  void wait_for_out(std::string_view text) {
    while (finished_.out.find(text) == std::string::npos)
      if (!read_some()) FAIL("ended without printing '" << text << "': " << finished_.err);
  }

  bool ends_within(int milliseconds) const { return wait_for_exit(pidfd_, milliseconds); }

  Finished finish() {
    while (read_some()) continue;
    REQUIRE(wait_for_exit(pidfd_, kLimit));
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    finished_.status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    return finished_;
  }

 private:
  // As pipe2(2) does: what is written to the second is read from the first.
  static void open_terminal(int (&ends)[2]) {
    ends[0] = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    REQUIRE(ends[0] >= 0);
    REQUIRE(::grantpt(ends[0]) == 0);
    REQUIRE(::unlockpt(ends[0]) == 0);
    ends[1] = ::open(::ptsname(ends[0]), O_RDWR | O_NOCTTY | O_CLOEXEC);
    REQUIRE(ends[1] >= 0);
  }

  bool read_some() {
    pollfd both[] = {{out_.get(), POLLIN, 0}, {err_.get(), POLLIN, 0}};
    REQUIRE(::poll(both, 2, kLimit) > 0);
    if (both[0].revents) return append(out_, finished_.out);
    return append(err_, finished_.err);
  }
  bool append(UniqueFd& from, std::string& to) {
    char buffer[65536];
    const auto got = ::read(from.get(), buffer, sizeof(buffer));
    if (got > 0)
      to.append(buffer, static_cast<std::size_t>(got));
    else
      from.reset();  // poll(2) ignores a negative descriptor
    return out_ || err_;
  }

  pid_t pid_ = -1;
  UniqueFd out_, err_, pidfd_;
  Finished finished_;
};

// A directory of its own, the fake daemon's journal in it; traces are of this test process, which nobody touches.
class Fixture {
 public:
  Fixture() {
    char name[] = "/tmp/probectl-test-XXXXXX";
    REQUIRE(::mkdtemp(name));
    directory_ = name;
  }
  ~Fixture() { std::filesystem::remove_all(directory_); }

  Args variables() const {
    return {"FAKE_JOURNAL=" + journal(), "PROBED_DAEMON=" + environment("FAKE_PROBED"), "XDG_RUNTIME_DIR=" + directory_,
            "PROBED_SOCKET=" + directory_ + "/none"};
  }
  std::string directory() const { return directory_; }
  std::string journal() const { return directory_ + "/journal"; }
  std::string own_pid() const { return std::to_string(::getpid()); }

  Args trace(const Args& more) const {
    Args args{"trace", "-p", own_pid()};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  Finished run(const Args& args, Out kind = Out::pipe) const {
    return Program(environment("PROBECTL"), args, variables(), kind).finish();
  }

  // The methods the daemon was asked, in order.
  std::string asked() const {
    std::ifstream file(journal());
    std::string all;
    for (std::string line; std::getline(file, line);)
      if (!line.starts_with("pid ") && !line.starts_with("state ")) all += (all.empty() ? "" : " ") + line;
    return all;
  }
  pid_t daemon_pid() const {
    const std::string pid = word_of("pid");
    return pid.empty() ? 0 : std::stoi(pid);
  }
  std::string state_directory() const { return word_of("state"); }
  // Nothing of a private daemon is left: neither its directory nor its process.
  void check_clean() const {
    for (const auto& entry : std::filesystem::directory_iterator(directory_))
      CHECK_MESSAGE(entry.path().filename() != "probectl", entry.path().string());
    if (daemon_pid() > 0) CHECK(::kill(daemon_pid(), 0) != 0);
  }

 private:
  // What follows this word in the journal; empty: nothing.
  std::string word_of(const std::string& name) const {
    std::ifstream file(journal());
    for (std::string word, value; file >> word;)
      if (word == name && file >> value) return value;
    return "";
  }

  std::string directory_;
};

std::size_t lines_in(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

constexpr char kOrder[] =
    "probe.add events.subscribe probe.enable probe.disable events.unsubscribe probe.profile target.list probe.remove";

TEST_CASE("a trace starts a private daemon, says so, streams, accounts for every hit and leaves nothing behind") {
  Fixture fixture;
  const auto done = fixture.run(fixture.trace({"-e", "one events=2500 lost=7 exit", "-e", "two events=3"}));
  CHECK(done.status == 0);
  CHECK(lines_in(done.out) == 2503);
  CHECK(done.out.starts_with(fmt::format("fake-{} [001] 5.000000000: one: (f+0x0)\n", ::getpid())));
  CHECK(done.err.starts_with("probectl: no daemon answers at "));
  CHECK(done.err.find(fmt::format("\narmed 2 probes in PID {}\n", ::getpid())) != std::string::npos);
  CHECK(done.err.ends_with("\nhits=2510 delivered=2503 missed=7\n"));
  CHECK(fixture.asked().starts_with(kOrder));
  fixture.check_clean();
}

TEST_CASE("a private daemon is started elsewhere when its usual place is none of this user's") {
  Fixture fixture;
  const auto place = fixture.directory() + "/probectl";
  SUBCASE("a file") { std::ofstream(place) << "x"; }
  SUBCASE("a symbolic link") { std::filesystem::create_symlink("/tmp", place); }
  SUBCASE("open to others") {
    std::filesystem::create_directory(place);
    std::filesystem::permissions(place, std::filesystem::perms::all);
  }
  const auto done = fixture.run(fixture.trace({"-e", "one events=2 exit"}));
  CHECK_MESSAGE(done.status == 0, done.err);
  CHECK(lines_in(done.out) == 2);
  CHECK(!fixture.state_directory().starts_with(place));
  CHECK(std::filesystem::exists(place));  // what was there stays
}

TEST_CASE("JSON events are printed exactly as they came") {
  Fixture fixture;
  const auto done =
      fixture.run(fixture.trace({"--json", "-e", R"(one events=1 json={"z":18446744073709551615,"a":"\udc80"} exit)"}));
  CHECK(done.status == 0);
  CHECK(done.out ==
        fmt::format(R"({{"probe":"probes/one","id":3,"pid":{0},"tid":{0},"comm":"fake","cpu":1,"time":5000000000,)"
                    R"("ip":"0x1000","symbol":"f+0x0","args":{{"z":18446744073709551615,"a":"\udc80"}}}})"
                    "\n",
                    ::getpid()));
}

TEST_CASE("each signal ends a trace with its account and status 0") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    CAPTURE(signal);
    Fixture fixture;
    Program program(environment("PROBECTL"), fixture.trace({"-e", "one events=4"}), fixture.variables());
    program.wait_for_err("armed 1 probe in PID ");
    program.wait_for_out("5.000000003");  // events are not held back while nothing else comes
    program.send(signal);
    const auto done = program.finish();
    CHECK(done.status == 0);
    CHECK(done.err.ends_with("\nhits=4 delivered=4 missed=0\n"));
    CHECK(fixture.asked().starts_with(kOrder));
    fixture.check_clean();
  }
}

TEST_CASE("--count prints so many events and ends; so does the daemon's own limit") {
  Fixture fixture;
  const auto printed = fixture.run(fixture.trace({"--count", "3", "-e", "one events=10"}));
  CHECK(printed.status == 0);
  CHECK(lines_in(printed.out) == 3);
  CHECK(printed.err.ends_with("\nhits=10 delivered=10 missed=0\n"));
  const auto limited = fixture.run(fixture.trace({"--count", "10", "-e", "one events=4 lost=6 limit"}));
  CHECK(limited.status == 0);
  CHECK(limited.err.ends_with("\nhits=10 delivered=4 missed=6\n"));
}

TEST_CASE("--duration ends a trace") {
  Fixture fixture;
  const auto done = fixture.run(fixture.trace({"--duration", "0.05", "-e", "one events=1"}));
  CHECK(done.status == 0);
  CHECK(done.err.ends_with("\nhits=1 delivered=1 missed=0\n"));
}

TEST_CASE("a faulty definition is refused with status 1, a caret, and no daemon left") {
  Fixture fixture;
  const auto done = fixture.run(fixture.trace({"-e", "one refuse"}));
  CHECK(done.status == 1);
  CHECK(done.out.empty());
  CHECK(done.err.find("probectl: a word that is no argument (leave it out)\n  one refuse\n      ^\n") !=
        std::string::npos);
  CHECK(done.err.find("armed") == std::string::npos);
  CHECK(done.err.find("hits=") == std::string::npos);
  fixture.check_clean();
}

TEST_CASE("a daemon that goes away in the middle is a failure that still gives the account") {
  Fixture fixture;
  const auto done = fixture.run(fixture.trace({"-e", "one events=5 lost=2 die"}));
  CHECK(done.status == 1);
  CHECK(done.err.find("\nhits=7 delivered=5 missed=2\n") != std::string::npos);
  CHECK(done.err.find("the daemon closed the connection") != std::string::npos);
  fixture.check_clean();
}

TEST_CASE("a private daemon that cannot start is reported in its own words") {
  Fixture fixture;
  auto variables = fixture.variables();
  variables.push_back("FAKE_REFUSE_TO_START=1");
  const auto done = Program(environment("PROBECTL"), fixture.trace({"-e", "f"}), variables).finish();
  CHECK(done.status == 1);
  CHECK(done.err.find("probed: no reason to live") != std::string::npos);
  fixture.check_clean();
}

TEST_CASE("--no-spawn fails instead of starting a daemon") {
  Fixture fixture;
  const auto done = fixture.run(fixture.trace({"--no-spawn", "--json", "-e", "f"}));
  CHECK(done.status == 1);
  CHECK(done.err.starts_with("{\"error\":{\"reason\":\"no-daemon\","));
  CHECK(lines_in(done.err) == 1);
  CHECK(fixture.asked().empty());
}

TEST_CASE("a reader that goes away ends a trace quietly") {
  Fixture fixture;
  Program program(environment("PROBECTL"), fixture.trace({"-e", "one events=100000"}), fixture.variables());
  program.close_stdout();
  const auto done = program.finish();
  CHECK(done.status == 0);
  CHECK(done.err.find("Broken pipe") == std::string::npos);
  CHECK(done.err.ends_with("\nhits=100000 delivered=100000 missed=0\n"));
  fixture.check_clean();
}

TEST_CASE("a reader that does not read cannot keep ^C from ending a trace") {
  Fixture fixture;
  Program program(environment("PROBECTL"), fixture.trace({"-e", "one events=20000"}), fixture.variables());
  program.wait_for_out("fake");  // then nothing more is read until the pipe is full and the program waits
  program.send(SIGINT);
  const auto done = program.finish();
  CHECK(done.status == 0);
  CHECK(done.err.ends_with("\nhits=20000 delivered=20000 missed=0\n"));
}

TEST_CASE("a killed probectl takes its private daemon with it") {
  Fixture fixture;
  Program program(environment("PROBECTL"), fixture.trace({"-e", "one events=1"}), fixture.variables());
  program.wait_for_err("armed");
  const auto daemon = open_pidfd(fixture.daemon_pid());
  REQUIRE(daemon);
  program.send(SIGKILL);
  CHECK(program.finish().status == 1000 + SIGKILL);
  CHECK(wait_for_exit(daemon, kLimit));
}

TEST_CASE("a daemon that does not answer is given up on ^C") {
  Fixture fixture;
  Program program(environment("PROBECTL"), fixture.trace({"-e", "one silent"}), fixture.variables());
  while (fixture.asked().find("probe.enable") == std::string::npos) ::poll(nullptr, 0, 5);
  program.send(SIGINT);
  const auto done = program.finish();
  CHECK(done.status == 1);
  CHECK(done.err.find("interrupted") != std::string::npos);
  fixture.check_clean();
}

TEST_CASE("-o sends the events to a file, and a file that cannot be written is status 1") {
  Fixture fixture;
  const auto file = fixture.directory() + "/events";
  const auto done = fixture.run(fixture.trace({"-o", file, "-e", "one events=5 exit"}));
  CHECK(done.status == 0);
  CHECK(done.out.empty());
  std::stringstream written;
  written << std::ifstream(file).rdbuf();
  CHECK(lines_in(written.str()) == 5);
  // What is there is kept, unless something else was asked for.
  const auto lines = [&] {
    std::stringstream now;
    now << std::ifstream(file).rdbuf();
    return lines_in(now.str());
  };
  const auto refused = fixture.run(fixture.trace({"-o", file, "-e", "one events=5 exit"}));
  CHECK(refused.status == 1);
  CHECK(refused.err.find("is there already, with") != std::string::npos);
  CHECK(lines() == 5);
  CHECK(fixture.run(fixture.trace({"-o", file, "--append", "-e", "one events=3 exit"})).status == 0);
  CHECK(lines() == 8);
  CHECK(fixture.run(fixture.trace({"-o", file, "--overwrite", "-e", "one events=2 exit"})).status == 0);
  CHECK(lines() == 2);
  CHECK(fixture.run(fixture.trace({"-o", file, "--overwrite", "--append", "-e", "one"})).status == 2);
  CHECK(fixture.run(fixture.trace({"--append", "-e", "one"})).status == 2);
  std::ofstream(file, std::ios::trunc).flush();  // nothing in it
  CHECK(fixture.run(fixture.trace({"-o", file, "-e", "one events=1 exit"})).status == 0);
  CHECK(lines() == 1);
  CHECK(fixture.run(fixture.trace({"-o", "/dev/null", "-e", "one events=1 exit"})).status == 0);
  CHECK(fixture.run(fixture.trace({"-o", "/nonexistent/x", "-e", "f"})).status == 1);
  const auto full = fixture.run(fixture.trace({"-o", "/dev/full", "-e", "one events=5 exit"}));
  CHECK(full.status == 1);
  CHECK(full.err.find("writing the events to /dev/full failed: No space left on device; the last 5 that came") !=
        std::string::npos);
}

// The names of the probes whose events were printed, in order.
std::string names_in(const std::string& text) {
  std::string out;
  std::istringstream words(text);
  for (std::string word; words >> word;)
    if (word == "one:" || word == "two:") out += (out.empty() ? "" : " ") + word.substr(0, 3);
  return out;
}

// The fake daemon sends both probes' events of the same three times, one probe's after the other's.
TEST_CASE("events are put in the order of their times at a terminal, and on request, else printed as they come") {
  constexpr const char *kSorted = "one two one two one two", *kAsTheyCome = "one one one two two two";
  const Args probes = {"-e", "one events=3 exit", "-e", "two events=3"};
  const auto printed = [&](Out kind, const Args& more) {
    Fixture fixture;
    Args args = fixture.trace(probes);
    args.insert(args.end(), more.begin(), more.end());
    const auto done = fixture.run(args, kind);
    CHECK(done.status == 0);
    CHECK(done.err.ends_with("\nhits=6 delivered=6 missed=0\n"));
    CHECK(done.err.find("out of order") == std::string::npos);
    return names_in(done.out);
  };
  CHECK(printed(Out::terminal, {}) == kSorted);
  CHECK(printed(Out::terminal, {"--no-sort"}) == kAsTheyCome);
  CHECK(printed(Out::pipe, {}) == kAsTheyCome);
  CHECK(printed(Out::pipe, {"--sort"}) == kSorted);
}

TEST_CASE("events that come too late to be put in order are printed all the same, and counted") {
  Fixture fixture;
  const auto done = fixture.run(fixture.trace({"--sort", "-e", "one events=70000 exit", "-e", "two events=5"}));
  CHECK(done.status == 0);
  CHECK(lines_in(done.out) == 70005);
  CHECK(
      done.err.find("probectl: 5 events came more than 250 ms late, or behind 65536 others, and are out of order\n") !=
      std::string::npos);
}

TEST_CASE("nothing that is held back to be put in order is lost, however a trace ends") {
  Fixture fixture;
  SUBCASE("by a signal") {
    Program program(environment("PROBECTL"), fixture.trace({"--sort", "-e", "one events=20"}), fixture.variables());
    program.wait_for_err("armed");
    program.send(SIGINT);
    const auto done = program.finish();
    CHECK(done.status == 0);
    CHECK(lines_in(done.out) == 20);
  }
  SUBCASE("by its daemon's end") {
    const auto done = fixture.run(fixture.trace({"--sort", "-e", "one events=20 die"}));
    CHECK(done.status == 1);
    CHECK(lines_in(done.out) == 20);
  }
  SUBCASE("by --count") {
    const auto done = fixture.run(fixture.trace({"--sort", "--count", "7", "-e", "one events=20"}));
    CHECK(done.status == 0);
    CHECK(lines_in(done.out) == 7);
  }
  SUBCASE("by a file that can't be written") {
    const auto full = fixture.run(fixture.trace({"--sort", "-o", "/dev/full", "-e", "one events=20 exit"}));
    CHECK(full.status == 1);
    CHECK(full.err.find("the last 20 that came are not in it") != std::string::npos);
  }
  SUBCASE("nor when its file is opened anew") {
    const auto file = fixture.directory() + "/events";
    Program program(environment("PROBECTL"), fixture.trace({"--sort", "-o", file, "-e", "one events=20"}),
                    fixture.variables());
    program.wait_for_err("armed");
    std::filesystem::rename(file, file + ".1");
    program.send(SIGHUP);
    for (int waited = 0; !std::filesystem::exists(file) && waited < kLimit; waited += 5) ::poll(nullptr, 0, 5);
    REQUIRE(std::filesystem::exists(file));
    program.send(SIGINT);
    CHECK(program.finish().status == 0);
    std::stringstream written;
    written << std::ifstream(file).rdbuf() << std::ifstream(file + ".1").rdbuf();
    CHECK(lines_in(written.str()) == 20);
  }
}

TEST_CASE("what a trace says at a terminal comes behind the events that came before it") {
  Fixture fixture;
  // Both outputs at the same terminal, as people have them.
  Program program("/bin/sh",
                  {"-c", "exec \"$@\" 2>&1", "sh", environment("PROBECTL"), "trace", "-p", fixture.own_pid(), "-e",
                   "one events=3 exit"},
                  fixture.variables(), Out::terminal);
  const auto done = program.finish();
  const auto ended = done.out.find("ended (exit code 0)");
  REQUIRE(ended != std::string::npos);
  CHECK(done.out.rfind("one: (f+0x0)") < ended);
}

TEST_CASE("a command is held until its probes are in place, then runs to its end") {
  Fixture fixture;
  const auto done = fixture.run({"trace", "-e", "one held events=2 exit", "--", "/bin/echo", "-p", "out"});
  CHECK(done.status == 0);
  CHECK(done.out.find("-p out\n") != std::string::npos);
  CHECK(done.err.ends_with("\nhits=2 delivered=2 missed=0\n"));
  CHECK(
      fixture.asked().starts_with("target.attach probe.add events.subscribe probe.enable target.resume probe.disable"));
  fixture.check_clean();
}

TEST_CASE("^C while a command whose probes are in place is let go on ends the trace as any other") {
  Fixture fixture;
  const auto done = fixture.run({"trace", "-e", "one held interrupt", "--", "/bin/true"});
  CHECK_MESSAGE(done.status == 0, done.err);
  CHECK_MESSAGE(done.err.find("interrupted") == std::string::npos, done.err);
  CHECK_MESSAGE(done.err.find("\nhits=0 delivered=0 missed=0\n") != std::string::npos, done.err);
  fixture.check_clean();
}

TEST_CASE("a command that ends without the daemon saying so ends the trace all the same") {
  Fixture fixture;
  const auto done = fixture.run({"trace", "-e", "one events=1", "--", "/bin/true"});
  CHECK(done.status == 0);
  CHECK(done.err.ends_with("\nhits=1 delivered=1 missed=0\n"));
}

TEST_CASE("a command that goes on after the trace is left running, and said to be") {
  Fixture fixture;
  const auto done = fixture.run(
      {"trace", "--count", "1", "-e", "one events=1", "--", "/bin/sh", "-c", "exec sleep 30 >/dev/null 2>&1"});
  CHECK(done.status == 0);
  const std::string mark = "probectl: /bin/sh (PID ";
  const auto at = done.err.find(mark);
  REQUIRE(at != std::string::npos);
  CHECK(done.err.find(") goes on, untraced\n") != std::string::npos);
  const auto command = static_cast<pid_t>(std::stol(done.err.substr(at + mark.size())));
  CHECK(::kill(command, 0) == 0);
  CHECK(fixture.asked().find("target.list target.detach") != std::string::npos);
  ::kill(command, SIGKILL);
}

TEST_CASE("a command that cannot be executed is status 1 with the reason") {
  Fixture fixture;
  const auto done = fixture.run({"trace", "-e", "one", "--", "/nonexistent/program"});
  CHECK(done.status == 1);
  CHECK(done.err.find("probectl: cannot run /nonexistent/program: No such file or directory\n") != std::string::npos);
  fixture.check_clean();
}

TEST_CASE("a refused probe means that the command never runs") {
  Fixture fixture;
  const auto file = fixture.directory() + "/ran";
  const auto done = fixture.run({"trace", "-e", "one refuse", "--", "/bin/sh", "-c", "sleep 5; touch " + file});
  CHECK(done.status == 1);
  CHECK_FALSE(std::filesystem::exists(file));
}

// A daemon at a socket, as a system has it.
class SystemDaemon {
 public:
  explicit SystemDaemon(const Fixture& fixture)
      : socket_(fixture.directory() + "/socket"),
        program_(environment("FAKE_PROBED"), {"--socket", socket_}, {"FAKE_JOURNAL=" + fixture.journal()}) {
    while (fixture.daemon_pid() == 0) ::poll(nullptr, 0, 5);
  }
  const std::string& socket() const { return socket_; }

 private:
  std::string socket_;
  Program program_;
};

TEST_CASE("the other sub-commands ask the daemon at the socket and print its answer") {
  Fixture fixture;
  SystemDaemon daemon(fixture);
  const auto ask = [&](Args args) {
    args.insert(args.begin(), {"--socket", daemon.socket()});
    return fixture.run(args);
  };
  const auto added = ask({"add", "-p", "7", "one", "two", "--json"});
  CHECK(added.status == 0);
  CHECK(lines_in(added.out) == 2);
  CHECK(added.out.starts_with(R"({"id":3,"name":"probes/one","kind":"p","pid":7,)"));
  CHECK(ask({"add", "-p", "7", "one"}).out == "added probes/one  id 3  0x1000  f+0x0  enabled\n");
  CHECK(ask({"arm"}).out == "armed\n");
  CHECK(ask({"ps", "--json"}).out == "{\"pid\":0,\"probes\":0}\n");
  const auto unsupported = ask({"vars", "-p", "7", "main", "--json"});
  CHECK(unsupported.status == 1);
  CHECK(unsupported.err ==
        "{\"error\":{\"reason\":\"unsupported\",\"message\":\"variables are not in this version\"}}\n");
}

TEST_CASE("a name that nothing has is a failure, a probe that is gone by its id is not") {
  Fixture fixture;
  SystemDaemon daemon(fixture);
  const auto ask = [&](Args args) {
    args.insert(args.begin(), {"--socket", daemon.socket()});
    return fixture.run(args);
  };
  for (const char* command : {"remove", "enable", "disable"}) {
    CAPTURE(command);
    const auto gone = ask({command, "12"});
    CHECK(gone.status == 0);
    CHECK(gone.err == "probectl: no probe 12 (it may be gone already)\n");
    const auto unknown = ask({command, "nothing", "12"});
    CHECK(unknown.status == 1);
    CHECK(unknown.err.find("probectl: no probe is named 'nothing' (") != std::string::npos);
    const auto json = ask({command, "nothing", "12", "--json"});
    CHECK(json.status == 1);
    CHECK(json.err.starts_with("{\"error\":{\"reason\":\"no-such-probe\","));
    CHECK(lines_in(json.err) == 1);
  }
  CHECK(fixture.asked().find("probe.enable") == std::string::npos);
  const auto format = ask({"format", "nothing"});
  CHECK(format.status == 1);
  CHECK(format.err.find("`probectl list`") != std::string::npos);
}

TEST_CASE("a trace of a disarmed daemon fails and says so: it is not armed") {
  Fixture fixture;
  const auto done = fixture.run(fixture.trace({"-e", "one disarmed"}));
  CHECK(done.status == 1);
  CHECK(done.err.find("armed 1 probe") == std::string::npos);
  CHECK(done.err.find("probectl: the daemon is disarmed: no probe is hit (`probectl arm` switches it on") !=
        std::string::npos);
  const auto json = fixture.run(fixture.trace({"--json", "-e", "one disarmed"}));
  CHECK(json.err.find("{\"error\":{\"reason\":\"disarmed\",") != std::string::npos);
  fixture.check_clean();
}

TEST_CASE("what a glob matches and can't be probed is counted in the line that says armed, and listed on request") {
  Fixture fixture;
  const auto brief = fixture.run(fixture.trace({"-e", "one skip exit"}));
  CHECK(brief.status == 0);
  CHECK(brief.err.find(
            fmt::format("\narmed 1 probe in PID {} (1 skipped: __restore_rt: it is the trampoline; --verbose lists "
                        "all)\n",
                        ::getpid())) != std::string::npos);
  const auto all = fixture.run(fixture.trace({"-v", "-e", "one skip exit"}));
  CHECK(all.err.find("\nprobectl: skipped __restore_rt (0x2000): it is the trampoline\n") != std::string::npos);
  CHECK(all.err.find(" (1 skipped: __restore_rt: it is the trampoline)\n") != std::string::npos);
}

TEST_CASE("a trace that ends with its target says how that ended") {
  Fixture fixture;
  CHECK(fixture.run(fixture.trace({"-e", "one killed"}))
            .err.find(fmt::format("\nprobectl: PID {} ended (killed by signal 15)\nhits=", ::getpid())) !=
        std::string::npos);
  CHECK(fixture.run(fixture.trace({"-e", "one exit"})).err.find("ended (exit code 0)\n") != std::string::npos);
}

TEST_CASE("a private daemon that is killed is said to be, and what that means for the target") {
  for (const bool has_guard : {true, false}) {
    CAPTURE(has_guard);
    Fixture fixture;
    Args variables = fixture.variables();
    if (has_guard) variables.push_back("FAKE_STATE=yes");
    Program program(environment("PROBECTL"), fixture.trace({"-e", "one events=1"}), variables);
    program.wait_for_err("armed");
    ::kill(fixture.daemon_pid(), SIGKILL);
    if (has_guard) {
      // As long as there is something to put right nothing is said.
      CHECK_FALSE(program.ends_within(200));
      CHECK(std::filesystem::remove(fixture.state_directory() + "/1-1.journal"));
    }
    const auto done = program.finish();
    CHECK(done.status == 1);
    CHECK(done.err.find("the private daemon was killed by signal 9") != std::string::npos);
    const auto says = [&](const char* what) {
      return done.err.find(fmt::format("PID {} {}", ::getpid(), what)) != std::string::npos;
    };
    CHECK(says("goes on without its probes, which have been taken out") == has_guard);
    CHECK(says("may have breakpoints left") == !has_guard);
    fixture.check_clean();
  }
}

TEST_CASE("^C before the probes are in place is said in plain words") {
  Fixture fixture;
  Program program(environment("PROBECTL"), fixture.trace({"-e", "one silent"}), fixture.variables());
  while (fixture.asked().find("probe.enable") == std::string::npos) ::poll(nullptr, 0, 5);
  program.send(SIGINT);
  const auto done = program.finish();
  CHECK(done.err.find("interrupted before the probes were in place") != std::string::npos);
  CHECK(done.err.find("probe.") == std::string::npos);
}

TEST_CASE("help that cannot be written is a failure") {
  Program program("/bin/sh", {"-c", "\"$0\" --help >/dev/full", environment("PROBECTL")}, {});
  CHECK(program.finish().status == 1);
}

TEST_CASE("without a daemon a sub-command fails with the socket's name") {
  Fixture fixture;
  const auto done = fixture.run({"list"});
  CHECK(done.status == 1);
  CHECK(done.err.starts_with("probectl: cannot reach the daemon at " + fixture.directory() + "/none: "));
}

}  // namespace
}  // namespace probed::client
