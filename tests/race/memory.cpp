// A program that changes its own text, moves it and writes to it, while probes come and go in it.
#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>

#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

struct Mapper {
  Target target{"mapper"};
  std::string first, second;
  explicit Mapper(const std::string& kind) {
    std::istringstream words(ask("map " + kind));
    std::string word;
    words >> word >> first >> second;
    REQUIRE(first.starts_with("0x"));
  }
  std::string ask(const std::string& command) {
    target.send(command + "\n");
    return target.next_line().value_or("");
  }
  bool ends_well() {
    target.send("quit\n");
    return target.finish().ok();
  }
};

// Adds and removes probes, each attaching and detaching, until the target has answered.
int cycle_until_answered(RpcClient& client, Mapper& mapper, const std::vector<std::string>& definitions) {
  int cycles = 0;
  for (; !mapper.target.next_line(Millis{0}); ++cycles) {
    const Json added = client.request("probe.add", add_params(mapper.target.pid(), definitions));
    if (added.contains("result")) client.call("probe.remove", {{"all", true}});
    REQUIRE(mapper.target.running());
  }
  return cycles;
}

TEST_CASE("U11: a thread that writes to a probed text page never loses a write, however often its copy is given back") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Mapper mapper("file");
  CHECK(mapper.ask("hammer 2") == "done hammer 2");
  int cycles = 0, writes = 0;
  while (cycles < chosen_cycles(300)) {
    mapper.target.send("write 10000\n");
    cycles += cycle_until_answered(client, mapper, {"p:first " + mapper.first});
    writes += 10000;
  }
  MESSAGE(cycles << " cycles, " << writes << " writes");
  CHECK(mapper.ask("rest") == "done rest");
  CHECK(mapper.ends_well());
}

TEST_CASE("U6: code that is moved and called again and again runs while probes are put in it and taken out") {
  for (const char* kind : {"file", "memfd", "deleted"}) {
    CAPTURE(kind);
    Daemon daemon;
    RpcClient client(daemon.socket());
    Mapper mapper(kind);
    CHECK(mapper.ask("hammer 2") == "done hammer 2");
    for (int cycles = 0; cycles <= 10;) {
      mapper.target.send("dance 5000\n");
      cycles += cycle_until_answered(client, mapper, {"p:first " + mapper.first, "p:second " + mapper.second});
    }
    CHECK(mapper.ask("rest") == "done rest");
    CHECK(eventually([&] { return tracer_of(mapper.target.pid()) == 0; }));
    CHECK(mapper.ends_well());
  }
}

TEST_CASE("U6: libraries that are loaded and unloaded all the time do no harm to pending probes, nor these to them") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Target target("dlopener");
  const Json params{{"pid", target.pid()},
                    {"probes", {{{"definition", "p:plug plugin.so:plugin_work"}, {"pending", true}}}}};
  const Json probe = client.call("probe.add", params).at("probes").at(0);
  target.send("loop 1000\n");
  std::optional<std::string> answer;
  while (!(answer = target.next_line(Millis{0}))) {
    client.call("probe.enable", ids_of({probe}));
    list_probes(client);
    REQUIRE(target.running());
  }
  CHECK(*answer == "looped 1000 3000");
  remove_all(client, {probe});
  target.send("quit\n");
  CHECK(target.finish().ok());
}

}  // namespace
}  // namespace probed::live
