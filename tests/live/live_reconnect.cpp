// A probectl that loses its daemon goes on with the next one at the same socket, and says what it has missed.
#include <doctest/doctest.h>
#include <signal.h>

#include <memory>
#include <string_view>

#include "tests/live/restarts.hpp"

namespace probed::live {
namespace {

enum class Kept { no, yes };  // the persistent probes

// Daemons one after the other at one socket, which outlives none of them.
struct OneSocket {
  TempDir directory;
  std::string socket = directory / "s";
  std::unique_ptr<Process> daemon;
  explicit OneSocket(Kept kept) : kept_(kept) { start(); }
  ~OneSocket() {
    if (daemon->running()) end(SIGTERM);
  }
  void start() {
    std::vector<std::string> argv{required_environment("PROBED_BIN"), "--socket", socket};
    if (kept_ == Kept::yes) argv.emplace_back("--keep-probes");
    daemon = std::make_unique<Process>(argv);
    REQUIRE(eventually([&] { return daemon->errors().find("listening on") != std::string::npos; }));
  }
  void end(int signal) {
    daemon->signal(signal);
    REQUIRE(daemon->wait());
    REQUIRE(eventually([&] { return guard_of(socket + ".state") == 0; }));
  }
  std::vector<std::string> probectl(const std::vector<std::string>& arguments) const {
    std::vector<std::string> argv{required_environment("PROBECTL_BIN"), "--socket", socket};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return argv;
  }

 private:
  Kept kept_;
};

// Lines that show a hit of the probe w.
std::size_t events_in(const std::string& output) {
  constexpr std::string_view kHit = " w: (work+0x0)";
  std::size_t count = 0;
  for (auto at = output.find(kHit); at != std::string::npos; at = output.find(kHit, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("a trace goes on with the next daemon, says for how long it saw nothing, and its account holds") {
  for (const int how : {SIGKILL, SIGTERM}) {
    CAPTURE(how);
    OneSocket daemons(Kept::no);
    Watched target("family");
    Process trace(daemons.probectl(
        {"trace", "-p", std::to_string(target.pid()), "-e", "p:w work", "--count", "9", "--reconnect", "60"}));
    REQUIRE_MESSAGE(says(trace, "armed 1 probe"), trace.errors());
    CHECK(target.ask("call 4") == "called 4");
    for (int i = 0; i < 4; ++i) REQUIRE(trace.next_line());
    daemons.end(how);
    REQUIRE_MESSAGE(says(trace, "waiting 60 s for another one"), trace.errors());
    CHECK(target.ask("call 100") == "called 100");
    daemons.start();
    REQUIRE_MESSAGE(says(trace, "1 probe in PID " + std::to_string(target.pid()) + " again; what was hit in "),
                    trace.errors());
    CHECK(target.ask("call 50") == "called 50");
    CHECK(trace.wait() == Exit{0, 0});
    CHECK_MESSAGE(trace.errors().find("hits=9 delivered=9 missed=0") != std::string::npos, trace.errors());
    daemons.end(SIGTERM);
    CHECK(let_go(target));
  }
}

TEST_CASE("a trace that has started its command goes on with the next daemon, and the command with the trace") {
  OneSocket daemons(Kept::no);
  Process trace(daemons.probectl({"trace", "-e", "p:w work", "--reconnect", "60", "--", target_path("family")}));
  REQUIRE_MESSAGE(says(trace, "armed 1 probe in PID "), trace.errors());
  const auto answers = [&](const std::string& command, const std::string& answer) {
    trace.send(command + "\n");
    return eventually([&] { return trace.output().find(answer) != std::string::npos; });
  };
  CHECK(answers("call 3", "called 3"));
  // What hasn't arrived dies with the daemon.
  REQUIRE(eventually([&] { return events_in(trace.output()) == 3; }));
  daemons.end(SIGKILL);
  REQUIRE(says(trace, "waiting 60 s for another one"));
  CHECK(answers("call 4", "called 4"));
  daemons.start();
  REQUIRE_MESSAGE(says(trace, "a daemon is back: 1 probe in PID "), trace.errors());
  CHECK(answers("call 5", "called 5"));
  trace.send("quit\n");
  CHECK(trace.wait() == Exit{0, 0});
  CHECK_MESSAGE(trace.errors().find("hits=8 delivered=8 missed=0") != std::string::npos, trace.errors());
}

TEST_CASE("a trace whose daemon doesn't come back ends with the error of before, and so does one that isn't to wait") {
  for (const char* patience : {"0", "1"}) {
    CAPTURE(std::string(patience));
    OneSocket daemons(Kept::no);
    Watched target("family");
    Process trace(daemons.probectl(
        {"trace", "-p", std::to_string(target.pid()), "-e", "p:w work", "--reconnect", patience, "--json"}));
    REQUIRE(says(trace, "armed 1 probe"));
    daemons.end(SIGKILL);
    CHECK(trace.wait() == Exit{1, 0});
    CHECK_MESSAGE(trace.errors().find("the daemon closed the connection") != std::string::npos, trace.errors());
    CHECK((trace.errors().find("waiting") == std::string::npos) == (patience == std::string("0")));
    daemons.start();
  }
}

TEST_CASE("a trace that waits for a daemon ends on ^C, and when its target ends") {
  for (const bool by_signal : {true, false}) {
    CAPTURE(by_signal);
    OneSocket daemons(Kept::no);
    Watched target("family");
    Process trace(
        daemons.probectl({"trace", "-p", std::to_string(target.pid()), "-e", "p:w work", "--reconnect", "600"}));
    REQUIRE(says(trace, "armed 1 probe"));
    daemons.end(SIGKILL);
    REQUIRE(says(trace, "waiting 600 s"));
    if (by_signal)
      trace.signal(SIGINT);
    else
      target.target.signal(SIGKILL);
    CHECK(trace.wait() == Exit{0, 0});
    daemons.start();
  }
}

// A daemon that is being killed closes one client's connection after the other, and its listening socket last.
TEST_CASE("many streams go on with the next daemon, whenever they learn that the one before has been killed") {
  OneSocket daemons(Kept::yes);
  Watched target("family");
  REQUIRE(run_command(daemons.probectl({"add", "-p", std::to_string(target.pid()), "p:steady work"})).ok());
  const auto are_subscribed = [&](unsigned count) {
    return eventually([&] { return RpcClient(daemons.socket).call("daemon.status").at("subscriptions") == count; });
  };
  std::vector<std::unique_ptr<Process>> streams;
  for (int i = 0; i < 12; ++i)
    streams.push_back(std::make_unique<Process>(daemons.probectl({"stream", "steady", "--reconnect", "60"})));
  for (int round = 0; round < 4; ++round) {
    CAPTURE(round);
    REQUIRE(are_subscribed(12));
    daemons.end(SIGKILL);
    daemons.start();
  }
  CHECK_MESSAGE(are_subscribed(12), "some have given up");
  for (const auto& stream : streams) {
    stream->signal(SIGINT);
    CHECK_MESSAGE((stream->wait() == Exit{0, 0}), stream->errors());
  }
}

TEST_CASE("a stream of kept probes goes on with the next daemon, and counts what never arrived") {
  OneSocket daemons(Kept::yes);
  Watched target("family");
  const std::string pid = std::to_string(target.pid());
  REQUIRE(run_command(daemons.probectl({"add", "-p", pid, "p:steady work"})).ok());
  Process stream(daemons.probectl({"stream", "steady", "--count", "7", "--reconnect", "60"}));
  const auto is_subscribed = [&] { return RpcClient(daemons.socket).call("daemon.status").at("subscriptions") == 1; };
  REQUIRE(eventually(is_subscribed));
  CHECK(target.ask("call 4") == "called 4");
  for (int i = 0; i < 4; ++i) REQUIRE(stream.next_line());
  // Hits that are counted while it can't listen: it stands still, the daemon ends, another one counts them.
  daemons.end(SIGTERM);
  REQUIRE(says(stream, "waiting 60 s"));
  stream.signal(SIGSTOP);
  daemons.start();
  CHECK(target.ask("call 6") == "called 6");
  {
    RpcClient client(daemons.socket);
    REQUIRE(hits(client, "probes/steady", 10));
  }
  stream.signal(SIGCONT);
  REQUIRE_MESSAGE(says(stream, "hits that it has not counted are missed, and 6 that it has"), stream.errors());
  REQUIRE(eventually(is_subscribed));
  CHECK(target.ask("call 3") == "called 3");
  CHECK(stream.wait() == Exit{0, 0});
  REQUIRE(run_command(daemons.probectl({"remove", "--all"})).ok());
}

TEST_CASE("a stream whose probes are not kept ends when its daemon does") {
  OneSocket daemons(Kept::no);
  Watched target("family");
  REQUIRE(run_command(daemons.probectl({"add", "-p", std::to_string(target.pid()), "p:steady work"})).ok());
  Process stream(daemons.probectl({"stream", "--reconnect", "60"}));
  REQUIRE(eventually([&] { return RpcClient(daemons.socket).call("daemon.status").at("subscriptions") == 1; }));
  daemons.end(SIGTERM);
  daemons.start();
  CHECK(stream.wait() == Exit{1, 0});
  CHECK_MESSAGE(stream.errors().find("has none of the probes") != std::string::npos, stream.errors());
}

}  // namespace probed::live
