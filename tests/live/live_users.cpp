// What an unprivileged user may do to others, and for how long, with a root daemon that everybody may connect to.
//
// Thread: the test's own.
#include <doctest/doctest.h>
#include <linux/capability.h>
#include <sys/xattr.h>

#include "tests/live/probing.hpp"
#include "tests/live/users.hpp"

namespace probed::live {
namespace {

namespace fs = std::filesystem;

SpawnOptions as_nobody() {
  SpawnOptions options;
  options.user = "nobody";
  options.directory = "/";
  return options;
}

// A program for everybody to execute, in a directory of its own.
class Program {
 public:
  Program() : path_(dir_ / "confined") {
    fs::copy_file(target_path("confined"), path_);
    REQUIRE((::chmod(dir_.path().c_str(), 0755) == 0 && ::chmod(path_.c_str(), 0755) == 0));
  }
  const std::string& path() const { return path_; }
  bool become(const std::string& kind) const {
    if (kind == "set-user-ID") return ::chmod(path_.c_str(), 04755) == 0;
    if (kind == "unreadable") return ::chmod(path_.c_str(), 0711) == 0;
    if (kind != "capable") return kind == "ordinary";
    vfs_cap_data caps{};
    caps.magic_etc = VFS_CAP_REVISION_2 | VFS_CAP_FLAGS_EFFECTIVE;
    caps.data[0].permitted = 1u << CAP_NET_RAW;
    return ::setxattr(path_.c_str(), "security.capability", &caps, XATTR_CAPS_SZ_2, 0) == 0;
  }

 private:
  TempDir dir_;
  std::string path_;
};
const std::string kForbidden[] = {"set-user-ID", "unreadable", "capable"};

// A shell of nobody's that executes the program when it is told so.
struct Shell : Process {
  explicit Shell(const std::string& then) : Process({"/bin/sh", "-c", "echo here; read x; " + then}, as_nobody()) {
    REQUIRE(next_line() == "here");
    REQUIRE(eventually([&] { return thread_states(pid()).begin()->second == 'S'; }));
  }
  bool begins() { return next_line().value_or("").starts_with("ready "); }
  void ends_well() {
    send("end\n");
    CHECK_MESSAGE((wait() == Exit{0, 0}), errors());
  }
};

bool nobody_traces(pid_t pid) {
  return eventually([&] { return tracer_of(pid) == 0; });
}

Json next_of(RpcClient& client, const std::string& method) {
  while (const auto message = client.notification())
    if (message->at("method") == method) return message->at("params");
  return Json();
}

// Answered with an error, and then closed; what follows it has not been carried out.
void check_ended(RpcClient& client) {
  std::string all;
  for (auto line = client.receive_line(); line; line = client.receive_line()) all += *line;
  CHECK(client.closed_by_peer());  // the editors' framing has no end of line
  all += client.unread();
  CHECK_MESSAGE(all.find("\"error\"") != std::string::npos, all);
  CHECK_MESSAGE(all.find("\"result\"") == std::string::npos, all);
}

// ---- programs that a user may not trace -----------------------------------------------------------------------------

TEST_CASE("whoever has a process held at its entry, or attached, loses it when it executes what he may not trace") {
  Nobody nobody;
  if (!nobody.usable()) SKIP_TEST("needs root and a user nobody");
  RpcClient& client = *nobody.client;
  for (const std::string& kind : kForbidden)
    for (const Json& how : {Json{{"holdAtEntry", true}}, Json::object(), Json{{"persist", true}},
                            Json{{"holdAtEntry", true}, {"persist", true}}}) {
      CAPTURE(kind);
      CAPTURE(how.dump());
      const Program program;
      REQUIRE(program.become(kind));
      Shell shell("exec " + program.path() + " free");
      Json params = how;
      params["pid"] = shell.pid();
      client.call("target.attach", params);
      shell.send("go\n");
      CHECK(shell.begins());
      CHECK(next_of(client, "target.execed") == Json{{"pid", shell.pid()}, {"attached", false}, {"comm", "confined"}});
      CHECK(nobody_traces(shell.pid()));
      CHECK(client.call("target.list").at("targets").empty());
      CHECK(client.refusal("target.resume", {{"pid", shell.pid()}}) == "permission-denied");
      CHECK(RpcClient(nobody.daemon.socket()).call("target.list").at("targets").empty());
      shell.ends_well();
    }
}

TEST_CASE("what a user may trace is held at its entry as asked for, and stays attached behind it") {
  Nobody nobody;
  if (!nobody.usable()) SKIP_TEST("needs root and a user nobody");
  RpcClient& client = *nobody.client;
  const Program program;
  Shell shell("exec " + program.path() + " free");
  client.call("target.attach", {{"pid", shell.pid()}, {"holdAtEntry", true}});
  shell.send("go\n");
  CHECK(next_of(client, "target.execed") == Json{{"pid", shell.pid()}, {"attached", true}, {"comm", "confined"}});
  CHECK(next_of(client, "target.ready") == Json{{"pid", shell.pid()}});
  CHECK(thread_states(shell.pid()).begin()->second == 't');
  client.call("target.resume", {{"pid", shell.pid()}});
  CHECK(shell.begins());
  CHECK(tracer_of(shell.pid()) == nobody.daemon.pid());
  client.call("target.detach", {{"pid", shell.pid()}});
  CHECK(nobody_traces(shell.pid()));
  shell.ends_well();
}

TEST_CASE("root, who has attached the same process, keeps it; the user's hold is over") {
  Nobody nobody;
  if (!nobody.usable()) SKIP_TEST("needs root and a user nobody");
  RpcClient root(nobody.daemon.socket());
  const Program program;
  REQUIRE(program.become("set-user-ID"));
  Shell shell("exec " + program.path() + " free");
  root.call("target.attach", {{"pid", shell.pid()}});
  nobody.client->call("target.attach", {{"pid", shell.pid()}, {"holdAtEntry", true}});
  shell.send("go\n");
  CHECK(shell.begins());
  CHECK(next_of(root, "target.execed").at("attached") == true);
  CHECK(next_of(*nobody.client, "target.execed").at("attached") == false);
  CHECK(tracer_of(shell.pid()) == nobody.daemon.pid());
  root.call("target.detach", {{"pid", shell.pid()}});
  CHECK(nobody_traces(shell.pid()));
  shell.ends_well();
  CHECK_FALSE(nobody.client->notification(Millis{1}).has_value());  // nothing of a program that isn't his
}

TEST_CASE("a followed child that executes what its user may not trace is let go") {
  Nobody nobody;
  if (!nobody.usable()) SKIP_TEST("needs root and a user nobody");
  for (const std::string& kind : kForbidden) {
    CAPTURE(kind);
    const Program program;
    REQUIRE(program.become(kind));
    Shell shell("echo pid $$; " + program.path() + " free; exit $?");
    const auto client = nobody.another();
    client->call("target.attach", {{"pid", shell.pid()}, {"followFork", true}});
    shell.send("go\n");
    REQUIRE(shell.next_line().value_or("").starts_with("pid "));
    CHECK(shell.begins());
    CHECK(nobody_traces(only_child_of(shell.pid())));
    CHECK(tracer_of(shell.pid()) == nobody.daemon.pid());
    client->call("target.detach", {{"pid", shell.pid()}});
    shell.ends_well();
  }
}

TEST_CASE("probectl says of a command that it may not be traced, and doesn't go on without its probes") {
  Nobody nobody;
  if (!nobody.usable()) SKIP_TEST("needs root and a user nobody");
  const std::string command = required_environment("PROBECTL_BIN");
  if (!run_command({command, "--version"}, as_nobody()).ok()) SKIP_TEST("nobody may not execute " + command);
  const Program program;
  REQUIRE(program.become("set-user-ID"));
  const CommandResult result = run_command(
      {command, "--socket", nobody.daemon.socket(), "trace", "-e", "work", "--", program.path(), "free"}, as_nobody());
  CHECK(result.exit == Exit{1, 0});
  CHECK_MESSAGE(result.err.find("may not trace " + program.path()) != std::string::npos, result.err);
}

// ---- what a connection leaves behind --------------------------------------------------------------------------------

TEST_CASE("an attached target is let go when the last connection that attached it has ended, unless it is to persist") {
  Nobody nobody;
  if (!nobody.usable()) SKIP_TEST("needs root and a user nobody");
  RpcClient root(nobody.daemon.socket());
  const Program program;
  Shell shell("exec " + program.path() + " free");
  const pid_t pid = shell.pid();
  shell.send("go\n");
  REQUIRE(shell.begins());
  const auto traced = [&] { return tracer_of(pid) == nobody.daemon.pid(); };

  nobody.another()->call("target.attach", {{"pid", pid}});
  CHECK(nobody_traces(pid));

  auto first = nobody.another(), second = nobody.another();
  first->call("target.attach", {{"pid", pid}});
  second->call("target.attach", {{"pid", pid}});
  first.reset();
  root.call("daemon.status");
  CHECK(eventually([&] { return root.call("daemon.status").at("clients") == 3; }));
  second->call("target.list");
  CHECK(traced());
  second.reset();
  CHECK(nobody_traces(pid));

  // Others' probes keep it; after them nothing does.
  const std::vector<Json> probes = add(root, pid, {"work"});
  nobody.another()->call("target.attach", {{"pid", pid}});
  CHECK(eventually([&] { return root.call("daemon.status").at("clients") == 2; }));
  CHECK(traced());
  shell.send("go\n");
  CHECK(shell.next_line() == "done 100 0");
  CHECK(counts_of(root, probes[0]).hits == 100);
  remove_all(root, probes);
  CHECK(nobody_traces(pid));

  nobody.another()->call("target.attach", {{"pid", pid}, {"persist", true}});
  CHECK(eventually([&] { return root.call("daemon.status").at("clients") == 2; }));
  CHECK(root.call("target.list").at("targets").size() == 1);
  CHECK(traced());
  nobody.client->call("target.detach", {{"pid", pid}});
  CHECK(nobody_traces(pid));
  shell.ends_well();
}

TEST_CASE("a target that only probes have kept for its user ends with its program, attached or not before") {
  Nobody nobody;
  if (!nobody.usable()) SKIP_TEST("needs root and a user nobody");
  const Program program;
  Shell shell("exec " + program.path() + " free");
  const auto client = nobody.another();
  add(*client, shell.pid(), {"libc:getppid"});
  nobody.another()->call("target.attach", {{"pid", shell.pid()}});
  CHECK(eventually([&] { return client->call("daemon.status").at("clients") == 1; }));
  RpcClient root(nobody.daemon.socket());
  CHECK(eventually([&] { return root.call("daemon.status").at("clients") == 3; }));
  shell.send("go\n");
  CHECK(shell.begins());
  CHECK(nobody_traces(shell.pid()));
  shell.ends_well();
}

TEST_CASE("half a message and a closed writing side end a connection, and what it has attached is let go") {
  Nobody nobody;
  if (!nobody.usable()) SKIP_TEST("needs root and a user nobody");
  RpcClient root(nobody.daemon.socket());
  const Program program;
  Shell shell("exec " + program.path() + " free");
  const std::string attach = request_text("target.attach", {{"pid", shell.pid()}});
  const auto client = nobody.another();
  REQUIRE(client->send_raw("Content-Length: " + std::to_string(attach.size()) + "\r\n\r\n" + attach +
                           "Content-Length: 100\r\n\r\n{\"jsonrpc\""));
  REQUIRE(client->close_writing());
  std::string all;
  while (const auto line = client->receive_line()) all += *line;
  CHECK_MESSAGE(all.find("\"result\"") != std::string::npos, all);
  CHECK(client->closed_by_peer());
  CHECK(nobody_traces(shell.pid()));
  CHECK(root.call("daemon.status").at("clients") == 2);
  shell.send("go\n");
  CHECK(shell.begins());
  shell.ends_well();
}

TEST_CASE("what a user is told of the daemon says nothing of others' targets") {
  Nobody nobody;
  if (!nobody.usable()) SKIP_TEST("needs root and a user nobody");
  RpcClient root(nobody.daemon.socket());
  Watched target("soaked", {"2"});
  target.target.go();  // a thread that runs has to be stopped to be looked at
  const Json before = nobody.client->call("daemon.status");
  // Until the optimiser has had to stop a thread, for however short a time.
  const auto stops_one = [&] {
    const std::vector<Json> probes = add(root, target.pid(), {"work"});
    eventually([&] { return list_probes(root).at(0).at("tier") == "optimized"; }, Millis{1'000});
    remove_all(root, probes);
    return root.call("daemon.status").at("longestPauseNs") > 0;
  };
  if (kHasJumps) CHECK(eventually(stops_one));
  const std::vector<Json> probes = add(root, target.pid(), {"work"});
  CHECK(nobody.client->call("daemon.status") == before);
  CHECK(before.at("longestPauseNs") == 0);
  remove_all(root, probes);
}

// ---- who doesn't speak the protocol ---------------------------------------------------------------------------------

TEST_CASE("what a web page has a browser send to a forwarded socket is not carried out") {
  Nobody nobody;
  if (!nobody.usable()) SKIP_TEST("needs root and a user nobody");
  const Program program;
  Shell shell("exec " + program.path() + " free");
  nobody.client->call("target.attach", {{"pid", shell.pid()}});
  RpcClient root(nobody.daemon.socket());
  const std::string commands =
      "\n" + request_text("daemon.disarm", Json::object()) + request_text("target.detach", {{"pid", shell.pid()}});
  for (const std::string method : {"POST / HTTP/1.1", "PUT /x HTTP/1.1", "Content-X /a:b HTTP/1.1", "{ / HTTP/1.1"})
    for (const bool of_root : {false, true}) {
      CAPTURE(method);
      const std::string head = method + "\r\nHost: localhost:7777\r\nContent-Type: text/plain\r\nContent-Length: " +
                               std::to_string(commands.size()) + "\r\n\r\n";
      const auto client =
          of_root ? std::make_unique<RpcClient>(nobody.daemon.socket()) : nobody.another();  // a forward may be root's
      client->send_raw(head + commands);
      check_ended(*client);
      const auto slow = nobody.another();
      for (const char c : head + commands)
        if (!slow->send_raw({&c, 1})) break;
      check_ended(*slow);
    }
  CHECK(root.call("daemon.status").at("armed") == true);
  CHECK(tracer_of(shell.pid()) == nobody.daemon.pid());
  nobody.client->call("target.detach", {{"pid", shell.pid()}});
  shell.send("go\n");
  CHECK(shell.begins());
  shell.ends_well();
}

TEST_CASE("a user's last connection but one is served, the next one is told why not, and probectl tells him") {
  constexpr int kMost = 5;
  Daemon daemon({"--socket-mode", "0666", "--max-user-clients", std::to_string(kMost)});
  const passwd* user = ::getpwnam("nobody");
  if (::geteuid() != 0 || !user) SKIP_TEST("needs root and a user nobody");
  std::vector<std::unique_ptr<RpcClient>> clients;
  for (int i = 0; i < kMost; ++i) clients.push_back(connect_as(daemon, *user));
  for (const auto& client : clients) client->call("daemon.status");
  const auto late = connect_as(daemon, *user);
  check_ended(*late);
  const std::string command = required_environment("PROBECTL_BIN");
  if (!run_command({command, "--version"}, as_nobody()).ok()) SKIP_TEST("nobody may not execute " + command);
  // Whether its request reaches the socket before that is closed or after.
  for (int i = 0; i < 20; ++i) {
    const CommandResult refused = run_command({command, "--socket", daemon.socket(), "ps"}, as_nobody());
    CHECK(refused.exit == Exit{1, 0});
    CHECK_MESSAGE(refused.err.find("has 5 clients, as many as it may have") != std::string::npos, refused.err);
  }
  RpcClient(daemon.socket()).call("daemon.status");
  CHECK(eventually([&] { return daemon.process().errors().find("turned away") != std::string::npos; }));
}

TEST_CASE("no child is left when everything was torn down") { CHECK(joined(children_left()) == ""); }

}  // namespace
}  // namespace probed::live
