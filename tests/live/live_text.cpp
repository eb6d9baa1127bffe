// K11, U7: what else stands in the text of a function than its instructions. Padding, in which the second jump of two
// may be, is the program's own for whoever looks at it; data aren't probed.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

struct Function {
  const char* name;
  std::uint64_t size;
};
// mixed.S; with padding.
constexpr Function kPadded[] = {{"mixed_pad", 0x27}, {"mixed_pads", 0x38}};
// With data, whose offsets these are.
struct WithData {
  const char* name;
  std::uint64_t size, data, data_end;
};
constexpr WithData kWithData[] = {{"mixed_call", 0x19, 2, 0xa},      {"mixed_jump", 0x1c, 6, 0x16},
                                  {"mixed_load", 0x3a, 2, 0x12},     {"mixed_lea", 0x2a, 2, 0x10},
                                  {"mixed_table", 0x3c, 0x14, 0x24}, {"mixed_string", 0x12, 5, 0xd},
                                  {"mixed_object", 0x19, 2, 0xe}};

std::string at(const char* function, std::uint64_t offset) { return std::string(function) + "+" + hex(offset); }

std::vector<std::string> every_byte_of(const Function& function) {
  std::vector<std::string> places;
  for (std::uint64_t offset = 0; offset < function.size; ++offset) places.push_back(at(function.name, offset));
  return places;
}

Json add_one(RpcClient& client, pid_t pid, const std::string& definition, bool optimize) {
  const Json spec = {{"definition", definition}, {"optimize", optimize}};
  return client.request("probe.add", {{"pid", pid}, {"probes", Json::array({spec})}});
}

Json view_of(const Json& answer) { return answer.at("result").at("probes").at(0); }

// The places that can be probed in a text that nothing was done to.
std::vector<std::string> probed_alone(RpcClient& client, pid_t pid, const std::vector<std::string>& places) {
  std::vector<std::string> fit;
  for (const std::string& place : places) {
    const Json answer = add_one(client, pid, "p " + place, false);
    if (!answer.contains("result")) continue;
    fit.push_back(place);
    remove_all(client, {view_of(answer)});
  }
  return fit;
}

// Every probe is a jump, or it is known why not.
bool all_settled(RpcClient& client) {
  const auto settled = [](const Json& p) { return p.at("tier") == "optimized" || !p.value("tierReason", "").empty(); };
  return eventually([&] { return std::ranges::all_of(list_probes(client), settled); });
}

bool runs(Watched& mixed) {
  mixed.target.go();
  return mixed.runs_threads(3);
}

void check_stopped(Watched& mixed) {
  mixed.target.send("stop\n");
  const TargetReport report = mixed.target.finish();
  CHECK_MESSAGE(report.ok(), report.out, mixed.target.errors());
}

// The places one at a time, with the optimiser done in between; then a return probe, if the function has one of its
// own.
void probe_in_order(RpcClient& client, pid_t pid, const std::vector<std::string>& places, bool optimize) {
  std::vector<Json> probes;
  for (const std::string& place : places) {
    CAPTURE(place);
    const Json answer = add_one(client, pid, "p " + place, optimize);
    REQUIRE_MESSAGE(answer.contains("result"), answer.dump());
    probes.push_back(view_of(answer));
    if (optimize) REQUIRE(all_settled(client));
  }
  for (const Function& function : kPadded) {
    if (!places.front().starts_with(std::string(function.name) + "+")) continue;
    const Json answer = add_one(client, pid, std::string("r ") + function.name, optimize);
    REQUIRE_MESSAGE(answer.contains("result"), answer.dump());
    probes.push_back(view_of(answer));
  }
  remove_all(client, probes);
}

TEST_CASE("K11: every instruction takes a probe in whatever order, also beside second jumps in the padding around it") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched mixed("mixed", {"2"});
  REQUIRE(runs(mixed));
  std::minstd_rand random(6);
  for (const Function& function : kPadded) {
    const auto places = probed_alone(client, mixed.pid(), every_byte_of(function));
    REQUIRE(places.size() > 10);
    auto order = places;
    probe_in_order(client, mixed.pid(), order, true);
    std::ranges::reverse(order);
    probe_in_order(client, mixed.pid(), order, true);
    for (int i = 0; i < 3; ++i) {
      std::ranges::shuffle(order, random);
      probe_in_order(client, mixed.pid(), order, true);
      probe_in_order(client, mixed.pid(), order, false);
    }
  }
  CHECK(text_restored(mixed.pid()));
  check_stopped(mixed);
}

// Whatever the optimiser is about meanwhile.
TEST_CASE("K11: probes come and go at random beside each other; none is refused, nothing is harmed") {
  Daemon daemon;
  RpcClient client(daemon.socket()), second(daemon.socket());
  Watched mixed("mixed", {"2"});
  REQUIRE(runs(mixed));
  std::vector<std::string> places;
  for (const Function& function : kPadded)
    std::ranges::copy(probed_alone(client, mixed.pid(), every_byte_of(function)), std::back_inserter(places));
  std::minstd_rand random(7);
  std::map<std::string, Json> there;
  for (int i = 0; i < chosen_cycles(20) * 10; ++i) {
    const std::string& place = places[random() % places.size()];
    CAPTURE(place);
    if (const auto it = there.find(place); it != there.end()) {
      remove_all(client, {it->second});
      there.erase(it);
      continue;
    }
    const Json answer = add_one(i % 2 == 0 ? client : second, mixed.pid(), "p " + place, i % 5 != 0);
    REQUIRE_MESSAGE(answer.contains("result"), answer.dump());
    there.emplace(place, view_of(answer));
    if (i % 10 == 0) REQUIRE(all_settled(client));
  }
  for (const auto& [place, probe] : there) remove_all(client, {probe});
  CHECK(text_restored(mixed.pid()));
  check_stopped(mixed);
}

TEST_CASE("U7: data among a function's instructions are refused, and what stands behind them is not") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched mixed("mixed", {"2"});
  REQUIRE(runs(mixed));
  std::vector<Json> probes;
  for (const WithData& function : kWithData) {
    std::size_t behind = 0;
    for (std::uint64_t offset = 0; offset < function.size; ++offset) {
      CAPTURE(at(function.name, offset));
      const bool is_data = offset >= function.data && offset < function.data_end;
      const Json answer = add_one(client, mixed.pid(), "p " + at(function.name, offset), true);
      CHECK_MESSAGE(!(is_data && answer.contains("result")), answer.dump());
      if (offset >= function.data_end) behind += answer.contains("result");
      if (answer.contains("result")) probes.push_back(view_of(answer));
    }
    CAPTURE(function.name);
    CHECK(behind >= 2);
  }
  // By its label, which assemblers leave in the symbol table.
  for (const char* label :
       {"mixed_call_data", "mixed_jump_data", "mixed_load_data", "mixed_lea_data", "mixed_table_data"}) {
    const Json error = add_error(client, mixed.pid(), {std::string("p ") + label});
    CAPTURE(label);
    CHECK(reason_of(error) == "not-instruction-boundary");
    CHECK_MESSAGE(error.value("message", "").find("data") != std::string::npos, error.dump());
  }
  REQUIRE(all_settled(client));
  remove_all(client, probes);
  CHECK(text_restored(mixed.pid()));
  check_stopped(mixed);
}

}  // namespace
}  // namespace probed::live
