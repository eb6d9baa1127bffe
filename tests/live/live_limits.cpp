// What keeps probes from doing harm by the number of their hits, or by being forgotten: rates, and an expiry.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>

#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

// Calls work() as often as it can until it is told to stop.
struct Busy {
  Watched counter{"counter", {"2", "0"}};
  Busy() { counter.target.go(); }
  pid_t pid() const { return counter.pid(); }
  void end() {
    CHECK(text_restored(pid()));
    counter.target.send("stop\n");
    const TargetReport report = counter.target.finish();
    CHECK_MESSAGE(report.ok(), report.out, report.exit);
  }
};

Json listed(RpcClient& client, const Json& probe) {
  for (const Json& other : list_probes(client))
    if (other.at("id") == probe.at("id")) return other;
  return nullptr;
}

bool becomes_disabled(RpcClient& client, const Json& probe, Millis limit = kPatience) {
  return eventually([&] { return listed(client, probe).at("state") == "disabled"; }, limit);
}

// That it was disabled, and why; null: it wasn't told. All events that wait for the client come before, up to 64 MiB:
// each look reads all that comes in 20 ms.
Json told(Events& events) {
  const auto look = [&] {
    events.reach(SIZE_MAX, Millis{20});
    return !events.others().empty();
  };
  const bool came = eventually(look, Millis{60'000});
  return came ? events.others()[0] : Json();
}

void check_told(Events& events, const Json& probe, const std::string& reason) {
  const Json notification = told(events);
  REQUIRE(notification.is_object());
  CHECK(notification.at("method") == "probe.disabled");
  CHECK(notification.at("params").at("ids") == Json::array({probe.at("id")}));
  CHECK(notification.at("params").at("reason") == reason);
  const std::string message = notification.at("params").at("message");
  CHECK_MESSAGE(message.starts_with(probe.at("name").get<std::string>() + ": "), message);
}

}  // namespace

TEST_CASE(
    "a probe that is hit more often than its rate allows is disabled, and its owner and its audience are told why") {
  for (const bool optimize : {false, true}) {
    CAPTURE(optimize);
    Daemon daemon;
    RpcClient owner(daemon.socket()), audience(daemon.socket()), other(daemon.socket());
    Busy busy;
    if (!optimize) owner.call("daemon.optimize", {{"enabled", false}});
    const Json quiet = add(other, busy.pid(), {"p:quiet work"}, {{"maxRate", 4'000'000'000}}).at(0);
    CHECK(quiet.at("maxRate") == 4'000'000'000);
    Events seen(audience, {{"pid", busy.pid()}});
    const Json probe = add(owner, busy.pid(), {"p:loud work"}, {{"maxRate", 100}}).at(0);
    Events own(owner);
    CHECK(becomes_disabled(other, probe));
    const Json now = listed(other, probe);
    CHECK(now.at("stateReason") == "it was hit more than 100 times in a second");
    CHECK(now.at("armed") == false);
    check_told(own, probe, "rate");
    check_told(seen, probe, "rate");
    own.end();
    seen.end();
    // Its neighbour goes on, and so does it, when somebody wants it to.
    CHECK(listed(other, quiet).at("state") == "enabled");
    CHECK_FALSE(listed(other, quiet).contains("stateReason"));
    const auto hits = counts_of(other, quiet).hits;
    CHECK(eventually([&] { return counts_of(other, quiet).hits > hits; }));
    const auto before = counts_of(other, probe).hits;
    owner.call("probe.enable", {{"ids", {probe.at("id")}}});
    CHECK(eventually([&] { return counts_of(other, probe).hits > before; }));
    CHECK(becomes_disabled(other, probe));
    remove_all(owner, {probe});
    remove_all(other, {quiet});
    busy.end();
  }
}

TEST_CASE(
    "a breakpoint without a rate is held to the daemon's, for twenty seconds on end; one that may have any is not") {
  Daemon daemon({"--max-rate", "100"});
  RpcClient client(daemon.socket());
  Busy busy;
  client.call("daemon.optimize", {{"enabled", false}});
  const Json held = add(client, busy.pid(), {"p:held work"}).at(0);
  const Json free = add(client, busy.pid(), {"p:free work"}, {{"maxRate", 0}}).at(0);
  const auto began = std::chrono::steady_clock::now();
  CHECK(becomes_disabled(client, held, Millis{60'000}));
  CHECK(std::chrono::steady_clock::now() - began > std::chrono::seconds(19));
  const std::string why = listed(client, held).at("stateReason");
  CHECK_MESSAGE(why.find("more than 100 for 20 s") != why.npos, why);
  CHECK(listed(client, free).at("state") == "enabled");
  remove_all(client, {held, free});
  busy.end();
}

TEST_CASE("a probe with an expiry is disabled when its time has come") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Busy busy;
  client.call("daemon.optimize", {{"enabled", false}});  // a million events a second are more than we can read
  const Json probe = add(client, busy.pid(), {"p:brief work"}, {{"expire", 1}}).at(0);
  CHECK(probe.at("expires").is_number_unsigned());
  Events events(client);
  CHECK(becomes_disabled(client, probe));
  CHECK(listed(client, probe).at("stateReason") == "its time (expire) is over");
  check_told(events, probe, "expired");
  events.end();
  client.call("probe.enable", {{"ids", {probe.at("id")}}});
  CHECK(listed(client, probe).at("state") == "enabled");
  CHECK_FALSE(listed(client, probe).contains("expires"));
  remove_all(client, {probe});
  busy.end();
}

TEST_CASE("probectl passes rates and expiries on, and says what was disabled and why") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Busy busy;
  const std::string pid = std::to_string(busy.pid());
  const CommandResult added =
      probectl(daemon, {"add", "-p", pid, "--max-rate", "50", "--expire", "3600", "--no-optimize", "p:loud work"});
  CHECK_MESSAGE(added.ok(), added.err);
  const Json probe = list_probes(client).at(0);
  CHECK(probe.at("maxRate") == 50);
  CHECK(probe.contains("expires"));
  CHECK(becomes_disabled(client, probe));
  const CommandResult wide = probectl(daemon, {"list", "-v"});
  CHECK_MESSAGE(wide.out.find("[DISABLED]") != wide.out.npos, wide.out);
  CHECK_MESSAGE(wide.out.find("(it was hit more than 50 times in a second)") != wide.out.npos, wide.out);
  const CommandResult traced =
      probectl(daemon, {"trace", "-p", pid, "--max-rate", "50", "--no-optimize", "--duration", "60", "-e", "work"});
  CHECK(traced.ok());
  CHECK_MESSAGE(traced.err.find("no probe is left that could be hit") != traced.err.npos, traced.err);
  CHECK_MESSAGE(traced.err.find("it was hit more than 50 times in a second") != traced.err.npos, traced.err);
  CHECK(probectl(daemon, {"remove", "--all"}).ok());
  busy.end();
}

TEST_CASE("a process has as many probes as the daemon allows; what would be more is refused as a whole") {
  Daemon daemon({"--max-probes", "3"});
  RpcClient client(daemon.socket());
  Watched sleeper("sleeper");
  const std::vector<Json> two = add(client, sleeper.pid(), {"libc:getpid", "libc:getppid"});
  const Json error = add_error(client, sleeper.pid(), {"libc:getuid", "libc:geteuid"});
  CHECK(reason_of(error) == "limit-exceeded");
  CHECK(error.at("message") == "process " + std::to_string(sleeper.pid()) + " would have more than 3 probes");
  CHECK(list_probes(client).size() == 2);
  add(client, sleeper.pid(), {"libc:getuid"});
  CHECK(reason_of(add_error(client, sleeper.pid(), {"libc:getgid"})) == "limit-exceeded");
  remove_all(client, two);
  add(client, sleeper.pid(), {"libc:getgid"});
  client.call("probe.remove", {{"all", true}});
  CHECK_MESSAGE(sleeper.unharmed(), sleeper.harm());
}

// ---- descriptors ----------------------------------------------------------------------------------------------------

namespace {

std::set<int> descriptors_of(pid_t pid) {
  std::set<int> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error))
    found.insert(std::stoi(entry.path().filename()));
  return found;
}

// The daemon gets no further descriptors than so many, except where one is closed.
void allow_descriptors(pid_t daemon, int more) {
  const std::set<int> taken = descriptors_of(daemon);
  rlimit limit{0, 0};
  for (; taken.contains(static_cast<int>(limit.rlim_cur)) || more > 0; ++limit.rlim_cur)
    more -= taken.contains(static_cast<int>(limit.rlim_cur)) ? 0 : 1;
  rlimit before{};
  REQUIRE(::prlimit(daemon, RLIMIT_NOFILE, nullptr, &before) == 0);
  limit.rlim_max = before.rlim_max;
  REQUIRE(::prlimit(daemon, RLIMIT_NOFILE, &limit, nullptr) == 0);
}

}  // namespace

// A thread of which nothing could be learned for want of a descriptor would stand still, or be taken for a copy.
TEST_CASE(
    "a daemon without descriptors to spare keeps the probes of a target that makes threads and children, and loses no "
    "hit") {
  for (const std::string scenario : {"threads", "clones", "vfork"})
    for (const bool optimize : {false, true}) {
      CAPTURE(scenario);
      CAPTURE(optimize);
      Daemon daemon;
      RpcClient client(daemon.socket());
      client.call("daemon.optimize", {{"enabled", optimize}});
      Target target("lifecycle", {scenario, scenario == "threads" ? "200" : "12"});
      const Json probe = add(client, target.pid(), {"work"}).at(0);
      allow_descriptors(daemon.pid(), 0);
      target.go();
      const TargetReport report = target.finish();
      CHECK_MESSAGE(report.ok(), report.out, report.exit);
      CHECK(counts_of(client, probe).hits == static_cast<std::uint64_t>(report.value("calls")));
    }
}

TEST_CASE("a daemon that may have too little to do anything says what it lacks, and doesn't start") {
  const auto started = [](const std::string& limits, const std::string& user) {
    TempDir directory;
    std::filesystem::permissions(directory.path(), std::filesystem::perms::all);
    SpawnOptions options;
    options.user = user;
    return run_command({"/bin/bash", "-c", limits + " && exec \"$0\" --socket " + directory.path() + "/s",
                        required_environment("PROBED_BIN")},
                       options);
  };
  const CommandResult files = started("ulimit -n 100", "");
  CHECK(files.exit == Exit{1, 0});
  CHECK_MESSAGE(files.err.find("needs 128 file descriptors, and may have 100 (raise") != files.err.npos, files.err);
  if (::geteuid() != 0) SKIP_TEST("needs root, to be another user");
  const CommandResult timers = started("ulimit -i 0", "nobody");
  CHECK(timers.exit == Exit{1, 0});
  CHECK_MESSAGE(timers.err.find("needs timers, and can't make one") != timers.err.npos, timers.err);
}

// Each of its timers counts as a signal that waits, and root's programs may have any number of those waiting.
TEST_CASE("a daemon that may raise its limits works where the usual ones allow nothing") {
  if (::geteuid() != 0) SKIP_TEST("needs root");
  const CommandResult traced =
      run_command({"/bin/bash", "-c", "ulimit -Si 0 && exec \"$0\" --socket /nowhere trace -e work -- \"$1\" 1 100",
                   required_environment("PROBECTL_BIN"), target_path("counter")},
                  {}, Millis{30'000});
  CHECK_MESSAGE(traced.err.find("armed 1 probe") != traced.err.npos, traced.err);
}

TEST_CASE("what a daemon has no descriptors left for is refused for that reason, and undone") {
  struct Row {
    std::string method, member;
    const char* value;
    std::string with_room;  // reason of its refusal; none: it succeeds
  };
  const Row rows[] = {{"probe.add", "definitions", "p:f libc:getppid", ""},
                      {"probe.add", "definitions", "r:f work $retval", ""},
                      {"probe.add", "definitions", "p:f nowhere:work", "no-such-module"},
                      {"target.attach", "followFork", nullptr, ""},
                      {"symbols.functions", "glob", "nowhere:*", "no-such-module"},
                      {"symbols.variables", "location", "work", ""},
                      {"symbols.lines", "file", "work.c", ""},
                      {"symbols.usdt", "glob", "libc:*", ""}};
  for (const Row& row : rows) {
    CAPTURE(row.method);
    CAPTURE(row.value);
    bool answered = false;
    for (const int spare : {0, 20, 60, 90}) {
      if (answered) break;
      CAPTURE(spare);
      Daemon daemon;
      RpcClient client(daemon.socket());
      Watched target("family");
      Json params = {{"pid", target.pid()}};
      if (row.value == nullptr)
        params[row.member] = true;
      else if (row.member == "definitions")
        params = add_params(target.pid(), {row.value});
      else
        params[row.member] = row.value;
      client.call("daemon.status");
      rlimit before{};
      REQUIRE(::prlimit(daemon.pid(), RLIMIT_NOFILE, nullptr, &before) == 0);
      allow_descriptors(daemon.pid(), spare);
      const Json answer = client.request(row.method, params);
      REQUIRE(::prlimit(daemon.pid(), RLIMIT_NOFILE, &before, nullptr) == 0);
      REQUIRE(answer.is_object());
      const std::string reason = reason_of(answer.value("error", Json()));
      answered = reason == row.with_room;
      if (answered) continue;
      CHECK_MESSAGE(reason == "limit-exceeded", answer.dump());
      CHECK(client.call("probe.list").at("probes").empty());
      CHECK(client.call("target.list").at("targets").empty());
      CHECK(reason_of(client.request(row.method, params).value("error", Json())) == row.with_room);
      client.request("target.detach", {{"pid", target.pid()}});  // what is not attached needs none
      CHECK(target.unharmed());
      CHECK(target.ask("call 2") == "called 2");
    }
    CHECK(answered);
  }
}

TEST_CASE("clients that go before their requests are begun hold up nobody, and hold nothing for long") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched target("family");
  const std::string request = request_text("probe.add", add_params(target.pid(), {"work"}));
  std::size_t most = 0;
  for (int i = 0; i < 3000; ++i) {
    std::optional<RpcClient> leaving(daemon.socket());
    leaving->send_raw(request);
    leaving.reset();
    if (i % 100 != 99) continue;
    most = std::max(most, descriptors_of(daemon.pid()).size());
    CHECK(client.call("daemon.status").at("clients") >= 1);
    RpcClient another(daemon.socket());
    CHECK(another.call("daemon.status").at("armed") == true);
  }
  CHECK(most < 400);
  CHECK(eventually([&] { return list_probes(client).empty(); }));
  CHECK(target.unharmed());
}

TEST_CASE("what waited for clients that were behind is given back when they have gone") {
  if (std::getenv("PROBED_TEST_SANITIZED")) SKIP_TEST("a sanitizer keeps what is freed");
  Daemon daemon;
  const auto own_mib = [&] {  // proc_pid_status(5), "RssAnon:    4004 kB"
    const std::string status = read_file("/proc/" + std::to_string(daemon.pid()) + "/status");
    return std::atol(status.c_str() + status.find("RssAnon:") + 8) / 1024;
  };
  Busy busy;
  {
    RpcClient client(daemon.socket());
    add(client, busy.pid(), {"work"}, {{"maxRate", 0}});
    std::optional<RpcClient> behind[3];  // which never read their events
    for (auto& one : behind)
      one.emplace(daemon.socket()).send_raw(request_text("events.subscribe", Json::object()) + "\n");
    CHECK(eventually([&] { return own_mib() > 170; }, Millis{30'000}));
  }
  CHECK(eventually([&] { return own_mib() < 32; }));
  busy.end();
}

TEST_CASE("urgent bytes, which the protocol doesn't have, change nothing") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched target("family");
  CHECK(client.call("daemon.status").at("clients") == 1);
  if (!client.send_urgent('x')) SKIP_TEST("the kernel has no urgent bytes on Unix sockets");
  CHECK(client.call("daemon.status").at("clients") == 1);
  // While this is under way nothing is read, and the byte stays where it is.
  REQUIRE(client.send_urgent('x'));
  CHECK(client.refusal("probe.add", add_params(target.pid(), {"no_such_function"})) == "no-such-symbol");
  CHECK(client.call("target.list").at("targets").empty());
  CHECK(target.unharmed());
}

}  // namespace probed::live
