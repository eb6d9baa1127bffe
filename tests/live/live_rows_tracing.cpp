// T1 to T7 on real processes: definitions, fetch arguments and types against the truth that tests/targets/values
// prints, profile, adding and clearing on the fly, the line format.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

// The values target, run to its end under some probes: what it said and what the probes saw.
struct ValuesRun {
  Daemon daemon;
  RpcClient client{daemon.socket()};
  Watched target{"values"};
  std::vector<Json> probes;
  std::vector<Json> truth;  // its lines
  std::unique_ptr<Events> events;

  explicit ValuesRun(const std::vector<std::string>& definitions)
      : probes(add(client, target.pid(), definitions)), events(std::make_unique<Events>(client)) {
    target.target.go();
    const TargetReport report = target.target.finish();
    CHECK_MESSAGE(report.ok(), report.out, target.target.errors());
    truth = json_lines(report.out);
    events->end();
  }
  // The arguments of each call of a function, as the target told them.
  std::vector<Json> calls(const std::string& function) const {
    std::vector<Json> out;
    for (const Json& line : truth)
      if (line.value("call", "") == function) out.push_back(line.at("args"));
    return out;
  }
  std::vector<Json> args(std::size_t probe = 0) const {
    std::vector<Json> out;
    for (const Json& event : events->of(probes.at(probe))) out.push_back(event.at("args"));
    return out;
  }
};

// ---- T1 -------------------------------------------------------------------------------------------------------------

struct Accepted {
  std::string definition, name, symbol;
  Json args;  // [name, type] pairs
};
const Accepted kAccepted[] = {
    {"p:mine work", "probes/mine", "work+0x0", Json::array()},
    {"p:group/event work", "group/event", "work+0x0", Json::array()},
    {"p work", "probes/p_work_0", "work+0x0", Json::array()},
    {"work", "probes/p_work_0", "work+0x0", Json::array()},
    {"work+0x" SECOND, "probes/p_work_" SECOND, "work+0x" SECOND, Json::array()},
    {"p work+" SECOND, "probes/p_work_" SECOND, "work+0x" SECOND, Json::array()},
    {"family:work " ARG1, "probes/p_work_0", "work+0x0", Json::parse(R"([["arg1","x64"]])")},
    {"work a=" ARG1 ":u8 " ARG2 " b=" ARG3 ":s32", "probes/p_work_0", "work+0x0",
     Json::parse(R"([["a","u8"],["arg2","x64"],["b","s32"]])")},
    {"work $comm $stack $stack0 c=$arg1", "probes/p_work_0", "work+0x0",
     Json::parse(R"([["arg1","string"],["arg2","x64"],["arg3","x64"],["c","x64"]])")},
    {"work t=+0($arg3):string f=" ARG1 ":b4@2/32 i=\\5:u16 x=\\\"text\":string", "probes/p_work_0", "work+0x0",
     Json::parse(R"([["t","string"],["f","b4@2/32"],["i","u16"],["x","string"]])")},
    {"work v=+0($arg3):u8[4]", "probes/p_work_0", "work+0x0", Json::parse(R"([["v","u8[4]"]])")},
};

TEST_CASE("T1: definitions are taken as the kernel writes them, with its names for what is not named") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched target("family");
  for (const Accepted& row : kAccepted) {
    CAPTURE(row.definition);
    const std::vector<Json> probes = add(client, target.pid(), {row.definition});
    REQUIRE(probes.size() == 1);
    CHECK(probes[0].at("name") == row.name);
    CHECK(probes[0].at("symbol") == row.symbol);
    CHECK(probes[0].at("definition") == row.definition);
    Json args = Json::array();
    for (const Json& arg : probes[0].at("args")) args.push_back({arg.at("name"), arg.at("type")});
    CHECK(args == row.args);
    CHECK(target.ask("call 1") == "called 1");
    CHECK(counts_of(client, probes[0]).hits == 1);
    remove_all(client, probes);
  }
  CHECK(target.unharmed());
}

TEST_CASE("T1: generated names stay apart, names given twice are refused") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched target("family");
  const std::vector<Json> probes = add(client, target.pid(), {"work", "work", "p:a/x work", "p:b/x work"});
  std::set<std::string> names;
  for (const Json& probe : probes) names.insert(probe.at("name"));
  CHECK(names.size() == 4);
  CHECK(reason_of(add_error(client, target.pid(), {"p:a/x work"})) == "duplicate-name");
  const Json twice = add_error(client, target.pid(), {"p:c/x work", "p:c/x work+0x" SECOND});
  CHECK(reason_of(twice) == "duplicate-name");
  CHECK(twice.at("message").get<std::string>().find("two of these definitions") != std::string::npos);
  remove_all(client, probes);
  CHECK(target.unharmed());
}

TEST_CASE("T1: a definition that begins with -: removes") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched target("family");
  add(client, target.pid(), {"p:one work", "p:two work", "p:group/three work+0x" SECOND});
  CHECK(add(client, target.pid(), {"-:one", "p:four work"}).size() == 1);
  std::set<std::string> names;
  for (const Json& probe : list_probes(client)) names.insert(probe.at("name"));
  CHECK(names == std::set<std::string>{"probes/two", "group/three", "probes/four"});
  CHECK(reason_of(add_error(client, target.pid(), {"-:group/nobody", "p:five work"})) == "no-such-probe");
  CHECK(list_probes(client).size() == 3);
  add(client, target.pid(), {"-:group/three"});
  add(client, target.pid(), {"-:probes/two", "-:four"});
  CHECK(list_probes(client).empty());
  CHECK(target.unharmed());
}

TEST_CASE("T1: a glob makes one probe for each function it matches, all or none") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched target("values");
  const std::vector<Json> probes = add(client, target.pid(), {"v_*"});
  std::set<std::string> symbols;
  for (const Json& probe : probes) symbols.insert(probe.at("symbol"));
  CHECK(symbols == std::set<std::string>{"v_array+0x0", "v_chain+0x0", "v_floats+0x0", "v_pointer+0x0", "v_return+0x0",
                                         "v_return_text+0x0", "v_signed+0x0", "v_string+0x0", "v_ten+0x0",
                                         "v_unsigned+0x0"});
  target.target.go();
  CHECK(target.target.finish().ok());
  std::uint64_t hits = 0;
  for (const Json& probe : probes) hits += counts_of(client, probe).hits;
  CHECK(hits == 25);  // lines of the target but one, which tells its globals
}

// ---- T2, T3 ---------------------------------------------------------------------------------------------------------

TEST_CASE("T2, T3: signed and unsigned integers of every size are what was passed") {
  const ValuesRun run({"v_signed a=$arg1:s8 b=$arg2:s16 c=$arg3:s32 d=$arg4:s64",
                       "v_unsigned a=" ARG1 ":u8 b=" ARG2 ":u16 c=" ARG3 ":u32 d=" ARG4 ":u64"});
  CHECK(run.args(0) == run.calls("v_signed"));
  CHECK(run.args(1) == run.calls("v_unsigned"));
  CHECK(run.args(0).size() == 3);
  CHECK(run.args(1).size() == 2);
}

TEST_CASE("T3: without a type a value is hexadecimal and of the word's size; x types are hexadecimal of theirs") {
  const ValuesRun run({"v_signed word=$arg1 a=$arg1:x8 b=$arg2:x16 c=$arg3:x32 d=$arg4:x64"});
  const Json first = run.args().at(0);  // -1, -2, -3, -4
  CHECK(first.at("a") == "0xff");
  CHECK(first.at("b") == "0xfffe");
  CHECK(first.at("c") == "0xfffffffd");
  CHECK(first.at("d") == "0xfffffffffffffffc");
  const std::string word = first.at("word");
  CHECK(word.starts_with("0x"));
  CHECK(word.ends_with("ff"));
}

TEST_CASE("T2, T3: strings are what was passed, to the last byte; what can't be read is null") {
  const ValuesRun run({"v_string s=+0($arg1):string number=$arg2:s64"});
  const std::vector<Json> truth = run.calls("v_string");
  REQUIRE(truth.size() == 9);
  CHECK(run.args() == truth);
}

TEST_CASE("T3: unreadable memory gives null for every type, and the hit is counted all the same") {
  const ValuesRun run(
      {"v_pointer p=$arg1 number=$arg2:s64 u8=+0($arg1):u8 s64=-8($arg1):s64 x=+16($arg1) "
       "text=+0($arg1):string bits=+0($arg1):b3@1/16 array=+0($arg1):u8[3] deep=+8(+0($arg1)):s32"});
  const std::vector<Json> truth = run.calls("v_pointer");
  const std::vector<Json> seen = run.args();
  REQUIRE(seen.size() == truth.size());
  for (std::size_t i = 0; i < seen.size(); ++i) {
    CAPTURE(seen[i].dump());
    CHECK(seen[i].at("number") == truth[i].at("number"));
    CHECK(seen[i].at("p") == truth[i].at("p"));
    for (const char* key : {"u8", "s64", "x", "text", "bits", "deep"}) CHECK(seen[i].at(key).is_null());
    CHECK(seen[i].at("array") == Json::array({nullptr, nullptr, nullptr}));  // element by element, as the kernel does
  }
}

TEST_CASE("T2: nested dereferences with offsets follow pointers, T3: bitfields and arrays come out of memory") {
  const ValuesRun run(
      {"v_chain id=+0($arg1):s32 next_id=+0(+8($arg1)):s32 next_next_name=+0(+16(+8(+8($arg1)))):string "
       "small=+24($arg1):s16 low3=+28($arg1):b3@0/32 mid5=+28($arg1):b5@3/32 high24=+28($arg1):b24@8/32",
       "v_array four=+0($arg1):s32[4]"});
  CHECK(run.args(0) == run.calls("v_chain"));
  CHECK(run.args(1) == run.calls("v_array"));
  CHECK(run.args(0).size() == 1);
}

TEST_CASE("T2: arguments beyond the registers are found on the stack, by number and as $stackN") {
  const ValuesRun run(
      {"v_ten a=$arg1:s64 b=$arg2:s64 c=$arg3:s64 d=$arg4:s64 e=$arg5:s64 f=$arg6:s64 g=$arg7:s64 "
       "h=$arg8:s64 i=$arg9:s64 j=$arg10:s64",
       "v_ten " STACK_ARGUMENTS, "v_floats between=$arg1:s32"});
  CHECK(run.args(0) == run.calls("v_ten"));
  const Json truth = run.calls("v_ten").at(0);
  const Json on_stack = run.args(1).at(0);
  CHECK(on_stack.contains("j"));
  for (const auto& [name, value] : on_stack.items()) CHECK(value == truth.at(name));
  CHECK(run.args(2).at(0).at("between") == run.calls("v_floats").at(0).at("between"));
}

TEST_CASE("T2: globals are read by symbol, with offsets, through pointers and by address") {
  const ValuesRun run(
      {"v_return u=@g_u32:u32 s=@g_s64:s64 b=@g_s8:s8 text=@g_text:string tail=@g_text+7:string "
       "pointed=+0(@g_text_pointer):string all=@g_array:s16[4] third=@g_array+4:s16 x=$arg1:s64"});
  const auto line = std::ranges::find_if(run.truth, [](const Json& l) { return l.contains("globals"); });
  REQUIRE(line != run.truth.end());
  const Json globals = line->at("globals");
  const Json seen = run.args().at(0);
  CHECK(seen.at("u") == globals.at("g_u32"));
  CHECK(seen.at("s") == globals.at("g_s64"));
  CHECK(seen.at("b") == globals.at("g_s8"));
  CHECK(seen.at("text") == globals.at("g_text"));
  CHECK(seen.at("tail") == globals.at("g_text").get<std::string>().substr(7));
  CHECK(seen.at("pointed") == globals.at("g_text_pointer"));
  CHECK(seen.at("all") == globals.at("g_array"));
  CHECK(seen.at("third") == globals.at("g_array").at(2));
  CHECK(seen.at("x") == run.calls("v_return").at(0).at("x"));
}

TEST_CASE("T2: immediates, texts and $comm need no memory of the function's") {
  const ValuesRun run(
      {"v_return_text which=$arg1:s32 five=\\5:s32 minus=\\-3:s64 text=\\\"some_text\":string comm=$comm"});
  const Json seen = run.args().at(0);
  CHECK(seen.at("which") == run.calls("v_return_text").at(0).at("which"));
  CHECK(seen.at("five") == 5);
  CHECK(seen.at("minus") == -3);
  CHECK(seen.at("text") == "some_text");
  CHECK(seen.at("comm") == "values");
}

TEST_CASE("T2: every general register can be fetched by the kernel's name, and agrees with what else is known") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"1", "3"});
  std::string definition = "work";
  const std::vector<std::string> registers = REGISTERS;
  for (const std::string& name : registers) definition += " " + name + "=%" + name;
  const Json probe = add(client, counter.pid(), {definition + " stack=$stack"}).at(0);
  Events events(client);
  counter.target.go();
  CHECK(counter.target.finish().ok());
  events.end();
  REQUIRE(events.all().size() == 3);
  const Json args = events.all()[1].at("args");
  for (const std::string& name : registers) CHECK(args.at(name).get<std::string>().starts_with("0x"));
  const auto in = [&](std::string_view name) { return args.at(std::string(name.substr(1))); };
  CHECK(in(PC) == probe.at("address"));
  CHECK(in(ARG1) == "0x0");
  CHECK(in(ARG2) == "0x1");
  CHECK(args.at("sp") == args.at("stack"));
  const std::map<std::string, std::string> constants = CONSTANT_REGISTERS;
  for (const auto& [name, value] : constants) CHECK(args.at(name) == value);
}

// ---- T4, T5 ---------------------------------------------------------------------------------------------------------

TEST_CASE("T4: a probe's format tells the fields of its events, in their order, and its id") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched target("family");
  const Json probe = add(client, target.pid(), {"p:mine/x work a=$arg1:s32 s=+0($arg3):string"}).at(0);
  const Json format = client.call("probe.format", {{"name", "mine/x"}});
  CHECK(format.at("id") == probe.at("id"));
  CHECK(format == client.call("probe.format", {{"id", probe.at("id")}}));
  Events events(client);
  CHECK(target.ask("call 1") == "called 1");
  events.end();
  REQUIRE(events.all().size() == 1);
  std::set<std::string> common, own;
  for (const Json& field : format.at("fields"))
    (field.at("common").get<bool>() ? common : own).insert(field.at("name").get<std::string>());
  std::set<std::string> event_keys, arg_keys;
  for (const auto& [key, value] : events.all()[0].items()) event_keys.insert(key);
  for (const auto& [key, value] : events.all()[0].at("args").items()) arg_keys.insert(key);
  event_keys.erase("args");
  CHECK(common == event_keys);
  CHECK(own == arg_keys);
  remove_all(client, {probe});
  CHECK(target.unharmed());
}

struct Filter {
  std::string text;
  std::uint64_t hits;  // of 8 calls with a = 3, b = 0 ... 7, s = "alpha", "beta", "", "delta", ...
};
const Filter kFilters[] = {
    {"b == 2", 1},
    {"b != 2", 7},
    {"b < 3", 3},
    {"b >= 3 && b <= 5", 3},
    {"b & 1", 4},
    {"b == 1 || b == 6", 2},
    {"!(b < 6)", 2},
    {"s == \"beta\"", 2},
    {"s ~ \"*lt*\"", 2},
    {"s != \"\" && b > 3", 3},
    {"comm == \"family\"", 8},
    {"comm ~ \"nobody*\"", 0},
    {"pid == 1", 0},
    {"a == 3 && (b == 0 || s == \"delta\")", 3},
};

TEST_CASE("T4, T5: a filter decides which passes are hits; the profile counts hits, missed and filtered") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched target("family");
  Json params{{"pid", target.pid()}, {"probes", Json::array()}};
  for (const Filter& filter : kFilters)
    params["probes"].push_back(
        {{"definition", "work a=$arg1:s32 b=$arg2:s64 s=+0($arg3):string"}, {"filter", filter.text}});
  const std::vector<Json> probes = client.call("probe.add", params).at("probes");
  Events events(client);
  CHECK(target.ask("call 8") == "called 8");
  events.end();
  for (std::size_t i = 0; i < probes.size(); ++i) {
    CAPTURE(kFilters[i].text);
    CHECK(counts_of(client, probes[i]) == Counts{kFilters[i].hits, 0, 8 - kFilters[i].hits});
    CHECK(events.of(probes[i]).size() == kFilters[i].hits);
  }
  const CommandResult text = probectl(daemon, {"profile", "-p", std::to_string(target.pid())});
  CHECK(text.ok());
  CHECK(std::regex_search(text.out, std::regex("probes/p_work_0 +1 +0 +7\n")));
  remove_all(client, probes);
  CHECK(target.unharmed());
}

// ---- T6 -------------------------------------------------------------------------------------------------------------

TEST_CASE("T6: probes are added on the fly to a running program, cleared one by one, and all at once") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"4", "0"});
  counter.target.go();
  REQUIRE(counter.runs_threads(5));
  const std::vector<Json> probes = add(client, counter.pid(), {"p:a work", "p:b work+0x" SECOND, "p:c work"});
  for (const Json& probe : probes) CHECK(eventually([&] { return counts_of(client, probe).hits > 10; }));
  remove_all(client, {probes[1]});
  CHECK_FALSE(has_breakpoint(counter.pid(), address_of(probes[1])));
  const std::uint64_t before = counts_of(client, probes[0]).hits;
  CHECK(eventually([&] { return counts_of(client, probes[0]).hits > before; }));
  const std::vector<Json> more = add(client, counter.pid(), {"p:d work+0x" THIRD});
  CHECK(client.call("probe.remove", {{"all", true}}).at("probes").size() == 3);
  CHECK(list_probes(client).empty());
  CHECK(counter.unharmed());
  counter.target.go();
  CHECK(counter.target.finish().ok());
}

// ---- T7 -------------------------------------------------------------------------------------------------------------

TEST_CASE("T7: events print in the layout of ftrace, one a line, arguments in the asked notation") {
  Daemon daemon;
  Watched target("family");
  const std::string pid = std::to_string(target.pid());
  Process trace(probectl_argv(daemon, {"trace", "-p", pid, "--count", "4", "-e",
                                       "p:mine/cmd work a=$arg1:s32 b=$arg2:x16 s=+0($arg3):string bad=+0(" ARG1 "):u8 "
                                       "c=+0($arg3):char v=+0($arg3):u8[2]",
                                       "-e", "work+0x" SECOND}));
  REQUIRE(trace.next_error_line() == "armed 2 probes in PID " + pid);
  CHECK(target.ask("call 2") == "called 2");
  CHECK(trace.wait() == Exit{0, 0});
  const std::string head = "family-" + pid + R"( \[\d{3}\] \d+\.\d{9}: )";
  const std::regex lines(head + R"(cmd: \(work\+0x0\) a=3 b=0x0 s="alpha" bad=\(fault\) c='a' v=\{97,108\}\n)" +  //
                         head + "p_work_" SECOND R"(: \(work\+0x)" SECOND R"(\)\n)" +                             //
                         head + R"(cmd: \(work\+0x0\) a=3 b=0x1 s="beta" bad=\(fault\) c='b' v=\{98,101\}\n)" +   //
                         head + "p_work_" SECOND R"(: \(work\+0x)" SECOND R"(\)\n)");
  CHECK_MESSAGE(std::regex_match(trace.output(), lines), trace.output());
  CHECK(target.unharmed());
}

TEST_CASE("T7: time stamps are CLOCK_MONOTONIC's and never go back in one thread, the cpu is one there is") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched target("family");
  const auto now = [] {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count());
  };
  const std::vector<Json> probes = add(client, target.pid(), {"work"});
  Events events(client);
  const std::uint64_t begin = now();
  CHECK(target.ask("call 50") == "called 50");
  const std::uint64_t end = now();
  events.end();
  REQUIRE(events.all().size() == 50);
  std::uint64_t last = begin;
  for (const Json& event : events.all()) {
    CHECK(event.at("time").get<std::uint64_t>() >= last);
    last = event.at("time");
    CHECK(event.at("cpu").get<unsigned>() < 4096u);
    CHECK(event.at("comm") == "family");
  }
  CHECK(last <= end);
  remove_all(client, probes);
  CHECK(target.unharmed());
}

TEST_CASE("no child is left when everything was torn down") { CHECK(joined(children_left()) == ""); }

}  // namespace
}  // namespace probed::live
