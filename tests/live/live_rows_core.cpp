// U1, U2, U3, U7, U9 on real processes: what a probe is, what it does to the text, and what it leaves alone.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>

#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

// dlopener with its plugin loaded, and where plugin_work() is in it.
struct PluginUser {
  Target target{"dlopener"};
  std::string address;
  TargetState before;

  PluginUser() {
    target.send("open\n");
    const std::string line = target.next_line().value_or("");
    REQUIRE(line.starts_with("opened 0x"));
    address = line.substr(7);
    before = state_of(target.pid());
  }
  std::string ask(const std::string& command) {
    target.send(command + "\n");
    return target.next_line().value_or("");
  }
};

// ---- U1 -------------------------------------------------------------------------------------------------------------

TEST_CASE("U1: a probe at a virtual address of a process is hit once for each execution, with the right arguments") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"1", "6"});
  const Json by_name = add(client, counter.pid(), {"p:named work"}).at(0);
  const Json probe =
      add(client, counter.pid(), {"p:addressed " + hex(address_of(by_name)) + " a=" ARG1 ":s32 b=" ARG2 ":s64"}).at(0);
  CHECK(probe.at("symbol") == "work+0x0");
  CHECK(probe.at("module") == "counter");
  Events events(client);
  counter.target.go();
  CHECK(counter.target.finish().ok());
  events.end();
  const std::vector<Json> hits = events.of(probe);
  REQUIRE(hits.size() == 6);
  for (std::size_t i = 0; i < hits.size(); ++i) {
    CHECK(hits[i].at("args") == Json{{"a", 0}, {"b", i}});
    CHECK(hits[i].at("ip") == probe.at("address"));
    CHECK(hits[i].at("pid") == counter.pid());
  }
}

TEST_CASE("U1: a probe in a shared library is for one process; another that runs it sees no hit and no changed text") {
  const std::string file = target_path("plugin.so");
  const std::string bytes = read_file(file);
  Daemon daemon;
  RpcClient client(daemon.socket());
  PluginUser traced, other;
  const Json probe = add(client, traced.target.pid(), {traced.address + " x=$arg1:s32"}).at(0);
  CHECK(probe.at("module") == "plugin.so");
  CHECK(has_breakpoint(traced.target.pid(), address_of(probe)));
  CHECK(text_differences(other.target.pid()).empty());
  CHECK(tracer_of(other.target.pid()) == 0);

  Events events(client);
  CHECK(other.ask("call 7") == "called 7 168");
  CHECK(traced.ask("call 10") == "called 10 345");
  CHECK(other.ask("call 7") == "called 7 168");
  events.end();
  REQUIRE(events.all().size() == 10);
  for (std::size_t i = 0; i < 10; ++i) {
    CHECK(events.all()[i].at("pid") == traced.target.pid());
    CHECK(events.all()[i].at("args").at("x") == i);
  }
  CHECK(read_file(file) == bytes);
  remove_all(client, {probe});
  CHECK(left_unharmed(traced.target.pid(), traced.before, PageCopies::may_stay));
  CHECK(left_unharmed(other.target.pid(), other.before));
  for (PluginUser* user : {&traced, &other}) {
    user->target.send("quit\n");
    CHECK(user->target.finish().ok());
  }
}

TEST_CASE("U1: libc's functions can be probed in one process by name") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  // A shape compares the kernel's answer with getppid()'s, once for each round.
  Watched counter("counter", {"2", "1", "30"}), other("counter", {"2", "1", "30"});
  const Json probe = add(client, counter.pid(), {"libc:getppid"}).at(0);
  CHECK(probe.at("symbol") == "getppid+0x0");
  CHECK(text_differences(other.pid()).empty());
  for (Watched* one : {&counter, &other}) {
    one->target.go();
    CHECK(one->target.finish().ok());
  }
  CHECK(counts_of(client, probe) == Counts{60, 0, 0});
}

// ---- U2 -------------------------------------------------------------------------------------------------------------

TEST_CASE("U2: a breakpoint stands in a copy of the page that only this process sees, and the file is not written") {
  const std::string file = target_path("counter"), bytes = read_file(file);
  Daemon daemon;
  RpcClient client(daemon.socket());
  client.call("daemon.optimize", {{"enabled", false}});  // a jump changes more than one byte
  Watched counter("counter"), other("counter");
  const std::vector<Json> probes = add(client, counter.pid(), {"work", ORDINARY_SHAPE, OTHER_SHAPE});
  for (const Json& probe : probes) CHECK(has_breakpoint(counter.pid(), address_of(probe)));
  CHECK(text_differences(counter.pid()).size() == probes.size());  // a breakpoint for each, nothing else
  CHECK(state_of(counter.pid()).private_text_kb > counter.before.private_text_kb);
  CHECK(other.harm() == "");
  CHECK(read_file(file) == bytes);
  remove_all(client, probes);
  CHECK(counter.unharmed());
}

TEST_CASE("U2: the copy of the instruction lies in memory that is executable and never writable, and goes at the end") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  client.call("daemon.optimize", {{"enabled", false}});  // a detour holds a copy, too
  Watched counter("counter");
  const Json before = add(client, counter.pid(), {MOVED_SHAPE}).at(0);
  remove_all(client, {before});
  const std::vector<std::uint8_t> original = bytes_at(counter.pid(), address_of(before), kMovedSize);
  const Json place = add(client, counter.pid(), {MOVED_SHAPE}, {{"x-step", true}}).at(0);
  const std::vector<std::string> added = new_executable_mappings(counter.before, state_of(counter.pid()));
  for (const std::string& each : added) CHECK(each.find(" r-xp ") != std::string::npos);
  // The instruction refers to nothing near it: its copy has the very same bytes.
  const auto holds_copy = [&](const std::string& mapping) {
    const std::vector<std::uint8_t> area = bytes_at(counter.pid(), std::stoull(mapping, nullptr, 16), 4096);
    return std::search(area.begin(), area.end(), original.begin(), original.end()) != area.end();
  };
  CHECK(std::ranges::count_if(added, holds_copy) == 1);
  remove_all(client, {place});
  CHECK(counter.unharmed());
  CHECK(new_executable_mappings(counter.before, state_of(counter.pid())).empty());
}

TEST_CASE("U2: probes by the hundred in one process leave nothing behind") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"2", "200", "5"});
  const std::vector<Json> probes = add(client, counter.pid(), {"shape_*", "drive_*", "callee_*", "work"});
  CHECK(probes.size() > kShapeFunctions);
  counter.target.go();
  CHECK(counter.target.finish().ok());
  CHECK(counts_of(client, probes.back()).hits == 400);
}

// ---- U3 -------------------------------------------------------------------------------------------------------------

TEST_CASE("U3: a handler sees the registers as they are before the probed instruction") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"1", "4"});
  const Json probe = add(client, counter.pid(),
                         {"work a=" ARG1 ":s32 b=" ARG2 ":s64 s=+0(" ARG3 "):string ip=" PC ":x64 top=$stack0:x64 "
                          "sp=%sp:x64 stack=$stack"})
                         .at(0);
  Events events(client);
  counter.target.go();
  CHECK(counter.target.finish().ok());
  events.end();
  const char* const texts[] = {"alpha", "beta", "", "delta"};
  REQUIRE(events.all().size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    const Json& args = events.all()[i].at("args");
    CHECK(args.at("a") == 0);
    CHECK(args.at("b") == i);
    CHECK(args.at("s") == texts[i]);
    CHECK(args.at("ip") == probe.at("address"));
    CHECK(args.at("sp") == args.at("stack"));
    CHECK(args.at("top") == events.all()[0].at("args").at("top"));  // one call site
  }
}

struct Tier {
  std::string name;
  bool step;
};
const Tier kTiers[] = {{"boosted", false}, {"stepped", true}};

TEST_CASE("U3: no thread slips past while others execute the probed instruction, and the breakpoint never leaves") {
  for (const Tier& tier : kTiers) {
    CAPTURE(tier.name);
    Daemon daemon;
    RpcClient client(daemon.socket());
    Watched counter("counter", {"8", "0"});
    const Json probe = add(client, counter.pid(), {"work"}, {{"x-step", tier.step}}).at(0);
    CHECK(probe.at("tier") == tier.name);
    counter.target.go();
    long seen_in_place = 0, looks = 0;
    for (; looks < 2000 || counts_of(client, probe).hits < 2000; ++looks)
      seen_in_place += has_breakpoint(counter.pid(), address_of(probe));
    CHECK(seen_in_place == looks);
    counter.target.go();
    const TargetReport report = counter.target.finish();
    CHECK(report.ok());
    CHECK(counts_of(client, probe).hits == static_cast<std::uint64_t>(report.value("calls")));
  }
}

// ---- U7 -------------------------------------------------------------------------------------------------------------

struct BadInstruction {
  std::string symbol, reason;
};
const BadInstruction kBad[] = {
#define REFUSED(name, instruction, reason) {name, reason},
#include "refused.def"
#undef REFUSED
};

TEST_CASE("U7: instructions that can't be probed and places that hold a breakpoint are refused, each with its reason") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched target("unprobeable");
  std::set<std::string> messages;
  for (const BadInstruction& bad : kBad) {
    CAPTURE(bad.symbol);
    const Json error = add_error(client, target.pid(), {bad.symbol});
    CHECK(reason_of(error) == bad.reason);
    CHECK(!hint_of(error).empty());
    REQUIRE(error.is_object());
    CHECK(error.at("message").get<std::string>().find(bad.symbol) != std::string::npos);
    messages.insert(error.at("message"));
    CHECK(list_probes(client).empty());
    CHECK(target.unharmed());
  }
  CHECK(messages.size() == std::size(kBad));
  target.target.go();
  CHECK(target.target.finish().ok());
}

TEST_CASE("U7: a probe beside the program's own breakpoint works, and the program still gets its trap") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched target("signals", {"30"});
  CHECK(reason_of(add_error(client, target.pid(), {"hit_own_breakpoint"})) == "existing-breakpoint");
  const Json probe = add(client, target.pid(), {"hit_own_breakpoint" BEHIND_BREAKPOINT}).at(0);
  target.target.go();
  const TargetReport report = target.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, target.target.errors());
  CHECK(counts_of(client, probe).hits == 30);
}

// ---- U9 -------------------------------------------------------------------------------------------------------------

TEST_CASE("U9: several clients trace many processes at once and each gets the events of its own probes only") {
  constexpr std::size_t kClients = 3, kProcesses = 10, kCalls = 100;
  Daemon daemon;
  std::vector<std::unique_ptr<Watched>> targets;
  for (std::size_t i = 0; i < kProcesses; ++i)
    targets.push_back(std::make_unique<Watched>("counter", std::vector<std::string>{"2", std::to_string(kCalls), "1"}));
  std::vector<std::unique_ptr<RpcClient>> clients;
  std::vector<std::unique_ptr<Events>> streams;
  std::vector<std::vector<Json>> probes(kClients);
  for (std::size_t c = 0; c < kClients; ++c) {
    clients.push_back(std::make_unique<RpcClient>(daemon.socket()));
    for (const auto& target : targets) probes[c].push_back(add(*clients[c], target->pid(), {"p:mine work"}).at(0));
    Json ids = Json::array();
    for (const Json& probe : probes[c]) ids.push_back(probe.at("id"));
    streams.push_back(std::make_unique<Events>(*clients[c], Json{{"probes", ids}}));
  }
  for (const auto& target : targets) target->target.go();
  for (const auto& target : targets) CHECK(target->target.finish().ok());
  for (std::size_t c = 0; c < kClients; ++c) {
    streams[c]->end();
    for (const Json& probe : probes[c]) {
      CHECK(streams[c]->of(probe).size() == 2 * kCalls);
      CHECK(counts_of(*clients[c], probe) == Counts{2 * kCalls, 0, 0});
    }
    CHECK(streams[c]->all().size() == 2 * kCalls * kProcesses);
  }
}

TEST_CASE("U9: probes come and go on many processes while hits pour in, and every program stays right") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  std::vector<std::unique_ptr<Watched>> targets;
  for (int i = 0; i < 4; ++i)
    targets.push_back(std::make_unique<Watched>("counter", std::vector<std::string>{"2", "0"}));
  for (const auto& target : targets) target->target.go();
  for (const auto& target : targets) REQUIRE(target->runs_threads(3));
  std::uint64_t hits = 0;
  for (int round = 0; round < 10; ++round)
    for (const auto& target : targets) {
      const std::vector<Json> probes = add(client, target->pid(), {"work", "p:second work a=$arg1", "work+4"});
      for (const Json& gone : remove_all(client, probes)) hits += gone.at("hits").get<std::uint64_t>();
    }
  CHECK(hits > 0);
  for (const auto& target : targets) {
    CHECK(target->unharmed());
    target->target.go();
    CHECK(target->target.finish().ok());
  }
}

TEST_CASE("U9: a daemon that has traced many processes holds no more descriptors, threads and targets than before") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  const auto count = [folder = "/proc/" + std::to_string(daemon.pid())](const char* of) {
    return std::distance(std::filesystem::directory_iterator(folder + of), std::filesystem::directory_iterator());
  };
  const auto one_round = [&](int round) {
    Watched counter("counter", {"4", "20", "2"});
    const std::vector<Json> probes =
        add(client, counter.pid(), {"work", "shape_*"}, {{"x-step", kStepsAllShapes && round % 2 == 1}});
    if (round % 3 == 0) remove_all(client, probes);
    counter.target.go();
    CHECK(counter.target.finish().ok());
    client.call("probe.remove", {{"all", true}});
    CHECK(eventually([&] { return client.call("target.list").at("targets").empty(); }));
  };
  // What it keeps has a bound: the last few address spaces, for children that outlive their parents, and idle fetchers,
  // as many as were ever needed at a time. What it leaks in every third round has none.
  constexpr int kSteady = 24, kMost = 200;
  std::ptrdiff_t descriptors = 0, threads = 0;
  int steady = 0;
  for (int round = 0; round < kMost && steady < kSteady; ++round) {
    one_round(round);
    const std::ptrdiff_t fds = count("/fd"), tasks = count("/task");
    steady = fds > descriptors || tasks > threads ? 0 : steady + 1;
    descriptors = std::max(descriptors, fds);
    threads = std::max(threads, tasks);
  }
  CHECK_MESSAGE(steady == kSteady, descriptors << " descriptors, " << threads << " threads, and more each time");
  CHECK(client.call("daemon.status").at("probes") == 0);
}

TEST_CASE("U9: a probe for a process that is just being let go waits for that") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched threads("threads", {"20", "200"});
  for (int i = 0; i < 30; ++i) {
    const std::vector<Json> probes = add(client, threads.pid(), {"work"});
    remove_all(client, probes);  // the last one of a process lets go of it
  }
  threads.target.go();
  CHECK(threads.target.finish().ok());
}

TEST_CASE("no child is left when everything was torn down") { CHECK(joined(children_left()) == ""); }

}  // namespace
}  // namespace probed::live
