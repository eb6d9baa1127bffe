// K11 on real processes: code that is entered in ways which neither its branches nor relocations show. With a probe on
// any of its instructions, as a jump where it may be one, it computes what it does without.
#include <doctest/doctest.h>

#include "tests/live/telling.hpp"

namespace probed::live {
namespace {

constexpr unsigned kLongest = 512;  // bytes; no function here is longer

// It is a jump, or it is known why not.
bool settled(RpcClient& client) {
  const Json probe = list_probes(client).at(0);
  return probe.value("tier", "") == "optimized" || !probe.value("tierReason", "").empty();
}

struct Leap {
  const char *function, *command;
};

TEST_CASE(
    "K11: no jump is written over what is entered by a sum of labels, a retpoline, after a fault, or from other code") {
  const Leap leaps[] = {{"by_difference", "differences 60"}, {"by_table", "threaded 120"},
                        {"guarded_copy", "repaired 20"},     {"skippable", "skipped 20"},
                        {"unrolled", "entered 64"},          {"both", "swallowed 20"},
                        {"across_pages", "dropped 4"},       {"padded", "landed 20"}};
  for (const std::string& program : runnable({"leaps", "leaps-O0", "leaps-retpoline"})) {
    CAPTURE(program);
    Daemon daemon;
    RpcClient client(daemon.socket());
    Watched target(program);
    for (const Leap& leap : leaps) {
      CAPTURE(std::string(leap.function));
      const std::string command = leap.command, expected = command.substr(0, command.find(' ')) + " ok";
      unsigned probed = 0;
      // One after the other: neighbours would keep each other from becoming jumps.
      for (unsigned offset = 0; offset < kLongest; ++offset) {
        const std::string place = leap.function + ("+" + std::to_string(offset));
        const Json answer = client.request("probe.add", add_params(target.pid(), {place}));
        if (answer.contains("error") && reason_of(answer.at("error")) == "bad-definition") break;  // behind its end
        if (answer.contains("error")) continue;
        ++probed;
        CAPTURE(place);
        CHECK(eventually([&] { return settled(client); }));
        CHECK(target.ask(command) == expected);
        client.call("probe.remove", ids_of(answer.at("result").at("probes")));
      }
      CHECK(probed >= 4);
    }
    target.target.send("end\n");
    const TargetReport report = target.target.finish();
    CHECK_MESSAGE(report.ok(), report.out, target.target.errors());
  }
}

TEST_CASE("code that the program copies to memory of its own, our bytes with it, is as it was when it is let go") {
  for (const bool optimize : {true, false}) {
    CAPTURE(optimize);
    Daemon daemon;
    RpcClient client(daemon.socket());
    Watched target("leaps");
    const Json probe{{"definition", "on_own_page"}, {"optimize", optimize}};
    client.call("probe.add", {{"pid", target.pid()}, {"probes", Json::array({probe})}});
    if (optimize)
      CHECK_MESSAGE(eventually([&] { return list_probes(client).at(0).value("tier", "") == "optimized"; }),
                    list_probes(client).at(0).dump());
    CHECK(target.ask("copied 20") == "copied ok");
    client.call("target.detach", {{"pid", target.pid()}});
    CHECK(eventually([&] { return client.call("target.list").at("targets").empty(); }));
    CHECK(target.ask("copied 20") == "copied ok");
    target.target.send("end\n");
    const TargetReport report = target.target.finish();
    CHECK_MESSAGE(report.ok(), report.out, target.target.errors());
  }
}

TEST_CASE("a function with a restartable sequence whose bounds are known only at run time takes no probe") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched target("leaps");
  for (const char* place : {"restartable_add", "sequence_start", "restartable_add+10"}) {
    CAPTURE(std::string(place));
    const Json answer = client.request("probe.add", add_params(target.pid(), {place}));
    REQUIRE(answer.contains("error"));
    CHECK(reason_of(answer.at("error")) == "blacklisted");
  }
  const Json calls = add(client, target.pid(), {"count"}).at(0);
  CHECK(target.ask("restarted 200000") == "restarted ok");
  CHECK(counts_of(client, calls).hits == 2);
  target.target.send("end\n");
  CHECK(target.target.finish().ok());
}

TEST_CASE("no child is left when everything was torn down") { CHECK(joined(children_left()) == ""); }

}  // namespace
}  // namespace probed::live
