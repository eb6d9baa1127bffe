// The harness with a real daemon: each helper once, on the smallest useful case.
#include <signal.h>
#include <unistd.h>

#include "tests/live/harness.hpp"
#include "tests/live/servers.hpp"

namespace probed::live {
namespace {

// The numbers of the closing line "hits=H delivered=D missed=M"; -1 each when it is missing.
struct Closing {
  long hits = -1, delivered = -1, missed = -1;
};
Closing closing_line(const std::string& errors) {
  Closing closing;
  const std::size_t at = errors.find("hits=");
  if (at != std::string::npos)
    std::sscanf(errors.c_str() + at, "hits=%ld delivered=%ld missed=%ld", &closing.hits, &closing.delivered,
                &closing.missed);
  return closing;
}

TEST_CASE("a private daemon answers, refuses, and leaves nothing behind when its lifetime pipe closes") {
  Daemon daemon;
  {
    RpcClient client(daemon.socket());
    const Json hello = client.call("initialize", {{"client", {{"name", "test"}, {"version", "1"}}}, {"protocol", 1}});
    CHECK(hello.is_object());
    CHECK(client.refusal("target.attach", {{"pid", 4194303}}) == "no-such-process");
    CHECK(client.refusal("daemon.status") == "");
    CHECK(client.send_raw("no json\n"));
    const Json error = parse_json(client.receive_line().value_or("null"));
    CHECK(error.at("error").at("code") == -32700);
  }
  const std::string socket = daemon.socket();
  CHECK(daemon.stop() == Exit{0, 0});
  CHECK(::access(socket.c_str(), F_OK) != 0);
  CHECK(children_left().empty());
}

TEST_CASE("trace counts every call of a target, and the target goes on unharmed") {
  Daemon daemon;
  Target target("counter", {"2", "0"});
  const TargetState before = state_of(target.pid());
  const CommandResult trace = [&] {
    Process process(probectl_argv(daemon, {"trace", "-p", std::to_string(target.pid()), "-e", "p:w work a=$arg1:s32",
                                           "--count", "100", "--json"}));
    CHECK(eventually([&] { return process.errors().find("armed") != std::string::npos; }));
    target.go();
    const std::optional<Exit> exit = process.wait();
    return CommandResult{exit.value_or(Exit{}), process.output(), process.errors()};
  }();
  CHECK_MESSAGE(trace.ok(), trace.err);
  CHECK(json_lines(trace.out).size() == 100);
  const Closing closing = closing_line(trace.err);
  CHECK(closing.hits == 100);
  CHECK(closing.hits == closing.delivered + closing.missed);
  CHECK(left_unharmed(target.pid(), before, PageCopies::may_stay));
  target.send("stop\n");
  CHECK(target.finish().ok());
}

// One line a stop: the thread, how it was found, what is done, and why.
TEST_CASE("with --log-level trace the log tells of each stop of a thread what was done, and why") {
  Daemon daemon({"--log-level", "trace"});
  Target target("counter", {"1", "0"});
  Process trace(probectl_argv(
      daemon, {"trace", "-p", std::to_string(target.pid()), "-e", "work", "--no-optimize", "--count", "2"}));
  REQUIRE(eventually([&] { return trace.errors().find("armed") != std::string::npos; }));
  target.go();
  CHECK(trace.wait() == Exit{0, 0});
  const std::string log = daemon.process().errors();
  CHECK_MESSAGE(log.find("thread " + std::to_string(target.pid()) + ", interrupted at 0x") != std::string::npos, log);
  const auto hit = log.find(", signal 5 at 0x");
  REQUIRE_MESSAGE(hit != std::string::npos, log);
  CHECK_MESSAGE(log.substr(hit, log.find('\n', hit) - hit).ends_with(": goes on: past a breakpoint"), log);
  CHECK_MESSAGE(log.find(", detaching: is let go: ") != std::string::npos, log);
  target.send("stop\n");
  CHECK(target.finish().ok());
}

TEST_CASE("events come as notifications to a subscriber") {
  Daemon daemon;
  Target target("counter", {"1", "50"});
  RpcClient client(daemon.socket());
  const Json added = client.call(
      "probe.add", {{"pid", target.pid()}, {"probes", Json::array({{{"definition", "p:w work n=$arg2:s64"}}})}});
  CHECK(added.at("probes").size() == 1);
  client.call("events.subscribe", {{"pid", target.pid()}});
  target.go();
  std::vector<long> seen;
  eventually([&] {
    const std::optional<Json> message = client.notification(Millis{100});
    if (message && message->at("method") == "events")
      for (const Json& event : message->at("params").at("events")) seen.push_back(event.at("args").at("n"));
    return seen.size() >= 50;
  });
  REQUIRE(seen.size() == 50);
  CHECK(seen.front() == 0);
  CHECK(seen.back() == 49);
  CHECK(target.finish().ok());
}

TEST_CASE("a killed daemon is noticed") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  daemon.kill();
  CHECK(client.closed_by_peer());
  CHECK_FALSE(daemon.process().running());
}

}  // namespace
}  // namespace probed::live
