// Fortran's variables by name on real processes: where arrays begin, how they are ordered, what has no end that is
// known. The program says itself what they hold.
#include <doctest/doctest.h>

#include "tests/live/telling.hpp"

namespace probed::live {
namespace {

// Behind take()'s entry, where every argument is where the compiler has put it.
std::string first_line_of_take() {
  const std::string text = read_file(required_environment("SOURCE_DIR") + "/tests/targets/fortranvalues.f90");
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(text.find("advance='no') '{'"));
  return "fortranvalues.f90:" + std::to_string(std::count(text.begin(), end, '\n') + 1);
}

const std::string kNamed =
    " number whole flag three from_minus_two grid names title where_at third=three[3] first=from_minus_two[-2]"
    " corner=grid[1][3] deep=cube[2][1][2] second=open[2] name=names[2] hidden h=hidden[1] open";

void check_values(Json args, Json truth) {
  CAPTURE(args.dump());
  CHECK(args.at("whole") == truth.at("whole_quarters").get<int>() / 4.0);
  CHECK(args.at("where_at") == Json{{"x", truth.at("x")}, {"y", truth.at("y_quarters").get<int>() / 4.0}});
  CHECK(args.at("name") == truth.at("names")[1]);
  CHECK(args.at("hidden").is_null());  // not the bytes of its descriptor
  CHECK(args.at("h").is_null());
  for (const char* own : {"whole_quarters", "x", "y_quarters"}) truth.erase(own);
  for (const auto& [name, value] : truth.items()) {
    CAPTURE(name);
    CHECK(args.at(name) == value);
  }
}

TEST_CASE("Fortran: arrays begin where the source says, by columns; what only the running program knows is null" *
          doctest::skip(!target_runs("fortranvalues-O0"))) {
  const std::string line = first_line_of_take();
  in_both_tiers(runnable({"fortranvalues-O0", "fortranvalues-O2"}),
                [&](const std::string&, bool, RpcClient& client, TellingTarget& user) {
                  add(client, user.pid(), {"p:t " + line + kNamed});
                  Events events(client);
                  std::vector<Json> truths;
                  for (int n = 0; n < 5; ++n) truths.push_back(user.truth("call " + std::to_string(n * 7)));
                  REQUIRE(events.reach(5));
                  for (std::size_t i = 0; i < 5; ++i) check_values(events.all()[i].at("args"), truths[i]);
                  const auto refused = [&](const std::string& path) {
                    return add_error(client, user.pid(), {"p:x " + line + " " + path}).value("message", "");
                  };
                  CHECK(refused("three[0]") == "\"three[0]\": the first element is [1]");
                  CHECK(refused("three[4]") == "\"three[4]\": the last element is [3]");
                  CHECK(refused("from_minus_two[-3]") == "\"from_minus_two[-3]\": the first element is [-2]");
                  CHECK(refused("grid[1]") == "\"grid[1]\": an integer(kind=4) [2][3] takes 2 subscripts");
                  CHECK(refused("grid[3][1]") == "\"grid[3][1]\": the last element is [2]");
                });
}

}  // namespace
}  // namespace probed::live
