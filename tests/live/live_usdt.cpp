// Static probes (USDT) on real processes: their arguments, their places, their semaphores, and Debian's programs that
// have some.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/live/probing.hpp"
#include "tests/live/servers.hpp"

namespace probed::live {
namespace {

struct UsdtTarget {
  Target target{"usdt"};
  TargetState before = state_of(target.pid());
  pid_t pid() const { return target.pid(); }
  std::string ask(const std::string& command) {
    target.send(command + "\n");
    return target.next_line().value_or("(no answer)");
  }
  bool ends_well() {
    target.send("quit\n");
    return target.finish().ok();
  }
};

#define NEEDS_USDT_TARGET() \
  if (!target_runs("usdt")) SKIP_TEST("tests/targets/usdt needs <sys/sdt.h> (systemtap-sdt-dev)")

std::string text_of(pid_t pid) { return std::to_string(pid); }

// A note's numbers, from readelf: the file offsets of its place and of its semaphore.
struct NoteOffsets {
  std::string place, semaphore;
};
NoteOffsets offsets_of(const std::string& name) {
  const CommandResult notes = run_command({"readelf", "-nW", target_path("usdt")});
  const std::size_t at = notes.out.find("Name: " + name + "\n");
  const auto word = [&](const std::string& key) {
    const std::size_t from = notes.out.find(key + ": 0x", at) + key.size() + 2;
    return std::stoull(notes.out.substr(from, 18), nullptr, 16);
  };
  // .probes is in the second writable page's segment: address and offset differ by what readelf -l shows.
  const CommandResult headers = run_command({"readelf", "-lW", target_path("usdt")});
  const auto offset = [&](std::uint64_t address) {
    std::size_t line = 0;
    while ((line = headers.out.find("  LOAD ", line)) != std::string::npos) {
      unsigned long long file = 0, start = 0, physical = 0, size = 0;
      std::sscanf(headers.out.c_str() + line, " LOAD %llx %llx %llx %llx", &file, &start, &physical, &size);
      if (address >= start && address < start + size) return address - start + file;
      ++line;
    }
    return 0ull;
  };
  return {hex(offset(word("Location"))), hex(offset(word("Semaphore")))};
}

// ---- arguments ------------------------------------------------------------------------------------------------------

TEST_CASE("a static probe's arguments come with the size and sign the program gave them") {
  NEEDS_USDT_TARGET();
  for (const bool optimize : {false, true}) {
    CAPTURE(optimize);
    Daemon daemon;
    RpcClient client(daemon.socket());
    UsdtTarget user;
    if (!optimize) client.call("daemon.optimize", {{"enabled", false}});
    const Json probe =
        add(client, user.pid(), {"p:a probedtest:args $args text=+0($arg2):string wide=$arg1:s64"}).at(0);
    CHECK(probe.at("name") == "probes/a");
    CHECK(probe.at("state") == "enabled");
    Events events(client);
    const int rounds = optimize ? 40 : 1;
    for (int i = 0; i < rounds; ++i) REQUIRE(user.ask("args -2") == "args done");
    REQUIRE(events.reach(static_cast<std::size_t>(rounds)));
    for (const Json& event : events.all()) {
      const Json& args = event.at("args");
      CHECK(args.at("arg1") == -2);
      CHECK(args.at("arg3") == -5000000000);
      CHECK(args.at("arg4") == -3);
      CHECK(args.at("arg5") == 200);
      CHECK(args.at("arg6") == 5);
      CHECK(args.at("arg7") == -6);
      CHECK(args.at("arg8") == 254);
      CHECK(args.at("arg9") == 2);
      CHECK(args.at("arg10").get<std::uint64_t>() > 0x1000);
      CHECK(args.at("text") == "a text");
      CHECK(args.at("wide") == -2);
    }
    remove_all(client, {probe});
    CHECK(left_unharmed(user.pid(), user.before, PageCopies::may_stay));
    CHECK(user.ends_well());
  }
}

TEST_CASE("operands that compilers seldom write are read too: an index, a high byte, a symbol, a constant") {
  NEEDS_USDT_TARGET();
  Daemon daemon;
  RpcClient client(daemon.socket());
  UsdtTarget user;
  add(client, user.pid(),
      {"p:b usdt:probedtest:byhand $arg1 $arg2 $arg3 $arg4 $arg5 $arg7 $arg8 $arg9 high=$arg4:u32 cut=$arg7:u8"});
  Events events(client);
  REQUIRE(user.ask("args 3") == "args done");
  REQUIRE(events.reach(1));
  const Json& args = events.all().at(0).at("args");
  CHECK(args.at("arg1") == -30);
  CHECK(args.at("arg2") == -20);
  CHECK(args.at("arg3") == -44);
  CHECK(args.at("arg4") == 0x12);
  CHECK(args.at("arg5") == 0x34);
  CHECK(args.at("arg6") == 0x1234);
  CHECK(args.at("arg7") == 0xffffffffu);
  CHECK(args.at("arg8") == -44);
  CHECK(args.at("high") == 0x12);
  CHECK(args.at("cut") == 0x34);
  CHECK(user.ends_well());
}

TEST_CASE("floating-point arguments are numbers, in registers and in memory") {
  NEEDS_USDT_TARGET();
  for (const bool optimize : {false, true}) {
    CAPTURE(optimize);
    Daemon daemon;
    RpcClient client(daemon.socket());
    UsdtTarget user;
    if (!optimize) client.call("daemon.optimize", {{"enabled", false}});
    add(client, user.pid(), {"p:f probedtest:floats $args bits=$arg1:x64"});
    Events events(client);
    const int rounds = optimize ? 40 : 1;
    for (int i = 0; i < rounds; ++i) REQUIRE(user.ask("args -3") == "args done");
    REQUIRE(events.reach(static_cast<std::size_t>(rounds)));
    for (const Json& event : events.all())
      CHECK(event.at("args") ==
            Json({{"arg1", -2.5}, {"arg2", -2.75}, {"arg3", -2.25}, {"arg4", -2.5}, {"bits", "0xc004000000000000"}}));
    CHECK(user.ends_well());
  }
}

TEST_CASE("an argument named beside $args stands there once, as it was written") {
  NEEDS_USDT_TARGET();
  Daemon daemon;
  RpcClient client(daemon.socket());
  UsdtTarget user;
  add(client, user.pid(), {"p:f probedtest:floats $arg1:x64 $args"});
  Events events(client);
  REQUIRE(user.ask("args -3") == "args done");
  REQUIRE(events.reach(1));
  CHECK(events.all().at(0).at("args") ==
        Json({{"arg1", "0xc004000000000000"}, {"arg2", -2.75}, {"arg3", -2.25}, {"arg4", -2.5}}));
  CHECK(reason_of(add_error(client, user.pid(), {"p:g probedtest:floats $arg2 $args"})) == "bad-definition");
  CHECK(user.ends_well());
}

TEST_CASE("an argument of a static probe may be cast: it is the probe's, not the function's around it") {
  NEEDS_USDT_TARGET();
  for (const bool optimize : {false, true}) {
    CAPTURE(optimize);
    Daemon daemon;
    RpcClient client(daemon.socket());
    UsdtTarget user;
    if (!optimize) client.call("daemon.optimize", {{"enabled", false}});
    const std::string places = "usdt:probedtest:byhand ", args = "usdt:probedtest:args ";
    const auto probes =
        add(client, user.pid(),
            {"p:a " + args + "n=(int)$arg1 back=(int)$arg9 narrow=((struct Record*)$arg10)->narrow " +
                 "wide=(*(struct Record*)$arg10).wide letter=((char*)$arg2)[2] seven=(unsigned int)$arg7",
             "p:b " + places + "one=(long)$arg1 two=(long)$arg2 three=(long)$arg3 four=(long)$arg4",
             "p:c " + places + "one=$arg1:s64 two=$arg2:s64 three=$arg3:s64 four=$arg4:s64"});
    Events events(client);
    const std::size_t rounds = optimize ? 40 : 1;
    for (std::size_t i = 0; i < rounds; ++i) REQUIRE(user.ask("args 3") == "args done");
    REQUIRE(events.reach(3 * rounds));
    const Json truth{{"n", 3},        {"back", -3},         {"narrow", -3}, {"wide", -5000000000},
                     {"letter", "t"}, {"seven", 4294967290}};
    for (const Json& event : events.of(probes.at(0))) CHECK(event.at("args") == truth);
    const auto cast = events.of(probes.at(1)), read = events.of(probes.at(2));
    for (std::size_t i = 0; i < rounds; ++i) CHECK(cast.at(i).at("args") == read.at(i).at("args"));
    for (const auto& [definition, said] :
         {std::pair(args + "(int)$arg11", "probedtest:args has no $arg11"),
          std::pair(std::string("probedtest:floats (int)$arg1"), "floating-point number"),
          std::pair(args + "$arg10->narrow", "has no members")}) {
      const Json error = add_error(client, user.pid(), {"p:d " + definition});
      CHECK_MESSAGE(error.value("message", "").find(said) != std::string::npos, error.dump());
    }
    CHECK(user.ends_well());
  }
}

TEST_CASE("an argument that can't be read, or isn't there, is refused with its reason and its column") {
  NEEDS_USDT_TARGET();
  Daemon daemon;
  RpcClient client(daemon.socket());
  UsdtTarget user;
  const Json vector = add_error(client, user.pid(), {"p:b probedtest:byhand $arg6"});
  CHECK(reason_of(vector) == "unsupported");
  CHECK(vector.dump().find("can't be read") != std::string::npos);
  CHECK(vector.at("data").at("column") == 22);
  const Json beyond = add_error(client, user.pid(), {"p:b probedtest:byhand $arg10"});
  CHECK(reason_of(beyond) == "bad-definition");
  CHECK(hint_of(beyond) == "it has 9 arguments");
  const Json unknown = add_error(client, user.pid(), {"p:b probedtest:byhnd"});
  CHECK(reason_of(unknown) == "no-such-symbol");
  CHECK(hint_of(unknown).find("byhand") != std::string::npos);
  CHECK(tracer_of(user.pid()) == 0);
  CHECK(user.ends_well());
}

// ---- places ---------------------------------------------------------------------------------------------------------

TEST_CASE("several notes of one name are one probe at many places, each with its own operands") {
  NEEDS_USDT_TARGET();
  Daemon daemon;
  RpcClient client(daemon.socket());
  UsdtTarget user;
  const auto probes = add(client, user.pid(), {"p:m probedtest:many value=$arg1"});
  REQUIRE(probes.size() == 1);
  CHECK(probes[0].at("places") == 3);
  CHECK(list_probes(client).size() == 1);
  Events events(client, {{"probes", {probes[0].at("id")}}});
  REQUIRE(user.ask("many 4") == "many done");
  REQUIRE(events.reach(12));
  std::set<std::string> symbols;
  long long sum = 0;
  for (const Json& event : events.all()) {
    CHECK(event.at("id") == probes[0].at("id"));
    CHECK(event.at("probe") == "probes/m");
    symbols.insert(event.at("symbol").get<std::string>());
    sum += event.at("args").at("value").get<long long>();
  }
  CHECK(symbols.size() == 3);
  CHECK(sum == 3 * 6 + 4000);
  CHECK(counts_of(client, probes[0]).hits == 12);
  client.call("probe.disable", {{"names", {"m"}}});
  REQUIRE(user.ask("many 4") == "many done");
  CHECK(counts_of(client, probes[0]).hits == 12);
  client.call("probe.enable", {{"ids", {probes[0].at("id")}}});
  REQUIRE(user.ask("many 1") == "many done");
  const auto removed = remove_all(client, probes);
  REQUIRE(removed.size() == 1);
  CHECK(removed[0].at("hits") == 15);
  CHECK(left_unharmed(user.pid(), user.before, PageCopies::may_stay));
  CHECK(user.ends_well());
}

TEST_CASE("a glob of static probes is one probe for each name; functions --usdt lists them with their arguments") {
  NEEDS_USDT_TARGET();
  Daemon daemon;
  RpcClient client(daemon.socket());
  UsdtTarget user;
  const CommandResult listed = probectl(daemon, {"functions", "-p", text_of(user.pid()), "--usdt", "probedtest:*"});
  REQUIRE(listed.ok());
  CHECK(std::count(listed.out.begin(), listed.out.end(), '\n') == 6);
  CHECK(listed.out.find("10  probedtest:args  usdt") != std::string::npos);
  CHECK(listed.out.find("     3          1  probedtest:many  usdt") != std::string::npos);
  const auto probes = add(client, user.pid(), {"usdt:probedtest:*"});
  REQUIRE(probes.size() == 6);
  std::set<std::string> names;
  for (const Json& probe : probes) names.insert(probe.at("name").get<std::string>());
  CHECK(names.contains("probes/p_probedtest_many"));
  CHECK(names.contains("probes/p_probedtest_guarded"));
  const CommandResult none = probectl(daemon, {"functions", "-p", text_of(user.pid()), "--usdt", "nosuch:*"});
  CHECK(none.exit == Exit{1, 0});
  remove_all(client, probes);
  CHECK(user.ends_well());
}

// ---- semaphores -----------------------------------------------------------------------------------------------------

TEST_CASE(
    "a semaphore is above 0 while a probe of it is armed, and 0 after disable, remove, detach and a daemon's end") {
  NEEDS_USDT_TARGET();
  auto daemon = std::make_unique<Daemon>();
  auto client = std::make_unique<RpcClient>(daemon->socket());
  UsdtTarget user;
  CHECK(user.ask("guarded 3") == "guarded 0 0");
  const auto add_guarded = [&] { return add(*client, user.pid(), {"p:g probedtest:guarded value=$arg1"}); };
  auto probes = add_guarded();
  CHECK(user.ask("guarded 3") == "guarded 3 1");
  CHECK(counts_of(*client, probes[0]).hits == 3);
  auto more = add(*client, user.pid(), {"p:h probedtest:guarded", "p:i probedtest:guarded_too"});
  CHECK(user.ask("guarded 1") == "guarded 1 3");
  client->call("probe.disable", {{"names", {"h"}}});
  CHECK(user.ask("guarded 1") == "guarded 1 2");
  remove_all(*client, more);
  CHECK(user.ask("guarded 1") == "guarded 1 1");
  client->call("probe.disable", {{"names", {"g"}}});
  CHECK(user.ask("guarded 1") == "guarded 0 0");
  client->call("probe.enable", {{"names", {"g"}}});
  CHECK(user.ask("guarded 1") == "guarded 1 1");
  client->call("daemon.disarm");
  CHECK(user.ask("guarded 1") == "guarded 0 0");
  client->call("daemon.arm");
  CHECK(user.ask("guarded 1") == "guarded 1 1");
  remove_all(*client, probes);
  CHECK(user.ask("guarded 1") == "guarded 0 0");
  add_guarded();
  client->call("target.detach", {{"pid", user.pid()}});
  CHECK(user.ask("guarded 1") == "guarded 0 0");
  add_guarded();
  CHECK(user.ask("guarded 1") == "guarded 1 1");
  CHECK(daemon->stop() == Exit{0, 0});
  CHECK(user.ask("guarded 1") == "guarded 0 0");
  CHECK(user.ends_well());
}

TEST_CASE("the semaphore in a forked child's copy is lowered when the child is let go, and kept when it is followed") {
  NEEDS_USDT_TARGET();
  for (const bool follow : {false, true}) {
    CAPTURE(follow);
    Daemon daemon;
    RpcClient client(daemon.socket());
    UsdtTarget user;
    const auto probes = add(client, user.pid(), {"p:g probedtest:guarded"}, {{"followFork", follow}});
    CHECK(user.ask("fork") == (follow ? "child 1" : "child 0"));
    CHECK(user.ask("guarded 1") == "guarded 1 1");
    CHECK(eventually([&] { return counts_of(client, probes[0]).hits == (follow ? 2u : 1u); }));
    remove_all(client, probes);
    CHECK(user.ask("guarded 1") == "guarded 0 0");
    CHECK(user.ends_well());
  }
}

TEST_CASE("PATH:OFFSET(REF_CTR_OFFSET), as uprobe_events has it, raises the counter at that offset of the file") {
  NEEDS_USDT_TARGET();
  if (find_program("readelf").empty()) SKIP_TEST("readelf is not installed");
  if (find_program("readelf").empty()) SKIP_TEST("readelf is not installed");
  Daemon daemon;
  RpcClient client(daemon.socket());
  UsdtTarget user;
  const NoteOffsets at = offsets_of("guarded");
  const auto probes =
      add(client, user.pid(), {"p:o " + target_path("usdt") + ":" + at.place + "(" + at.semaphore + ") v=" ARG1});
  CHECK(user.ask("guarded 2") == "guarded 2 1");
  CHECK(counts_of(client, probes[0]).hits == 2);
  remove_all(client, probes);
  CHECK(user.ask("guarded 2") == "guarded 0 0");
  // Text can't be counted in.
  CHECK(reason_of(add_error(client, user.pid(), {"p:o usdt:" + at.place + "(" + at.place + ")"})) ==
        "unmapped-address");
  CHECK(user.ends_well());
}

// ---- programs -------------------------------------------------------------------------------------------------------

TEST_CASE("Debian's postgres tells its queries through its static probes") {
  if (!PostgresServer::available()) SKIP_TEST("postgres is not installed");
  PostgresServer server;
  Daemon daemon;
  RpcClient client(daemon.socket());
  const auto probes = add(client, server.pid(),
                          {"p:query postgresql:query__start text=+0($arg1):string", "p:t postgresql:transaction*"},
                          {{"followFork", true}});
  CHECK(probes.size() >= 4);
  Events events(client, {{"probes", {"query"}}});
  CHECK(server.healthy());
  REQUIRE(events.reach(1));
  CHECK(events.all().at(0).at("args").at("text").get<std::string>().starts_with("select 6*7"));
  remove_all(client, probes);
  CHECK(server.healthy());
}

TEST_CASE("Debian's python3 tells of its functions through its static probes") {
  if (!PythonProgram::available()) SKIP_TEST("python3 is not installed");
  Daemon daemon;
  RpcClient client(daemon.socket());
  PythonProgram program(
      "import sys\n"
      "def greet(n):\n"
      "    return n + 1\n"
      "print('ready', flush=True)\n"
      "for line in sys.stdin:\n"
      "    print(list(map(greet, [int(line)]))[0], flush=True)\n");  // by way of C: it inlines its own calls
  // Python 3.11 comes by function__entry only while somebody listens to line.
  const Json request = client.request(
      "probe.add", add_params(program.pid(), {"p:f python:function__entry file=+0($arg1):string f=+0($arg2):string "
                                              "line=$arg3",
                                              "p:l python:line"}));
  if (request.contains("error")) SKIP_TEST("this python3 has no static probes: " + request.at("error").dump());
  Events events(client, {{"probes", {"f"}}});
  REQUIRE(program.send("41\n"));
  CHECK(program.next_line() == "42");
  const auto greeted = [&] {
    return std::ranges::any_of(
        events.all(), [](const Json& e) { return e.at("args").at("f") == "greet" && e.at("args").at("line") == 2; });
  };
  for (std::size_t seen = 1; !greeted() && events.reach(seen); ++seen) {
  }
  CHECK(greeted());
}

}  // namespace
}  // namespace probed::live
