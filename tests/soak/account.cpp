// Exact accounts: the standing target says how often it has called a function between the probe's going in and its
// removal, and what each call was given follows from the call's number.
#include <algorithm>
#include <thread>
#include <utility>

#include "tests/soak/actions.hpp"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast"  // it is C
#include "tests/targets/work.h"
#pragma GCC diagnostic pop

namespace probed::soak {
namespace {

using live::Events;
using live::RpcClient;

struct Subject {
  const char* definition;
  unsigned calls_a_round;
  bool tells;  // number, call and text (or result) of work(), which can be checked
};
const std::vector<Subject> kProbes = {
    {"p:soaked/x work number=$arg1:s32 call=$arg2:s64 text=+0($arg3):string", 1, true},
    {"p:soaked/x work number=$arg1:s32", 1, false},
    {"p:soaked/x leaf number=$arg1:s64", 2, false},
    {"p:soaked/x nest n=$arg1:s64", 4, false}};
const std::vector<Subject> kReturns = {{"r:soaked/x work number=$arg1:s32 call=$arg2:s64 result=$retval:s32", 1, true},
                                       {"r:soaked/x leaf result=$retval:s64", 2, false},
                                       {"r:soaked/x nest result=$retval:s64", 4, false}};

struct Plan {
  const char* tier = "";
  Subject subject{};
  Json options = Json::object();  // of probe.add
  Json probe = Json::object();    // its one probe
  bool filtered = false, subscribed = false, reads = false, toggles = false, neighbours = false;
};

Plan choose(Dice& dice) {
  Plan plan;
  const auto tier = dice.below(5);
  const bool returns = tier >= 3;
  plan.subject = returns ? dice.any(kReturns) : dice.any(kProbes);
  plan.tier = tier == 0 ? "stepped" : tier == 1 ? "boosted" : "optimized";
  plan.probe["definition"] = plan.subject.definition;
  if (tier == 0) plan.options["x-step"] = true;
  if (tier == 1) plan.probe["optimize"] = false;
  plan.filtered = std::string(plan.subject.definition).find("number=$arg1:s32") != std::string::npos && dice.one_in(3);
  if (plan.filtered) plan.probe["filter"] = "number == 0";
  plan.subscribed = !dice.one_in(3);
  plan.reads = dice.one_in(2);
  plan.toggles = dice.one_in(3);
  plan.neighbours = dice.one_in(3);
  return plan;
}

// The work that a call with this number was given, and what came of it.
bool right(const Json& event, std::uint64_t calls) {
  const Json& args = event.at("args");
  const int number = args.at("number");
  const long call = args.at("call");
  if (number < 0 || number >= static_cast<int>(Standing::kThreads) || call < 0) return false;
  if (static_cast<std::uint64_t>(call) > calls) return false;
  if (args.contains("text")) return args.at("text") == work_text(call);
  return args.at("result") == expected_work(number, call, work_text(call));
}

void check_events(Ledger& ledger, const Plan& plan, const Events& events, std::uint64_t hits, std::uint64_t rounds) {
  ledger.check(Wrong::unaccounted, "delivered + missed events", hits, events.told_delivered() + events.told_missed());
  ledger.check(Wrong::unaccounted, "received events", events.told_delivered(), events.all().size());
  ledger.check(Wrong::unaccounted, "the notifications' missed events", events.told_missed(), events.missed());
  ledger.figures.accounted_events += events.all().size();
  if (!plan.subject.tells) return;
  std::vector<std::pair<int, long>> seen;
  for (const Json& event : events.all()) {
    if (!right(event, rounds)) ledger.fail(Wrong::result, "what the call was given", event.dump());
    seen.emplace_back(event.at("args").at("number"), event.at("args").at("call"));
  }
  std::ranges::sort(seen);
  if (const auto twice = std::ranges::adjacent_find(seen); twice != seen.end())
    ledger.fail(Wrong::unaccounted, "each call once", "call " + std::to_string(twice->second) + " twice");
}

// What goes on beside it while the calls are counted: none of it may lose or add one.
void disturb(Scene& scene, const Plan& plan) {
  RpcClient other(scene.daemon.socket());
  const auto until = Clock::now() + Millis{scene.dice.between(5, 40)};
  bool optimize = true;
  while (Clock::now() < until) {
    if (plan.toggles) other.call("daemon.optimize", {{"enabled", optimize = !optimize}});
    if (plan.neighbours) {
      const std::vector<Json> added = live::add(other, scene.fleet.standing().pid(), {"work", "leaf", "r:back nest"});
      std::this_thread::sleep_for(Micros{scene.dice.below(4000)});  // a random moment is the point
      live::remove_all(other, added);
    }
    std::this_thread::sleep_for(Millis{1});
  }
  if (!optimize) other.call("daemon.optimize", {{"enabled", true}});
}

std::string tier_of(RpcClient& client, const Json& probe) {
  for (const Json& other : live::list_probes(client))
    if (other.at("id") == probe.at("id")) return other.at("tier");
  return "(none)";
}

}  // namespace

void account(Scene& scene) {
  Standing& standing = scene.fleet.standing();
  Ledger& ledger = scene.ledger;
  const Plan plan = choose(scene.dice);
  RpcClient client(scene.daemon.socket()), reader(scene.daemon.socket());
  client.call("daemon.optimize", {{"enabled", true}});
  client.call("daemon.arm");
  const Standing::Rounds before = standing.pause();
  Json params = plan.options;
  params.update({{"pid", standing.pid()}, {"probes", {plan.probe}}});
  std::optional<Events> events;
  const Json probe = client.call("probe.add", params, Millis{30'000}).at("probes").at(0);
  if (plan.subscribed) events.emplace(reader, Json{{"probes", {probe.at("id")}}});
  live::eventually([&] { return tier_of(client, probe) == plan.tier; }, Millis{300});
  standing.resume();
  disturb(scene, plan);
  if (events && plan.reads) events->reach(2000, Millis{50});
  const Standing::Rounds after = standing.pause();
  const live::Counts counts = live::counts_of(client, probe);
  const std::uint64_t calls = (after.all - before.all) * plan.subject.calls_a_round;
  ledger.check(Wrong::unaccounted,
               std::string(plan.tier) + " " + plan.probe.dump() + ": hits + filtered, of the calls,", calls,
               counts.hits + counts.filtered);
  if (plan.filtered)
    ledger.check(Wrong::unaccounted, "hits of those the filter lets through", after.first - before.first, counts.hits);
  if (counts.missed > counts.hits)
    ledger.fail(Wrong::unaccounted, "no more missed than hit", std::to_string(counts.missed));
  if (events) events->end();
  if (events) check_events(ledger, plan, *events, counts.hits, after.all);
  live::remove_all(client, {probe});
  standing.resume();
  ++ledger.figures.accounts;
  ledger.figures.accounted_calls += calls;
}

}  // namespace probed::soak
