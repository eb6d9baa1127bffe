// Variables and functions in places that are hard to find, on real processes: thread-local ones, of the program and of
// a library; functions that exist only inlined; functions by their file; whatever a cast says it is.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "arch/arch.hpp"
#include "tests/live/telling.hpp"

namespace probed::live {
namespace {

std::vector<std::string> builds() { return runnable({"places-O0", "places-O2", "places-clang-O0", "places-clang-O2"}); }

TEST_CASE("thread-local variables have the value of the thread that was hit, in both tiers") {
  in_both_tiers(builds(), [](const std::string&, bool optimize, RpcClient& client, TellingTarget& user) {
    const auto probes = add(client, user.pid(),
                            {"p:main look n tls_count tls_text text=tls_inside.text small=tls_inside.small[1]",
                             "p:lib placeslib:look_in_library n library_value library_static"});
    if (optimize && kHasJumps)
      CHECK(eventually([&] {
        return std::ranges::all_of(list_probes(client), [](const Json& p) {
          return p.at("tier") == (jumps_read_thread_pointers() ? "optimized" : "boosted");
        });
      }));
    Events events(client);
    CHECK(user.ask("tls 7") == "tls done");
    CHECK(user.ask("thread 50") == "tls done");
    CHECK(user.ask("thread 60") == "tls done");
    REQUIRE(events.reach(6));
    const std::vector<Json> in_main = events.of(probes[0]), in_library = events.of(probes[1]);
    REQUIRE(in_main.size() == 3);
    REQUIRE(in_library.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) {
      const int n = i == 0 ? 7 : i == 1 ? 50 : 60;
      CAPTURE(n);
      const Json& args = in_main[i].at("args");
      CHECK(args.at("n") == n);
      CHECK(args.at("tls_count") == n);
      CHECK(args.at("tls_text") == "t" + std::to_string(n + 1));
      CHECK(args.at("text") == "inside");
      CHECK(args.at("small") == -n);
      const Json& library = in_library[i].at("args");
      CHECK(library.at("library_value") == n + 2);
      CHECK(library.at("library_static") == n + 3);
    }
    remove_all(client, probes);
    CHECK(user.unharmed());
  });
}

TEST_CASE("a library's variable is the one that its code uses, also when that is the program's copy of it") {
  in_both_tiers(builds(), [](const std::string& build, bool optimize, RpcClient& client, TellingTarget& user) {
    const auto inside =
        add(client, user.pid(), {"p:i placeslib:count_in_library n library_number l=library_number:u8"});
    // Clang's debug information doesn't have what is only declared.
    const bool is_declared = build.find("clang") == std::string::npos;
    const auto outside =
        add(client, user.pid(), {is_declared ? "p:o change_library library_number" : "p:o change_library n"});
    Events events(client);
    const std::size_t rounds = optimize ? 40 : 2;
    const auto number_of = [](std::size_t round) { return 1000 + static_cast<int>(round); };
    for (std::size_t i = 0; i < rounds; ++i)
      CHECK(user.ask("shared " + std::to_string(number_of(i))) == std::to_string(number_of(i) + 3));
    REQUIRE(events.reach(2 * rounds));
    const auto in_library = events.of(inside[0]), in_program = events.of(outside[0]);
    for (std::size_t i = 0; i < rounds; ++i) {
      const int number = number_of(i);
      CHECK(in_library[i].at("args") == Json({{"n", 3}, {"library_number", number}, {"l", number % 256}}));
      if (is_declared) CHECK(in_program[i].at("args") == Json({{"library_number", number}}));
    }
  });
}

TEST_CASE("a function that exists only inlined is one probe at all its places, with its parameters") {
  for (const std::string& build : builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    const auto probes = add(client, user.pid(), {"p:t twice_of number"});
    const std::string notes = probes.at(0).at("notes").dump();
    CHECK(notes.find("twice_of exists only inlined, at 3 places") != std::string::npos);
    Events events(client, {{"probes", {"t"}}});
    CHECK(user.ask("inline 4") == "inline done");
    CHECK(user.ask("inline 10") == "inline done");
    REQUIRE(events.reach(6));
    std::vector<int> numbers;
    std::set<std::string> functions;
    for (const Json& event : events.all()) {
      const std::string symbol = event.at("symbol");
      functions.insert(symbol.substr(0, symbol.find('+')));
      // Unoptimised, an inlined function's parameters are stored by its own first instructions.
      if (!event.at("args").at("number").is_null()) numbers.push_back(event.at("args").at("number").get<int>());
    }
    CHECK(functions == std::set<std::string>{"outer_first", "outer_second"});
    if (build == "places-O2") CHECK(numbers == std::vector<int>{4, 5, 6, 10, 11, 12});
    CHECK(reason_of(add_error(client, user.pid(), {"p:o twice_of+4"})) == "bad-definition");
    const Json no_return = add_error(client, user.pid(), {"r:o twice_of"});
    CHECK(reason_of(no_return) == "bad-definition");
    CHECK(no_return.at("message").get<std::string>().ends_with(
        "twice_of exists only inlined, so it has no return of its own"));
    CHECK(hint_of(no_return).find("outer_") != std::string::npos);
    remove_all(client, {list_probes(client).at(0)});
    CHECK(list_probes(client).empty());
    CHECK(user.unharmed());
    CHECK(user.ends_well());
  }
}

std::string notes_of(const Json& probe) { return probe.contains("notes") ? probe.at("notes").dump() : ""; }

// Of a function in one line a call of itself is where its declaration is, as is what GCC makes of its second half.
TEST_CASE("a function that is inlined into itself is one probe at those places, too, also in one line") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Target target("itself");
  const Json all = add(client, target.pid(), {"p:all fib"}).at(0);
  const Json own = add(client, target.pid(), {"p:own " + all.at("address").get<std::string>()}).at(0);
  CHECK_MESSAGE(notes_of(all).find("fib is inlined at ") != std::string::npos, notes_of(all));
  target.send("15\n");
  REQUIRE(target.next_line().value_or("").starts_with("done "));
  CHECK(counts_of(client, all).hits > 2 * counts_of(client, own).hits);
  target.send("end\n");
  CHECK(target.finish().ok());
}

TEST_CASE("a function of a file is one probe at all its places; a glob says what it leaves out of those") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Target target("itself");
  const Json by_file = add(client, target.pid(), {"p:f itself.cpp:saved"}).at(0);
  const Json by_glob = add(client, target.pid(), {"p:g save*"}).at(0);
  target.send("15\n");
  REQUIRE(target.next_line().value_or("").starts_with("done "));
  CHECK(counts_of(client, by_file).hits == 15);
  CHECK(counts_of(client, by_glob).hits == 0);
  const auto says = [](const Json& probe, const char* what) {
    CHECK_MESSAGE(notes_of(probe).find(what) != std::string::npos, notes_of(probe));
  };
  says(by_file, "saved is inlined at 1 place, too: all that is this probe");
  says(by_glob, "saved is inlined at 1 place, too, which a glob leaves out");
  says(add(client, target.pid(), {"p:h itself.cpp:*"}).at(0), ", too, which a glob leaves out");
  says(add(client, target.pid(), {"p:l getpi*"}).at(0), "no function of the program itself matches");
  CHECK(add(client, target.pid(), {"only_inlined"}).at(0).at("name") == "probes/p_only_inlined_0");
  const Json refused = add_error(client, target.pid(), {"p:o only_inl*"});
  CHECK(reason_of(refused) == "no-such-symbol");
  CHECK_MESSAGE(hint_of(refused).find("only_inlined exists only inlined") != std::string::npos, hint_of(refused));
  target.send("end\n");
  CHECK(target.finish().ok());
}

TEST_CASE("a name without its first scopes doesn't stand for the inlined places of several functions") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Target target("itself");
  for (const char* name : {"put", "Cart::put"}) {
    const Json refused = add_error(client, target.pid(), {std::string("p:x ") + name});
    CHECK(reason_of(refused) != "");
    CAPTURE(refused.dump());
    CHECK(refused.dump().find("shop::Cart::put(int)") != std::string::npos);
  }
  target.send("end\n");
  CHECK(target.finish().ok());
}

// Its 1-based number.
unsigned line_with(const std::string& path, std::string_view text) {
  std::ifstream file(path);
  unsigned number = 1;
  for (std::string line; std::getline(file, line); ++number)
    if (line.find(text) != line.npos) return number;
  return 0;
}

TEST_CASE("a line that has functions of another file inlined is hit once each time that it is executed") {
  const std::string source = required_environment("SOURCE_DIR") + "/tests/targets/places.c";
  const unsigned line = line_with(source, "one line: counted once");
  REQUIRE(line != 0);
  for (const std::string& build : builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    const Json probe = add(client, user.pid(), {"p:l places.c:" + std::to_string(line)}).at(0);
    CHECK(std::string(probe.at("symbol")).starts_with("count+"));
    CHECK(user.ask("count 7") == "count done");
    CHECK(counts_of(client, probe).hits == 7);
    const Json lines = client.call("symbols.lines", {{"pid", user.pid()}, {"file", "places.c"}});
    for (const Json& l : lines.at("lines"))
      if (l.at("line") == line) CHECK(l.at("function") == "count");
    remove_all(client, {probe});
    CHECK(user.unharmed());
    CHECK(user.ends_well());
  }
}

TEST_CASE("FILE:FUNCTION and globs of both probe what a file defines") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  TellingTarget user("places-O2");
  const auto names_of = [&](const std::string& definition) {
    const auto probes = add(client, user.pid(), {definition});
    std::set<std::string> names;
    for (const Json& probe : probes) {
      const std::string symbol = probe.at("symbol");
      names.insert(symbol.substr(0, symbol.find('+')));
    }
    remove_all(client, probes);
    return names;
  };
  CHECK(names_of("p places.c:outer_*") == std::set<std::string>{"outer_first", "outer_second"});
  CHECK(names_of("p places.c:look") == std::set<std::string>{"look"});
  CHECK(names_of("p *.c:look*") == std::set<std::string>{"look"});  // the program's come first
  CHECK(names_of("p placeslib:*.c:*") ==
        std::set<std::string>{"count_in_library", "look_in_library", "set_in_library"});
  CHECK(names_of("p targets/place*.c:o*") == std::set<std::string>{"opaque", "outer_first", "outer_second"});
  CHECK(names_of("r places.c:outer_*") == std::set<std::string>{"outer_first", "outer_second"});
  CHECK(reason_of(add_error(client, user.pid(), {"p laces.c:look"})) == "no-such-symbol");
  CHECK(reason_of(add_error(client, user.pid(), {"p laces.c:30"})) == "no-such-symbol");
  CHECK(reason_of(add_error(client, user.pid(), {"p places.c:nosuch"})) == "no-such-symbol");
  CHECK(user.ends_well());
}

TEST_CASE("a glob leaves out the functions that lack a variable, and says why") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  TellingTarget user("places-O2");
  const Json added = client.call("probe.add", add_params(user.pid(), {"p:g/ places.c:o* n"}));
  CHECK(added.at("probes").size() == 2);
  const Json& skipped = added.at("skipped");
  REQUIRE(skipped.size() == 1);
  CHECK(skipped.dump().find("is known in opaque at this place") != std::string::npos);
  // Of none of them:
  CHECK(reason_of(add_error(client, user.pid(), {"p places.c:o* nosuch"})) == "bad-definition");
  CHECK(user.ends_well());
}

TEST_CASE("a cast says what a pointer leads to") {
  for (const std::string& build : builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    const auto probes =
        add(client, user.pid(),
            {"p:c opaque id=((struct Hidden*)pointer)->id text=((struct Hidden *)word)->inside->text "
             "small=((HiddenAlias*)$arg1)->inside->small[1] all=*(struct Inside*)(((struct Hidden*)" ARG1 ")->inside) "
             "self=((struct Hidden*)((struct Hidden*)pointer)->self)->id unsigned=(unsigned char)small wide=(unsigned "
             "long)small "
             "byte=*(unsigned char*)pointer second=((unsigned char*)array)[1] words=((short*)word)[0] "
             "typed=((int*)word)[0]:x32 "
             "deref=+0((unsigned long)word):s32 plain=(pointer)",
             "r:r opaque id=((struct Hidden*)pointer)->id"});
    Events events(client);
    const std::string address = user.ask("cast 300");
    REQUIRE(events.reach(2));
    const Json args = events.of(probes.at(0)).at(0).at("args");
    CAPTURE(args.dump());
    CHECK(args.at("id") == 300);
    CHECK(args.at("text") == "a text");
    CHECK(args.at("small") == -8);
    CHECK(args.at("all") == Json::parse(R"({"small":[7,-8],"text":"a text"})"));
    CHECK(args.at("self") == 300);
    CHECK(args.at("unsigned") == 253);
    CHECK(args.at("wide") == 0xfffffffffffffffdull);
    CHECK(args.at("byte") == 44);
    CHECK(args.at("second") == 2);
    CHECK(args.at("words") == 300);
    CHECK(args.at("typed") == "0x12c");
    CHECK(args.at("deref") == 300);
    CHECK(args.at("plain") == address);
    CHECK(events.of(probes.at(1)).at(0).at("args").at("id") == 300);
    struct Row {
      const char *definition, *said;
    };
    for (const Row& row : {Row{"p:e opaque ((struct Nosuch*)pointer)->x", "no type"},
                           Row{"p:e opaque (struct Hidden)pointer", "only numbers and pointers"},
                           Row{"p:e opaque ((struct Hidden*)pointer)->nosuch", "has no member"}}) {
      CAPTURE(row.definition);
      const Json error = add_error(client, user.pid(), {row.definition});
      CHECK(reason_of(error) == "bad-definition");
      CHECK(error.dump().find(row.said) != std::string::npos);
    }
    CHECK(user.ends_well());
  }
}

}  // namespace
}  // namespace probed::live
