// Rust's variables by name on real processes, at every level of optimisation: the program says itself what they hold.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/live/telling.hpp"

namespace probed::live {
namespace {

constexpr int kRounds = 6;
const std::string kOrder =
    " id=order.id title=order.title note=order.note x=order.at.x y=order.at.y paid=order.paid"
    " green=order.colour";

struct Gathered {
  std::vector<Json> truths, events;
};

// One event of the definition at each of some calls.
Gathered gather(RpcClient& client, TellingTarget& user, const std::string& definition) {
  Gathered out;
  const auto probes = add(client, user.pid(), {definition});
  Events events(client);
  for (int i = 0; i < kRounds; ++i) out.truths.push_back(user.truth("call " + std::to_string(i)));
  CHECK(events.reach(kRounds));
  for (const Json& event : events.all()) out.events.push_back(event.at("args"));
  remove_all(client, probes);
  return out;
}

// What is shown is what the program says; of `surely` nothing may be missing.
void check_values(const Gathered& gathered, const char* part, const std::vector<std::string>& surely) {
  REQUIRE(gathered.events.size() == gathered.truths.size());
  for (std::size_t i = 0; i < gathered.events.size(); ++i) {
    const Json& args = gathered.events[i];
    const Json& truth = gathered.truths[i].at(part);
    CAPTURE(args.dump());
    for (const auto& [name, value] : truth.items()) {
      CAPTURE(name);
      REQUIRE(args.contains(name));
      const bool may_miss = std::ranges::find(surely, name) == surely.end();
      CHECK((args.at(name) == value || (may_miss && args.at(name).is_null())));
    }
  }
}

TEST_CASE("Rust without optimisation: parameters of every kind have their values behind the function's entry" *
          doctest::skip(!target_runs("rustvalues-O0"))) {
  Daemon daemon;
  RpcClient client(daemon.socket());
  TellingTarget user("rustvalues-O0");
  const Json lines = user.truth("lines");
  const auto line = [&](const char* name) { return "rustvalues.rs:" + std::to_string(lines.at(name).get<int>()); };
  const std::string names = " number byte long word flag real text owned=*owned";
  auto taken = gather(client, user, "p:t " + line("take") + names);
  check_values(taken, "take", {"number", "byte", "long", "word", "flag", "real", "text", "owned"});
  check_values(gather(client, user, "p:p " + line("place") + " colour moved small"), "place",
               {"colour", "moved", "small"});
  check_values(gather(client, user, "p:o " + line("place") + kOrder), "order",
               {"id", "title", "note", "x", "y", "paid", "green"});
  CHECK(user.unharmed());
  CHECK(user.ends_well());
}

// Rust's own calling convention is written down nowhere: what only that could tell is null, and said to be.
TEST_CASE("Rust without optimisation: at a function's entry its parameters are null, which the probe says" *
          doctest::skip(!target_runs("rustvalues-O0"))) {
  Daemon daemon;
  RpcClient client(daemon.socket());
  TellingTarget user("rustvalues-O0");
  const Json probe = add(client, user.pid(), {"p:t rustvalues::take $args"}).at(0);
  CHECK(probe.at("notes").dump().find(" more are null: ") != std::string::npos);
  Events events(client);
  user.truth("call 3");
  REQUIRE(events.reach(1));
  for (const auto& [name, value] : events.all().at(0).at("args").items()) CHECK_MESSAGE(value.is_null(), name);
  CHECK(user.ends_well());
}

TEST_CASE("Rust, optimised: at a function's entry what is shown of its parameters is true" *
          doctest::skip(!target_runs("rustvalues-O2"))) {
  for (const bool optimize : {false, true}) {
    CAPTURE(optimize);
    Daemon daemon;
    RpcClient client(daemon.socket());
    if (!optimize) client.call("daemon.optimize", {{"enabled", false}});
    TellingTarget user("rustvalues-O2");
    check_values(gather(client, user, "p:t rustvalues::take number byte long word flag real text owned=*owned"), "take",
                 {"number", "long", "word", "real", "owned"});
    check_values(gather(client, user, "p:p rustvalues::place colour moved small"), "place", {"moved"});
    check_values(gather(client, user, "p:o rustvalues::place" + kOrder), "order",
                 {"id", "title", "note", "x", "y", "paid", "green"});
    CHECK(user.unharmed());
    CHECK(user.ends_well());
  }
}

TEST_CASE("Rust: results are what the program says" * doctest::skip(!target_runs("rustvalues-O2"))) {
  for (const std::string& build : runnable({"rustvalues-O0", "rustvalues-O2"})) {
    CAPTURE(build);
    Daemon daemon;
    RpcClient client(daemon.socket());
    TellingTarget user(build);
    add(client, user.pid(), {"r:t rustvalues::take $retval:s64"});
    Events events(client);
    std::vector<Json> truths;
    for (int i = 0; i < kRounds; ++i) truths.push_back(user.truth("call " + std::to_string(i)));
    REQUIRE(events.reach(kRounds));
    for (std::size_t i = 0; i < truths.size(); ++i)
      CHECK(events.all()[i].at("args").at("$retval") == truths[i].at("results").at(0));
    CHECK(user.ends_well());
  }
}

}  // namespace
}  // namespace probed::live
