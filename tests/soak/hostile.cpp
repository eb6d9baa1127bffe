// Clients and targets that mean no good, or know no better. The daemon has to answer others afterwards.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <sstream>
#include <thread>

#include "tests/soak/actions.hpp"

namespace probed::soak {
namespace {

using live::RpcClient;

void expect_answers(Scene& scene) { RpcClient(scene.daemon.socket()).call("daemon.status"); }

// A sacrificial target that doesn't outlive its action.
live::Target sacrifice(Scene& scene, const char* name, const std::vector<std::string>& arguments = {}) {
  ++scene.ledger.figures.targets;
  ++scene.ledger.figures.faults;
  return live::Target(name, arguments);
}

void expect_result(Scene& scene, live::Target& target, const std::string& name) {
  const live::TargetReport report = target.finish(Millis{120'000});
  ++scene.ledger.figures.targets_ended;
  std::ostringstream seen;
  seen << report.exit << ", " << report.out << target.errors();
  if (!report.ok())
    scene.ledger.fail(report.exit.signal != 0 ? Wrong::target_lost : Wrong::result, name + " to end well", seen.str());
}

// Also what it says beside the answer that is waited for.
std::string ask(live::Target& target, const std::string& command) {
  target.send(command + "\n");
  return target.next_line(Millis{60'000}).value_or("(no answer)");
}

}  // namespace

void misbehave(Scene& scene) {
  Dice& dice = scene.dice;
  for (unsigned i = dice.between(1, 6); i > 0; --i) {
    RpcClient client(scene.daemon.socket());
    ++scene.ledger.figures.faults;
    switch (dice.below(6)) {
      case 0: client.send_raw(dice.bytes(dice.between(1, 5000)) + "\n"); break;
      case 1: client.send_raw(std::string(dice.between(60, 200'000), '[') + "\n"); break;
      case 2:
        client.send_raw(R"({"jsonrpc":"2.0","id":1,"method":"probe.add","params":{"pid":)");
        break;  // half of one
      case 3: client.send_raw("Content-Length: 99999999999999999999\r\n\r\n"); break;
      case 4: client.send_raw(std::string(1 << 21, 'x')); break;
      default:
        for (int k = 0; k < 20; ++k)
          client.send_raw("{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"probe.list\"}\n");  // and goes
    }
    expect_answers(scene);
  }
}

void never_read(Scene& scene) {
  auto client = std::make_unique<RpcClient>(scene.daemon.socket());
  live::add(*client, scene.fleet.standing().pid(), {"p:unread work s=+0($arg3):string", "p:unread2 leaf"});
  client->send_raw("{\"jsonrpc\":\"2.0\",\"id\":1000,\"method\":\"events.subscribe\"}\n");
  for (unsigned i = scene.dice.below(50); i > 0; --i)
    client->send_raw("{\"jsonrpc\":\"2.0\",\"id\":1001,\"method\":\"rpc.discover\"}\n");
  ++scene.ledger.figures.faults;
  expect_answers(scene);
  scene.kept.push_back(std::move(client));
  if (scene.kept.size() > 3) scene.kept.erase(scene.kept.begin());
}

void kill_victim(Scene& scene) {
  live::Target victim = sacrifice(scene, "counter", {"4", "0"});
  victim.go();
  RpcClient client(scene.daemon.socket());
  client.request("probe.add", live::add_params(victim.pid(), {"work", "shape_*", "r:back work"}));
  std::this_thread::sleep_for(Micros{scene.dice.below(20'000)});  // a random moment is the point
  victim.signal(SIGKILL);
  if (victim.wait() != live::Exit{-1, SIGKILL})
    scene.ledger.fail(Wrong::target_lost, "a target to die of the signal that it was sent", "something else");
  const bool gone = live::eventually([&] {
    const Json targets = client.call("target.list").at("targets");
    return std::ranges::none_of(targets, [&](const Json& target) { return target.at("pid") == victim.pid(); });
  });
  if (!gone) scene.ledger.fail(Wrong::leak, "a dead target to be forgotten", "it is still listed");
}

// What is shared with it, rings and states of return stacks, is its own to write to; it may die of that, the daemon
// not.
void scribble(Scene& scene) {
  live::Target victim = sacrifice(scene, "counter", {"2", "0"});
  victim.go();
  RpcClient client(scene.daemon.socket()), reader(scene.daemon.socket());
  live::Events events(reader);
  live::add(client, victim.pid(), {"work a=$arg1:s32 s=+0($arg3):string", "r:back work ret=$retval"});
  live::eventually([&] { return live::list_probes(client, victim.pid()).at(0).at("tier") == "optimized"; },
                   Millis{500});
  const UniqueFd memory(::open(("/proc/" + std::to_string(victim.pid()) + "/mem").c_str(), O_RDWR | O_CLOEXEC));
  const std::set<std::string> injected = live::state_of(victim.pid()).injected_mappings;
  for (unsigned i = 0; i < 200; ++i)
    for (const std::string& line : injected) {
      unsigned long start = 0, end = 0;
      if (std::sscanf(line.c_str(), "%lx-%lx", &start, &end) != 2 || line.find("rw") == line.npos) continue;
      const std::string bytes = scene.dice.bytes(scene.dice.between(1, 64));
      const unsigned long at = start + scene.dice.below(static_cast<std::uint32_t>(end - start - bytes.size()));
      if (::pwrite(memory.get(), bytes.data(), bytes.size(), static_cast<off_t>(at)) < 0) break;
    }
  events.reach(events.all().size() + 1, Millis{20});
  expect_answers(scene);
  victim.signal(SIGKILL);
  victim.wait();
  expect_answers(scene);
}

void unmap_code(Scene& scene) {
  live::Target mapper = sacrifice(scene, "mapper");
  const char* const kKinds[] = {"file", "memfd", "deleted"};
  std::istringstream words(ask(mapper, std::string("map ") + scene.dice.any(kKinds)));
  std::string word, first, second;
  words >> word >> first >> second;
  RpcClient client(scene.daemon.socket());
  mapper.send("hammer 2\n");
  mapper.next_line();
  live::add(client, mapper.pid(), {"p:first " + first, "p:second " + second});
  mapper.send("dance " + std::to_string(scene.dice.between(20, 200)) + "\n");
  while (!mapper.next_line(Millis{0}) && mapper.running()) {
    client.request("probe.enable", {{"all", true}});
    client.request("probe.list", {{"pid", mapper.pid()}});
  }
  if (scene.dice.one_in(2)) client.request("target.detach", {{"pid", mapper.pid()}});
  mapper.send(scene.dice.one_in(2) ? "rest\nunmap\nback\ncall 20\nquit\n" : "rest\ncall 20\nunmap\nquit\n");
  expect_result(scene, mapper, "mapper");
}

void bad_pointers(Scene& scene) {
  live::Target faults = sacrifice(scene, "faults");
  RpcClient client(scene.daemon.socket());
  live::add(client, faults.pid(), {"point value=+0($arg1):u64"});
  const char* const kScenarios[] = {"handler_in_place 20", "blocked_alone 10", "blocked_with_all 10", "in_children 5",
                                    "in_threads 10"};
  std::string commands;
  for (int i = 0; i < 2; ++i) commands += std::string(scene.dice.any(kScenarios)) + "\n";
  faults.send(commands + "end\n");
  expect_result(scene, faults, "faults, told \"" + commands + "\",");
}

void storm_of_signals(Scene& scene) {
  live::Target storm = sacrifice(scene, "sigstorm", {"2", "60"});
  RpcClient client(scene.daemon.socket());
  const Json more{{"x-step", scene.dice.one_in(2)}};
  live::add(client, storm.pid(), {"tick", "tock", "handler_tick", "work"}, more);
  storm.go();
  expect_result(scene, storm, "sigstorm");
}

void odd_children(Scene& scene) {
  live::Target parent = sacrifice(scene, "lifecycle", {"clones", "10"});
  RpcClient client(scene.daemon.socket());
  live::add(client, parent.pid(), {"work", "r:back work"}, {{"followFork", scene.dice.one_in(2)}});
  parent.go();
  expect_result(scene, parent, "lifecycle clones");
}

}  // namespace probed::soak
