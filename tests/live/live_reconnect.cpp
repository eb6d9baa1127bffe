// A probectl that loses its daemon goes on with the next one at the same socket, and says what it has missed.
#include <doctest/doctest.h>
#include <signal.h>

#include <cstdio>
#include <filesystem>
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

// Hands one connection to argv[1] on to argv[2], until it is killed.
constexpr const char* kRelay = R"(
import os, select, socket, sys
door, daemon = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
if os.path.exists(sys.argv[1]): os.unlink(sys.argv[1])
door.bind(sys.argv[1])
door.listen()
daemon.connect(sys.argv[2])
client = door.accept()[0]
to = {client: daemon, daemon: client}
while True:
    for end in select.select(list(to), [], [])[0]:
        data = end.recv(65536)
        if not data: sys.exit()
        to[end].sendall(data)
)";

// Lines that show a hit of the probe w.
std::size_t events_in(const std::string& output) {
  constexpr std::string_view kHit = " w: (work+0x0)";
  std::size_t count = 0;
  for (auto at = output.find(kHit); at != std::string::npos; at = output.find(kHit, at + 1)) ++count;
  return count;
}

// Of the only probe that a daemon has kept there.
std::uint64_t kept_hits(const std::string& state) {
  for (const auto& file : std::filesystem::directory_iterator(state)) {
    const std::string text = read_file(file.path().string());
    constexpr std::string_view kHits = "\"hits\":";
    if (const auto at = text.find(kHits); at != std::string::npos) return std::stoull(text.substr(at + kHits.size()));
  }
  return 0;
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
    const char* why = patience == std::string("0") ? "the daemon closed the connection" : "none came within 1 s";
    CHECK_MESSAGE(trace.errors().find(why) != std::string::npos, trace.errors());
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
  REQUIRE_MESSAGE(says(stream, "what was hit without one is not counted; 6 hits that were counted are missed here"),
                  stream.errors());
  REQUIRE(eventually(is_subscribed));
  CHECK(target.ask("call 3") == "called 3");
  CHECK(stream.wait() == Exit{0, 0});
  REQUIRE(run_command(daemons.probectl({"remove", "--all"})).ok());
}

TEST_CASE("a stream that comes back to the same daemon misses what was hit meanwhile, and not what it had got") {
  OneSocket daemons(Kept::no);
  Watched target("family");
  const std::string pid = std::to_string(target.pid()), door = daemons.directory / "relay";
  const std::vector<std::string> argv{"python3", "-c", kRelay, door, daemons.socket};
  auto relay = std::make_unique<Process>(argv);
  RpcClient client(daemons.socket);
  const auto subscriptions = [&](int count) {
    return eventually([&] { return client.call("daemon.status").at("subscriptions") == count; });
  };
  add(client, target.pid(), {"p:steady work"});
  REQUIRE(eventually([&] { return std::filesystem::exists(door); }));
  Process stream(
      {required_environment("PROBECTL_BIN"), "--socket", door, "stream", "--count", "9", "--reconnect", "60"});
  for (int round = 0; round < 3; ++round) {
    CAPTURE(round);
    REQUIRE(subscriptions(1));
    CHECK(target.ask("call 2") == "called 2");
    for (int i = 0; i < 2; ++i) REQUIRE(stream.next_line());
    stream.signal(SIGSTOP);
    relay->signal(SIGKILL);
    REQUIRE(relay->wait());
    REQUIRE(subscriptions(0));
    CHECK(target.ask("call 5") == "called 5");
    relay = std::make_unique<Process>(argv);
    stream.signal(SIGCONT);
  }
  REQUIRE(subscriptions(1));
  CHECK(target.ask("call 3") == "called 3");
  CHECK(stream.wait() == Exit{0, 0});
  CHECK_MESSAGE(stream.errors().find("delivered=9 missed=15") != std::string::npos, stream.errors());
}

// Counted hits are delivered, or told as missed, in whatever moment the daemon is stopped.
TEST_CASE("what was counted until a daemon was stopped has arrived, or is told as missed") {
  for (int round = 0; round < 5; ++round) {
    CAPTURE(round);
    OneSocket daemons(Kept::yes);
    Watched target("family");
    const std::string pid = std::to_string(target.pid());
    REQUIRE(run_command(daemons.probectl({"add", "-p", pid, "p:steady work", "--no-optimize"})).ok());
    Process stream(daemons.probectl({"stream", "steady", "--reconnect", "0", "-o", "/dev/null"}));
    RpcClient client(daemons.socket);
    REQUIRE(eventually([&] { return client.call("daemon.status").at("subscriptions") == 1; }));
    target.target.send("call 1000000\n");
    REQUIRE(eventually([&] { return named(client, "probes/steady").at("hits") > 100 + 1000 * round; }));
    daemons.end(SIGTERM);
    CHECK(stream.wait() == Exit{1, 0});
    const std::uint64_t counted = kept_hits(daemons.socket + ".state");
    const std::string errors = stream.errors();
    std::uint64_t delivered = 0, missed = 0;
    const auto last = errors.rfind("delivered=");
    REQUIRE_MESSAGE(last != std::string::npos, errors);
    REQUIRE(std::sscanf(errors.c_str() + last, "delivered=%lu missed=%lu", &delivered, &missed) == 2);
    CHECK_MESSAGE(delivered + missed == counted, errors);
    CHECK_MESSAGE(errors.find("the daemon has been stopped") != std::string::npos, errors);
    CHECK(let_go(target));
  }
}

// Everything that was counted is delivered or missed, over restarts, also of probes that came while the stream ran.
TEST_CASE("what a stream has got and missed over restarts is what its probes have counted") {
  OneSocket daemons(Kept::yes);
  Watched target("family");
  const std::string pid = std::to_string(target.pid());
  Process stream(daemons.probectl({"stream", "-p", pid, "--reconnect", "60", "-o", "/dev/null"}));
  const auto are_subscribed = [&] {
    return eventually([&] { return RpcClient(daemons.socket).call("daemon.status").at("subscriptions") == 1; });
  };
  REQUIRE(are_subscribed());
  REQUIRE(run_command(daemons.probectl({"add", "-p", pid, "p:one work", "p:two work", "--no-optimize"})).ok());
  target.target.send("call 2000000000\n");
  std::uint64_t counted = 0;
  for (int round = 0; round < 4; ++round) {
    CAPTURE(round);
    // Events of a probe that doesn't come back, and of one that is removed meanwhile, hide nothing.
    Process other(daemons.probectl(
        {"trace", "-p", pid, "-e", "p:other work", "--no-optimize", "--reconnect", "0", "-o", "/dev/null"}));
    REQUIRE(says(other, "armed 1 probe"));
    {
      RpcClient client(daemons.socket);
      REQUIRE(eventually([&] { return named(client, "probes/other").at("hits") > 1000; }));
      if (round == 1)
        counted += client.call("probe.remove", {{"names", {"probes/two"}}})["probes"][0]["hits"].get<int>();
    }
    daemons.end(SIGTERM);
    CHECK(other.wait() == Exit{1, 0});
    const std::string account = other.errors();
    counted += std::stoull(account.substr(account.rfind("hits=") + 5));
    stream.signal(SIGSTOP);
    daemons.start();
    {
      RpcClient client(daemons.socket);
      const Json before = named(client, "probes/one").at("hits");
      REQUIRE(eventually([&] { return named(client, "probes/one").at("hits") > before.get<int>() + 100; }));
    }
    stream.signal(SIGCONT);
    REQUIRE(are_subscribed());
  }
  REQUIRE(run_command(daemons.probectl({"disable", "--all"})).ok());
  RpcClient client(daemons.socket);
  const Json profile = client.call("probe.profile");
  for (const Json& probe : profile.at("probes")) counted += probe.at("hits").get<std::uint64_t>();
  stream.signal(SIGINT);
  CHECK(stream.wait() == Exit{0, 0});
  const std::string errors = stream.errors();
  std::uint64_t delivered = 0, missed = 0;
  const auto last = errors.rfind("delivered=");
  REQUIRE_MESSAGE(last != std::string::npos, errors);
  REQUIRE(std::sscanf(errors.c_str() + last, "delivered=%lu missed=%lu", &delivered, &missed) == 2);
  CHECK_MESSAGE(missed > 0, errors);
  // A hit at the very moment in which it subscribes may be on either side.
  const std::uint64_t told = delivered + missed, apart = told > counted ? told - counted : counted - told;
  CHECK_MESSAGE(apart <= 4, counted, " ", errors);
}

TEST_CASE("a stream says what it waits for in vain: probes that are disabled, or gone when it comes back") {
  OneSocket daemons(Kept::yes);
  Watched target("family"), ending("family");
  for (Watched* each : {&target, &ending})
    REQUIRE(
        run_command(daemons.probectl({"add", "-p", std::to_string(each->pid()), "p:steady work", "--disabled"})).ok());
  Process stream(daemons.probectl({"stream", "steady", "--reconnect", "60"}));
  REQUIRE_MESSAGE(says(stream, "2 of these probes are disabled: nothing comes of them until `probectl enable`"),
                  stream.errors());
  daemons.end(SIGTERM);
  REQUIRE(says(stream, "waiting 60 s"));
  ending.target.signal(SIGKILL);
  ending.target.wait();
  daemons.start();
  REQUIRE_MESSAGE(says(stream, "probes/steady (id 2, PID " + std::to_string(ending.pid()) + ") is gone: "),
                  stream.errors());
  REQUIRE(says(stream, "a daemon is back"));
  stream.signal(SIGINT);
  CHECK(stream.wait() == Exit{0, 0});
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
