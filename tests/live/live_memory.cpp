// U2, U6, U11, K6 on real processes: probed code that goes away, comes back, moves, or is rewritten; what is given
// back.
#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "arch/arch.hpp"
#include "tests/live/probing.hpp"
#include "tests/live/restarts.hpp"
#include "tests/live/servers.hpp"

namespace probed::live {
namespace {

// mapper with its code mapped, and where its two functions are.
struct Mapper {
  Target target{"mapper"};
  std::string first, second;
  TargetState before;

  explicit Mapper(const std::string& kind) {
    place("map " + kind);
    before = state_of(pid());
  }
  pid_t pid() const { return target.pid(); }
  std::string ask(const std::string& command, Millis limit = kPatience) {
    target.send(command + "\n");
    return target.next_line(limit).value_or("");
  }
  // A command that is answered with places.
  void place(const std::string& command) {
    std::istringstream words(ask(command));
    std::string word;
    words >> word >> first >> second;
    REQUIRE(first.starts_with("0x"));
  }
  bool does(const std::string& command) { return ask(command) == "done " + command; }
  bool ends_well() {
    target.send("quit\n");
    return target.finish().ok();
  }
};

Json listed(RpcClient& client, const Json& probe) {
  for (const Json& p : list_probes(client))
    if (p.at("id") == probe.at("id")) return p;
  return Json::object();
}

std::string state_in_list(RpcClient& client, const Json& probe) {
  return listed(client, probe).value("state", "absent");
}
bool becomes(RpcClient& client, const Json& probe, const std::string& state) {
  return eventually([&] { return state_in_list(client, probe) == state; });
}
std::uint64_t hits_of(RpcClient& client, const Json& probe) { return counts_of(client, probe).hits; }
std::optional<Json> notification_of(RpcClient& client, const std::string& method) {
  for (auto n = client.notification(); n; n = client.notification())
    if (n->at("method") == method) return n;
  return std::nullopt;
}
bool has_notification(RpcClient& client, const std::string& method) {
  return notification_of(client, method).has_value();
}

const std::vector<std::string> kPrivateKinds{"file", "memfd", "deleted", "anon", "jit"};

// dlopener, its plugin loaded or not.
struct PluginUser {
  Target target{"dlopener"};
  std::string ask(const std::string& command) {
    target.send(command + "\n");
    return target.next_line().value_or("");
  }
};

// ---- what can be probed ---------------------------------------------------------------------------------------------

TEST_CASE("U2: code of private memory is probed, whether its file is there, deleted, a memfd or none") {
  for (const std::string& kind : kPrivateKinds) {
    CAPTURE(kind);
    Daemon daemon;
    RpcClient client(daemon.socket());
    Mapper mapper(kind);
    const Json probe = add(client, mapper.pid(), {"p:first " + mapper.first + " x=" ARG1 ":s32"}).at(0);
    CHECK(mapper.does("call 5"));
    CHECK(hits_of(client, probe) == 5);
    remove_all(client, {probe});
    CHECK(!has_breakpoint(mapper.pid(), address_of(probe)));
    if (kind != "deleted")  // nothing to compare it with
      CHECK(left_unharmed(mapper.pid(), mapper.before, PageCopies::may_stay));
    CHECK(mapper.ends_well());
  }
}

TEST_CASE("U2: code in a MAP_SHARED mapping is refused: its file and other processes would see the breakpoint") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Mapper mapper("shared");
  const Json error = add_error(client, mapper.pid(), {"p:first " + mapper.first});
  CHECK(reason_of(error) == "unsupported-target");
  CHECK(error.dump().find("MAP_SHARED") != std::string::npos);
  CHECK(!has_breakpoint(mapper.pid(), std::stoull(mapper.first, nullptr, 16)));
  CHECK(mapper.ends_well());
}

TEST_CASE("U2: a program whose file is replaced on disk keeps its probes and gets back the bytes it was started with") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Mapper mapper("file");
  const Json probe = add(client, mapper.pid(), {"p:first " + mapper.first}).at(0);
  CHECK(mapper.does("replace"));
  CHECK(mapper.does("call 3"));
  CHECK(hits_of(client, probe) == 3);
  CHECK(state_in_list(client, probe) == "enabled");
  remove_all(client, {probe});
  CHECK(mapper.does("call 3"));
  CHECK(mapper.ends_well());
}

// ---- U6: gone -------------------------------------------------------------------------------------------------------

TEST_CASE(
    "U6: probed code that is unmapped, cut off or replaced is shown as gone, and what is there now is left alone") {
  struct Case {
    const char* command;
    bool first_stays;
  };
  for (const std::string& kind : kPrivateKinds)
    for (const Case& c : {Case{"unmap", false}, {"over", false}, {"shrink", true}}) {
      const std::string command = c.command;
      CAPTURE(kind);
      CAPTURE(command);
      Daemon daemon;
      RpcClient client(daemon.socket());
      Mapper mapper(kind);
      const auto probes = add(client, mapper.pid(), {"p:first " + mapper.first, "p:second " + mapper.second});
      CHECK(mapper.does("call 2"));
      CHECK(mapper.does(command));
      CHECK(state_in_list(client, probes[1]) == "gone");
      CHECK(listed(client, probes[1]).at("armed") == false);
      CHECK(state_in_list(client, probes[0]) == std::string(c.first_stays ? "enabled" : "gone"));
      CHECK(has_notification(client, "probe.gone"));
      CHECK(mapper.does("call 2"));
      CHECK(hits_of(client, probes[0]) == (c.first_stays ? 4 : 2));
      const CommandResult list = probectl(daemon, {"list"});
      CHECK(list.out.find("[GONE]") != std::string::npos);
      remove_all(client, probes);
      if (command == "over") CHECK(mapper.does("check"));
      CHECK(mapper.ends_well());
    }
}

TEST_CASE("U6: code that has gone unnoticed does no harm when its probes are disabled, removed or detached") {
  for (const char* how : {"probe.disable", "probe.remove", "target.detach", "daemon.disarm", "SIGTERM"}) {
    const std::string way = how;
    CAPTURE(way);
    Daemon daemon;
    RpcClient client(daemon.socket());
    Mapper mapper("file");
    const auto probes = add(client, mapper.pid(), {"p:first " + mapper.first, "p:second " + mapper.second});
    CHECK(mapper.does("over"));
    if (way == "SIGTERM") {
      daemon.process().signal(15);
      CHECK(daemon.process().wait());
    } else {
      client.call(way, way == "target.detach"   ? Json{{"pid", mapper.pid()}}
                       : way == "daemon.disarm" ? Json::object()
                                                : ids_of(probes));
    }
    CHECK(mapper.does("check"));
    CHECK(mapper.ends_well());
  }
}

TEST_CASE(
    "U6: code that has gone unnoticed is told of at the end of a trace, and of a stream of somebody else's probes") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  for (const std::string command : {"unmap", "over"}) {
    CAPTURE(command);
    Mapper mapper("file");
    const std::string pid = std::to_string(mapper.pid());
    const std::string gone =
        " (process " + pid + ") and 1 more: the code was unloaded, moved or rewritten; what has run";
    add(client, mapper.pid(), {"p:first " + mapper.first, "p:second " + mapper.second});
    Process stream(probectl_argv(daemon, {"stream", "-p", pid}));
    Process trace(
        probectl_argv(daemon, {"trace", "-p", pid, "-e", "p:a " + mapper.first, "-e", "p:b " + mapper.second}));
    REQUIRE(says(trace, "armed 2 probes"));
    REQUIRE(eventually([&] { return client.call("daemon.status").at("subscriptions") == 2; }));
    CHECK(mapper.does("call 2"));
    CHECK(mapper.does(command));
    trace.signal(SIGINT);
    CHECK(trace.wait() == Exit{0, 0});
    CHECK_MESSAGE(trace.errors().find("gone: probes/a" + gone) != std::string::npos, trace.errors());
    CHECK(trace.errors().find("hits=4 delivered=4 missed=0") != std::string::npos);
    CHECK_MESSAGE(says(stream, "gone: probes/first (process " + pid + ") and 3 more"), stream.errors());
    CHECK(mapper.ends_well());
    CHECK(stream.wait() == Exit{0, 0});
  }
  Mapper mapper("file");
  const std::string pid = std::to_string(mapper.pid());
  add(client, mapper.pid(), {"p:first " + mapper.first});
  Process stream(probectl_argv(daemon, {"stream", "first"}));
  REQUIRE(eventually([&] { return client.call("daemon.status").at("subscriptions") == 1; }));
  CHECK(mapper.does("over"));
  stream.signal(SIGINT);
  CHECK(stream.wait() == Exit{0, 0});
  CHECK_MESSAGE(stream.errors().find("gone: probes/first (process " + pid + "): ") != std::string::npos,
                stream.errors());
  CHECK(mapper.ends_well());
}

TEST_CASE("U6: code that is made inaccessible keeps its probes, which hit again when it is executable again") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Mapper mapper("file");
  const Json probe = add(client, mapper.pid(), {"p:first " + mapper.first}).at(0);
  CHECK(mapper.does("none"));
  CHECK(state_in_list(client, probe) == "enabled");
  CHECK(mapper.does("rx"));
  CHECK(mapper.does("call 2"));
  CHECK(hits_of(client, probe) == 2);
  remove_all(client, {probe});
  CHECK(left_unharmed(mapper.pid(), mapper.before, PageCopies::may_stay));
  CHECK(mapper.ends_well());
}

TEST_CASE("U6: dlclose of a probed library does no harm; its probes are gone and can be removed") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  PluginUser user;
  CHECK(user.ask("open").starts_with("opened"));
  const Json probe = add(client, user.target.pid(), {"p:plug plugin.so:plugin_work"}).at(0);
  CHECK(user.ask("call 3") == "called 3 30");
  CHECK(user.ask("close") == "closed");
  CHECK(state_in_list(client, probe) == "gone");
  CHECK(user.ask("loop 20") == "looped 20 60");
  CHECK(hits_of(client, probe) == 3);
  remove_all(client, {probe});
  CHECK(user.ask("loop 3") == "looped 3 9");
  user.target.send("quit\n");
  CHECK(user.target.finish().ok());
}

// ---- moved ----------------------------------------------------------------------------------------------------------

TEST_CASE("U6: code that is moved with its breakpoints runs on, in threads, children, and after the end of tracing") {
  for (const std::string& kind : kPrivateKinds)
    for (const char* way : {"move", "keep"})
      for (const char* then : {"hit", "fork", "list", "probe.disable", "probe.remove", "target.detach", "SIGTERM"}) {
        const std::string next = then, how = way;
        CAPTURE(kind);
        CAPTURE(how);
        CAPTURE(next);
        Daemon daemon;
        RpcClient client(daemon.socket());
        Mapper mapper(kind);
        const auto probes = add(client, mapper.pid(), {"p:first " + mapper.first, "p:second " + mapper.second});
        CHECK(mapper.does("call 1"));
        mapper.place(way);
        if (next == "fork") CHECK(mapper.ask("jump") == "child ok");
        if (next == "list") CHECK(state_in_list(client, probes[0]) == "gone");
        if (next == "probe.disable" || next == "probe.remove") client.call(next, ids_of(probes));
        if (next == "target.detach") client.call(next, {{"pid", mapper.pid()}});
        if (next == "SIGTERM") {
          daemon.process().signal(15);
          CHECK(daemon.process().wait());
        }
        CHECK(mapper.does("call 3"));
        if (next == "hit") {
          CHECK(state_in_list(client, probes[0]) == "gone");
          CHECK(hits_of(client, probes[0]) == 1);
        }
        CHECK(!has_breakpoint(mapper.pid(), std::stoull(mapper.first, nullptr, 16)));
        CHECK(!has_breakpoint(mapper.pid(), std::stoull(mapper.second, nullptr, 16)));
        CHECK(mapper.ends_well());
      }
}

// ---- jumps ----------------------------------------------------------------------------------------------------------

// Probes at both functions of a mapper's own text, jumps leading to their detours.
std::vector<Json> add_optimised(RpcClient& client, const Mapper& mapper) {
  const auto probes =
      add(client, mapper.pid(), {"p:first " + mapper.first + " x=" ARG1 ":s32", "p:second " + mapper.second});
  for (const Json& probe : probes) {
    const bool reached = eventually([&] { return listed(client, probe).value("tier", "") == "optimized"; });
    REQUIRE_MESSAGE(reached, listed(client, probe).dump());
  }
  return probes;
}

TEST_CASE("U6: code that is moved with its jumps runs on, in children, and after the end of tracing") {
  NEEDS_JUMPS();
  for (const char* way : {"move", "keep"})
    for (const char* then :
         {"hit", "fork", "list", "probe.disable", "probe.remove", "daemon.optimize", "target.detach", "SIGTERM"}) {
      const std::string next = then, how = way;
      CAPTURE(how);
      CAPTURE(next);
      Daemon daemon;
      RpcClient client(daemon.socket());
      Mapper mapper("own");
      const auto probes = add_optimised(client, mapper);
      CHECK(mapper.does("call 5"));
      mapper.place(way);
      if (next == "fork") CHECK(mapper.ask("jump") == "child ok");
      if (next == "list") CHECK(state_in_list(client, probes[0]) == "gone");
      if (next == "probe.disable" || next == "probe.remove") client.call(next, ids_of(probes));
      if (next == "daemon.optimize") client.call(next, {{"enabled", false}});
      if (next == "target.detach") client.call(next, {{"pid", mapper.pid()}});
      if (next == "SIGTERM") CHECK(daemon.stop() == Exit{0, 0});
      CHECK(mapper.does("call 3"));
      if (next == "hit") {
        CHECK(state_in_list(client, probes[0]) == "gone");
        CHECK(hits_of(client, probes[0]) == 5);
      }
      CHECK(!has_breakpoint(mapper.pid(), std::stoull(mapper.first, nullptr, 16)));
      CHECK(mapper.ends_well());
    }
}

TEST_CASE("U6: jumps whose code is unmapped, cut off or replaced are gone, and what is there now is left alone") {
  NEEDS_JUMPS();
  for (const char* way : {"unmap", "over", "shrink"}) {
    const std::string command = way;
    CAPTURE(command);
    Daemon daemon;
    RpcClient client(daemon.socket());
    Mapper mapper("own");
    const auto probes = add_optimised(client, mapper);
    CHECK(mapper.does("call 5"));
    CHECK(mapper.does(command));
    CHECK(state_in_list(client, probes[1]) == "gone");
    CHECK(state_in_list(client, probes[0]) == std::string(command == "shrink" ? "enabled" : "gone"));
    CHECK(mapper.does("call 5"));
    CHECK(hits_of(client, probes[0]) == (command == "shrink" ? 10 : 5));
    if (command == "over") CHECK(mapper.does("check"));
    remove_all(client, probes);
    if (command == "over") CHECK(mapper.does("check"));
    CHECK(mapper.ends_well());
  }
}

// ---- back -----------------------------------------------------------------------------------------------------------

TEST_CASE("U6: a gone probe comes back when it is enabled and its code is there again, with its id and counters") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Mapper mapper("file");
  const Json probe = add(client, mapper.pid(), {"p:first " + mapper.first}).at(0);
  CHECK(mapper.does("call 2"));
  CHECK(mapper.does("unmap"));
  CHECK(state_in_list(client, probe) == "gone");
  const Json refused = client.call("probe.enable", ids_of({probe}));
  REQUIRE(refused.at("failed").size() == 1);
  CHECK(refused.at("failed")[0].at("id") == probe.at("id"));
  CHECK(refused.at("failed")[0].at("reason") == "unmapped-address");
  CHECK(refused.at("probes")[0].at("state") == "gone");

  CHECK(mapper.does("back"));
  const Json again = client.call("probe.enable", ids_of({probe}));
  CHECK(!again.contains("failed"));
  CHECK(again.at("probes")[0].at("state") == "enabled");
  CHECK(again.at("probes")[0].at("armed") == true);
  CHECK(mapper.does("call 3"));
  CHECK(hits_of(client, probe) == 5);
  remove_all(client, {probe});
  CHECK(mapper.ends_well());
}

TEST_CASE("K6: enabling and arming say which probes can't be put in place, and put the others there") {
  for (const bool all : {false, true}) {
    CAPTURE(all);
    Daemon daemon;
    RpcClient client(daemon.socket());
    Mapper mapper("file");
    const auto probes = add(client, mapper.pid(), {"p:first " + mapper.first, "p:second " + mapper.second});
    all ? client.call("daemon.disarm") : client.call("probe.disable", ids_of(probes));
    CHECK(mapper.does("shrink"));
    const Json answer = all ? client.call("daemon.arm") : client.call("probe.enable", ids_of(probes));
    REQUIRE(answer.at("failed").size() == 1);
    CHECK(answer.at("failed")[0].at("id") == probes[1].at("id"));
    CHECK(answer.at("failed")[0].at("name") == "probes/second");
    CHECK(answer.at("failed")[0].at("reason") == "unmapped-address");
    CHECK(state_in_list(client, probes[0]) == "enabled");
    CHECK(state_in_list(client, probes[1]) == "gone");
    CHECK(mapper.does("call 2"));
    CHECK(hits_of(client, probes[0]) == 2);
    CHECK(mapper.ends_well());
  }
}

TEST_CASE("K6: probectl enable fails, and says why, for a probe whose code has gone") {
  Daemon daemon;
  Mapper mapper("file");
  const std::string pid = std::to_string(mapper.pid());
  CHECK(
      probectl(daemon, {"add", "-p", pid, "p:first " + mapper.first, "p:second " + mapper.second, "--disabled"}).ok());
  CHECK(mapper.does("shrink"));
  const CommandResult enabled = probectl(daemon, {"enable", "--all"});
  CHECK(enabled.exit == Exit{1, 0});
  CHECK(enabled.err.find("second") != std::string::npos);
  CHECK(enabled.out.find("first") != std::string::npos);
  CHECK(mapper.ends_well());
}

TEST_CASE("U6: a pending probe waits for its library, comes back each time it is loaded, and keeps its id") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  PluginUser user;
  const Json params{{"pid", user.target.pid()},
                    {"probes", {{{"definition", "p:plug plugin.so:plugin_work x=" ARG1 ":s32"}, {"pending", true}}}}};
  const Json probe = client.call("probe.add", params).at("probes").at(0);
  CHECK(probe.at("state") == "pending");
  CHECK(probe.at("armed") == false);
  CHECK(probectl(daemon, {"list"}).out.find("[PENDING]") != std::string::npos);
  std::uint64_t hits = 0;
  for (int round = 0; round < 3; ++round) {
    CHECK(user.ask("open").starts_with("opened"));
    CHECK(becomes(client, probe, "enabled"));
    CHECK(user.ask("call 4") == "called 4 54");
    hits += 4;
    CHECK(hits_of(client, probe) == hits);
    CHECK(user.ask("close") == "closed");
    CHECK(becomes(client, probe, "pending"));
  }
  CHECK(has_notification(client, "probe.returned"));
  remove_all(client, {probe});
  CHECK(eventually([&] { return tracer_of(user.target.pid()) == 0; }));
  CHECK(user.ask("loop 5") == "looped 5 15");
  user.target.send("quit\n");
  CHECK(user.target.finish().ok());
}

TEST_CASE("U6: a pending probe is found by the loader's report, without anybody asking") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  PluginUser user;
  const Json params{{"pid", user.target.pid()},
                    {"probes", {{{"definition", "p:plug plugin.so:plugin_work"}, {"pending", true}}}}};
  client.call("probe.add", params);
  const std::string opened = user.ask("open");
  REQUIRE(opened.starts_with("opened 0x"));
  const std::uint64_t address = std::stoull(opened.substr(7), nullptr, 16);
  CHECK(eventually([&] { return has_breakpoint(user.target.pid(), address); }));
  CHECK(has_notification(client, "probe.returned"));
  client.call("target.detach", {{"pid", user.target.pid()}});
  CHECK(user.ask("call 2") == "called 2 13");
  CHECK(user.ask("loop 2") == "looped 2 6");
  user.target.send("quit\n");
  CHECK(user.target.finish().ok());
}

TEST_CASE("U6: a pending probe of a library that comes and goes while it is added waits for it all the same") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  PluginUser user;
  const Json params{{"pid", user.target.pid()},
                    {"probes", {{{"definition", "p:plug plugin.so:plugin_work"}, {"pending", true}}}}};
  user.target.send("loop 20000\n");
  for (int i = 0; i < 200; ++i) {
    const Json added = client.call("probe.add", params);
    remove_all(client, {added.at("probes").at(0)});
  }
  CHECK(user.target.next_line() == "looped 20000 60000");
  user.target.send("quit\n");
  CHECK(user.target.finish().ok());
}

TEST_CASE("U6: what is wrong with a pending definition itself is refused at once") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  PluginUser user;
  const auto refusal = [&](const std::string& definition, const std::string& filter) {
    return client.refusal("probe.add",
                          {{"pid", user.target.pid()},
                           {"probes", {{{"definition", definition}, {"filter", filter}, {"pending", true}}}}});
  };
  CHECK(refusal("p:plug plugin.so:plugin_work x=%nonsense", "") == "bad-definition");
  CHECK(refusal("p:plug plugin.so:plugin_work x=" ARG1, "y > 1") == "bad-filter");
  CHECK(tracer_of(user.target.pid()) == 0);
}

TEST_CASE("U6: a pending probe that its library, once loaded, has no variable or code for says so, once") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  PluginUser user;
  const Json params{{"pid", user.target.pid()},
                    {"probes", {{{"definition", "p:plug plugin.so:plugin_work nothing"}, {"pending", true}}}}};
  const Json probe = client.call("probe.add", params).at("probes").at(0);
  for (int i = 0; i < 2; ++i) {
    CHECK(user.ask("open").starts_with("opened 0x"));
    if (i == 0) CHECK(has_notification(client, "probe.unplaced"));
    const Json seen = listed(client, probe);
    if (i == 1) CHECK_FALSE(client.notification(Millis{0}));
    CHECK(seen.at("state") == "pending");
    CHECK_MESSAGE(seen.value("stateReason", "").find("\"nothing\"") != std::string::npos, seen.dump());
    CHECK(user.ask("close").starts_with("closed"));
  }
  user.target.send("quit\n");
  CHECK(user.target.finish().ok());
}

TEST_CASE("U6: a filter on what a pending probe will have by name is checked when its code is there") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  PluginUser user;
  const auto pending = [&](const std::string& definition, const std::string& filter) {
    return client
        .call("probe.add", {{"pid", user.target.pid()},
                            {"probes", {{{"definition", definition}, {"filter", filter}, {"pending", true}}}}})
        .at("probes")
        .at(0);
  };
  const Json probe = pending("p:begin plugin.so:plugin_begin x", "x == -1");
  const Json none = pending("p:none plugin.so:plugin_begin x", "x == 5");
  const Json wrong = pending("p:wrong plugin.so:plugin_begin x", "x == BLUE");
  REQUIRE(eventually([&] { return !text_differences(user.target.pid()).empty(); }));
  CHECK(user.ask("open").starts_with("opened"));
  CHECK(hits_of(client, probe) == 1);
  CHECK(hits_of(client, none) == 0);
  const Json seen = listed(client, wrong);
  CHECK(seen.at("state") == "pending");
  CHECK_MESSAGE(seen.value("stateReason", "").find("bad number \"BLUE\"") != std::string::npos, seen.dump());
  remove_all(client, {probe, none, wrong});
  user.target.send("quit\n");
  CHECK(user.target.finish().ok());
}

TEST_CASE("U6: a pending probe of a function that its library doesn't have says so when that is loaded") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  PluginUser user;
  const auto params = [&](const std::string& definition) {
    return Json{{"pid", user.target.pid()}, {"probes", {{{"definition", definition}, {"pending", true}}}}};
  };
  const Json probe = client.call("probe.add", params("p:miss plugin.so:plugin_wrok")).at("probes").at(0);
  CHECK_FALSE(probe.contains("notes"));
  CHECK(user.ask("open").starts_with("opened"));
  CHECK(has_notification(client, "probe.unplaced"));
  const Json seen = listed(client, probe);
  CHECK(seen.at("state") == "pending");
  CHECK_MESSAGE(seen.value("stateReason", "").find("no function plugin_wrok") != std::string::npos, seen.dump());
  const Json late = client.call("probe.add", params("p:late plugin.so:plugin_wrok")).at("probes").at(0);
  CAPTURE(late.dump());
  CHECK(late.value("notes", Json::array()).dump().find("did you mean plugin_work") != std::string::npos);
  remove_all(client, {probe, late});
  user.target.send("quit\n");
  CHECK(user.target.finish().ok());
}

// While a library is being loaded, nothing tells yet where it will have its thread-local variables.
TEST_CASE("U6: a pending probe says, once in place, which of its arguments is null there") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  PluginUser user;
  const Json params{{"pid", user.target.pid()},
                    {"probes", {{{"definition", "p:plug plugin.so:plugin_work x plugin_local"}, {"pending", true}}}}};
  const Json probe = client.call("probe.add", params).at("probes").at(0);
  CHECK(user.ask("open").starts_with("opened 0x"));
  const auto told = notification_of(client, "probe.returned");
  REQUIRE(told);
  CHECK(told->at("params").value("notes", Json::array()).dump().find("plug: plugin_local is null: ") !=
        std::string::npos);
  const Json probes = told->at("params").value("probes", Json::array());
  CAPTURE(probes.dump());
  REQUIRE(probes.size() == 1);
  CHECK(probes[0].at("id") == probe.at("id"));
  CHECK(probes[0].at("args").at(0) == Json({{"name", "x"}, {"type", "s32"}}));
  remove_all(client, {probe});
  user.target.send("quit\n");
  CHECK(user.target.finish().ok());
}

TEST_CASE("U6: a pending probe is in place before its library's constructors run") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  PluginUser user;
  const Json params{{"pid", user.target.pid()},
                    {"probes", {{{"definition", "p:begin plugin.so:plugin_begin x=" ARG1 ":s32"}, {"pending", true}}}}};
  const Json probe = client.call("probe.add", params).at("probes").at(0);
  // Once the loader is watched: not before the probe waits, and a moment after the answer.
  REQUIRE(eventually([&] { return !text_differences(user.target.pid()).empty(); }));
  for (std::uint64_t round = 1; round <= 5; ++round) {
    CHECK(user.ask("open").starts_with("opened"));
    CHECK(hits_of(client, probe) == round);
    CHECK(user.ask("close") == "closed");
  }
  remove_all(client, {probe});
  CHECK(user.ask("loop 3") == "looped 3 9");
  user.target.send("quit\n");
  CHECK(user.target.finish().ok());
}

// The probes that a waiting one has become, by name, as they are listed.
std::map<std::string, Json> matches_of(RpcClient& client, const Json& glob) {
  std::map<std::string, Json> matches;
  for (const Json& probe : list_probes(client))
    if (probe.contains("from") && probe.at("from").at("id") == glob.at("id")) matches[probe.at("name")] = probe;
  return matches;
}

std::vector<std::string> names_of(const std::map<std::string, Json>& matches) {
  std::vector<std::string> names;
  for (const auto& [name, probe] : matches) names.push_back(name);
  return names;
}

Json waiting(const std::string& definition, const Json& more = Json::object()) {
  Json probe{{"definition", definition}, {"pending", true}};
  probe.update(more);
  return probe;
}

TEST_CASE("U6: a glob that waits becomes one probe for each match, named as if it had been loaded when it was added") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  // What an add with the library loaded makes of it.
  std::vector<std::string> expected;
  {
    PluginUser user;
    CHECK(user.ask("open").starts_with("opened"));
    const auto probes = add(client, user.target.pid(), {"plugin.so:plugin_* x=" ARG1 ":s32"});
    for (const Json& probe : probes) expected.push_back(probe.at("name"));
    std::ranges::sort(expected);
    REQUIRE(expected.size() == 2);
    remove_all(client, probes);
    user.target.send("quit\n");
    CHECK(user.target.finish().ok());
  }
  PluginUser user;
  const Json probe =
      client
          .call("probe.add", {{"pid", user.target.pid()},
                              {"probes", {waiting("plugin.so:plugin_* x=" ARG1 ":s32", {{"filter", "x > 0"}})}}})
          .at("probes")
          .at(0);
  CHECK(probe.at("state") == "pending");
  CHECK(list_probes(client).size() == 1);
  Events events(client, {{"probes", {probe.at("id")}}});  // known by its id before there are any
  std::set<Json> ids;
  for (std::uint64_t round = 1; round <= 3; ++round) {
    CAPTURE(round);
    CHECK(user.ask("open").starts_with("opened"));
    auto matches = matches_of(client, probe);
    CHECK(names_of(matches) == expected);
    CHECK(list_probes(client).size() == expected.size());  // it isn't shown beside them
    CHECK(user.ask("call 4") == "called 4 54");
    matches = matches_of(client, probe);
    for (const auto& [name, match] : matches) {
      CHECK(match.at("state") == "enabled");
      CHECK(match.at("filter") == "x > 0");
      ids.insert(match.at("id"));
    }
    // x is 0 to 3, of which the filter takes 3; the constructor's call has -1.
    CHECK(matches.at("probes/p_plugin_work_0").at("hits") == 3 * round);
    CHECK(matches.at("probes/p_plugin_work_0").at("filtered") == round);
    CHECK(matches.at("probes/p_plugin_begin_0").at("hits") == 0);
    CHECK(matches.at("probes/p_plugin_begin_0").at("filtered") == round);
    CHECK(user.ask("close") == "closed");
    matches = matches_of(client, probe);
    CHECK(names_of(matches) == expected);
    for (const auto& [name, match] : matches) CHECK(match.at("state") == "pending");
  }
  CHECK(ids.size() == 2);  // they keep their ids
  REQUIRE(events.reach(9));
  for (const Json& event : events.all()) {
    CHECK(event.at("probe") == "probes/p_plugin_work_0");
    CHECK(event.at("symbol") == "plugin_work+0x0");
    CHECK(ids.contains(event.at("id")));
  }
  // Whoever added it has been told, once, what it has become.
  std::vector<Json> told;
  for (const Json& n : events.others())
    if (n.at("method") == "probe.added") told.push_back(n.at("params"));
  REQUIRE_MESSAGE(told.size() == 1, Json(told).dump());
  CHECK(told[0].at("from") == probe.at("id"));
  CHECK(told[0].at("ids").size() == 2);
  CHECK(told[0].at("args") == Json::array({{{"name", "x"}, {"type", "s32"}}}));
  CHECK(told[0].at("skippedCount") == 0);
  // By its own id all of it is removed, and nothing comes again.
  const auto removed = remove_all(client, {probe});
  CHECK(removed.size() == 2);
  CHECK(list_probes(client).empty());
  CHECK(eventually([&] { return tracer_of(user.target.pid()) == 0; }));
  CHECK(user.ask("loop 3") == "looped 3 9");
  user.target.send("quit\n");
  CHECK(user.target.finish().ok());
}

TEST_CASE("U6: what a waiting glob has become is switched and removed by the glob's name, or each by itself") {
  Daemon daemon;
  PluginUser user;
  const std::string pid = std::to_string(user.target.pid());
  REQUIRE(probectl(daemon, {"add", "-p", pid, "--pending", "--disabled", "p:mine/all plugin.so:plugin_*",
                            "plugin.so:plugin_w*", "r:back plugin.so:plugin_b*"})
              .ok());
  CHECK(user.ask("open").starts_with("opened"));
  RpcClient client(daemon.socket());
  const auto states = [&] {
    std::multiset<std::string> all;
    for (const Json& p : list_probes(client))
      all.insert(p.at("name").get<std::string>() + " " + p.at("symbol").get<std::string>() + " " +
                 p.at("state").get<std::string>());
    return all;
  };
  const std::multiset<std::string> disabled{"mine/all plugin_begin+0x0 disabled", "mine/all plugin_work+0x0 disabled",
                                            "probes/p_plugin_work_0 plugin_work+0x0 disabled",
                                            "probes/back plugin_begin+0x0 disabled"};
  CHECK(states() == disabled);
  // Its name before: p_plugin_w*_0, as a name is written.
  CHECK(probectl(daemon, {"enable", "p_plugin_w__0"}).ok());
  CHECK(user.ask("call 2") == "called 2 13");
  CHECK(states().contains("probes/p_plugin_work_0 plugin_work+0x0 enabled"));
  CHECK(states().contains("mine/all plugin_work+0x0 disabled"));
  CHECK(probectl(daemon, {"enable", "back"}).ok());
  // What is removed by itself isn't made again; its fellow comes back.
  for (const Json& p : list_probes(client))
    if (p.at("name") == "mine/all" && p.at("symbol") == "plugin_work+0x0") remove_all(client, {p});
  CHECK(user.ask("close") == "closed");
  CHECK(user.ask("open").starts_with("opened"));
  const std::multiset<std::string> later{"mine/all plugin_begin+0x0 disabled",
                                         "probes/p_plugin_work_0 plugin_work+0x0 enabled",
                                         "probes/back plugin_begin+0x0 enabled"};
  CHECK(states() == later);
  for (const Json& p : list_probes(client))
    if (p.at("name") == "probes/back") CHECK(p.at("hits") == 1);  // in the constructor, of the second time
  // With the last of its matches the glob has gone.
  for (const Json& p : list_probes(client)) remove_all(client, {p});
  CHECK(user.ask("close") == "closed");
  CHECK(user.ask("loop 2") == "looped 2 6");
  CHECK(list_probes(client).empty());
  CHECK(eventually([&] { return tracer_of(user.target.pid()) == 0; }));
  user.target.send("quit\n");
  CHECK(user.target.finish().ok());
}

TEST_CASE("U6: of a waiting glob what can't be probed is skipped with the reason, and limits hold for its matches") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  PluginUser user;
  // Behind plugin_begin's end at +8 there is nothing of it; the same is said of it when it is added later.
  const std::string definition = "plugin.so:plugin_*+200";
  const Json none =
      client.call("probe.add", {{"pid", user.target.pid()}, {"probes", {waiting(definition)}}}).at("probes").at(0);
  const Json limited = client
                           .call("probe.add", {{"pid", user.target.pid()},
                                               {"probes", {waiting("plugin.so:plugin_*")}},
                                               {"limit", 3},
                                               {"maxRate", 1000000}})
                           .at("probes")
                           .at(0);
  CHECK(user.ask("open").starts_with("opened"));  // one hit, in the constructor
  const std::string why = listed(client, none).at("notes").dump();
  CHECK(listed(client, none).at("state") == "pending");
  CHECK(add_error(client, user.target.pid(), {definition}).at("message") == listed(client, none).at("notes").at(0));
  CHECK_MESSAGE(why.find("lies outside") != std::string::npos, why);
  CHECK(user.ask("call 5") == "called 5 85");
  const auto all_disabled = [&] {
    const auto matches = matches_of(client, limited);
    return matches.size() == 2 && std::ranges::all_of(matches, [](const auto& m) {
             return m.second.at("state") == "disabled" && m.second.at("maxRate") == 1000000;
           });
  };
  CHECK(eventually(all_disabled));
  std::uint64_t hits = 0;
  for (const auto& [name, match] : matches_of(client, limited)) hits += match.at("hits").get<std::uint64_t>();
  CHECK(hits == 3);
  user.target.send("quit\n");
  CHECK(user.target.finish().ok());
}

TEST_CASE("U6: trace --pending says when its probe is in place") {
  Daemon daemon;
  PluginUser user;
  Process trace(probectl_argv(
      daemon, {"trace", "-p", std::to_string(user.target.pid()), "--pending", "-e", "plugin.so:plugin_work"}));
  auto told = trace.next_error_line();
  while (told && !told->starts_with("armed")) told = trace.next_error_line();
  REQUIRE(told);
  CHECK(user.ask("open").starts_with("opened"));
  CHECK(user.ask("call 3") == "called 3 30");
  while (told && told->find("armed 1 probe more, whose code has been loaded") == std::string::npos)
    told = trace.next_error_line();
  CHECK(told);
  trace.signal(2);
  CHECK(trace.wait() == Exit{0, 0});
  CHECK(trace.errors().find("hits=3 delivered=3 missed=0") != std::string::npos);
  user.target.send("quit\n");
  CHECK(user.target.finish().ok());
}

TEST_CASE("U6: trace --pending of a glob shows each match by its own name, and counts all of them") {
  Daemon daemon;
  PluginUser user;
  Process trace(probectl_argv(daemon, {"trace", "-p", std::to_string(user.target.pid()), "--pending", "--json", "-e",
                                       "plugin.so:plugin_* x=" ARG1 ":s32"}));
  auto told = trace.next_error_line();
  while (told && !told->starts_with("armed")) told = trace.next_error_line();
  REQUIRE(told == "armed 0 probes in PID " + std::to_string(user.target.pid()) + " (1 more pending: not loaded yet)");
  CHECK(user.ask("open").starts_with("opened"));
  CHECK(user.ask("call 3") == "called 3 30");
  std::multiset<std::string> seen;
  while (seen.size() < 4) {
    const auto line = trace.next_line();
    REQUIRE(line);
    seen.insert(parse_json(*line).value("probe", ""));
  }
  CHECK(seen.count("probes/p_plugin_begin_0") == 1);
  CHECK(seen.count("probes/p_plugin_work_0") == 3);
  trace.signal(2);
  CHECK(trace.wait() == Exit{0, 0});
  CHECK(trace.errors().find("armed 2 probes more, whose code has been loaded") != std::string::npos);
  CHECK(trace.errors().find("hits=4 delivered=4 missed=0") != std::string::npos);
  CHECK(user.ask("loop 2") == "looped 2 6");
  user.target.send("quit\n");
  CHECK(user.target.finish().ok());
}

// A library's build-id, from readelf.
std::string build_id_of(const std::string& path) {
  const CommandResult notes = run_command({"readelf", "-n", path});
  const std::size_t at = notes.out.find("Build ID: ");
  return at == std::string::npos ? "" : notes.out.substr(at + 10, 40);
}

TEST_CASE("U6: what a pending probe waits for is named by path, soname or build-id") {
  if (find_program("readelf").empty()) SKIP_TEST("readelf is not installed");
  const std::string path = target_path("plugin.so"), id = build_id_of(path);
  REQUIRE(id.size() == 40);
  for (const std::string& module : {path, std::string("plugin"), id}) {
    CAPTURE(module);
    Daemon daemon;
    RpcClient client(daemon.socket());
    PluginUser user;
    const Json params{{"pid", user.target.pid()},
                      {"probes", {{{"definition", "p:plug " + module + ":plugin_work"}, {"pending", true}}}}};
    const Json probe = client.call("probe.add", params).at("probes").at(0);
    CHECK(probe.at("state") == "pending");
    CHECK(user.ask("open").starts_with("opened"));
    CHECK(becomes(client, probe, "enabled"));
    CHECK(user.ask("call 2") == "called 2 13");
    CHECK(hits_of(client, probe) == 2);
    user.target.send("quit\n");
    CHECK(user.target.finish().ok());
  }
}

TEST_CASE(
    "trace -- CMD probes a program from its first instruction on: its library's constructors, its own, and main") {
  Daemon daemon;
  Process trace(probectl_argv(daemon, {"trace", "--json", "-e", "p:library library_begin x=" ARG1 ":s32", "-e",
                                       "p:own own_begin x=" ARG1 ":s32", "-e", "p:start _start", "-e", "p:main main",
                                       "--", target_path("constructors")}));
  std::vector<std::string> hit;
  for (auto line = trace.next_line(); line; line = trace.next_line()) {
    const Json event = parse_json(*line);
    if (event.is_object() && event.contains("probe")) hit.push_back(event.at("probe"));
    if (line->starts_with("ready ")) trace.send("go\n");
  }
  CHECK(trace.wait() == Exit{0, 0});
  std::ranges::sort(hit);
  CHECK(hit == std::vector<std::string>{"probes/library", "probes/main", "probes/own", "probes/start"});
  CHECK(trace.output().find("result ok") != std::string::npos);
}

// ---- rewritten ------------------------------------------------------------------------------------------------------

TEST_CASE("U3: a program that rewrites a probed instruction executes what it has written from the next call on") {
  if (kBreakpointCoversInsn) SKIP_TEST("who rewrites an instruction here takes its breakpoint away");
  for (const std::string& kind : kPrivateKinds) {
    CAPTURE(kind);
    Daemon daemon;
    RpcClient client(daemon.socket());
    Mapper mapper(kind);
    const Json probe = add(client, mapper.pid(), {"p:first " + mapper.first}).at(0);
    for (int k = 2; k < 12; ++k) {
      CHECK(mapper.does("patch " + std::to_string(k)));
      CHECK(mapper.does("call 3"));
    }
    CHECK(hits_of(client, probe) == 30);
    CHECK(state_in_list(client, probe) == "enabled");
    CHECK(mapper.ask("jump") == "child ok");
    remove_all(client, {probe});
    CHECK(mapper.does("call 3"));
    CHECK(mapper.ends_well());
  }
}

// ---- our own code ---------------------------------------------------------------------------------------------------

TEST_CASE(
    "U6: a program that unmaps all executable memory it doesn't know, ours included, runs on without its probes") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Mapper mapper("file");
  const auto probes = add(client, mapper.pid(), {"p:first " + mapper.first, "p:second " + mapper.second});
  CHECK(mapper.does("call 2"));
  CHECK(mapper.does("sweep"));
  CHECK(mapper.does("call 3"));
  CHECK(state_in_list(client, probes[0]) == "gone");
  CHECK(state_in_list(client, probes[1]) == "gone");
  CHECK(!client.call("probe.enable", ids_of(probes)).contains("failed"));
  CHECK(mapper.does("call 3"));
  remove_all(client, probes);
  CHECK(left_unharmed(mapper.pid(), mapper.before, PageCopies::may_stay));
  CHECK(mapper.ends_well());
}

// ---- U11: page copies -----------------------------------------------------------------------------------------------

TEST_CASE("U11: private page copies are given back when the last probe of a page goes, though others stay") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"1", "6"});
  client.call("target.attach", {{"pid", counter.pid()}});
  client.call("daemon.optimize", {{"enabled", false}});
  const auto probes = add(client, counter.pid(), {"p:here work", "p:libc libc.so.6:getppid"});
  const auto kb = [&] { return state_of(counter.pid()).private_text_kb; };
  const unsigned long both = kb();
  CHECK(both >= counter.before.private_text_kb + 8);
  remove_all(client, {probes[1]});
  CHECK(eventually([&] { return kb() == both - 4; }));
  CHECK(has_breakpoint(counter.pid(), address_of(probes[0])));
  remove_all(client, {probes[0]});
  CHECK(eventually([&] { return kb() == counter.before.private_text_kb; }));
  CHECK(tracer_of(counter.pid()) == daemon.pid());
  counter.target.go();
  CHECK(counter.target.finish().ok());
}

TEST_CASE("U11: page copies are given back at the detach of a process with many threads") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Mapper mapper("file");
  CHECK(mapper.does("hammer 8"));
  const TargetState before = state_of(mapper.pid());
  for (int round = 0; round < 5; ++round) {
    const auto probes = add(client, mapper.pid(), {"p:first " + mapper.first, "p:second " + mapper.second});
    CHECK(eventually([&] { return hits_of(client, probes[0]) > 10; }));
    remove_all(client, probes);
    CHECK(left_unharmed(mapper.pid(), before, PageCopies::must_be_gone));
  }
  CHECK(mapper.does("rest"));
  CHECK(mapper.ends_well());
}

// Whether the optimiser is done with a probe.
bool settled(RpcClient& client, const Json& probe) {
  return eventually([&] {
    const Json now = listed(client, probe);
    return now.value("tier", "") == "optimized" || !now.value("tierReason", "").empty();
  });
}

// Nobody has run into the code that we had there, so nobody has told us.
void occupy_our_place(const std::string& kind, bool jumps) {
  CAPTURE(kind);
  CAPTURE(jumps);
  Daemon daemon;
  RpcClient client(daemon.socket());
  Mapper mapper("own");
  const Json how = jumps ? Json::object() : Json{{"x-step", true}};
  CHECK(mapper.does("vacate"));
  const Json before = add(client, mapper.pid(), {"own_second"}, how).at(0);
  if (jumps) CHECK(settled(client, before));
  CHECK(mapper.does("occupy " + kind));
  const Json after = add(client, mapper.pid(), {"own_first"}, how).at(0);
  if (jumps) CHECK(settled(client, after));
  CHECK(mapper.does("occupied"));
  CHECK(state_in_list(client, before) == "gone");
  CHECK(mapper.ask("call 10") == "done call 10");
  CHECK(hits_of(client, after) == 10);
  client.call("probe.remove", {{"all", true}});
  CHECK(eventually([&] { return tracer_of(mapper.pid()) == 0; }));
  CHECK(mapper.does("occupied"));
  CHECK(mapper.ends_well());
}

TEST_CASE("U6: what the program maps where it has unmapped our code is its own: not written to, not unmapped") {
  for (const char* kind : {"data", "code"})
    for (const bool jumps : {false, true}) occupy_our_place(kind, jumps);
}

}  // namespace
}  // namespace probed::live
