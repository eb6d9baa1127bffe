// What functions return, and their parameters, by their declared types: on real processes, built by several compilers
// with several options, which say themselves what their values are.
#include <doctest/doctest.h>

#include <map>
#include <sstream>

#include "tests/live/telling.hpp"

namespace probed::live {
namespace {

std::vector<std::string> builds() {
  return runnable({"results-O0", "results-O2", "results-dwarf4", "results-clang-O0", "results-clang-O2"});
}

TEST_CASE("$retval has the function's declared type, wherever it is returned") {
  for (const std::string& build : builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    const auto probes = add(client, user.pid(), {"r:g/ give_* n $retval"});
    REQUIRE(probes.size() == 26);
    Events events(client);
    for (const int n : {1, 5}) {
      CAPTURE(n);
      const std::size_t before = events.all().size();
      const Json truth = user.truth("call " + std::to_string(n));
      REQUIRE(events.reach(before + 26));
      for (std::size_t i = before; i < before + 26; ++i) {
        const Json& event = events.all().at(i);
        const std::string name = event.at("func").get<std::string>();
        const std::string function = name.substr(0, name.find('('));
        CAPTURE(event.dump());
        CHECK(event.at("args").at("n") == n);
        if (truth.contains(function)) CHECK(event.at("args").at("$retval") == truth.at(function));
      }
    }
    CHECK(user.ends_well());
  }
}

TEST_CASE("a :TYPE and an address as the location leave $retval a number; a function that returns nothing has none") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  TellingTarget user("results-O2");
  const auto plain = add(client, user.pid(), {"r:text give_text"}).at(0);
  const auto probes = add(
      client, user.pid(),
      {"r:typed give_int $retval:x64", "r:byte give_int b=$retval:u8",
       "r:where " + plain.at("address").get<std::string>() + " $retval", "r:none give_nothing $retval",
       "r:member give_longs b=$retval.b a=$retval->a",
       "r:pointee give_buffer l=$retval->length t=$retval->text all=*$retval", "r:raw give_buffer l=+0($retval):s32",
       "r:file results.cpp:give_int $retval", "r:files results.cpp:give_text* $retval"});
  Events events(client);
  user.truth("call 5");
  REQUIRE(events.reach(10));
  const auto args = [&](std::size_t i) { return events.of(probes.at(i)).at(0).at("args"); };
  CHECK(args(0).at("$retval") == "0xfffffffb");
  CHECK(args(1).at("b") == 0xfb);
  CHECK(args(2).at("$retval").get<std::string>().starts_with("0x"));
  CHECK(args(3).at("$retval").is_null());
  CHECK(probes.at(3).at("notes").at(0) == "$retval is null: its function returns nothing");
  CHECK(args(4) == Json({{"a", 5}, {"b", -5}}));
  CHECK(args(5).at("l") == 5);
  CHECK(args(5).at("all").at("length") == 5);
  CHECK(args(6).at("l") == 5);
  CHECK(args(7).at("$retval") == -5);
  CHECK(args(8).at("$retval") == "more");
  CHECK(user.ends_well());
}

TEST_CASE("a $retval that can't be had exactly is null, and said to be when the probe is added") {
  for (const std::string& build : builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    const auto probes = add(client, user.pid(), {"r:g/ odd_* $retval raw=$retval:x64"});
    REQUIRE(probes.size() == 4);
    for (const Json& probe : probes) {
      CAPTURE(probe.dump());
      CHECK(probe.at("notes").at(0).get<std::string>().starts_with("$retval is null: "));
    }
    Events events(client);
    user.truth("odd 5");
    REQUIRE(events.reach(4));
    for (const Json& event : events.all()) {
      CAPTURE(event.dump());
      CHECK(event.at("args").at("$retval").is_null());
      CHECK(event.at("args").at("raw").is_string());
    }
    CHECK(user.ends_well());
  }
}

TEST_CASE("parameters behind a result that may need one for its address, or behind too many parts, are right or null") {
  for (const std::string& build : builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    const auto probes = add(client, user.pid(), {"p:w odd_wide_vector n", "p:t tangled first second"});
    Events events(client);
    const Json wide = user.truth("odd 5"), tangle = user.truth("tangle 6");
    REQUIRE(events.reach(2));
    const auto check = [&](const Json& probe, const Json& truth) {
      const Json args = events.of(probe).at(0).at("args");
      CAPTURE(args.dump());
      for (const auto& [name, value] : truth.items()) {
        CAPTURE(name);
        CHECK((args.at(name).is_null() || args.at(name) == value));
        const std::string notes = probe.value("notes", Json::array()).dump();
        if (args.at(name).is_null()) CHECK(notes.find(name + " is null: ") != std::string::npos);
      }
    };
    check(probes.at(0), wide);
    check(probes.at(1), tangle);
    CHECK(user.ends_well());
  }
}

TEST_CASE("parameters that compilers class in unexpected ways, and those behind them, are right or null") {
  for (const std::string& build : builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    std::map<std::string, Json> probes;
    for (const std::string kind : {"union", "complex", "empty", "base"})
      probes[kind] = add(client, user.pid(), {"p:" + kind + " tricky_" + kind + " $args"}).at(0);
    Events events(client);
    const Json truth = user.truth("tricky 6");
    REQUIRE(events.reach(4));
    for (const auto& [kind, probe] : probes) {
      const Json args = events.of(probe).at(0).at("args");
      CAPTURE(args.dump());
      for (const auto& [path, value] : truth.at(kind).items()) {
        CAPTURE(path);
        Json shown = args;
        std::istringstream names(path);
        for (std::string name; std::getline(names, name, '.');) shown = Json(shown.at(name));
        CHECK((shown.is_null() || shown == value));
      }
      CHECK(args.at("first") == 6);
    }
    CHECK(user.ends_well());
  }
}

TEST_CASE("bases are parts of the structure; no name is in it twice") {
  for (const std::string& build : builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    add(client, user.pid(), {"r:made made_derived $retval"});
    Events events(client);
    user.truth("call 5");
    REQUIRE(events.reach(1));
    CHECK(events.all().at(0).at("args") ==
          Json{{"$retval", {{"id", 5}, {"left", 6}, {"NamedTwo", {{"id", 7}, {"right", 8}}}, {"own", 9}}}});
    CHECK(user.ends_well());
  }
}

TEST_CASE("on a return probe names are read at the entry, what they lead to at the return, $entry(...) at the entry") {
  for (const std::string& build : builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    const std::vector<Json> probes =
        add(client, user.pid(),
            {"r:f fill number name out len=out->length was=$entry(out->length) text=out->text before=$entry(out->text) "
             "next=out->next->length next_was=$entry(out->next->length) letter=small.letter raw=+0(out):s32 "
             "raw_was=+0($entry(out)):s32 all=*out static_count $retval",
             "r:args fill $args"});
    Events events(client);
    const Json truth = user.truth("fill 41");
    REQUIRE(events.reach(2));
    const Json args = events.of(probes.at(0)).at(0).at("args");
    CAPTURE(args.dump());
    CHECK(args.at("number") == 41);
    CHECK(args.at("name") == "a name");
    CHECK(args.at("out").get<std::string>().starts_with("0x"));
    CHECK(args.at("len") == 41);
    CHECK(args.at("was") == -1);
    CHECK(args.at("text") == "filled");
    CHECK(args.at("before") == "before");
    CHECK(args.at("next") == 42);
    CHECK(args.at("next_was") == -2);
    CHECK(args.at("letter") == "s");
    CHECK(args.at("raw") == 41);
    CHECK(args.at("raw_was") == 41);  // only the pointer is the entry's
    CHECK(args.at("all").at("text") == "filled");
    CHECK(args.at("static_count") == truth.at("count"));
    CHECK(args.at("$retval") == truth.at("result"));
    const Json all = events.of(probes.at(1)).at(0).at("args");
    CHECK(all.at("number") == 41);
    CHECK(all.at("name") == "a name");
    CHECK(user.ends_well());
  }
}

TEST_CASE("a filter compares what is returned and what was handed over, by name") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  TellingTarget user("results-O0");
  Json params = add_params(user.pid(), {"r:f fill number $retval len=out->length"});
  params["probes"][0]["filter"] = "number > 3 && len < 6 && $retval > 10";
  const Json probe = client.call("probe.add", params).at("probes").at(0);
  for (int n = 0; n < 6; ++n) user.truth("fill " + std::to_string(n));
  CHECK(counts_of(client, probe) == Counts{1, 0, 5});
  CHECK(user.ends_well());
}

TEST_CASE("structures handed over by value are found in all the registers that hold them, and on the stack") {
  for (const std::string& build : builds()) {
    for (const std::string definition : {"p:t take $args", "r:t take $args"}) {
      CAPTURE(build);
      CAPTURE(definition);
      Daemon daemon;
      RpcClient client(daemon.socket());
      TellingTarget user(build);
      add(client, user.pid(), {definition});
      Events events(client);
      const Json truth = user.truth("take 6");
      REQUIRE(events.reach(1));
      const Json& args = events.all().at(0).at("args");
      CAPTURE(args.dump());
      for (const auto& [name, value] : truth.items()) {
        CAPTURE(name);
        CHECK(args.at(name) == value);
      }
      CHECK(user.ends_well());
    }
  }
}

TEST_CASE("what can't be shown, or isn't handed over at all, doesn't hide the parameters behind it") {
  for (const std::string& build : builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    add(client, user.pid(), {"p:w wide first second third fourth fifth sixth"});
    Events events(client);
    const Json truth = user.truth("wide 40");
    REQUIRE(events.reach(1));
    CHECK(events.all().at(0).at("args") == truth);
    CHECK(user.ends_well());
  }
}

TEST_CASE("parameters are found behind those that need memory, two registers or an aligned place") {
  for (const std::string& build : builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    const auto probes = add(client, user.pid(), {"p:s stacked $args", "p:h halved a f g h", "r:r stacked $retval"});
    Events events(client);
    const Json truth = user.truth("stack 41");
    REQUIRE(events.reach(3));
    for (const std::size_t i : {0u, 1u}) {
      const Json args = events.of(probes.at(i)).at(0).at("args");
      CAPTURE(args.dump());
      for (const auto& [name, value] : truth.at(i == 0 ? "stacked" : "halved").items()) {
        CAPTURE(name);
        CHECK(args.at(name) == value);
      }
    }
    CHECK(events.of(probes.at(2)).at(0).at("args").at("$retval") == Json({{"letter", "r"}, {"number", 41}}));
    CHECK(user.ends_well());
  }
}

TEST_CASE("constructors of classes with virtual bases have the parameters that were written, whichever is called") {
  for (const std::string& build : builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    add(client, user.pid(), {"p:h/ Heir::Heir* number wide name", "p:l/ Last::Last* number name"});
    Events events(client);
    user.truth("make 6");
    REQUIRE(events.reach(3));
    std::vector<Json> args;
    for (const Json& event : events.all()) args.push_back(event.at("args"));
    CHECK(args.at(0) == Json{{"number", 6}, {"wide", 8}, {"name", "nine"}});
    CHECK(args.at(1) == Json{{"number", 6}, {"name", "ten"}});
    CHECK(args.at(2) == Json{{"number", 7}, {"wide", 20}, {"name", "ten"}});
    CHECK(user.ends_well());
  }
}

}  // namespace
}  // namespace probed::live
