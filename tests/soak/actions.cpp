// The everyday things that clients do, at random and on random targets. Refusals are fine: the process may just be
// ending, or another client may have let it go.
#include "tests/soak/actions.hpp"

#include <thread>

namespace probed::soak {
namespace {

using live::RpcClient;

const std::vector<std::string> kStandingProbes = {
    "work",          "work a=$arg1:s32 s=+0($arg3):string", "leaf n=$arg1:s64", "nest",  "r:back work ret=$retval:s32",
    "r:nested nest", "r:left leaf ret=$retval:s64",         "libc:getppid",     "work+0"};

struct Place {
  pid_t pid;
  const std::vector<std::string>& definitions;
};
Place any_place(Scene& scene) {
  if (scene.dice.one_in(3)) return {scene.fleet.guest(), scene.fleet.guest_kind().definitions};
  return {scene.fleet.standing().pid(), kStandingProbes};
}

// Null: its daemon has gone, which ends the action.
Json ask(RpcClient& client, const char* method, const Json& params = Json::object()) {
  Json reply = client.request(method, params, Millis{30'000});
  if (reply.is_null()) throw std::runtime_error(std::string(method) + " was not answered");
  return reply;
}

Json add_some(Scene& scene, RpcClient& client, const Place& place) {
  Dice& dice = scene.dice;
  Json probes = Json::array();
  for (unsigned n = dice.between(1, 4); n > 0; --n) {
    Json probe{
        {"definition", dice.any(place.definitions)}, {"disabled", dice.one_in(6)}, {"optimize", !dice.one_in(4)}};
    if (dice.one_in(5)) probe["filter"] = "pid > 1 && cpu < 1000";
    probes.push_back(std::move(probe));
  }
  const Json reply = ask(client, "probe.add",
                         {{"pid", place.pid},
                          {"probes", probes},
                          {"x-step", dice.one_in(5)},
                          {"persist", dice.one_in(6)},
                          {"maxRate", 0}});
  Json ids = Json::array();
  if (reply.contains("result"))
    for (const Json& probe : reply.at("result").at("probes")) ids.push_back(probe.at("id"));
  return {{"ids", std::move(ids)}};
}

void blink(Scene& scene, unsigned most_us) {
  std::this_thread::sleep_for(Micros{scene.dice.below(most_us)});  // a random moment is the point
}

void churn(Scene& scene) {
  RpcClient client(scene.daemon.socket());
  for (unsigned i = scene.dice.between(1, 8); i > 0; --i) {
    const Json ids = add_some(scene, client, any_place(scene));
    blink(scene, 8000);
    if (scene.dice.one_in(2)) {
      ask(client, "probe.disable", ids);
      blink(scene, 500);
      ask(client, "probe.enable", ids);
    }
    if (!scene.dice.one_in(4)) ask(client, "probe.remove", ids);
  }
}

void turn_switches(Scene& scene) {
  RpcClient client(scene.daemon.socket());
  for (int i = 0; i < 3; ++i) add_some(scene, client, any_place(scene));
  for (unsigned i = scene.dice.between(2, 12); i > 0; --i) {
    ask(client, "daemon.optimize", {{"enabled", scene.dice.one_in(2)}});
    blink(scene, 12'000);
    if (scene.dice.one_in(3)) ask(client, "daemon.disarm"), ask(client, "daemon.arm");
  }
  ask(client, "daemon.optimize", {{"enabled", true}});
}

void attach_and_detach(Scene& scene) {
  RpcClient client(scene.daemon.socket());
  for (unsigned i = scene.dice.between(2, 8); i > 0; --i) {
    const Place place = any_place(scene);
    ask(client, "target.attach", {{"pid", place.pid}, {"followFork", scene.dice.one_in(3)}});
    if (!scene.dice.one_in(3)) add_some(scene, client, place);
    blink(scene, 3000);
    ask(client, "target.detach", {{"pid", place.pid}});
  }
}

void arm_many(Scene& scene) {
  RpcClient client(scene.daemon.socket());
  const char* const kGlobs[] = {"libc:str*", "libc:mem*", "libc:pthread_*", "libc:get*", "*"};
  ask(client, "probe.add",
      {{"pid", scene.fleet.standing().pid()}, {"probes", {{{"definition", scene.dice.any(kGlobs)}}}}});
  blink(scene, 30'000);
  if (scene.dice.one_in(2)) ask(client, "probe.remove", {{"all", true}});
}

// Comes, does half of something, goes: again and again.
void crowd(Scene& scene) {
  std::vector<std::unique_ptr<RpcClient>> there;
  for (unsigned i = scene.dice.between(10, 60); i > 0; --i) {
    there.push_back(std::make_unique<RpcClient>(scene.daemon.socket()));
    if (scene.dice.one_in(4)) add_some(scene, *there.back(), any_place(scene));
    if (scene.dice.one_in(4)) ask(*there.back(), "events.subscribe");
    if (scene.dice.one_in(3)) there.erase(there.begin() + scene.dice.below(static_cast<std::uint32_t>(there.size())));
  }
}

void overload(Scene& scene) {
  RpcClient client(scene.daemon.socket());
  ask(client, "daemon.arm");
  const bool optimize = scene.dice.one_in(2);
  const Json probe = client
                         .call("probe.add", {{"pid", scene.fleet.standing().pid()},
                                             {"probes", {{{"definition", "p:loud work"}, {"optimize", optimize}}}},
                                             {"maxRate", scene.dice.between(10, 500)}})
                         .at("probes")
                         .at(0);
  const auto is_held = [&] {
    for (const Json& other : live::list_probes(client))
      if (other.at("id") == probe.at("id")) return other.at("state") == "disabled";
    return false;
  };
  if (!live::eventually(is_held))
    scene.ledger.fail(Wrong::daemon, "a probe beyond its rate to be disabled", "it goes on");
}

void command_line(Scene& scene) {
  const std::string pid = std::to_string(scene.fleet.standing().pid());
  const live::CommandResult result =
      live::run_command({live::required_environment("PROBECTL_BIN"), "--socket", scene.daemon.socket(), "trace",
                         "--no-spawn", "-p", pid, "-e", "work a=$arg1:s32", "-e", "r:back leaf ret=$retval:s64",
                         "--count", std::to_string(scene.dice.between(1, 3000)), "-o", "/dev/null"});
  if (result.exit.signal != 0) scene.ledger.fail(Wrong::daemon, "probectl trace to end", result.err);
  if (!result.ok()) throw std::runtime_error("probectl: " + result.err);
  unsigned long long hits = 0, delivered = 0, missed = 0;
  const std::size_t at = result.err.find("hits=");
  if (at == result.err.npos ||
      std::sscanf(result.err.c_str() + at, "hits=%llu delivered=%llu missed=%llu", &hits, &delivered, &missed) != 3)
    return scene.ledger.fail(Wrong::unaccounted, "probectl's totals", result.err);
  scene.ledger.check(Wrong::unaccounted, "probectl's delivered + missed", hits, delivered + missed);
}

}  // namespace

std::span<const Action> actions() {
  static const Action all[] = {{"account", account, false},
                               {"account in danger", account, true},
                               {"churn", churn, true},
                               {"switches", turn_switches, true},
                               {"attach, detach", attach_and_detach, true},
                               {"many probes", arm_many, true},
                               {"many clients", crowd, true},
                               {"command line", command_line, true},
                               {"overload", overload, true},
                               {"garbage", misbehave, true},
                               {"never reads", never_read, true},
                               {"killed target", kill_victim, true},
                               {"scribbling target", scribble, true},
                               {"unmapping target", unmap_code, false},
                               {"bad pointers", bad_pointers, false},
                               {"signals", storm_of_signals, false},
                               {"odd children", odd_children, false}};
  return all;
}

}  // namespace probed::soak
