// probed --keep-probes: persistent probes outlive their daemon, however it ends, and are put back by the next one where
// that is right, or said to be gone.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>

#include "tests/live/restarts.hpp"

namespace probed::live {
namespace {

namespace fs = std::filesystem;

// A state directory, and one daemon after the other that works there.
struct Daemons {
  TempDir directory;
  std::string state = directory / "state";
  std::unique_ptr<Daemon> daemon;

  Daemon& start(const std::vector<std::string>& more = {"--keep-probes"}) {
    std::vector<std::string> arguments{"--state-dir", state};
    arguments.insert(arguments.end(), more.begin(), more.end());
    daemon = std::make_unique<Daemon>(arguments);
    return *daemon;
  }
  // Ends it with this signal; its guard has done its work when this returns.
  void end(int signal) {
    daemon->process().signal(signal);
    REQUIRE(daemon->process().wait());
    REQUIRE(eventually([&] { return guard_of(state) == 0; }));
  }
  std::vector<std::string> files(std::string_view ending = ".probes") const {
    std::vector<std::string> found;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(state, error))
      if (entry.path().string().ends_with(ending)) found.push_back(entry.path());
    return found;
  }
  std::string file() const {
    const auto all = files();
    REQUIRE(all.size() == 1);
    return all[0];
  }
};

void edit(const std::string& path, const std::function<void(Json&)>& change) {
  Json json = Json::parse(read_file(path));
  change(json);
  REQUIRE(write_file(path, json.dump() + "\n"));
}

// In a daemon that is to be killed: until the file has the counters.
bool counted_in_file(const Daemons& daemons, std::uint64_t count) {
  return eventually([&] {
    const auto files = daemons.files();
    if (files.size() != 1) return false;
    const Json json = parse_json(read_file(files[0]));
    return json.is_object() && json.at("probes").at(0).at("hits") == count;
  });
}

void is_back_after(int how) {
  CAPTURE(how);
  Daemons daemons;
  Watched target("family");
  Json before;
  {
    daemons.start();
    RpcClient client(daemons.daemon->socket());
    add(client, target.pid(), {"p:mine/steady work"}, {{"persist", true}, {"maxRate", 123456}});
    client.call("probe.add",
                {{"pid", target.pid()},
                 {"persist", true},
                 {"probes", {{{"definition", "p:off work+0 x=$arg1:s64"}, {"disabled", true}, {"filter", "x == 3"}}}}});
    add(client, target.pid(), {"work"});  // its client's alone
    CHECK(target.ask("call 7") == "called 7");
    REQUIRE(hits(client, "mine/steady", 7));
    before = named(client, "mine/steady");
    if (how == SIGKILL) REQUIRE(counted_in_file(daemons, 7));
  }
  daemons.end(how);
  CHECK(target.ask("call 100") == "called 100");  // nobody sees these
  daemons.start();
  RpcClient client(daemons.daemon->socket());
  CHECK(list_probes(client).size() == 2);
  const Json now = named(client, "mine/steady");
  REQUIRE_MESSAGE(now.is_object(), daemons.daemon->process().errors());
  CHECK_MESSAGE(now.at("state") == "enabled", now.dump());
  for (const char* key : {"id", "definition", "filter", "address", "symbol", "module", "persist", "maxRate"})
    CHECK_MESSAGE(now.at(key) == before.at(key), std::string(key));
  CHECK(now.at("hits") == 7);
  CHECK(now.at("unwatched").at("times") == 1);
  CHECK(now.at("unwatched").at("to") > now.at("unwatched").at("from"));
  CHECK(now.at("unwatched").at("total").get<std::uint64_t>() ==
        now.at("unwatched").at("to").get<std::uint64_t>() - now.at("unwatched").at("from").get<std::uint64_t>());
  CHECK_FALSE(before.contains("unwatched"));
  const CommandResult shown = probectl(*daemons.daemon, {"list", "--verbose"});
  CHECK_MESSAGE(shown.out.find("(not counted for ") != std::string::npos, shown.out);
  CHECK(named(client, "probes/off").at("state") == "disabled");
  CHECK(named(client, "probes/off").at("filter") == "x == 3");
  // It makes events, and counts on.
  Events events(client, {{"probes", {"mine/steady"}}});
  CHECK(target.ask("call 5") == "called 5");
  CHECK(events.reach(5));
  CHECK(hits(client, "mine/steady", 12));
  // An id is never given twice.
  const Json fresh = add(client, target.pid(), {"p:fresh work"}).at(0);
  CHECK(fresh.at("id") > now.at("id"));
  CHECK(fresh.at("id") > named(client, "probes/off").at("id"));
  client.call("probe.remove", {{"all", true}});
  CHECK(daemons.files().empty());
  CHECK(let_go(target));
  if (how == SIGTERM) CHECK(target.unharmed());
  target.target.send("quit\n");
  CHECK(target.target.finish().exit == Exit{0, 0});
}

}  // namespace

TEST_CASE("a persistent probe is back after SIGKILL: id, name, definition, filter, switch, counters") {
  is_back_after(SIGKILL);
}

TEST_CASE("a persistent probe is back after SIGTERM: id, name, definition, filter, switch, counters") {
  is_back_after(SIGTERM);
}

TEST_CASE("return probes, static probes, globs and waiting probes are back, with all their places") {
  Daemons daemons;
  Watched target("dlopener");
  std::vector<Json> before;
  {
    daemons.start();
    RpcClient client(daemons.daemon->socket());
    add(client, target.pid(), {"r:ret libc:strlen $retval", "p:all libc:str*cpy"}, {{"persist", true}});
    client.call("probe.add", {{"pid", target.pid()},
                              {"persist", true},
                              {"probes", {{{"definition", "p:later plugin.so:plugin_work"}, {"pending", true}}}}});
    before = list_probes(client);
    REQUIRE(before.size() >= 4);
  }
  daemons.end(SIGKILL);
  daemons.start();
  RpcClient client(daemons.daemon->socket());
  const auto now = list_probes(client);
  REQUIRE_MESSAGE(now.size() == before.size(), daemons.daemon->process().errors());
  for (std::size_t i = 0; i < now.size(); ++i)
    for (const char* key : {"id", "name", "kind", "state", "address", "symbol", "module"})
      CHECK_MESSAGE(now[i].at(key) == before[i].at(key), now[i].dump());
  CHECK(target.ask("open").starts_with("opened"));
  CHECK(target.ask("call 3").starts_with("called 3"));
  CHECK(hits(client, "probes/later", 3));
  client.call("probe.remove", {{"all", true}});
}

TEST_CASE("a waiting glob is back with what it has become, and finds the same code again, once") {
  for (const bool loaded : {true, false}) {
    CAPTURE(loaded);
    Daemons daemons;
    Watched target("dlopener");
    std::vector<Json> before;
    {
      daemons.start();
      RpcClient client(daemons.daemon->socket());
      client.call("probe.add", {{"pid", target.pid()},
                                {"persist", true},
                                {"probes", {{{"definition", "plugin.so:plugin_*"}, {"pending", true}}}}});
      CHECK(target.ask("open").starts_with("opened"));
      before = list_probes(client);
      REQUIRE(before.size() == 2);
      if (!loaded) CHECK(target.ask("close") == "closed");
    }
    daemons.end(SIGKILL);
    daemons.start();
    RpcClient client(daemons.daemon->socket());
    if (!loaded) {
      for (const Json& probe : list_probes(client)) CHECK_MESSAGE(probe.at("state") == "pending", probe.dump());
      CHECK(target.ask("open").starts_with("opened"));
    }
    for (int round = 0; round < 2; ++round) {
      const auto now = list_probes(client);
      REQUIRE_MESSAGE(now.size() == before.size(), Json(now).dump());
      for (std::size_t i = 0; i < now.size(); ++i) {
        CHECK_MESSAGE(now[i].at("state") == "enabled", now[i].dump());
        for (const char* key : {"id", "name", "symbol", "from"})
          CHECK_MESSAGE(now[i].at(key) == before[i].at(key), key);
      }
      CHECK(target.ask("close") == "closed");
      CHECK(target.ask("open").starts_with("opened"));
    }
    // By the name of what it was made of all of it goes.
    client.call("probe.remove", {{"ids", {before.at(0).at("from").at("id")}}});
    CHECK(list_probes(client).empty());
    CHECK(daemons.files().empty());
  }
}

TEST_CASE("a target that stays attached without probes is attached to again") {
  Daemons daemons;
  Watched target("family");
  daemons.start();
  RpcClient(daemons.daemon->socket()).call("target.attach", {{"pid", target.pid()}, {"persist", true}});
  daemons.end(SIGKILL);
  CHECK(tracer_of(target.pid()) == 0);
  daemons.start();
  CHECK(tracer_of(target.pid()) == daemons.daemon->pid());
  RpcClient client(daemons.daemon->socket());
  client.call("target.detach", {{"pid", target.pid()}});
  CHECK(daemons.files().empty());
  CHECK(target.unharmed());
}

TEST_CASE("the global switches stay as they were") {
  Daemons daemons;
  Watched target("family");
  {
    daemons.start();
    RpcClient client(daemons.daemon->socket());
    add(client, target.pid(), {"p:steady work"}, {{"persist", true}});
    client.call("daemon.disarm");
  }
  daemons.end(SIGKILL);
  daemons.start();
  RpcClient client(daemons.daemon->socket());
  CHECK(client.call("daemon.status").at("armed") == false);
  const Json probe = named(client, "probes/steady");
  CHECK(probe.at("state") == "enabled");
  CHECK(probe.at("armed") == false);
  CHECK_FALSE(has_breakpoint(target.pid(), address_of(probe)));
  client.call("daemon.arm");
  CHECK(target.ask("call 2") == "called 2");
  CHECK(hits(client, "probes/steady", 2));
}

// ---- what can't be put back -----------------------------------------------------------------------------------------

namespace {

// A probe with 4 hits in `target`, whose daemon is killed; `meanwhile`; then what the next daemon says of it.
struct Lost {
  Daemons daemons;
  std::unique_ptr<RpcClient> client;
  Json probe;
  Lost(Watched& target, const std::function<void(Daemons&)>& meanwhile) {
    daemons.start();
    {
      RpcClient first(daemons.daemon->socket());
      add(first, target.pid(), {"p:steady work"}, {{"persist", true}});
      CHECK(target.ask("call 4") == "called 4");
      REQUIRE(hits(first, "probes/steady", 4));
      REQUIRE(counted_in_file(daemons, 4));
    }
    daemons.end(SIGKILL);
    meanwhile(daemons);
    ask_next_daemon();
  }
  void ask_next_daemon() {
    daemons.start();
    client = std::make_unique<RpcClient>(daemons.daemon->socket());
    probe = named(*client, "probes/steady");
  }
  void is_listed_as_gone(const std::string& why) {
    REQUIRE_MESSAGE(probe.is_object(), daemons.daemon->process().errors());
    CHECK(probe.at("state") == "gone");
    CHECK(probe.at("hits") == 4);
    CHECK(probe.at("unwatched").at("to") == 0);
    const std::string reason = probe.value("stateReason", "");
    CHECK_MESSAGE(reason.find(why) != reason.npos, reason);
    CHECK(says(daemons.daemon->process(), why));
  }
  void remove() {
    client->call("probe.remove", {{"names", {"steady"}}});
    CHECK(list_probes(*client).empty());
  }
  // For good: nothing of it is kept.
  void is_gone(const std::string& why) {
    is_listed_as_gone(why);
    CHECK(daemons.files().empty());
    remove();
  }
};

}  // namespace

TEST_CASE("a target that has ended while no daemon ran: its probe is gone, and why") {
  Watched target("family");
  Lost lost(target, [&](Daemons&) {
    target.target.signal(SIGKILL);
    REQUIRE(target.target.wait());
  });
  lost.is_gone("has ended while no daemon ran");
}

TEST_CASE("a target that runs another program now, the same one even: its probe is gone, and why") {
  Watched target("family");
  Lost lost(target, [&](Daemons&) {
    CHECK(target.ask("exec").starts_with("ready"));
    target.before = state_of(target.pid());
  });
  lost.is_gone("another program");
  CHECK(tracer_of(target.pid()) == 0);
  CHECK(target.unharmed());
}

TEST_CASE("a process that has the number of the target now is left alone") {
  Watched target("family");
  Lost lost(target, [&](Daemons& daemons) {
    edit(daemons.file(), [](Json& json) { json["startTime"] = json["startTime"].get<std::uint64_t>() - 1; });
  });
  lost.is_gone("another one has its number now");
  CHECK(tracer_of(target.pid()) == 0);
  CHECK(let_go(target));
}

TEST_CASE("three daemons that have ended soon after they put a probe back: the next one doesn't") {
  Watched target("family");
  Lost lost(target, [&](Daemons& daemons) {
    for (int i = 0; i < 3; ++i) {
      daemons.start();
      CHECK(tracer_of(target.pid()) == daemons.daemon->pid());
      daemons.end(SIGKILL);
    }
  });
  lost.is_listed_as_gone("3 daemons in a row");
  // It stays known from daemon to daemon, and who asks for it gets it.
  lost.daemons.end(SIGKILL);
  lost.ask_next_daemon();
  lost.is_listed_as_gone("3 daemons in a row");
  CHECK(tracer_of(target.pid()) == 0);
  lost.client->call("probe.enable", {{"names", {"steady"}}});
  CHECK(target.ask("call 2") == "called 2");
  CHECK(hits(*lost.client, "probes/steady", 6));
  lost.remove();
  CHECK(let_go(target));
}

TEST_CASE("very many probes outlive their daemon, each with its own counter") {
  Daemons daemons;
  daemons.start();
  Watched target("soaked", {"2"});
  std::size_t count = 0;
  const auto hits_of_round = [](RpcClient& client) {
    return named(client, "probes/round").at("hits").get<std::uint64_t>();
  };
  {
    RpcClient client(daemons.daemon->socket());
    count = add(client, target.pid(), {"p libc.so.6:*", "p:round work"}, {{"persist", true}}).size();
    CHECK_MESSAGE(count > 2000, count);
    target.target.go();
    CHECK(eventually([&] { return hits_of_round(client) > 10; }));
  }
  REQUIRE(eventually([&] {
    const auto files = daemons.files();
    const Json json = files.empty() ? Json() : parse_json(read_file(files[0]));
    return json.is_object() && json.at("probes").size() == count && json.at("probes").back().at("hits") > 10;
  }));
  daemons.end(SIGKILL);
  daemons.start();
  RpcClient client(daemons.daemon->socket());
  CHECK(list_probes(client, target.pid()).size() == count);
  // A daemon serves its clients after some seconds, whether all is in place or not.
  CHECK(eventually([&] {
    const auto probes = list_probes(client, target.pid());
    const auto is_back = [](const Json& probe) { return probe.at("state") == "enabled"; };
    return std::ranges::count_if(probes, is_back) == static_cast<std::ptrdiff_t>(count);
  }));
  const std::uint64_t before = hits_of_round(client);
  CHECK(before > 10);
  CHECK(eventually([&] { return hits_of_round(client) > before; }));
  client.call("probe.remove", {{"all", true}});
  target.target.send("quit\n");
  const TargetReport report = target.target.finish();
  CHECK_MESSAGE(report.ok(), report.exit);
}

TEST_CASE("a library that was replaced while no daemon ran: its probe is gone, and comes back when it is asked for") {
  Daemons daemons;
  const std::string plugin = daemons.directory / "plugin.so", other = daemons.directory / "other.so";
  fs::copy_file(target_path("plugin.so"), plugin);
  fs::copy_file(target_path("plugin.so"), other);
  Watched target("dlopener", {plugin});
  CHECK(target.ask("open").starts_with("opened"));
  {
    daemons.start();
    RpcClient client(daemons.daemon->socket());
    add(client, target.pid(), {"p:plug plugin.so:plugin_work"}, {{"persist", true}});
  }
  daemons.end(SIGKILL);
  CHECK(target.ask("close") == "closed");
  fs::rename(other, plugin);
  CHECK(target.ask("open").starts_with("opened"));
  daemons.start();
  RpcClient client(daemons.daemon->socket());
  const Json probe = named(client, "probes/plug");
  REQUIRE(probe.is_object());
  CHECK(probe.at("state") == "gone");
  CHECK(probe.value("stateReason", "").find("isn't what it was") != std::string::npos);
  CHECK(text_differences(target.pid()).empty());
  CHECK_FALSE(client.call("probe.enable", {{"names", {"plug"}}}).contains("failed"));
  CHECK(target.ask("call 2").starts_with("called 2"));
  CHECK(hits(client, "probes/plug", 2));
  CHECK_FALSE(named(client, "probes/plug").contains("stateReason"));
}

TEST_CASE("an owner who may not trace the process any more doesn't get his probe back") {
  if (::geteuid() != 0) SKIP_TEST("only root's daemon serves several users");
  Watched target("family");
  Lost lost(target, [&](Daemons& daemons) {
    edit(daemons.file(), [](Json& json) { json["probes"][0]["owner"] = {{"user", 65534}, {"group", 65534}}; });
  });
  lost.is_gone("may not trace process");
  CHECK(tracer_of(target.pid()) == 0);
  CHECK(let_go(target));
}

TEST_CASE("a target that somebody else traces meanwhile: its probe waits in its file for the next daemon") {
  Daemons daemons;
  Watched target("family");
  {
    daemons.start();
    RpcClient client(daemons.daemon->socket());
    add(client, target.pid(), {"p:steady work"}, {{"persist", true}});
  }
  daemons.end(SIGKILL);
  REQUIRE(::ptrace(PTRACE_SEIZE, target.pid(), nullptr, nullptr) == 0);
  daemons.start();
  {
    RpcClient client(daemons.daemon->socket());
    const Json probe = named(client, "probes/steady");
    REQUIRE(probe.is_object());
    CHECK(probe.at("state") == "gone");
    CHECK_FALSE(probe.value("stateReason", "").empty());
    CHECK(daemons.files().size() == 1);
  }
  daemons.end(SIGTERM);
  REQUIRE(::ptrace(PTRACE_INTERRUPT, target.pid(), nullptr, nullptr) == 0);
  REQUIRE(::waitpid(target.pid(), nullptr, 0) == target.pid());
  REQUIRE(::ptrace(PTRACE_DETACH, target.pid(), nullptr, nullptr) == 0);
  daemons.start();
  RpcClient client(daemons.daemon->socket());
  CHECK(named(client, "probes/steady").at("state") == "enabled");
  CHECK(target.ask("call 2") == "called 2");
  CHECK(hits(client, "probes/steady", 2));
}

// ---- the file -------------------------------------------------------------------------------------------------------

namespace {

struct Damage {
  const char* what;
  std::function<void(const std::string& path)> does;
  const char* why;
};

std::function<void(const std::string&)> to_json(const std::function<void(Json&)>& change) {
  return [change](const std::string& path) { edit(path, change); };
}

const Damage kDamages[] = {
    {"cut off", [](const std::string& p) { write_file(p, read_file(p).substr(0, 100)); }, "it is no JSON"},
    {"empty", [](const std::string& p) { write_file(p, ""); }, "it is no JSON"},
    {"deep", [](const std::string& p) { write_file(p, std::string(100'000, '[')); }, "it is no JSON"},
    {"another format", to_json([](Json& j) { j["format"] = "x"; }), "no file of persistent probes"},
    {"a later version", to_json([](Json& j) { j["version"] = 2; }), "another version of probed, in format 2"},
    {"an unknown key", to_json([](Json& j) { j["probes"][0]["command"] = "x"; }), "command"},
    {"a missing key", to_json([](Json& j) { j["probes"][0].erase("hits"); }), "hits"},
    {"a wrong type", to_json([](Json& j) { j["probes"][0]["hits"] = "many"; }), "hits"},
    {"a negative id", to_json([](Json& j) { j["probes"][0]["id"] = -1; }), "id"},
    {"an id twice", to_json([](Json& j) { j["probes"].push_back(j["probes"][0]); }), "the same id"},
    {"no definition", to_json([](Json& j) { j["probes"][0]["definition"] = "p:"; }), "definition"},
    {"no name", to_json([](Json& j) { j["probes"][0]["name"] = "a b"; }), "name"},
    {"no code", to_json([](Json& j) { j["probes"][0]["place"]["code"] = "zz"; }), "code"},
    {"process 1", to_json([](Json& j) { j["pid"] = 1; }), "pid"},
    {"open to others", [](const std::string& p) { ::chmod(p.c_str(), 0644); }, "others have access"},
    {"two names", [](const std::string& p) { REQUIRE(::link(p.c_str(), (p + ".other").c_str()) == 0); }, "one name"},
    {"a symbolic link",
     [](const std::string& p) {
       fs::rename(p, p + ".real");
       fs::create_symlink(p + ".real", p);
     },
     ""},
};

}  // namespace

TEST_CASE("a damaged file is refused whole, with a message, and set aside; the target is left alone") {
  Daemons daemons;
  Watched target("family");
  {
    daemons.start();
    RpcClient client(daemons.daemon->socket());
    add(client, target.pid(), {"p:steady work", "p:other work"}, {{"persist", true}});
  }
  daemons.end(SIGKILL);
  const std::string path = daemons.file(), good = read_file(path);
  for (const Damage& damage : kDamages) {
    CAPTURE(std::string(damage.what));
    damage.does(path);
    daemons.start();
    RpcClient client(daemons.daemon->socket());
    CHECK(list_probes(client).empty());
    CHECK(tracer_of(target.pid()) == 0);
    Process& process = daemons.daemon->process();
    CHECK_MESSAGE(says(process, "is refused, and its probes with it: "), process.errors());
    CHECK_MESSAGE(says(process, damage.why), process.errors());
    CHECK(daemons.files().empty());
    CHECK(daemons.files(".refused").size() == 1);
    daemons.end(SIGKILL);
    for (const auto& entry : fs::directory_iterator(daemons.state))
      if (entry.path().filename() != "lock") fs::remove(entry.path());
    REQUIRE(write_file(path, good));
    REQUIRE(::chmod(path.c_str(), 0600) == 0);
  }
  daemons.start();  // and undamaged it is taken
  RpcClient client(daemons.daemon->socket());
  CHECK(list_probes(client).size() == 2);
  CHECK(list_probes(client).at(0).at("state") == "enabled");
}

TEST_CASE("the file is its user's alone, and there only as long as there is something to keep") {
  Daemons daemons;
  Watched target("family");
  daemons.start();
  RpcClient client(daemons.daemon->socket());
  add(client, target.pid(), {"work"});  // not persistent
  CHECK(daemons.files().empty());
  const Json probe = add(client, target.pid(), {"p:steady work"}, {{"persist", true}}).at(0);
  struct stat file {};
  REQUIRE(::stat(daemons.file().c_str(), &file) == 0);
  CHECK((file.st_mode & 07777) == 0600);
  CHECK(file.st_uid == ::geteuid());
  client.call("probe.remove", {{"ids", {probe.at("id")}}});
  CHECK(daemons.files().empty());
  add(client, target.pid(), {"p:steady work"}, {{"persist", true}});
  CHECK(daemons.files().size() == 1);
  target.target.send("quit\n");
  REQUIRE(target.target.wait());
  CHECK(eventually([&] { return daemons.files().empty(); }));
}

TEST_CASE("whoever adds a probe that can't be kept is told so, and why, as long as it can't") {
  Daemons daemons;
  Watched user("soaked", {"1"});
  daemons.start();
  RpcClient client(daemons.daemon->socket());
  const auto add_kept = [&](const char* definition) {
    const Json request = {{"pid", user.pid()}, {"persist", true}, {"probes", {{{"definition", definition}}}}};
    return client.call("probe.add", request).at("probes").at(0).dump();
  };
  CHECK(add_kept("work").find("notes") == std::string::npos);
  const std::string path = daemons.file(), obstacle = path + ".new/x";
  fs::create_directories(obstacle);
  const std::string told = add_kept("leaf");
  CHECK_MESSAGE(told.find("it won't outlive this daemon: cannot write " + path) != std::string::npos, told);
  CHECK(Json(list_probes(client)).dump().find("won't outlive") != std::string::npos);
  fs::remove_all(path + ".new");
  CHECK(add_kept("nest").find("notes") == std::string::npos);
  CHECK(Json(list_probes(client)).dump().find("won't outlive") == std::string::npos);
  CHECK(daemons.files().size() == 1);
  client.call("probe.remove", {{"all", true}});
  user.target.go();
  user.target.send("quit\n");
  CHECK(user.target.finish().ok());
}

TEST_CASE("a directory that others can write to is refused") {
  Daemons daemons;
  REQUIRE(::mkdir(daemons.state.c_str(), 0700) == 0);
  REQUIRE(::chmod(daemons.state.c_str(), 0777) == 0);
  const CommandResult result = run_command({required_environment("PROBED_BIN"), "--keep-probes", "--state-dir",
                                            daemons.state, "--socket", daemons.directory / "s"});
  CHECK(result.exit == Exit{1, 0});
  CHECK(result.err.find("nobody else can write to") != std::string::npos);
}

TEST_CASE("a daemon without --keep-probes puts nothing back, and says whose end that is") {
  Daemons daemons;
  Watched target("family");
  daemons.start();
  {
    RpcClient client(daemons.daemon->socket());
    add(client, target.pid(), {"p:steady work"}, {{"persist", true}});
  }
  daemons.end(SIGTERM);
  CHECK(daemons.files().size() == 1);
  daemons.start({});
  RpcClient client(daemons.daemon->socket());
  CHECK(list_probes(client).empty());
  CHECK(says(daemons.daemon->process(), "probes/steady"));
  CHECK(daemons.files().empty());
  CHECK(target.unharmed());
}

}  // namespace probed::live
