// Strings of C++ on real processes, built by several compilers with several options: the program says itself what they
// hold, and that is compared; overloads, members of classes and instances of templates by their names.
#include <doctest/doctest.h>

#include "tests/live/telling.hpp"

namespace probed::live {
namespace {

constexpr std::size_t kShown = 512;  // bytes of a text

std::vector<std::string> builds() {
  return runnable({"strings-O0", "strings-O2", "strings-dwarf4", "strings-clang-O0", "strings-clang-O2"});
}

Json shown(const Json& text) { return text.get<std::string>().substr(0, kShown); }

constexpr const char* kTake =
    "p:t shop::Till::take by_reference by_value pointee=*by_pointer view item=item name=item.name via=item.next->name "
    "rest=item.next->view behind=*item.pointer note=item.next->notes[1] owner=this->owner last "
    "none=item.next->next->name typed=by_reference:string word=by_reference._M_string_length";

void check_take(const std::string& build, const Json& args, const Json& truth, int n) {
  for (const char* name : {"by_reference", "pointee", "name", "behind", "note", "typed"}) {
    CAPTURE(name);
    CHECK(args.at(name) == shown(truth.at("text")));
  }
  // Unoptimised, clang describes what is handed over by its address only from a later instruction on.
  if (build == "strings-clang-O0")
    CHECK((args.at("by_value").is_null() || args.at("by_value") == shown(truth.at("text"))));
  else
    CHECK(args.at("by_value") == shown(truth.at("text")));
  CHECK(args.at("view") == shown(truth.at("view")));
  CHECK(args.at("rest") == shown(truth.at("rest")));
  CHECK(args.at("via") == truth.at("other"));
  CHECK(args.at("owner") == truth.at("owner"));
  CHECK(args.at("last") == n);
  CHECK(args.at("none").is_null());
  CHECK(args.at("word") == truth.at("text").get<std::string>().size());
  const Json& item = args.at("item");
  CHECK(item.at("id") == n);
  CHECK(item.at("name") == shown(truth.at("text")));
  CHECK(item.at("view") == truth.at("other"));
  CHECK(item.at("notes") == Json({"first note", "second note, which is longer"}));
}

TEST_CASE("std::string and std::string_view are shown as their text, however they are handed over") {
  for (const std::string& build : builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    const int texts = user.truth("texts");
    const auto probes = add(client, user.pid(), {kTake});
    Events events(client);
    std::vector<Json> truths;
    for (int i = 0; i < texts; ++i) truths.push_back(user.truth("take " + std::to_string(i)));
    REQUIRE(events.reach(truths.size()));
    for (int i = 0; i < texts; ++i) {
      CAPTURE(i);
      check_take(build, events.all()[static_cast<std::size_t>(i)].at("args"), truths[static_cast<std::size_t>(i)], i);
    }
    remove_all(client, probes);
    CHECK(user.unharmed());
    CHECK(user.ends_well());
  }
}

TEST_CASE("what holds values for others is shown, and followed, as what it holds; members need no this->") {
  for (const std::string& build : builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    const auto probes = add(client, user.pid(),
                            {"p:h shop::Till::hold unique first=unique->id name=unique->name second=shared->id full "
                             "empty flag=full.has_value "
                             "text=full.value element=items[1].id three last=three[2] one_of taken sold",
                             "r:v shop::head $retval", "p:a shop::add $args"});
    Events events(client);
    constexpr int n = 40;
    const Json truth = user.truth("hold 40");
    REQUIRE(events.reach(3));
    const Json args = events.of(probes[0]).at(0).at("args");
    CHECK(args.at("unique") == truth.at("unique"));
    CHECK(args.at("first") == n + 1);
    CHECK(args.at("name") == "item");
    CHECK(args.at("second") == n + 2);
    CHECK(args.at("full") == Json({{"has_value", true}, {"value", "full"}}));
    CHECK(args.at("empty") == Json({{"has_value", false}, {"value", nullptr}}));
    CHECK(args.at("flag") == true);
    CHECK(args.at("text") == "full");
    CHECK(args.at("element") == n + 5);
    CHECK(args.at("three") == Json({n, n + 1, n + 2}));
    CHECK(args.at("last") == n + 2);
    CHECK(args.at("one_of") == Json({{"index", 1}, {"value", "text"}}));
    CHECK(args.at("taken") == n);
    CHECK(args.at("sold") == n + 3);
    CHECK(events.of(probes[1]).at(0).at("args").at("$retval") == "a head");
    CHECK(events.of(probes[2]).at(0).at("args") == Json({{"first", n}, {"arg2", 2}, {"arg3", 3.5}, {"arg4", "x"}}));
    for (const auto& [wrong, said] : {std::pair("full.nosuch", "it has has_value, value"),
                                      {"one_of.nosuch", "it has index, and its alternatives [0], [1], ..."},
                                      {"full[0]", "it has has_value, value"},
                                      {"three.nosuch", "it has elements: [0], [1], ..."},
                                      {"unique->nosuch", "it has id, name"}}) {
      CAPTURE(wrong);
      const std::string error = add_error(client, user.pid(), {std::string("p:e shop::Till::hold ") + wrong}).dump();
      CHECK(error.find(said) != std::string::npos);
    }
    remove_all(client, probes);
    CHECK(user.unharmed());
    CHECK(user.ends_well());
  }
}

bool all_become_jumps(RpcClient& client, pid_t pid) {
  return eventually([&] {
    const auto all = list_probes(client, pid);
    return std::ranges::all_of(all, [](const Json& probe) { return probe.at("tier") == "optimized"; });
  });
}

constexpr const char* kMaybe =
    "p:m shop::maybe number sale price text three plain=number.value id=sale.value.id name=sale.value.name "
    "next=sale.value.next->name rest=price.value.rest.value wide=number.value:x64 word=+0(text.value):string";

Json maybe_args(int n) {
  const bool full = n > 0;
  const auto held = [&](Json value) { return Json{{"has_value", full}, {"value", std::move(value)}}; };
  const auto or_null = [&](Json value) { return full ? std::move(value) : Json(); };
  Json args = {{"number", held(or_null(n))},
               {"text", held(or_null("text"))},
               {"three", held(or_null({7, 8, 9}))},
               {"plain", or_null(n)},
               {"id", or_null(n)},
               {"name", or_null("sold")},
               {"next", or_null("the other")},
               {"rest", nullptr},
               {"word", or_null("text")}};
  args["price"] = held({{"whole", or_null(n)}, {"rest", {{"has_value", or_null(false)}, {"value", nullptr}}}});
  return args;
}

void check_maybe(Json args, int n) {
  CAPTURE(args.dump());
  CHECK(args.at("wide").is_string() == (n > 0));
  CHECK(args.at("sale").at("has_value") == (n > 0));
  CHECK(args.at("sale").at("value").at("id") == args.at("id"));
  CHECK(args.at("sale").at("value").at("name") == args.at("name"));
  CHECK(args.at("sale").at("value").at("next").is_null() == (n <= 0));
  args.erase("wide");
  args.erase("sale");
  CHECK(args == maybe_args(n));
}

TEST_CASE("an empty std::optional has no value, whatever is left where one was") {
  for (const std::string& build : builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    const auto probes = add(client, user.pid(), {kMaybe, "r:back shop::maybe sale number.value $retval"});
    Events events(client);
    for (const int n : {0, 5}) user.truth("maybe " + std::to_string(n));
    REQUIRE(events.reach(4));
    const auto entries = events.of(probes[0]), returns = events.of(probes[1]);
    check_maybe(entries.at(0).at("args"), 0);
    check_maybe(entries.at(1).at("args"), 5);
    CHECK(returns.at(0).at("args").at("sale").at("value").at("name").is_null());
    CHECK(returns.at(1).at("args").at("sale").at("value").at("name") == "sold");
    CHECK(returns.at(0).at("args").at("value").is_null());
    CHECK(returns.at(1).at("args").at("value") == 5);
    remove_all(client, probes);
    CHECK(user.ends_well());
  }
}

TEST_CASE("a filter doesn't see the value of an empty std::optional") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  TellingTarget user("strings-O2");
  Json params = add_params(user.pid(), {"p:f shop::maybe n=number.value", "p:s shop::maybe name=sale.value.name"});
  params["probes"][0]["filter"] = "n != 5";
  params["probes"][1]["filter"] = "name ~ \"*\"";
  const Json probes = client.call("probe.add", params).at("probes");
  for (const int n : {0, 5, 6, 0}) user.truth("maybe " + std::to_string(n));
  CHECK(counts_of(client, probes.at(0)) == Counts{1, 0, 3});
  CHECK(counts_of(client, probes.at(1)) == Counts{2, 0, 2});
  CHECK(user.ends_well());
}

TEST_CASE("a jump records an optional value, too, and no stale one") {
  NEEDS_JUMPS();
  Daemon daemon;
  RpcClient client(daemon.socket());
  TellingTarget user("strings-O2");
  Json params = add_params(user.pid(), {"p:j shop::maybe number three whole=price.value.whole",
                                        "r:r shop::maybe number $retval", "p:f shop::maybe n=number.value"});
  params["probes"][2]["filter"] = "n < 100";
  const Json probes = client.call("probe.add", params).at("probes");
  CHECK(all_become_jumps(client, user.pid()));
  Events events(client);
  for (const int n : {0, 6}) user.truth("maybe " + std::to_string(n));
  REQUIRE(events.reach(5));
  const auto args = [&](std::size_t probe, std::size_t i) { return events.of(probes.at(probe)).at(i).at("args"); };
  CHECK(args(0, 0).at("number") == Json({{"has_value", false}, {"value", nullptr}}));
  CHECK(args(0, 1).at("number") == Json({{"has_value", true}, {"value", 6}}));
  CHECK(args(0, 0).at("three").at("value").is_null());
  CHECK(args(0, 1).at("three").at("value") == Json({7, 8, 9}));
  CHECK(args(0, 0).at("whole").is_null());
  CHECK(args(0, 1).at("whole") == 6);
  CHECK(args(1, 0).at("number").at("value").is_null());
  CHECK(args(1, 1).at("number").at("value") == 6);
  CHECK(counts_of(client, probes.at(2)) == Counts{1, 0, 1});
  CHECK(user.ends_well());
}

constexpr const char* kList =
    "p:l shop::list first=numbers[0] third=numbers[2] wide=numbers[2]:x64 id=(*sales)[2].id next=(*sales)[2].next->id "
    "inner=table[1][2] text=texts[2] word=+0(texts[2]):string perhaps=perhaps.value[2] far=numbers[0x10000] "
    "at=&numbers[2]";

// `n` elements are there, of three that have been.
void check_list(const Json& args, int n) {
  CAPTURE(args.dump());
  const auto if_there = [&](int needed, const Json& value) { return n >= needed ? value : Json(); };
  CHECK(args.at("first") == if_there(1, 1));
  CHECK(args.at("third") == if_there(3, 3));
  CHECK(args.at("wide") == if_there(3, "0x3"));
  CHECK(args.at("id") == if_there(3, 3));
  CHECK(args.at("next") == if_there(3, 4));
  CHECK(args.at("inner") == if_there(3, 6));
  CHECK(args.at("text") == if_there(3, "three"));
  CHECK(args.at("word") == if_there(3, "three"));
  CHECK(args.at("perhaps") == if_there(3, 3));
  CHECK(args.at("far").is_null());
  CHECK(args.at("at").is_null() == (n < 3));
}

TEST_CASE("an element behind a vector's last is null, whatever is left there") {
  in_both_tiers(builds(), [](const std::string& build, bool optimize, RpcClient& client, TellingTarget& user) {
    const auto probes = add(client, user.pid(), {kList, "r:back shop::list was=$entry(numbers[2]) id=(*sales)[2].id"});
    CHECK(std::ranges::none_of(probes, [](const Json& probe) { return probe.contains("notes"); }));
    if (optimize && kHasJumps && build == "strings-O2") CHECK(all_become_jumps(client, user.pid()));
    Events events(client);
    for (int n = 0; n <= 3; ++n) user.truth("list " + std::to_string(n));
    REQUIRE(events.reach(8));
    for (int n = 0; n <= 3; ++n) {
      const auto args = [&](const Json& probe) { return events.of(probe).at(static_cast<std::size_t>(n)).at("args"); };
      check_list(args(probes.at(0)), n);
      CHECK(args(probes.at(1)).at("was") == (n == 3 ? Json(3) : Json()));
      CHECK(args(probes.at(1)).at("id") == (n == 3 ? Json(3) : Json()));
    }
  });
}

// Jumps don't capture what a length ends.
TEST_CASE("a std::string of an element behind a vector's last is null") {
  for (const std::string& build : builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    add(client, user.pid(), {"p:name shop::list name=(*sales)[2].name whole=(*sales)[2]"});
    Events events(client);
    for (const int n : {2, 3}) user.truth("list " + std::to_string(n));
    REQUIRE(events.reach(2));
    const Json few = events.all().at(0).at("args"), enough = events.all().at(1).at("args");
    CHECK(few.at("name").is_null());
    CHECK(few.at("whole").at("id").is_null());
    CHECK(few.at("whole").at("name").is_null());
    CHECK(enough.at("name") == "three");
    CHECK(enough.at("whole").at("name") == "three");
    CHECK(user.ends_well());
  }
}

TEST_CASE("a filter sees no element behind a vector's last") {
  in_both_tiers({"strings-O2"}, [](const std::string&, bool optimize, RpcClient& client, TellingTarget& user) {
    Json params = add_params(user.pid(), {"p:f shop::list n=numbers[2]", "p:g shop::list n=numbers[2] m=numbers[1]"});
    params["probes"][0]["filter"] = "n != 5";
    params["probes"][1]["filter"] = "n == 3 || m < 100";
    const auto probes = client.call("probe.add", params).at("probes").get<std::vector<Json>>();
    if (optimize && kHasJumps) CHECK(all_become_jumps(client, user.pid()));
    for (int n = 0; n <= 3; ++n) user.truth("list " + std::to_string(n));
    CHECK(counts_of(client, probes.at(0)) == Counts{1, 0, 3});
    CHECK(counts_of(client, probes.at(1)) == Counts{2, 0, 2});
  });
}

TEST_CASE("of a std::variant the alternative is shown that it holds, or null") {
  for (const std::string& build : builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    const auto probes = add(client, user.pid(),
                            {"p:c shop::choose choice perhaps two number=choice[1] id=choice[2].id which=choice.index "
                             "text=perhaps.value[1]"});
    Events events(client);
    const Json sale = {{"id", 42}, {"name", "sold"}};
    const std::map<int, Json> held = {{0, Json()}, {1, 41}, {2, sale}, {3, 0.5}, {5, Json()}};
    for (const auto& [n, value] : held) {
      CAPTURE(n);
      const Json truth = user.truth("choose " + std::to_string(n));
      REQUIRE(events.reach(static_cast<std::size_t>(n == 5 ? 5 : n + 1)));
      Json args = events.all().back().at("args");
      CAPTURE(args.dump());
      Json& choice = args.at("choice");
      CHECK(choice.at("index") == truth.at("index"));
      CHECK(args.at("which") == truth.at("index"));
      if (n == 2) choice.at("value").erase("next");
      CHECK(choice.at("value") == value);
      CHECK(args.at("number") == (n == 1 ? Json(41) : Json()));
      CHECK(args.at("id") == (n == 2 ? Json(42) : Json()));
      CHECK(args.at("text") == (n == 5 ? Json() : Json("text")));
      CHECK(args.at("perhaps").at("has_value") == (n != 5));
      CHECK(args.at("perhaps").at("value").at("value") == (n == 5 ? Json() : Json("text")));
      CHECK(args.at("two") ==
            Json::parse(R"([{"index":0,"value":)" + std::to_string(-n) + R"(},{"index":1,"value":"two"}])"));
    }
    Json params = add_params(user.pid(), {"p:f shop::choose choice"});
    params["probes"][0]["filter"] = "choice.value == 41";
    CHECK(reason_of(client.request("probe.add", params).at("error")) == "bad-filter");
    remove_all(client, probes);
    CHECK(user.ends_well());
  }
}

TEST_CASE("of a line's places those that lack a variable are left out, and that is said") {
  for (const std::string& build : builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    const std::string line = "strings.cpp:" + user.truth("hold 1").at("fold").dump();
    const auto probes = add(client, user.pid(), {"p:l " + line, "p:i " + line + " own"});
    CHECK(probes.at(1).at("notes").dump().find("left out") != std::string::npos);
    CHECK(probes.at(1).at("notes").dump().find("own") != std::string::npos);
    const Json error = add_error(client, user.pid(), {"p:n " + line + " nosuch"});
    CHECK(reason_of(error) == "bad-definition");
    CHECK(error.dump().find("nosuch") != std::string::npos);
    Events events(client);
    user.truth("hold 5");
    REQUIRE(events.reach(3));
    CHECK(events.of(probes.at(0)).size() == 2);
    const auto inner = events.of(probes.at(1));
    REQUIRE(inner.size() == 1);
    CHECK((inner.at(0).at("args").at("own") == 5 || inner.at(0).at("args").at("own").is_null()));
    CHECK(user.ends_well());
  }
}

TEST_CASE("a filter compares the text of a std::string") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  TellingTarget user("strings-O2");
  Json params = add_params(user.pid(), {"p:f shop::Till::take name=item.name"});
  params["probes"][0]["filter"] = "name == \"short\" || name ~ \"sixteen*\"";
  const Json probe = client.call("probe.add", params).at("probes").at(0);
  for (int i = 0; i < 6; ++i) user.truth("take " + std::to_string(i));
  CHECK(counts_of(client, probe) == Counts{2, 0, 4});
  CHECK(user.ends_well());
}

TEST_CASE("a probe that shows such texts stays a breakpoint and says why") {
  NEEDS_JUMPS();
  Daemon daemon;
  RpcClient client(daemon.socket());
  TellingTarget user("strings-O2");
  const Json probe = add(client, user.pid(), {"p:d shop::Till::take by_reference"}).at(0);
  Events events(client);
  constexpr std::size_t kRounds = 40;
  for (std::size_t i = 0; i < kRounds; ++i) user.truth("take 1");
  REQUIRE(events.reach(kRounds));
  for (const Json& event : events.all()) CHECK(event.at("args").at("by_reference") == "short");
  const Json view = list_probes(client, user.pid()).at(0);
  CHECK(view.at("tier") != "optimized");
  CHECK(view.at("tierReason").get<std::string>().find("a length ends") != std::string::npos);
  CHECK(user.ends_well());
}

TEST_CASE("overloads and instances of templates are told apart by their parameters") {
  for (const std::string& build : builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    const auto numbers = add(client, user.pid(), {"p:whole shop::say(int) number", "p:real shop::say(double) real"});
    const std::string text = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";
    const Json one = add(client, user.pid(), {"p:text shop::say(" + text + " const&) text"}).at(0);
    const Json again = add(client, user.pid(), {"p:again shop::say(const std::string&) text"}).at(0);
    Events events(client);
    user.truth("say");
    REQUIRE(events.reach(4));
    CHECK(events.of(numbers.at(0)).at(0).at("args") == Json({{"number", 41}}));
    CHECK(events.of(numbers.at(1)).at(0).at("args") == Json({{"real", 2.5}}));
    CHECK(events.of(again).at(0).at("args") == Json({{"text", "said"}}));
    CHECK(events.of(one).at(0).at("args") == Json({{"text", "said"}}));
    CHECK(user.ends_well());
  }
}

TEST_CASE("the last parts of a name are enough where one function has them; of several it is asked which") {
  for (const std::string& build : builds()) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    for (const std::string name : {"Till::hold", "shop::hold", "shop::Till::hold"}) {
      CAPTURE(name);
      const Json probe = add(client, user.pid(), {name + " id=unique->id"}).at(0);
      CHECK(probe.at("symbol").get<std::string>().starts_with("shop::Till::hold("));
      CHECK(probe.at("name") == "probes/p_shop__Till__hold_0");
      remove_all(client, {probe});
    }
    CHECK(add(client, user.pid(), {"head"}).at(0).at("symbol").get<std::string>().starts_with("shop::head("));
    const Json several = add_error(client, user.pid(), {"say"});
    CHECK(reason_of(several) == "ambiguous-symbol");
    CHECK_MESSAGE(hint_of(several).find("shop::say(std::string const&)") != std::string::npos, several.dump());
    CHECK(add(client, user.pid(), {"say(std::string const&)"}).size() == 1);
    CHECK(reason_of(add_error(client, user.pid(), {"Tell"})) == "no-such-symbol");
    CHECK(user.ends_well());
  }
}

TEST_CASE("Go's strings are shown as their text" * doctest::skip(!target_runs("gostrings"))) {
  Daemon daemon;
  RpcClient client(daemon.socket());
  TellingTarget user("gostrings");
  add(client, user.pid(), {"p:g main.take $args name=it.name item=*it empty=it.next.name"});
  Events events(client);
  user.ask("some words");
  REQUIRE(events.reach(1));
  const Json args = events.all().at(0).at("args");
  CHECK(args.at("text") == "some ");
  CHECK(args.at("name") == "some words");
  CHECK(args.at("item").at("name") == "some words");
  CHECK(args.at("empty") == "");
  CHECK(args.at("number") == 7);
  CHECK(user.ends_well());
}

TEST_CASE("$args of a generic function of Go leave the compiler's own parameter out, and say so" *
          doctest::skip(!target_runs("gostrings-O0"))) {
  Daemon daemon;
  RpcClient client(daemon.socket());
  TellingTarget user("gostrings-O0");
  const auto probes = add(client, user.pid(), {"p:g main.same* $args"});
  CHECK(probes.at(0).at("notes").dump().find(".dict is left out: ") != std::string::npos);
  Events events(client);
  user.ask("some words");
  REQUIRE(events.reach(1));
  const Json args = events.all().at(0).at("args");
  CAPTURE(args.dump());
  CHECK(args.size() == 2);
  CHECK(args.contains("first"));
  CHECK(args.contains("second"));
  CHECK(user.ends_well());
}

}  // namespace
}  // namespace probed::live
