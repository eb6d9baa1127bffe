// Variables by name and source lines on real processes, built by several compilers with several options: the program
// says itself what its variables hold, and that is compared.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/live/telling.hpp"

namespace probed::live {
namespace {

std::vector<std::string> builds() {
  return runnable({"variables-O0", "variables-O2", "variables-lto", "variables-dwarf2", "variables-dwarf4",
                   "variables-clang-O0", "variables-clang-O2", "variables-split", "variables-split4",
                   "variables-clang-split", "variables-dwp4", "variables-dwp5", "variables-dwz"});
}

// One event of one definition, at a command that makes its function be called once.
Json args_of(RpcClient& client, TellingTarget& user, const std::string& definition, const std::string& command,
             Json& truth) {
  const auto probes = add(client, user.pid(), {definition});
  Events events(client);
  truth = user.truth(command);
  REQUIRE(events.reach(1));
  const Json args = events.all().at(0).at("args");
  remove_all(client, probes);
  return args;
}

void check_parameters(const std::string& build, const Json& args, const Json& truth) {
  // LLVM 14's expressions with types are wrong in split files: they name entries that aren't there.
  const bool has_no_flag = build == "variables-clang-split" || build == "variables-dwp5";
  for (const std::string name :
       {"number", "byte", "text", "colour", "flag", "real", "small", "seventh", "eighth", "node"}) {
    CAPTURE(name);
    CHECK((args.at(name) == truth.at(name) || (has_no_flag && name == "flag" && args.at(name).is_null())));
  }
}

TEST_CASE("$args are a function's parameters with their names, types and values, whatever compiled it") {
  in_both_tiers(builds(), [](const std::string& build, bool optimize, RpcClient& client, TellingTarget& user) {
    const auto probes = add(client, user.pid(), {"p:t take $args"});
    Events events(client);
    const int rounds = optimize ? 40 : 2;
    std::vector<Json> truths;
    for (int i = 0; i < rounds; ++i) truths.push_back(user.truth("take " + std::to_string(i - 5)));
    REQUIRE(events.reach(static_cast<std::size_t>(rounds)));
    for (std::size_t i = 0; i < truths.size(); ++i) check_parameters(build, events.all().at(i).at("args"), truths[i]);
    remove_all(client, probes);
    CHECK(user.unharmed());
  });
}

TEST_CASE("at FILE:LINE locals, parameters and statics have their values, or are said to have none") {
  for (const std::string& build : builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    const Json lines = user.truth("lines");
    const auto take = std::to_string(lines.at("take").get<int>());
    Json truth;
    const Json args = args_of(
        client, user,
        "p:l variables.c:" + take + " number text node twice local calls file_static global_number global_words",
        "take -5", truth);
    for (const char* name : {"number", "text", "node", "twice"}) {
      CAPTURE(name);
      CHECK(args.at(name) == truth.at(name));
    }
    CHECK(args.at("local") == Json({{"x", truth.at("x")}, {"y", truth.at("y")}}));
    CHECK(args.at("calls") == truth.at("calls"));
    // Optimised across units there may be nothing left of what nobody changes.
    const auto is_or_gone = [&](const char* name, const Json& value) {
      return args.at(name) == value || (args.at(name).is_null() && build == "variables-lto");
    };
    CHECK((args.at("file_static") == -77 || args.at("file_static").is_null()));
    CHECK(is_or_gone("global_number", 65000));
    CHECK(is_or_gone("global_words", {"one", "two", "three"}));
    CHECK(user.ends_well());
  }
}

TEST_CASE("a definition's own filter compares what it names, with or without being an argument") {
  in_both_tiers(builds(), [](const std::string&, bool, RpcClient& client, TellingTarget& user) {
    const Json params = {{"pid", user.pid()},
                         {"probes",
                          {{{"definition", "p:own take number if node->inner.at.x >= 3 && number != 5"}},
                           {{"definition", "p:both take if number >= 3"}, {"filter", "number < 7"}}}}};
    const std::vector<Json> probes = client.call("probe.add", params).at("probes");
    Events events(client);
    for (const int n : {1, 3, 5, 7}) user.truth("take " + std::to_string(n));
    REQUIRE(events.reach(4));
    std::vector<Json> own, both;
    for (const Json& event : events.of(probes[0])) own.push_back(event.at("args"));
    for (const Json& event : events.of(probes[1])) both.push_back(event.at("args"));
    CHECK(own == std::vector<Json>{{{"number", 3}, {"x", 3}}, {{"number", 7}, {"x", 7}}});
    CHECK(both == std::vector<Json>{{{"number", 3}}, {{"number", 5}}});
    for (const Json& probe : probes) CHECK(counts_of(client, probe) == Counts{2, 0, 2});
    const Json error = add_error(client, user.pid(), {"p:e take number if nonsense == 3"});
    CHECK(reason_of(error) == "bad-definition");
    CHECK(error.at("data").at("column") == 19);
  });
}

TEST_CASE("members, elements, pointees and addresses are read along a path; structures become nested objects") {
  for (const std::string& build : builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    Json truth;
    const Json args =
        args_of(client, user,
                "p:t take name=node->inner.name text=node->inner.text x=node->inner.at.x v=node->values[3] "
                "all=node->values w=node->weight f=node->inner.flag s=node->inner.small n2=node->next->inner.name "
                "r=node->real c=node->colour c2=node->next->colour corner=node->corners[1].y node=*node "
                "corners=node->corners word=global_words[2] list=global_list->values[1] first=$arg4->values[2] "
                "raw=+0(text):u8 as=number:u8 bytes=text:u8[4] at=text:x64 null=node->next->next->values[0]",
                "take 7", truth);
    CHECK(args.at("name") == "abcdefg");
    CHECK(args.at("text") == "a text");
    CHECK(args.at("x") == 7);
    CHECK(args.at("v") == -400);
    CHECK(args.at("all") == Json({1, -2, 300, -400}));
    CHECK(args.at("w") == 7.25);
    CHECK(args.at("f") == 5);
    CHECK(args.at("s") == -7);
    CHECK(args.at("n2") == "12345678");
    CHECK(args.at("r").get<double>() == doctest::Approx(3.14159));
    CHECK(args.at("c") == "kGreen");
    CHECK(args.at("c2") == 99);
    CHECK(args.at("corner") == 13);
    CHECK(args.at("corners") == Json::parse(R"([{"x":10,"y":11},{"x":12,"y":13}])"));
    const Json& node = args.at("node");
    CHECK(node.at("inner").at("at") == Json({{"x", 7}, {"y", -7}}));
    CHECK(node.at("inner").at("name") == "abcdefg");
    CHECK(node.at("weight") == 7.25);
    CHECK(node.at("corners")[0].at("y") == 11);
    CHECK(node.at("colour") == "kGreen");
    CHECK((args.at("word") == "three" || build == "variables-lto"));
    CHECK((args.at("list") == -2 || build == "variables-lto"));
    CHECK(args.at("first") == 300);
    CHECK(args.at("raw") == 's');
    CHECK(args.at("as") == 7);
    CHECK(args.at("bytes") == Json({'s', 'o', 'm', 'e'}));
    CHECK(args.at("at").get<std::string>().starts_with("0x"));
    CHECK(args.at("null").is_null());
    CHECK(user.ends_well());
  }
}

TEST_CASE("arrays of several dimensions are lists of lists, in both tiers, and every index counts") {
  in_both_tiers(builds(), [](const std::string& build, bool optimize, RpcClient& client, TellingTarget& user) {
    const auto probes = add(client, user.pid(),
                            {"p:a arrays all=*all grid one=grid[1] last=grid[2][1] name=all->names[1] "
                             "deep=all->deep[1][0][2] row=rows[1] short=rows[1][3] pair=pairs[2] number=pairs[2][0] "
                             "y=all->points[1][0].y row_of=all->rows[0] letter=all->names[0][2]"});
    Events events(client);
    Json truth;
    const std::size_t rounds = optimize ? 40 : 1;
    for (std::size_t i = 0; i < rounds; ++i) truth = user.truth("arrays 9");
    REQUIRE(events.reach(rounds));
    const Json& args = events.all().at(rounds - 1).at("args");
    CAPTURE(args.dump());
    CHECK(args.at("all") == truth);
    CHECK(args.at("name") == "de");
    CHECK(args.at("deep") == 6);
    CHECK(args.at("row") == Json({5, 6, 7, -8}));
    CHECK(args.at("short") == -8);
    CHECK(args.at("pair") == Json({5, 6}));
    CHECK(args.at("number") == 5);
    CHECK(args.at("y") == 6);
    CHECK(args.at("row_of") == Json({1, 2, 3, 4}));
    CHECK(args.at("letter") == "c");
    // Optimised across units there may be nothing left of what nobody changes.
    const bool is_gone = build == "variables-lto";
    const auto is_right = [&](const char* name, const Json& value) {
      return args.at(name) == value || (is_gone && args.at(name).is_null());
    };
    CHECK_MESSAGE(is_right("grid", Json::parse("[[1,2],[3,4],[5,6]]")), args.at("grid").dump());
    CHECK_MESSAGE(is_right("one", Json({3, 4})), args.at("one").dump());
    CHECK_MESSAGE(is_right("last", 6), args.at("last").dump());
    remove_all(client, probes);
    CHECK(user.unharmed());
  });
}

TEST_CASE("of several variables, and types, of one name a function has its own file's, optimised across files, too") {
  for (const std::string& build : runnable({"variables-O0", "variables-O2", "variables-lto", "variables-clang-O2"})) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    const auto probes = add(client, user.pid(),
                            {"p:a arrays twice_named y=((struct Point*)all->points)->y", "p:w twin twice_named",
                             "p:v variables_twin.c:30 text=((struct Point*)hidden)->text"});
    Events events(client);
    user.truth("arrays 1");
    user.truth("twin 2");
    REQUIRE(events.reach(3));
    CHECK(events.of(probes.at(0)).at(0).at("args") == Json{{"twice_named", 5}, {"y", 2}});
    CHECK(events.of(probes.at(1)).at(0).at("args").at("twice_named") == 500);
    const Json text = events.of(probes.at(2)).at(0).at("args").at("text");
    CHECK((text == "twin" || (text.is_null() && build != "variables-O0")));
    CHECK(user.ends_well());
  }
}

TEST_CASE("of static functions of one name it is said how each one can be written") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  TellingTarget user("variables-O0");
  const Json error = add_error(client, user.pid(), {"p:s same number"});
  CHECK(reason_of(error) == "ambiguous-symbol");
  for (const std::string name : {"variables.c:same", "variables_twin.c:same"}) {
    CAPTURE(name);
    CHECK(hint_of(error).find(name) != std::string::npos);
    const auto probes = add(client, user.pid(), {"p:s " + name + " number"});
    Events events(client);
    user.truth("twin 6");
    REQUIRE(events.reach(1));
    CHECK(events.all().at(0).at("args").at("number") == 6);
    remove_all(client, probes);
  }
  CHECK(user.ends_well());
}

TEST_CASE("a variable that its own line has yet to set is shown with a note that says so") {
  for (const std::string& build : runnable({"variables-O0", "variables-dwarf2", "variables-clang-O0"})) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    const int line = user.truth("lines").at("late").get<int>() - 2;  // of `inner`
    const std::string before = "variables.c:" + std::to_string(line),
                      behind = "variables.c:" + std::to_string(line + 1);
    const auto probes =
        add(client, user.pid(), {"p:b " + before + " inner i squared number", "p:a " + behind + " inner i"});
    const std::string notes = probes.at(0).value("notes", Json()).dump();
    CAPTURE(notes);
    CHECK(notes.find("inner is what was there before, perhaps: line " + std::to_string(line)) != std::string::npos);
    for (const char* set : {"i is", "squared is", "number is"}) CHECK(notes.find(set) == std::string::npos);
    CHECK(probes.at(1).value("notes", Json()).dump().find("perhaps") == std::string::npos);
    Events events(client);
    user.truth("late 3");
    REQUIRE(events.reach(4));
    CHECK(events.of(probes.at(1)).at(1).at("args").at("inner") == 10);
    CHECK(user.ends_well());
  }
}

TEST_CASE("bit fields have their values wherever they lie, or are null and said to be; of bool: true and false") {
  in_both_tiers(builds(), [](const std::string&, bool optimize, RpcClient& client, TellingTarget& user) {
    const auto probes = add(client, user.pid(), {"p:b bits all=*packed copy over=packed->over last=packed->last"});
    const std::string note = probes.at(0).at("notes").at(0);
    CHECK(note.starts_with("all.wider is null: "));
    Events events(client);
    Json truth;
    const std::size_t rounds = optimize ? 40 : 1;
    for (std::size_t i = 0; i < rounds; ++i) truth = user.truth("bits -200");
    REQUIRE(events.reach(rounds));
    const Json& args = events.all().at(rounds - 1).at("args");
    CHECK(args.at("all") == truth);
    CHECK(args.at("copy") == truth);
    CHECK(args.at("over") == truth.at("over"));
    CHECK(args.at("last") == -200);
    remove_all(client, probes);
  });
}

TEST_CASE("an array of no known length is its address, and said to be; one of no elements is an empty list") {
  for (const std::string& build : builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    const auto line = std::to_string(user.truth("lengths 3").at("line").get<int>());
    const auto probes =
        add(client, user.pid(),
            {"p:o lengths open=*open first=open->rest[1]", "p:l variables.c:" + line + " list third=list[2]"});
    CHECK(probes.at(0).at("notes").dump().find("open.rest is its address: ") != std::string::npos);
    Events events(client);
    user.truth("lengths 3");
    REQUIRE(events.reach(2));
    const Json open = events.of(probes.at(0)).at(0).at("args");
    CHECK(open.at("open").at("none") == Json::array());
    CHECK(open.at("open").at("no_points") == Json::array());
    CHECK(open.at("open").at("after") == 3);
    CHECK(open.at("open").at("rest").get<std::string>().starts_with("0x"));
    CHECK(open.at("first") == 4);
    const Json list = events.of(probes.at(1)).at(0).at("args");
    CAPTURE(list.dump());
    CHECK((list.at("list").is_null() || list.at("list").get<std::string>().starts_with("0x")));
    CHECK((list.at("third") == 3 || list.at("list").is_null()));
    if (build.ends_with("O0")) CHECK(list.at("third") == 3);
    CHECK(user.ends_well());
  }
}

TEST_CASE("what a file only declares has the members that another one defines") {
  for (const std::string& build : runnable({"variables-O0", "variables-O2", "variables-lto", "variables-clang-O2"})) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    add(client, user.pid(), {"p:h hide count=opaque->count next=opaque->next->count all=*opaque one=opaque[0].count"});
    Events events(client);
    user.truth("twin 2");
    REQUIRE(events.reach(1));
    const Json args = events.all().at(0).at("args");
    CHECK(args.at("count") == 7);
    CHECK(args.at("next") == 7);
    CHECK(args.at("all").at("count") == 7);
    CHECK(args.at("one") == 7);
    CHECK(user.ends_well());
  }
}

TEST_CASE("a line without code moves to the next that has some, and the probe says so") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  TellingTarget user("variables-O0");
  const Json lines = client.call("symbols.lines", {{"pid", user.pid()}, {"file", "variables.c"}}).at("lines");
  unsigned wanted = 0, next = 0;  // a gap inside of late()
  for (std::size_t i = 1; i < lines.size(); ++i)
    if (lines[i].at("function") == "late" && lines[i - 1].at("function") == "late" &&
        lines[i].at("line") > lines[i - 1].at("line").get<unsigned>() + 1 && wanted == 0) {
      next = lines[i].at("line");
      wanted = next - 1;
    }
  REQUIRE(wanted > 0);
  const Json probe = add(client, user.pid(), {"p:m variables.c:" + std::to_string(wanted)}).at(0);
  CHECK(probe.at("notes").at(0).get<std::string>().find("line " + std::to_string(next)) != std::string::npos);
  Events events(client);
  user.truth("late 3");
  CHECK(events.reach(1));
  const Json beyond = add_error(client, user.pid(), {"p:b variables.c:100000"});
  CHECK(reason_of(beyond) == "no-such-symbol");
  CHECK(hint_of(beyond).find("probectl lines") != std::string::npos);
  CHECK(reason_of(add_error(client, user.pid(), {"p:n nosuchfile.c:1"})) == "no-such-symbol");
  CHECK(user.ends_well());
}

TEST_CASE("what can't be named is refused with its reason and its column, and nothing is changed") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  TellingTarget user("variables-O0");
  struct Row {
    const char *definition, *reason, *said;
    int column;
  };
  for (const Row& row : {Row{"p:e take numbr", "bad-definition", "number", 9},
                         Row{"p:e take node->nosuch", "bad-definition", "has no member", 9},
                         Row{"p:e take a=number->x", "bad-definition", "no members", 11},
                         Row{"p:e take node->values[4]", "bad-definition", "last element", 9},
                         Row{"p:e take number:string", "bad-definition", "needs memory", 9},
                         Row{"p:e take $args number=calls", "bad-definition", "used twice", 15},
                         Row{"p:e take node=*node $args", "bad-definition", "used twice", 20},
                         Row{"p:e take *number", "bad-definition", "an int is no pointer", 9},
                         Row{"p:e take $arg11->x", "bad-definition", "10 parameters", 9}}) {
    CAPTURE(row.definition);
    const Json error = add_error(client, user.pid(), {row.definition});
    CHECK(reason_of(error) == row.reason);
    CHECK(error.dump().find(row.said) != std::string::npos);
    CHECK(error.at("data").at("column") == row.column);
  }
  CHECK(tracer_of(user.pid()) == 0);
  CHECK(user.ends_well());
}

TEST_CASE("a parameter that is named beside $args stands there once, as it was written") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  TellingTarget user("variables-O0");
  const auto probes = add(client, user.pid(),
                          {"p:all take $args", "p:behind take $args number:x64", "p:before take text number $args"});
  Events events(client);
  user.truth("take 4");
  REQUIRE(events.reach(3));
  const auto args = [&](std::size_t i) { return events.of(probes.at(i)).at(0).at("args"); };
  Json all = args(0);
  CHECK(args(2) == all);
  CHECK(args(1).at("number") == "0x4");
  all["number"] = "0x4";
  CHECK(args(1) == all);
  CHECK(user.ends_well());
}

TEST_CASE("a variable that isn't there yet is null in the event and said to be when the probe is added") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  TellingTarget user("variables-O0");
  const Json probe = add(client, user.pid(), {"p:u take number twice"}).at(0);
  const std::string note = probe.at("notes").at(0);
  CHECK(note.starts_with("twice is null: "));
  CHECK(note.ends_with("probe a later line: FILE:LINE"));
  Events events(client);
  const Json truth = user.truth("take 4");
  REQUIRE(events.reach(1));
  CHECK(events.all().at(0).at("args").at("number") == 4);
  CHECK(events.all().at(0).at("args").at("twice").is_null());
  CHECK(user.ends_well());
}

TEST_CASE("what many arguments, or many probes, lack for the same reason is said in few words") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  TellingTarget user("variables-O0");
  const Json probe = add(client, user.pid(), {"p:u take twice local sum"}).at(0);
  REQUIRE(probe.at("notes").size() == 1);
  CHECK(probe.at("notes").at(0).get<std::string>().starts_with("twice, local.x, local.y, and 1 more are null: "));
  std::vector<std::string> command = {"add", "-p", std::to_string(user.pid())};
  for (int i = 0; i < 6; ++i) command.push_back("p:n" + std::to_string(i) + " take twice");
  const CommandResult added = probectl(daemon, command);
  CHECK(added.ok());
  CHECK(added.err.find("n2: twice is null: ") != std::string::npos);
  CHECK(added.err.find("n3: twice is null: ") == std::string::npos);
  CHECK(added.err.find("... and 3 more notes of this kind") != std::string::npos);
  CHECK(user.ends_well());
}

TEST_CASE("filters compare variables and members") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  TellingTarget user("variables-O2");
  Json params = add_params(user.pid(), {"p:f take number node=*node"});
  params["probes"][0]["filter"] = "number > 2 && node.inner.at.y == -4 && node.corners[1].y == 13";
  const Json probe = client.call("probe.add", params).at("probes").at(0);
  for (int i = 0; i < 6; ++i) user.truth("take " + std::to_string(i));
  CHECK(counts_of(client, probe) == Counts{1, 0, 5});
  CHECK(user.ends_well());
}

TEST_CASE("probectl vars and lines list what there is to name") {
  Daemon daemon;
  TellingTarget user("variables-O2");
  const std::string pid = std::to_string(user.pid());
  const CommandResult vars = probectl(daemon, {"vars", "-p", pid, "take"});
  REQUIRE(vars.ok());
  CHECK(vars.out.find("parameter  node  struct Node *") != std::string::npos);
  CHECK(vars.out.find("static     file_static  long") != std::string::npos);
  const CommandResult lines = probectl(daemon, {"lines", "-p", pid, "variables.c", "--json"});
  REQUIRE(lines.ok());
  const auto listed = json_lines(lines.out);
  CHECK(std::ranges::any_of(listed, [](const Json& l) { return l.at("function") == "late"; }));
  CHECK(std::ranges::all_of(listed,
                            [](const Json& l) { return l.at("file").get<std::string>().ends_with("/variables.c"); }));
  const CommandResult none = probectl(daemon, {"lines", "-p", pid, "nosuch.c"});
  CHECK(none.exit == Exit{1, 0});
  CHECK(user.ends_well());
}

}  // namespace
}  // namespace probed::live
