// K2, K5, K6, K7, K8 on real processes: places, batches, states, several probes at one place, lists and the switch.
#include <doctest/doctest.h>

#include <set>

#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

// A family target calls work() when told to, as often as told.
struct Session {
  Daemon daemon;
  RpcClient client{daemon.socket()};
  Watched target{"family"};
  pid_t pid() const { return target.pid(); }

  void call(int times) { CHECK(target.ask("call " + std::to_string(times)) == "called " + std::to_string(times)); }
  std::uint64_t hits(const Json& probe) { return counts_of(client, probe).hits; }
  void quit() {
    CHECK(target.unharmed());
    target.target.send("quit\n");
    CHECK(target.target.finish().ok());
  }
};

Json probe_with_id(const std::vector<Json>& probes, const Json& id) {
  for (const Json& probe : probes)
    if (probe.at("id") == id) return probe;
  return {};
}

// ---- K2 -------------------------------------------------------------------------------------------------------------

struct Layout {
  std::string symbol;
  std::set<unsigned> starts;  // of its instructions; shapes.S fixes their encodings
  unsigned size;
};
const Layout kLayouts[] = SHAPE_LAYOUTS;

TEST_CASE("K2: a probe goes on any start of an instruction, and nowhere else, with the nearest starts in the hint") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"1", "1", "7"});
  std::vector<Json> probes;
  for (const Layout& layout : kLayouts)
    for (unsigned offset = 0; offset < layout.size; ++offset) {
      const std::string place = layout.symbol + "+" + hex(offset);
      CAPTURE(place);
      if (layout.starts.contains(offset)) {
        probes.push_back(add(client, counter.pid(), {place}).at(0));
        CHECK(probes.back().at("symbol") == place);
        continue;
      }
      const Json error = add_error(client, counter.pid(), {place});
      CHECK(reason_of(error) == "not-instruction-boundary");
      const auto next = layout.starts.upper_bound(offset);
      const unsigned below = *std::prev(next), above = next == layout.starts.end() ? layout.size : *next;
      CHECK(hint_of(error).find(layout.symbol + "+" + hex(below)) != std::string::npos);
      CHECK(hint_of(error).find(layout.symbol + "+" + hex(above)) != std::string::npos);
    }
  client.call("daemon.optimize", {{"enabled", false}});  // a jump changes more than one byte
  CHECK(eventually([&] { return text_differences(counter.pid()).size() == probes.size(); }));
  client.call("daemon.optimize", {{"enabled", true}});
  counter.target.go();
  CHECK(counter.target.finish().ok());
  for (const Json& probe : probes) {
    CAPTURE(probe.dump());
    CHECK(counts_of(client, probe).hits == 7);
  }
}

TEST_CASE("K2: an offset behind the function's end and an address with an offset are errors") {
  Session s;
  CHECK(reason_of(add_error(s.client, s.pid(), {"work+0x10000"})) == "bad-definition");
  const Json probe = add(s.client, s.pid(), {"work"}).at(0);
  const Json both = add_error(s.client, s.pid(), {probe.at("address").get<std::string>() + "+0x2"});
  CHECK(reason_of(both) == "bad-definition");
  remove_all(s.client, {probe});
  s.quit();
}

TEST_CASE("K2: a symbol, a module and a symbol, a file offset and a virtual address name the same place") {
  Session s;
  // The program's first mapping, which begins at file offset 0; looked up before there is injected memory.
  const std::uint64_t base = std::stoull(read_file("/proc/" + std::to_string(s.pid()) + "/maps"), nullptr, 16);
  const Json by_symbol = add(s.client, s.pid(), {"work"}).at(0);
  const std::string address = by_symbol.at("address");
  const std::string offset = hex(address_of(by_symbol) - base);
  const std::vector<Json> probes =
      add(s.client, s.pid(), {"family:work", target_path("family") + ":work", address, "family:" + offset});
  for (const Json& probe : probes) CHECK(probe.at("address") == address);
  s.call(3);
  for (const Json& probe : probes) CHECK(s.hits(probe) == 3);
  remove_all(s.client, probes);
  remove_all(s.client, {by_symbol});
  s.quit();
}

// ---- K5 -------------------------------------------------------------------------------------------------------------

struct BadBatch {
  std::string bad, reason;
};
const BadBatch kBadBatches[] = {
    {"no_such_function_anywhere", "no-such-symbol"},
    {"work+0x1", "not-instruction-boundary"},
    {"0x10", "unmapped-address"},
    {"p:x work %nosuchregister", "bad-definition"},
    {"r:x libc:abort", "unsupported-instruction"},  // it never returns
};

TEST_CASE("K5: one bad probe of a batch rolls the whole batch back: no probe, no changed byte, no attachment") {
  Session s;
  for (const BadBatch& row : kBadBatches) {
    CAPTURE(row.bad);
    for (const std::vector<std::string>& batch : {std::vector<std::string>{"work", "work+0x" SECOND, row.bad},
                                                  {row.bad, "work"},
                                                  {"work", row.bad, "work+0x" SECOND}}) {
      const Json error = add_error(s.client, s.pid(), batch);
      CHECK(reason_of(error) == row.reason);
      CHECK(list_probes(s.client).empty());
      CHECK(s.target.unharmed());
    }
  }
  CHECK(s.client.call("target.list").at("targets").empty());
  s.quit();
}

TEST_CASE("K5: a batch that fails leaves the probes that were there before alone") {
  Session s;
  s.client.call("daemon.optimize", {{"enabled", false}});  // a jump changes more than one byte
  const Json kept = add(s.client, s.pid(), {"p:kept work"}).at(0);
  CHECK(reason_of(add_error(s.client, s.pid(), {"work", "work+0x" SECOND, "work+0x1"})) == "not-instruction-boundary");
  CHECK(reason_of(add_error(s.client, s.pid(), {"p:other work", "p:kept work+0x" SECOND})) == "duplicate-name");
  CHECK(text_differences(s.pid()).size() == 1);
  s.call(3);
  CHECK(s.hits(kept) == 3);
  remove_all(s.client, {kept});
  s.quit();
}

TEST_CASE("K5: wrong ones in a batch to remove don't hinder the rest") {
  Session s;
  const std::vector<Json> probes = add(s.client, s.pid(), {"p:one work", "p:two work+0x" SECOND, "p:three work"});
  const Json gone = s.client.call(
      "probe.remove", {{"ids", {4'000'000'000u, probes[0].at("id"), 0, probes[2].at("id"), probes[0].at("id")}}});
  REQUIRE(gone.at("probes").size() == 2);
  CHECK(list_probes(s.client).size() == 1);
  const Json rest = s.client.call("probe.remove", {{"names", {"nobody", "one", "probes/two"}}});
  REQUIRE(rest.at("probes").size() == 1);
  CHECK(rest.at("probes")[0].at("id") == probes[1].at("id"));
  CHECK(list_probes(s.client).empty());
  s.quit();
}

// ---- K6 -------------------------------------------------------------------------------------------------------------

TEST_CASE("K6: a disabled probe has the original text, is not hit, and can be enabled and disabled again") {
  Session s;
  Json params = add_params(s.pid(), {"p:mine work"});
  params["probes"][0]["disabled"] = true;
  const Json probe = s.client.call("probe.add", params).at("probes").at(0);
  CHECK(probe.at("state") == "disabled");
  CHECK(probe.at("armed") == false);
  CHECK(text_restored(s.pid()));
  s.call(3);
  CHECK(s.hits(probe) == 0);
  for (int round = 1; round <= 3; ++round) {
    const Json on = s.client.call("probe.enable", {{"names", {"mine"}}}).at("probes").at(0);
    CHECK(on.at("state") == "enabled");
    CHECK(on.at("armed") == true);
    CHECK(has_breakpoint(s.pid(), address_of(probe)));
    s.call(2);
    const Json off = s.client.call("probe.disable", ids_of({probe})).at("probes").at(0);
    CHECK(off.at("state") == "disabled");
    CHECK(text_restored(s.pid()));
    s.call(4);
    CHECK(s.hits(probe) == 2u * static_cast<unsigned>(round));
  }
  remove_all(s.client, {probe});
  s.quit();
}

TEST_CASE("K6: a probe can be switched while hits pour in, and its events stop at once") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"4", "0"});
  const Json probe = add(client, counter.pid(), {"work"}).at(0);
  counter.target.go();
  REQUIRE(eventually([&] { return counts_of(client, probe).hits > 0; }));
  for (int round = 0; round < 30; ++round) {
    client.call("probe.disable", ids_of({probe}));
    CHECK_FALSE(has_breakpoint(counter.pid(), address_of(probe)));
    const Counts after = counts_of(client, probe);
    CHECK(counts_of(client, probe) == after);
    client.call("probe.enable", ids_of({probe}));
    CHECK(eventually([&] { return counts_of(client, probe).hits > after.hits; }));
  }
  counter.target.go();
  CHECK(counter.target.finish().ok());
}

// ---- K7 -------------------------------------------------------------------------------------------------------------

TEST_CASE("K7: several probes at one address have their own arguments, filters and states") {
  Session s;
  Json params = add_params(s.pid(), {"p:args work a=$arg1:s32 b=$arg2:s64", "p:some work b=$arg2:s64", "p:none work",
                                     "p:text work s=+0($arg3):string"});
  params["probes"][1]["filter"] = "b == 2 || b == 3";
  params["probes"][2]["disabled"] = true;
  const std::vector<Json> probes = s.client.call("probe.add", params).at("probes");
  Events events(s.client);
  s.call(6);
  events.end();
  CHECK(counts_of(s.client, probes[0]) == Counts{6, 0, 0});
  CHECK(counts_of(s.client, probes[1]) == Counts{2, 0, 4});
  CHECK(counts_of(s.client, probes[2]) == Counts{0, 0, 0});
  CHECK(counts_of(s.client, probes[3]) == Counts{6, 0, 0});
  REQUIRE(events.of(probes[0]).size() == 6);
  REQUIRE(events.of(probes[1]).size() == 2);
  CHECK(events.of(probes[0])[5].at("args") == Json{{"a", 3}, {"b", 5}});
  CHECK(events.of(probes[1])[1].at("args") == Json{{"b", 3}});
  CHECK(events.of(probes[2]).empty());
  CHECK(events.of(probes[3])[3].at("args") == Json{{"s", "delta"}});
  remove_all(s.client, probes);
  s.quit();
}

TEST_CASE("K7: the breakpoint stays as long as one enabled probe is at its address, whoever's that is") {
  Session s;
  RpcClient second(s.daemon.socket());
  const std::vector<Json> mine = add(s.client, s.pid(), {"p:one work", "p:two work"});
  const std::vector<Json> theirs = add(second, s.pid(), {"p:one work"});
  const std::uint64_t address = address_of(mine[0]);
  s.call(1);
  remove_all(s.client, {mine[0]});
  CHECK(has_breakpoint(s.pid(), address));
  s.client.call("probe.disable", ids_of({mine[1]}));
  CHECK(has_breakpoint(s.pid(), address));
  s.call(1);
  remove_all(second, theirs);
  CHECK(text_restored(s.pid()));  // only a disabled one is left
  s.call(1);
  s.client.call("probe.enable", ids_of({mine[1]}));
  s.call(1);
  CHECK(s.hits(mine[1]) == 2);
  remove_all(s.client, {mine[1]});
  s.quit();
}

// ---- K8 -------------------------------------------------------------------------------------------------------------

TEST_CASE("K8: the list shows address, kind, symbol, module, name, state and counters of every probe") {
  Session s;
  Watched other("values");
  Json params = add_params(s.pid(), {"p:mine/first work+0x" SECOND " a=" RESULT, "work"});
  params["probes"][0]["optimize"] = false;  // the list would show some moments later that it has become a jump
  params["probes"][1]["disabled"] = true;
  params["probes"][1]["filter"] = "pid > 1";
  const std::vector<Json> probes = s.client.call("probe.add", params).at("probes");
  const Json elsewhere = add(s.client, other.pid(), {"v_ten"}).at(0);
  CHECK(list_probes(s.client).size() == 3);
  const std::vector<Json> there = list_probes(s.client, other.pid());
  REQUIRE(there.size() == 1);
  CHECK(there[0].at("id") == elsewhere.at("id"));
  const std::vector<Json> here = list_probes(s.client, s.pid());
  REQUIRE(here.size() == 2);
  CHECK(here == probes);
  const Json first = here[0], second = here[1];
  CHECK(first.at("name") == "mine/first");
  CHECK(first.at("kind") == "p");
  CHECK(first.at("symbol") == "work+0x" SECOND);
  CHECK(first.at("module") == "family");
  CHECK(first.at("state") == "enabled");
  CHECK(first.at("tier") == "boosted");
  CHECK(first.at("args") == Json::array({{{"name", "a"}, {"type", "x64"}}}));
  CHECK(second.at("name") == "probes/p_work_0");
  CHECK(second.at("state") == "disabled");
  CHECK(second.at("filter") == "pid > 1");
  CHECK(address_of(first) == address_of(second) + std::stoul(SECOND));

  const CommandResult text = probectl(s.daemon, {"list", "-p", std::to_string(s.pid())});
  CHECK(text.ok());
  CHECK(text.out == first.at("address").get<std::string>() + "  p  work+0x" SECOND "  family  mine/first  [BOOSTED]\n" +
                        second.at("address").get<std::string>() +
                        "  p  work+0x0  family  probes/p_work_0  [DISABLED]\n");
  s.client.call("probe.remove", {{"all", true}});
  CHECK(list_probes(s.client).empty());
  CHECK(other.unharmed());
  s.quit();
}

TEST_CASE("K8: the global switch takes every breakpoint out and brings back those that are enabled") {
  Session s;
  Watched other("values");
  Json params = add_params(s.pid(), {"p:on work", "p:off work+0x" SECOND});
  params["probes"][1]["disabled"] = true;
  const std::vector<Json> probes = s.client.call("probe.add", params).at("probes");
  const Json elsewhere = add(s.client, other.pid(), {"v_ten"}).at(0);
  CHECK(s.client.call("daemon.disarm") == Json{{"armed", false}});
  CHECK(s.client.call("daemon.status").at("armed") == false);
  CHECK(text_restored(s.pid()));
  CHECK(text_restored(other.pid()));
  for (const Json& probe : list_probes(s.client)) {
    CHECK(probe.at("armed") == false);
    CHECK(probe.at("state") == (probe.at("id") == probes[1].at("id") ? "disabled" : "enabled"));
  }
  s.call(3);
  // Probes added and switched meanwhile keep to the switch.
  const Json late = add(s.client, s.pid(), {"p:late work+0x" THIRD}).at(0);
  s.client.call("probe.enable", ids_of({probes[1]}));
  s.client.call("probe.disable", ids_of({probes[0]}));
  CHECK(text_restored(s.pid()));
  s.call(3);

  CHECK(s.client.call("daemon.arm") == Json{{"armed", true}});
  CHECK(has_breakpoint(other.pid(), address_of(elsewhere)));
  const std::vector<Json> listed = list_probes(s.client);
  CHECK(probe_with_id(listed, probes[0].at("id")).at("armed") == false);
  CHECK(probe_with_id(listed, probes[1].at("id")).at("armed") == true);
  s.call(2);
  CHECK(s.hits(probes[0]) == 0);
  CHECK(s.hits(probes[1]) == 2);
  CHECK(s.hits(late) == 2);
  s.client.call("probe.remove", {{"all", true}});
  CHECK(other.unharmed());
  s.quit();
}

TEST_CASE("no child is left when everything was torn down") { CHECK(joined(children_left()) == ""); }

}  // namespace
}  // namespace probed::live
