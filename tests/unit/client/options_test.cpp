// The command line: what is accepted, what is wrong usage (2), what only prints (0).
#include "client/probectl/options.hpp"

#include <doctest/doctest.h>

#include <sstream>

#include "client/probectl/process.hpp"
#include "client/probectl/trace.hpp"

namespace probed::client {
namespace {

using Args = std::vector<std::string>;

Options accepted(const Args& args) {
  const auto parsed = parse_options(args);
  const auto* options = std::get_if<Options>(&parsed);
  if (!options) FAIL(std::get_if<Exit>(&parsed)->err);
  return *options;
}

TEST_CASE("trace takes its options, in any order, with every -e a definition of its own") {
  const auto o =
      accepted({"trace", "-e", "p:a f x=%di", "--json", "-p", "42", "-e", "g%return", "--filter", "x > 1", "--count",
                "5", "--duration", "0.5", "--follow-fork", "--no-optimize", "--no-spawn", "-o", "file"});
  CHECK(o.command == Command::trace);
  CHECK(o.pid == 42);
  CHECK(o.probes == Args{"p:a f x=%di", "g%return"});
  CHECK(o.filter == "x > 1");
  CHECK(o.count == 5u);
  CHECK(o.seconds == 0.5);
  CHECK((o.follow_fork && o.no_optimize && o.no_spawn && o.json()));
  CHECK_FALSE(o.sort);
  CHECK(o.out_file == "file");
}

TEST_CASE("whether events are put in order is said by --sort or --no-sort, else left to what they go to") {
  CHECK(accepted({"trace", "-p", "7", "-e", "f", "--sort"}).sort == true);
  CHECK(accepted({"stream", "--no-sort"}).sort == false);
  CHECK(std::get<Exit>(parse_options({"stream", "--sort", "--no-sort"})).status == 2);
}

TEST_CASE("everything after -- belongs to the command") {
  const auto o = accepted({"trace", "-e", "f", "--", "ls", "-p", "--json", "--", "-e"});
  CHECK(o.command_line == Args{"ls", "-p", "--json", "--", "-e"});
  CHECK_FALSE(o.json());
  CHECK(o.probes == Args{"f"});
}

TEST_CASE("--socket and --json stand before or after the sub-command") {
  CHECK(accepted({"--socket", "/s", "--json", "list"}).socket == "/s");
  CHECK(accepted({"list", "--socket", "/s"}).socket == "/s");
  CHECK(accepted({"--json", "list"}).json());
  CHECK(accepted({"list", "--json", "-p", "7"}).pid == 7);
  CHECK(accepted({"trace", "-p", "7", "-e", "f", "--format", "json"}).json());
}

TEST_CASE("each sub-command of the contract is accepted") {
  const Args rows[] = {
      {"attach", "7"},
      {"detach", "7"},
      {"ps"},
      {"add", "-p", "7", "f", "g x=%di"},
      {"add", "-p", "7", "f", "--filter", "x", "--disabled", "--no-optimize"},
      {"remove", "a", "3"},
      {"remove", "--all"},
      {"enable", "a"},
      {"disable", "3"},
      {"list"},
      {"profile", "-p", "7"},
      {"stream"},
      {"stream", "-p", "7", "a", "b"},
      {"format", "a"},
      {"arm"},
      {"disarm"},
      {"optimize", "on"},
      {"optimize", "off"},
      {"functions", "-p", "7"},
      {"functions", "-p", "7", "mem*"},
      {"vars", "-p", "7", "f"},
      {"status"},
      {"trace", "-n", "redis-server", "-e", "f"},
  };
  for (const auto& args : rows) accepted(args);
  CHECK(accepted({"add", "-p", "7", "f", "g x=%di"}).probes == Args{"f", "g x=%di"});
  CHECK(accepted({"optimize", "on"}).switch_on);
  CHECK_FALSE(accepted({"optimize", "off"}).switch_on);
}

std::string usage_error_of(const Args& args) {
  const auto parsed = parse_options(args);
  const auto* exit = std::get_if<Exit>(&parsed);
  REQUIRE(exit);
  CHECK(exit->status == 2);
  return exit->err;
}

TEST_CASE("times are seconds, or written with their unit") {
  const auto of = [](const std::string& duration, const std::string& expire) {
    const auto parsed = parse_options({"trace", "-p", "7", "-e", "f", "--duration", duration, "--expire", expire});
    REQUIRE(std::holds_alternative<Options>(parsed));
    const auto& options = std::get<Options>(parsed);
    return std::pair(options.seconds.value(), options.expire.value());
  };
  CHECK(of("1.5", "90") == std::pair<double, std::uint64_t>(1.5, 90));
  CHECK(of("200ms", "5m") == std::pair<double, std::uint64_t>(0.2, 300));
  CHECK(of("1500us", "8h") == std::pair<double, std::uint64_t>(0.0015, 28'800));
  CHECK(of("2m", "90s") == std::pair<double, std::uint64_t>(120, 90));
  for (const std::string wrong : {"5x", "ms", "-5ms", "1e3ms", "1.2.3s", "0s", ""})
    CHECK_MESSAGE(std::holds_alternative<Exit>(parse_options({"trace", "-p", "7", "-e", "f", "--duration", wrong})),
                  wrong);
  CHECK(usage_error_of({"trace", "-p", "7", "-e", "f", "--expire", "1500ms"}).find("'1500ms' is no time of 1 to") !=
        std::string::npos);
  CHECK(usage_error_of({"trace", "-p", "7", "-e", "f", "--duration", "1x"}).find("'1x' is no time") !=
        std::string::npos);
}

TEST_CASE("wrong usage is status 2, with one line that says what") {
  const Args rows[] = {
      {},
      {"bogus"},
      {"--bogus"},
      {"list", "--bogus"},
      {"list", "extra"},
      {"trace"},
      {"trace", "-p", "7"},
      {"trace", "-e", "f"},
      {"trace", "-p", "7", "-n", "x", "-e", "f"},
      {"trace", "-p", "7", "-e", "f", "--", "ls"},
      {"trace", "-e", "f", "--"},
      {"trace", "-p", "x", "-e", "f"},
      {"trace", "-p", "0", "-e", "f"},
      {"trace", "-p", "-1", "-e", "f"},
      {"trace", "-p", "99999999999", "-e", "f"},
      {"trace", "-p", "7", "-e", "f", "--count", "0"},
      {"trace", "-p", "7", "-e", "f", "--count", "many"},
      {"trace", "-p", "7", "-e", "f", "--duration", "-1"},
      {"trace", "-p", "7", "-e", "f", "--format", "xml"},
      {"attach"},
      {"attach", "x"},
      {"add", "f"},
      {"add", "-p", "7"},
      {"remove"},
      {"remove", "a", "--all"},
      {"optimize"},
      {"optimize", "maybe"},
      {"format"},
      {"functions"},
  };
  for (const auto& args : rows) {
    std::string shown;
    for (const auto& arg : args) shown += arg + " ";
    CAPTURE(shown);
    const auto parsed = parse_options(args);
    const auto* exit = std::get_if<Exit>(&parsed);
    REQUIRE(exit);
    CHECK(exit->status == 2);
    CHECK(exit->out.empty());
    CHECK(exit->err.starts_with("probectl: "));
    CHECK(exit->err.find('\n') == exit->err.size() - 1);
  }
}

TEST_CASE("a program in front of which -- is missing is told from a definition that the shell has divided") {
  CHECK(usage_error_of({"trace", "/bin/sh", "-e", "f"}).find("put -- in front of /bin/sh") != std::string::npos);
  CHECK(usage_error_of({"trace", "-e", "f", "sh", "-c"}).find("put -- in front of sh") != std::string::npos);
  CHECK(usage_error_of({"trace", "/bin/sh"}).find("put -- in front of /bin/sh, and what to probe after -e") !=
        std::string::npos);
  CHECK(usage_error_of({"trace", "-p", "7", "-e", "f", "n"}).find("-e 'f n'") != std::string::npos);
  CHECK(usage_error_of({"trace", "f"}).find("write -e 'f'") != std::string::npos);
}

TEST_CASE("wrong usage is explained in words of the command line, not of the parser or the protocol") {
  struct Row {
    Args args;
    const char* said;
  };
  const Row rows[] = {
      {{"trace", "-p", "99999999", "-e", "f"}, "no process has the number 99999999: they end at 4194304"},
      {{"attach", "1"}, "process 1 (init) is never traced"},
      {{"trace", "-p", "abc", "-e", "f"}, "'abc' is no process id"},
      {{"trace", "-p", "7", "-e", ""}, "the definition of a probe is empty"},
      {{"trace", "-p", "7", "-p", "8", "-e", "f"}, "--pid may be given once only"},
      {{"trace", "-p"}, "--pid needs a value: PID"},
      {{"trace", "-p", "7", "handle"}, "write -e 'handle'"},
      {{"trace", "-p", "7", "-e", "-:x"}, "use probectl remove"},
      {{"trace", "-p", "7", "-e", "w\xffrk"}, "is no UTF-8 text"},
      {{"add", "-p", "7", "work", "--filter", "a ~ \"\xff\""}, "is no UTF-8 text"},
      {{"trcae"}, "there is no sub-command 'trcae'; did you mean trace?"},
      {{"lst"}, "did you mean list?"},
      {{"trace", "-p", "7", "-e", "f", "--json", "--format", "text"}, "--json and --format text contradict each other"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.said);
    const auto error = usage_error_of(row.args);
    CAPTURE(error);
    CHECK(error.find(row.said) != std::string::npos);
  }
  CHECK(usage_error_of({"quux"}).find("did you mean") == std::string::npos);
}

TEST_CASE("what is missing or mistyped is named as people write it") {
  CHECK(usage_error_of({"trace", "-p", "7"}).find("-e PROBE") != std::string::npos);
  CHECK(usage_error_of({"trace", "-p", "7", "-e", "f", "--cuont", "1"}).find("'--cuont'; did you mean --count?") !=
        std::string::npos);
  CHECK(usage_error_of({"list", "--bogus"}).find("did you mean") == std::string::npos);
  CHECK(usage_error_of({"help", "trce"}).find("did you mean trace?") != std::string::npos);
}

TEST_CASE("help can be asked for as git has it, and the version by its letter") {
  const auto text_of = [](const Args& args) {
    const auto parsed = parse_options(args);
    const auto* exit = std::get_if<Exit>(&parsed);
    REQUIRE(exit);
    CHECK(exit->status == 0);
    return exit->out;
  };
  CHECK(text_of({"help"}) == text_of({"--help"}));
  CHECK(text_of({"help", "trace"}) == text_of({"trace", "--help"}));
  CHECK(text_of({"-V"}) == text_of({"--version"}));
}

TEST_CASE("no line of the help is wider than a terminal, but for those CLI11 makes of options") {
  const auto parsed = parse_options({"--help"});
  std::istringstream lines(std::get<Exit>(parsed).out);
  for (std::string line; std::getline(lines, line);) CHECK_MESSAGE(line.size() <= 120, line);
}

TEST_CASE("the help of what adds probes tells of return probes") {
  for (const Args& args : {Args{"--help"}, Args{"trace", "--help"}, Args{"add", "--help"}}) {
    const auto parsed = parse_options(args);
    const std::string& help = std::get<Exit>(parsed).out;
    for (const char* word : {"r[MAXACTIVE][:[GROUP/]NAME]", "%return", "$retval", "$duration"}) {
      CAPTURE(word);
      CHECK(help.find(word) != std::string::npos);
    }
  }
}

TEST_CASE("-:NAME is a definition for add, not an option") {
  CHECK(accepted({"add", "-p", "7", "f", "-:g/old"}).probes == Args{"f", "-:g/old"});
}

TEST_CASE("wrong usage with --json is one JSON object") {
  const auto parsed = parse_options({"list", "--json", "--bogus"});
  const auto* exit = std::get_if<Exit>(&parsed);
  REQUIRE(exit);
  CHECK(exit->err.starts_with("{\"error\":{\"reason\":\"bad-params\",\"message\":\""));
  CHECK(exit->err.ends_with("}}\n"));
}

TEST_CASE("help and version print to standard output and succeed") {
  for (const Args& args : {Args{"--help"}, Args{"trace", "--help"}, Args{"--version"}}) {
    const auto parsed = parse_options(args);
    const auto* exit = std::get_if<Exit>(&parsed);
    REQUIRE(exit);
    CHECK(exit->status == 0);
    CHECK_FALSE(exit->out.empty());
    CHECK(exit->err.empty());
  }
}

TEST_CASE("a trace adds its probes disabled, with what was asked for and nothing else") {
  CHECK(trace_add_params(accepted({"trace", "-p", "7", "-e", "f"}), 7) ==
        R"({"pid":7,"probes":[{"definition":"f","disabled":true}]})");
  CHECK(trace_add_params(accepted({"trace", "-p", "7", "-e", "f", "-e", "g", "--filter", "a", "--count", "3",
                                   "--follow-fork", "--no-optimize", "--max-rate", "0", "--expire", "9"}),
                         7) ==
        R"({"pid":7,"probes":[{"definition":"f","filter":"a","disabled":true,"optimize":false},)"
        R"({"definition":"g","filter":"a","disabled":true,"optimize":false}],"limit":3,"maxRate":0,"expire":9,)"
        R"("followFork":true})");
}

TEST_CASE("hits are always delivered plus missed") {
  const auto equals = [](Account a, std::uint64_t h, std::uint64_t d, std::uint64_t m) {
    return a.hits == h && a.delivered == d && a.missed == m && h == d + m;
  };
  CHECK(equals(make_account(10, 7, 3), 10, 7, 3));
  CHECK(equals(make_account(10, 7, 0), 10, 7, 3));
  CHECK(equals(make_account(0, 7, 2), 9, 7, 2));  // the daemon went away: its counters are unknown
}

TEST_CASE("a process is found by its exact comm or executable name, and only when it is the only one") {
  const ProcessName rows[] = {{10, "redis-server", "/usr/bin/redis-check-rdb"},
                              {11, "worker", "/usr/bin/a-name-of-more-than-15"},
                              {12, "worker", ""},
                              {13, "old", "/opt/old (deleted)"}};
  CHECK(*choose_by_name(rows, "redis-server") == 10);
  CHECK(*choose_by_name(rows, "redis-check-rdb") == 10);
  CHECK(*choose_by_name(rows, "a-name-of-more-than-15") == 11);
  CHECK(*choose_by_name(rows, "old") == 13);
  CHECK(choose_by_name(rows, "redis").error().reason == Reason::no_such_process);
  CHECK(choose_by_name(rows, "").error().reason == Reason::no_such_process);
  const auto several = choose_by_name(rows, "worker");
  REQUIRE_FALSE(several);
  CHECK(several.error().message == "2 processes are named 'worker': 11, 12");
}

}  // namespace
}  // namespace probed::client
