// What people read: event lines, lists, escapes, error reports.
#include <doctest/doctest.h>
#include <stdlib.h>
#include <time.h>

#include <string>
#include <vector>

#include "client/display.hpp"
#include "client/event_text.hpp"
#include "client/probectl/answer.hpp"
#include "client/probectl/report.hpp"
#include "client/views.hpp"

namespace probed::client {
namespace {

// Types of the probe with id 3, as probe.add gives them.
constexpr char kViews[] =
    R"([{"id":3,"args":[{"name":"s","type":"string"},{"name":"a","type":"string[2]"},{"name":"c","type":"char"},)"
    R"({"name":"x","type":"x64"},{"name":"sym","type":"symbol"},{"name":"i","type":"s32"},{"name":"é","type":"string"}]}])";

std::string event(const std::string& args, const std::string& id = "3") {
  return R"({"probe":"probes/cmd","id":)" + id +
         R"(,"pid":1447,"tid":1448,"comm":"redis-server","cpu":1,"time":1038282286875123,"ip":"0x55d0c8a4f2b0",)"
         R"("symbol":"processCommand+0x0","args":)" +
         args + "}";
}

std::string line_of(const std::string& json) {
  EventText text;
  text.learn(JsonView(std::string_view(kViews)));
  std::string out;
  text.append(out, json);
  return out;
}

TEST_CASE("an event reads as ftrace prints it: thread, cpu, time, name without group, place, arguments") {
  CHECK(line_of(event(R"({"x":"0x7f0e5c","i":3})")) ==
        "redis-server-1448 [001] 1038282.286875123: cmd: (processCommand+0x0) x=0x7f0e5c i=3\n");
}

TEST_CASE("in front of an event stands the time of day, or the time since the line before, if that is asked for") {
  const auto at = [](std::uint64_t time) {
    return R"({"probe":"p","id":1,"pid":1,"comm":"c","cpu":0,"time":)" + std::to_string(time) +
           R"(,"ip":"0x1","args":{}})";
  };
  const auto lines = [&](Times times, const std::vector<std::uint64_t>& events) {
    EventText text(times);
    std::string out;
    for (const std::uint64_t time : events) text.append(out, at(time));
    return out;
  };
  CHECK(lines(Times::delta, {5'000'000'000, 6'000'000'007, 6'000'000'006}) ==
        "c-1 [000] +0.000000000: p: (0x1)\nc-1 [000] +1.000000007: p: (0x1)\nc-1 [000] -0.000000001: p: (0x1)\n");
  ::setenv("TZ", "UTC", 1);
  ::tzset();
  timespec mono{}, wall{};
  ::clock_gettime(CLOCK_MONOTONIC, &mono);
  ::clock_gettime(CLOCK_REALTIME, &wall);
  const auto now = static_cast<std::uint64_t>(mono.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(mono.tv_nsec);
  const std::string line = lines(Times::wall, {now});
  const auto read = [&](std::size_t i) { return std::stol(line.substr(10 + 3 * i, 2)); };
  const long seconds = (read(0) * 60 + read(1)) * 60 + read(2), expected = wall.tv_sec % 86'400;
  CHECK_MESSAGE((line[12] == ':' && line[15] == ':' && line[18] == '.' && line.substr(28) == ": p: (0x1)\n"), line);
  CHECK((seconds - expected + 86'401) % 86'400 <= 2);
}

TEST_CASE("a return event names where it returns to and the function it left") {
  CHECK(line_of(R"({"probe":"probes/myret","id":4,"pid":1447,"tid":1447,"comm":"redis-server","cpu":12,)"
                R"("time":1038282286878006,"ip":"0x1","symbol":"call+0x9e","args":{"$retval":0},"ret_ip":"0x1",)"
                R"("func":"processCommand","duration":2883})") ==
        "redis-server-1447 [012] 1038282.286878006: myret: (call+0x9e <- processCommand) $retval=0\n");
}

TEST_CASE("a function that was left by a tail call hasn't got its value yet, which is no fault") {
  CHECK(line_of(R"({"probe":"probes/myret","id":4,"pid":1447,"tid":1447,"comm":"redis-server","cpu":12,)"
                R"("time":1038282286878006,"ip":"0x1","symbol":"call+0x9e","args":{"$retval":null},"ret_ip":"0x1",)"
                R"("func":"caller","duration":2883,"tail_call":true})") ==
        "redis-server-1447 [012] 1038282.286878006: myret: (call+0x9e <- caller by tail call) $retval=(none)\n");
}

TEST_CASE("of what was skipped for several reasons the most frequent one is named") {
  constexpr char kSkipped[] = R"([{"symbol":"a","reason":"unsupported-target","message":"an IFUNC"},)"
                              R"({"symbol":"b","reason":"unmapped-address","message":"can't be read"},)"
                              R"({"symbol":"c","reason":"unmapped-address","message":"can't be read, either"}])";
  CHECK(skipped_summary(JsonView(std::string_view(kSkipped)), true) == "3 skipped, 2 of them as b: can't be read");
  CHECK(skipped_summary(JsonView(std::string_view("[]")), true) == "");
}

TEST_CASE("a string that may have been cut is marked") {
  const auto shown = [](std::size_t bytes) {
    const std::string text(bytes, 'a');
    const std::string line = line_of(event(R"({"s":")" + text + R"("})"));
    REQUIRE(line.find(text) != line.npos);
    return line.substr(line.find(text) + bytes);
  };
  CHECK(shown(511) == "\"\n");
  CHECK(shown(512) == "\"...\n");
}

TEST_CASE("values keep their notation") {
  struct Row {
    const char *args, *text;
  };
  const Row rows[] = {
      {R"({"s":null})", "s=(fault)"},
      {R"({"s":"a b"})", "s=\"a b\""},
      {R"({"s":""})", "s=\"\""},
      {R"({"s":"0x10"})", "s=\"0x10\""},
      {R"({"x":"0x10"})", "x=0x10"},
      {R"({"i":-9223372036854775808})", "i=-9223372036854775808"},
      {R"({"i":18446744073709551615})", "i=18446744073709551615"},
      {R"({"c":"a"})", "c='a'"},
      {R"({"sym":"main+0x4"})", "sym=main+0x4"},
      {R"({"i":[1,null,3]})", "i={1,(fault),3}"},
      {R"({"i":[]})", "i={}"},
      {R"({"a":["p","q"]})", "a={\"p\",\"q\"}"},
      {R"({"s":"say \"hi\" \\ bye"})", R"(s="say \"hi\" \\ bye")"},
      {R"({"s":"\u001b]0;owned\u0007"})", R"(s="\x1b]0;owned\x07")"},
      {R"({"s":"line\nbreak\ttab"})", R"(s="line\x0abreak\x09tab")"},
      {R"({"s":"\u009b31m"})", R"(s="\xc2\x9b31m")"},
      {R"({"s":"a\u202eb\u2066c\u200fd\u061c"})", R"(s="a\xe2\x80\xaeb\xe2\x81\xa6c\xe2\x80\x8fd\xd8\x9c")"},
      {R"({"s":"\udc9b31m\udcff"})", R"(s="\x9b31m\xff")"},
      {R"({"s":"\u007f"})", R"(s="\x7f")"},
      {R"({"s":"caf\u00e9 \ud83d\ude00"})", "s=\"caf\u00e9 \U0001f600\""},
      {R"({"s":"a","i":1,"x":"0xff"})", "s=\"a\" i=1 x=0xff"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.args);
    CHECK(line_of(event(row.args)) ==
          std::string("redis-server-1448 [001] 1038282.286875123: cmd: (processCommand+0x0) ") + row.text + "\n");
  }
}

TEST_CASE("a structure is printed as the JSON that it is, and cannot drive the terminal") {
  struct Row {
    const char *args, *text;
  };
  const Row rows[] = {
      {R"({"v":{"s":"h\"e\né","i":-1,"n":null,"l":[1,{"t":"\\ \u001b"}]}})",
       R"(v={"s":"h\"e\né","i":-1,"n":null,"l":[1,{"t":"\\ \u001b"}]})"},
      {"{\"v\":{\"s\":\"\u009b[1m\x7f\xff\\udc80\"}}", R"(v={"s":"\u009b[1m\u007f\udcff\udc80"})"},
      {R"({"v":[{"s":"a\"b"},{"s":"\t"}]})", R"(v={{"s":"a\"b"},{"s":"\t"}})"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.args);
    CHECK(line_of(event(row.args)) ==
          std::string("redis-server-1448 [001] 1038282.286875123: cmd: (processCommand+0x0) ") + row.text + "\n");
  }
}

TEST_CASE("without types, what looks like a hexadecimal value is one, all else is a string") {
  CHECK(line_of(event(R"({"a":"0x7f","b":"0xyz","c":"0x"})", "99")).ends_with("a=0x7f b=\"0xyz\" c=\"0x\"\n"));
}

TEST_CASE("a name or symbol cannot drive the terminal either") {
  const auto line = line_of(R"({"probe":"g/n\u001b[2J","id":1,"pid":1,"tid":1,"comm":"a\u001bb\\","cpu":0,"time":1,)"
                            R"("symbol":"f\r+0x0","args":{"k\u001b":1}})");
  CHECK(line == "a\\x1bb\\\\-1 [000] 0.000000001: n\\x1b[2J: (f\\x0d+0x0) k\\x1b=1\n");
}

TEST_CASE("the list has its columns in order, with the tags that apply") {
  const auto probe = [](const char* state, const char* tier) {
    const auto json =
        std::string(R"({"id":1,"name":"probes/cmd","kind":"p","address":"0x55d0","symbol":"f+0x4","module":"m",)") +
        "\"state\":\"" + state + "\",\"tier\":\"" + tier + "\"}";
    return list_line(JsonView(std::string_view(json)));
  };
  CHECK(probe("enabled", "stepped") == "0x55d0  p  f+0x4  m  probes/cmd");
  CHECK(probe("enabled", "boosted") == "0x55d0  p  f+0x4  m  probes/cmd  [BOOSTED]");
  CHECK(probe("enabled", "optimized") == "0x55d0  p  f+0x4  m  probes/cmd  [OPTIMIZED]");
  CHECK(probe("disabled", "boosted") == "0x55d0  p  f+0x4  m  probes/cmd  [DISABLED]");
  CHECK(probe("gone", "boosted") == "0x55d0  p  f+0x4  m  probes/cmd  [GONE]");
  CHECK(probe("pending", "stepped") == "0x55d0  p  f+0x4  m  probes/cmd  [PENDING]");
}

TEST_CASE("the profile has the kernel's columns and the filtered ones") {
  CHECK(profile_line(JsonView(R"({"name":"probes/cmd","hits":18446744073709551615,"missed":2,"filtered":3})")) ==
        "  probes/cmd                                   18446744073709551615               2               3");
}

TEST_CASE("a faulty definition is shown with a caret under the fault") {
  const std::vector<std::string> one{"p:x f a=%foo"};
  const Error error{Reason::bad_definition, "no such register", "see the manual", 10};
  CHECK(error_report(error, false, {}, {one, ""}) ==
        "probectl: no such register (see the manual)\n  p:x f a=%foo\n            ^\n");
}

TEST_CASE("the caret stands right after multi-byte and escaped characters, and under the filter for its faults") {
  const std::vector<std::string> one{"p:\u00e9\x1b f"};
  CHECK(error_report({Reason::bad_definition, "m", "", 5}, false, {}, {one, ""}) ==
        "probectl: m\n  p:\u00e9\\x1b f\n         ^\n");
  CHECK(error_report({Reason::bad_filter, "m", "", 2}, false, {}, {one, "a@b"}) == "probectl: m\n  a@b\n    ^\n");
  CHECK(error_report({Reason::bad_definition, "m", "", 99}, false, {}, {{&one[0], 1}, ""}).ends_with("^\n"));
}

TEST_CASE("of several definitions the one at fault is shown, as the daemon says which") {
  const std::vector<std::string> two{"f a=1", "g b=2"};
  CHECK(error_report({Reason::bad_definition, "wrong", "", 2, 1}, false, {}, {two, ""}) ==
        "probectl: wrong\n  g b=2\n    ^\n");
  CHECK(error_report({Reason::bad_definition, "wrong", "", 2, 9}, false, {}, {two, ""}) == "probectl: wrong\n");
  CHECK(error_report({Reason::bad_definition, "wrong", "", 2}, false, {}, {two, ""}) == "probectl: wrong\n");
  CHECK(error_report({Reason::bad_definition, "m", "", 2, 1}, true).find("\"column\":2,\"definition\":1}") !=
        std::string::npos);
}

TEST_CASE("a sentence for people doubles no backslash, and still cannot drive the terminal") {
  CHECK(error_report({Reason::bad_definition, R"(write \123 or \"text")", R"(not \x)", {}}, false) ==
        "probectl: write \\123 or \\\"text\" (not \\x)\n");
  CHECK(error_report({Reason::internal, "a\x1b[2J", "", {}}, false) == "probectl: a\\x1b[2J\n");
}

TEST_CASE("people get what it takes to act on a probe behind the columns that scripts know") {
  const JsonView probe(R"({"id":3,"name":"my/h","kind":"p","pid":1447,"address":"0x55","symbol":"f+0x0","module":"m",)"
                       R"("state":"enabled","tier":"boosted","filter":"argc > 1","hits":4,"missed":0,"filtered":2})");
  CHECK(wide_list_line(probe) == list_line(probe) + "  id 3  pid 1447  if argc > 1");
  CHECK(wide_profile_line(probe) == profile_line(probe) + "  id 3  pid 1447");
  CHECK(probe_reference(probe) == "my/h (id 3, PID 1447)");
}

TEST_CASE("a probe that is not in place shows no tier: the daemon is disarmed") {
  CHECK(list_line(JsonView(R"({"name":"g/n","kind":"p","address":"0x5","symbol":"f","module":"m","state":"enabled",)"
                           R"("tier":"boosted","armed":false})")) == "0x5  p  f  m  g/n");
}

TEST_CASE("as JSON an error has the keys that apply and no others") {
  CHECK(error_report({Reason::bad_definition, "a \"b\"", "h", 4}, true) ==
        "{\"error\":{\"reason\":\"bad-definition\",\"message\":\"a \\\"b\\\"\",\"column\":4,\"hint\":\"h\"}}\n");
  CHECK(error_report({Reason::internal, "m", "", {}}, true, "no-daemon") ==
        "{\"error\":{\"reason\":\"no-daemon\",\"message\":\"m\"}}\n");
}

}  // namespace
}  // namespace probed::client
