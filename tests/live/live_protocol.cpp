// The socket as IDEs and scripts use it, on a real daemon with real targets: framing, errors, batches, streams, owners.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "tests/live/freezer.hpp"
#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

// A daemon with a persistent probe in a target: what no wrong message may change.
struct Scene {
  Daemon daemon;
  RpcClient client{daemon.socket()};
  Watched target{"family"};
  // A breakpoint is one byte, and stays one.
  Json breakpoints_only = client.call("daemon.optimize", {{"enabled", false}});
  Json probe = add(client, target.pid(), {"p:steady work"}, {{"persist", true}}).at(0);
  std::vector<Json> listed = list_probes(client);
  pid_t pid() const { return target.pid(); }

  bool unchanged() {
    RpcClient other(daemon.socket());
    return list_probes(other) == listed && text_differences(pid()).size() == 1;
  }
  ~Scene() {
    RpcClient last(daemon.socket());
    last.call("probe.remove", {{"all", true}});
    CHECK(target.unharmed());
  }
};

Json read_json(RpcClient& client) { return parse_json(client.receive_line().value_or("null")); }

// ---- wrong messages -------------------------------------------------------------------------------------------------

struct BadMessage {
  std::string text;
  int code;
  std::string reason;
};
const BadMessage kBadMessages[] = {
    {"{\"jsonrpc\":\"2.0\",\"id\":1,", -32700, "bad-message"},
    {"not json at all", -32700, "bad-message"},
    {"\"\xff\xfe\"", -32700, "bad-message"},
    {"[]", -32600, "bad-message"},
    {"42", -32600, "bad-message"},
    {R"({"id":1,"method":"daemon.status"})", -32600, "bad-message"},
    {R"({"jsonrpc":"2.0","id":1,"method":"daemon.status","extra":1})", -32600, "bad-message"},
    {R"({"jsonrpc":"2.0","id":{},"method":"daemon.status"})", -32600, "bad-message"},
    {R"({"jsonrpc":"2.0","id":1,"method":7})", -32600, "bad-message"},
    {R"({"jsonrpc":"2.0","id":1,"method":"probe.everything"})", -32601, "unknown-method"},
    {R"({"jsonrpc":"2.0","id":1,"method":"daemon.status","params":{"verbose":true}})", -32602, "bad-params"},
    {R"({"jsonrpc":"2.0","id":1,"method":"probe.remove","params":{}})", -32602, "bad-params"},
    {R"({"jsonrpc":"2.0","id":1,"method":"probe.remove","params":{"ids":[1],"names":["steady"]}})", -32602,
     "bad-params"},
    {R"({"jsonrpc":"2.0","id":1,"method":"probe.remove","params":{"ids":["steady"]}})", -32602, "bad-params"},
    {R"({"jsonrpc":"2.0","id":1,"method":"probe.remove","params":{"all":false}})", -32602, "bad-params"},
    {R"({"jsonrpc":"2.0","id":1,"method":"probe.disable","params":["steady"]})", -32602, "bad-params"},
    {R"({"jsonrpc":"2.0","id":1,"method":"target.detach","params":{"pid":"1"}})", -32602, "bad-params"},
    {R"({"jsonrpc":"2.0","id":1,"method":"target.detach","params":{"pid":1.5}})", -32602, "bad-params"},
    {R"({"jsonrpc":"2.0","id":1,"method":"target.detach","params":{"pid":-1}})", -32602, "bad-params"},
};

TEST_CASE("a wrong message is answered with its code and reason, changes nothing, and the connection goes on") {
  Scene scene;
  RpcClient client(scene.daemon.socket());
  client.call("daemon.status");  // until then the first fault ends a connection
  for (const BadMessage& row : kBadMessages) {
    CAPTURE(row.text);
    REQUIRE(client.send_raw(row.text + "\n"));
    const Json answer = read_json(client);
    CAPTURE(answer.dump());
    REQUIRE(answer.contains("error"));
    CHECK(answer.at("jsonrpc") == "2.0");
    CHECK(answer.contains("id"));
    CHECK(answer.at("error").at("code") == row.code);
    CHECK(reason_of(answer.at("error")) == row.reason);
  }
  CHECK(client.call("daemon.status").at("probes") == 1);
  CHECK(scene.unchanged());
}

TEST_CASE("an unknown key anywhere in probe.add is refused before anything is done") {
  Scene scene;
  Watched other("family");
  for (const char* where : {"top", "probe"}) {
    CAPTURE(std::string(where));
    Json params = add_params(other.pid(), {"work"});
    (std::string(where) == "top" ? params : params["probes"][0])["wait"] = true;
    const Json answer = scene.client.request("probe.add", params);
    REQUIRE(answer.contains("error"));
    CHECK(reason_of(answer.at("error")) == "bad-params");
    CHECK(answer.at("error").at("message").get<std::string>().find("wait") != std::string::npos);
    CHECK(!hint_of(answer.at("error")).empty());
    CHECK(other.harm() == "");
  }
  CHECK(scene.unchanged());
}

TEST_CASE("a message of more than one MiB is refused and its connection closed; others go on") {
  Scene scene;
  RpcClient other(scene.daemon.socket());
  const std::string filler(1 << 20, 'x');
  // Half a line is enough to know: no newline follows.
  REQUIRE(other.send_raw(R"({"jsonrpc":"2.0","id":1,"method":")" + filler));
  const Json answer = read_json(other);
  REQUIRE(answer.contains("error"));
  CHECK(reason_of(answer.at("error")) == "message-too-long");
  CHECK(other.closed_by_peer());
  CHECK(scene.unchanged());
  CHECK(scene.client.call("daemon.status").at("probes") == 1);
}

TEST_CASE("a message of just less than one MiB is taken") {
  Scene scene;
  const std::string padding((1 << 20) - 100, ' ');
  REQUIRE(scene.client.send_raw(R"({"jsonrpc":"2.0","id":77,"method":"daemon.status")" + padding + "}\n"));
  CHECK(read_json(scene.client).at("id") == 77);
}

// ---- right messages -------------------------------------------------------------------------------------------------

TEST_CASE("a batch is answered in its order, notifications in it are not, and an error in it hinders nothing else") {
  Scene scene;
  const std::string pid = std::to_string(scene.pid());
  REQUIRE(scene.client.send_raw(R"([{"jsonrpc":"2.0","id":"a","method":"daemon.status"},)"
                                R"({"jsonrpc":"2.0","method":"probe.add","params":{"pid":)" +
                                pid +
                                R"(,"probes":[{"definition":"p:quiet work"}]}},)"
                                R"({"jsonrpc":"2.0","id":"b","method":"nonsense"},)"
                                R"({"jsonrpc":"2.0","id":"c","method":"probe.list","params":{"pid":)" +
                                pid + "}}]\n"));
  const Json answers = read_json(scene.client);
  REQUIRE(answers.is_array());
  REQUIRE(answers.size() == 3);
  CHECK(answers[0].at("id") == "a");
  CHECK(answers[1].at("id") == "b");
  CHECK(answers[1].at("error").at("code") == -32601);
  CHECK(answers[2].at("id") == "c");
  CHECK(answers[2].at("result").at("probes").size() == 2);  // the notification before it had its effect
}

TEST_CASE("messages may come in pieces and several at once; blank lines mean nothing") {
  Scene scene;
  const std::string text = R"({"jsonrpc":"2.0","id":1,"method":"daemon.status"})";
  for (const char c : text) REQUIRE(scene.client.send_raw(std::string(1, c)));
  REQUIRE(scene.client.send_raw("\n\n \n"));
  CHECK(read_json(scene.client).contains("result"));
  std::string many;
  for (int i = 0; i < 50; ++i)
    many += R"({"jsonrpc":"2.0","id":)" + std::to_string(i) + R"(,"method":"daemon.status"})" + "\n";
  REQUIRE(scene.client.send_raw(many));
  for (int i = 0; i < 50; ++i) CHECK(read_json(scene.client).at("id") == i);
}

TEST_CASE("an editor's framing with Content-Length works for calls, errors and events") {
  Scene scene;
  RpcClient editor(scene.daemon.socket());
  const auto send = [&](const std::string& body) {
    return editor.send_raw("Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  };
  // Bodies hold no LF: a header line, an empty line, and the body, which the next header follows at once.
  std::string rest;
  const auto receive = [&] {
    std::string header = editor.receive_line().value_or("");
    if (header.ends_with("\r")) header.pop_back();
    REQUIRE(header.starts_with("Content-Length: "));
    return std::stoul(header.substr(16));
  };
  REQUIRE(send(
      R"({"jsonrpc":"2.0","id":1,"method":"initialize","params":{"client":{"name":"t","version":"1"},"protocol":1}})"));
  CHECK(receive() > 100);
  CHECK(editor.receive_line() == "\r");
  // The second answer's header ends the line that the first body began.
  REQUIRE(send(R"({"jsonrpc":"2.0","id":2,"method":"nonsense"})"));
  const std::string line = editor.receive_line().value_or("");
  const std::size_t header = line.find("Content-Length: ");
  REQUIRE(header != std::string::npos);
  const Json first = parse_json(line.substr(0, header));
  CHECK(first.at("id") == 1);
  CHECK(first.at("result").at("server").at("name") == "probed");
}

TEST_CASE("initialize tells what the daemon is and who asks; no call needs it") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  const Json result = client.call("initialize", {{"client", {{"name", "test"}, {"version", "1"}}}, {"protocol", 1}});
  CHECK(result.at("server").at("name") == "probed");
  CHECK(result.at("protocol") == 1);
  CHECK(!result.at("arch").get<std::string>().empty());
  CHECK(result.at("peer").at("uid") == ::getuid());
  CHECK(result.at("capabilities").at("maxMessage") == 1 << 20);
  CHECK(client.refusal("initialize", {{"protocol", 99}}) == "bad-params");
}

TEST_CASE("rpc.discover describes every method, and the daemon knows each of them") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  const Json document = client.call("rpc.discover");
  CHECK(document.contains("openrpc"));
  std::set<std::string> names;
  for (const Json& method : document.at("methods")) names.insert(method.at("name"));
  for (const char* name :
       {"initialize",         "target.attach", "target.detach", "target.list",     "probe.add",     "probe.remove",
        "probe.enable",       "probe.disable", "probe.list",    "probe.profile",   "probe.format",  "events.subscribe",
        "events.unsubscribe", "daemon.arm",    "daemon.disarm", "daemon.optimize", "daemon.status", "symbols.functions",
        "symbols.variables",  "symbols.lines", "rpc.discover"}) {
    CAPTURE(std::string(name));
    CHECK(names.contains(name));
  }
  for (const std::string& name : names) {
    CAPTURE(name);
    CHECK(client.refusal(name, {{"no-such-key", 1}}) == "bad-params");
  }
}

// ---- targets --------------------------------------------------------------------------------------------------------

TEST_CASE("a target that is attached explicitly stays attached without probes, until it is detached") {
  Daemon daemon;
  RpcClient client(daemon.socket()), other(daemon.socket());
  Watched target("family");
  const Json attached = client.call("target.attach", {{"pid", target.pid()}});
  CHECK(attached.at("pid") == target.pid());
  CHECK(attached.at("comm") == "family");
  CHECK(attached.at("exe") == target_path("family"));
  CHECK(attached.at("threads") == 1);
  CHECK(tracer_of(target.pid()) == daemon.pid());
  remove_all(other, add(other, target.pid(), {"work"}));
  CHECK(other.call("target.list").at("targets").size() == 1);
  const std::vector<Json> probes = add(other, target.pid(), {"work"});
  client.call("target.detach", {{"pid", target.pid()}});
  CHECK(target.unharmed());
  CHECK(list_probes(other).empty());  // everybody's
  CHECK(other.call("target.list").at("targets").empty());
  CHECK(client.refusal("target.detach", {{"pid", target.pid()}}) == "not-attached");
  CHECK(target.ask("call 3") == "called 3");
}

// ---- events ---------------------------------------------------------------------------------------------------------

TEST_CASE("an event has exactly the documented keys, in the documented order and types") {
  Scene scene;
  const Json probe = add(scene.client, scene.pid(), {"p:mine/x work n=$arg1:s32 x=$arg2 s=+0($arg3):string"}).at(0);
  const std::uint64_t id = scene.client.call("events.subscribe", {{"probes", {probe.at("id")}}}).at("subscription");
  CHECK(scene.target.ask("call 1") == "called 1");
  const std::string line = scene.client.receive_line().value_or("");
  const Json message = parse_json(line);
  CHECK(message.at("jsonrpc") == "2.0");
  CHECK(message.at("method") == "events");
  CHECK(message.at("params").at("subscription") == id);
  CHECK(message.at("params").at("missed") == 0);
  const Json event = message.at("params").at("events").at(0);
  CHECK(event.size() == 10);
  std::size_t last = 0;
  for (const char* key : {"\"probe\":", "\"id\":", "\"pid\":", "\"tid\":", "\"comm\":", "\"cpu\":", "\"time\":",
                          "\"ip\":", "\"symbol\":", "\"args\":"}) {
    const std::size_t at = line.find(key, last);
    REQUIRE(at != std::string::npos);
    last = at;
  }
  CHECK(event.at("probe") == "mine/x");
  CHECK(event.at("id") == probe.at("id"));
  CHECK(event.at("pid") == scene.pid());
  CHECK(event.at("tid") == scene.pid());
  CHECK(event.at("comm") == "family");
  CHECK(event.at("cpu").is_number_unsigned());
  CHECK(event.at("time").is_number_unsigned());
  CHECK(event.at("ip") == probe.at("address"));
  CHECK(event.at("symbol") == "work+0x0");
  CHECK(event.at("args") == Json{{"n", 3}, {"x", "0x0"}, {"s", "alpha"}});
}

TEST_CASE("a subscription has the probes it asks for: by id, by name, by process, all and later ones") {
  Scene scene;
  Watched second("family");
  struct Case {
    Json params;
    std::set<std::string> probes;
  };
  RpcClient adding(scene.daemon.socket());
  add(adding, scene.pid(), {"p:g/a work", "p:g/b work"});
  add(adding, second.pid(), {"p:g/c work"});
  const Json here = scene.pid(), there = second.pid();
  const std::vector<Case> cases = {
      {{{"probes", {"steady"}}}, {"probes/steady"}},
      {{{"probes", {"g/a", "c"}}}, {"g/a", "g/c"}},
      {{{"probes", {scene.probe.at("id")}}}, {"probes/steady"}},
      {{{"probes", {scene.probe.at("id").dump()}}}, {"probes/steady"}},
      {{{"pid", there}}, {"g/c", "g/late"}},
      {{{"pid", here}, {"probes", {"a", "c"}}}, {"g/a"}},
      {Json::object(), {"probes/steady", "g/a", "g/b", "g/c", "g/late"}},
  };
  std::vector<std::unique_ptr<RpcClient>> clients;
  std::vector<std::unique_ptr<Events>> streams;
  for (const Case& one : cases) {
    clients.push_back(std::make_unique<RpcClient>(scene.daemon.socket()));
    streams.push_back(std::make_unique<Events>(*clients.back(), one.params));
  }
  add(adding, second.pid(), {"p:g/late work"});
  CHECK(scene.target.ask("call 2") == "called 2");
  CHECK(second.ask("call 2") == "called 2");
  for (std::size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(cases[i].params.dump());
    streams[i]->end();
    std::set<std::string> seen;
    for (const Json& event : streams[i]->all()) seen.insert(event.at("probe"));
    CHECK(seen == cases[i].probes);
    CHECK(streams[i]->all().size() == 2 * cases[i].probes.size());
    CHECK(streams[i]->told_delivered() == streams[i]->all().size());
  }
  adding.call("probe.remove", {{"names", {"g/a", "g/b", "g/c", "g/late"}}});
  CHECK(second.unharmed());
}

TEST_CASE("a stream in full flow does not block control calls of its own connection") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"4", "0"});
  const std::vector<Json> probes = add(client, counter.pid(), {"work"});
  Events events(client);
  counter.target.go();
  CHECK(events.reach(1));
  for (int i = 0; i < 6; ++i) {
    const auto start = Clock::now();
    client.call("daemon.status");
    remove_all(client, add(client, counter.pid(), {"work+0x" SECOND}));
    CHECK(Clock::now() - start < scaled(Millis{3000}));
  }
  counter.target.go();
  CHECK(counter.target.finish().ok());
  events.end();
  const Counts counts = counts_of(client, probes[0]);
  CHECK(events.all().size() == events.told_delivered());
  CHECK(events.told_delivered() + events.told_missed() >= counts.hits);  // those of the short-lived probes besides
}

// A machine without processor time to spare leaves threads in detours for as long.
TEST_CASE("a stream that ends once its probes are disabled has all that they count, whoever is in a detour then") {
  const Freezer freezer;
  if (!freezer.usable()) SKIP_TEST("needs root and a control group that freezes");
  Daemon daemon;
  RpcClient client(daemon.socket()), listening(daemon.socket());
  Watched counter("counter", {"8", "0"});
  REQUIRE(freezer.take(counter.pid()));
  counter.target.go();
  for (int round = 0; round < 3; ++round) {
    const Json disabled = {{"pid", counter.pid()}, {"probes", {{{"definition", "work"}, {"disabled", true}}}}};
    const std::vector<Json> probes = client.call("probe.add", disabled).at("probes");
    const Json subscription = listening.call("events.subscribe");
    // Millions of events, which take too long to be looked at.
    const auto delivered_and_missed = [&] {
      listening.send_raw(request_text("events.unsubscribe", subscription, 7));
      std::optional<std::string> line;
      do line = listening.receive_line(kPatience);
      while (line && line->substr(0, 40).find("\"id\":7,") == std::string::npos);
      const Json totals = parse_json(line.value()).at("result");
      return totals.at("delivered").get<std::uint64_t>() + totals.at("missed").get<std::uint64_t>();
    };
    client.call("probe.enable", ids_of(probes));
    CHECK(eventually([&] { return list_probes(client).at(0).at("tier") == "optimized"; }));
    freezer.set(true);
    client.send_raw(request_text("probe.disable", ids_of(probes)));
    const auto early = client.receive_line(Millis{100});
    std::uint64_t told = early ? delivered_and_missed() : 0;
    freezer.set(false);
    CHECK((early || client.receive_line(kPatience)));
    if (!early) told = delivered_and_missed();
    CHECK(told == remove_all(client, probes).at(0).at("hits"));
  }
  counter.target.go();
  CHECK(counter.target.finish().ok());
}

TEST_CASE("a client that does not read loses events, which are counted; target and other clients lose nothing") {
  constexpr std::size_t kRounds = 60, kCalls = 800;
  Daemon daemon;
  RpcClient sleeping(daemon.socket()), reading(daemon.socket());
  Watched target("family");
  // Events of two kilobytes: a round of them is less than a client's buffer holds, all of them are far more.
  std::string definition = "work";
  for (int i = 0; i < 40; ++i) definition += R"( \"0123456789012345678901234567890123456789":string)";
  const std::vector<Json> probes = add(reading, target.pid(), {definition});
  Events lost(sleeping), whole(reading);
  for (std::size_t round = 1; round <= kRounds; ++round) {
    CHECK(target.ask("call " + std::to_string(kCalls)) == "called " + std::to_string(kCalls));
    CHECK(whole.reach(round * kCalls));
  }
  whole.end();
  lost.end();
  CHECK(counts_of(reading, probes[0]) == Counts{kRounds * kCalls, 0, 0});
  CHECK(whole.all().size() == kRounds * kCalls);
  CHECK(whole.missed() == 0);
  CHECK(lost.missed() > 0);
  CHECK(lost.missed() == lost.told_missed());
  CHECK(lost.all().size() == lost.told_delivered());
  CHECK(lost.all().size() + lost.missed() == kRounds * kCalls);
  remove_all(reading, probes);
  CHECK(target.unharmed());
}

TEST_CASE("hundreds of subscriptions of clients that don't read hold up nobody, and each is told of every hit") {
  constexpr std::size_t kClients = 8, kSubscriptions = 60;
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"2", "0"});
  const std::vector<Json> probes = add(client, counter.pid(), {"work number=$arg1:s32"});
  std::vector<std::unique_ptr<RpcClient>> sleeping;
  std::vector<std::vector<Json>> subscriptions(kClients);
  for (std::size_t i = 0; i < kClients; ++i) {
    sleeping.push_back(std::make_unique<RpcClient>(daemon.socket()));
    for (std::size_t n = 0; n < kSubscriptions; ++n) subscriptions[i].push_back(sleeping[i]->call("events.subscribe"));
  }
  counter.target.go();
  CHECK(eventually([&] { return counts_of(client, probes[0]).hits > 100'000; }));
  for (int i = 0; i < 20; ++i) remove_all(client, add(client, counter.pid(), {"work+0x" SECOND}));
  counter.target.go();
  CHECK(counter.target.finish().ok());
  const std::uint64_t hits = counts_of(client, probes[0]).hits;
  for (std::size_t i = 0; i < kClients; ++i)
    for (const Json& subscription : subscriptions[i]) {
      const Json totals = sleeping[i]->call("events.unsubscribe", subscription);
      const std::uint64_t delivered = totals.at("delivered"), missed = totals.at("missed");
      CHECK(delivered + missed >= hits);  // those of the short-lived probes besides
      CHECK(missed > 0);
    }
}

TEST_CASE("a limit disables the batch after exactly so many hits, whatever the threads do, and its owner is told") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"8", "0"});
  const std::vector<Json> probes = add(client, counter.pid(), {"work", "work+0x" SECOND}, {{"limit", 777}});
  Events events(client);
  counter.target.go();
  CHECK(events.reach(777));
  CHECK(eventually([&] { return text_differences(counter.pid()).empty(); }));
  events.reach(778, Millis{50});
  REQUIRE(events.others().size() == 1);
  CHECK(events.others()[0].at("method") == "probe.disabled");
  CHECK(events.others()[0].at("params").at("ids") == ids_of(probes).at("ids"));
  CHECK(events.others()[0].at("params").at("reason") == "limit");
  events.end();
  CHECK(events.all().size() == 777);
  CHECK(counts_of(client, probes[0]).hits + counts_of(client, probes[1]).hits == 777);
  for (const Json& probe : list_probes(client)) CHECK(probe.at("state") == "disabled");
  counter.target.go();
  CHECK(counter.target.finish().ok());
}

TEST_CASE("a subscription belongs to its connection") {
  Daemon daemon;
  RpcClient mine(daemon.socket()), theirs(daemon.socket());
  const Json subscription = mine.call("events.subscribe");
  CHECK(theirs.refusal("events.unsubscribe", subscription) == "no-such-subscription");
  CHECK(mine.call("events.unsubscribe", subscription) == Json{{"delivered", 0}, {"missed", 0}});
  CHECK(mine.refusal("events.unsubscribe", subscription) == "no-such-subscription");
}

// ---- owners ---------------------------------------------------------------------------------------------------------

TEST_CASE("probes go with the connection that added them; persistent ones, and other clients' ones, stay") {
  Scene scene;  // its probe is persistent
  auto leaving = std::make_unique<RpcClient>(scene.daemon.socket());
  RpcClient staying(scene.daemon.socket());
  add(*leaving, scene.pid(), {"p:mine work", "p:also work+0x" SECOND});
  const Json stays = add(staying, scene.pid(), {"p:mine work+0x" THIRD}).at(0);
  CHECK(list_probes(staying).size() == 4);
  CHECK(text_differences(scene.pid()).size() == 3);
  leaving.reset();
  CHECK(eventually([&] { return list_probes(staying).size() == 2; }));
  CHECK(eventually([&] { return text_differences(scene.pid()).size() == 2; }));
  CHECK(scene.target.ask("call 4") == "called 4");
  CHECK(counts_of(staying, stays).hits == 4);
  CHECK(counts_of(staying, scene.probe).hits == 4);
  remove_all(staying, {stays});
}

TEST_CASE("a stream is told what was removed, what became of its targets, and when nothing is left for it") {
  Daemon daemon;
  RpcClient root(daemon.socket());
  Watched target("family");
  const std::vector<Json> probes = add(root, target.pid(), {"p:one work", "p:two work", "p:three work"});
  const auto id = [&](int i) { return probes[static_cast<std::size_t>(i)].at("id"); };
  RpcClient named(daemon.socket()), all(daemon.socket()), of_process(daemon.socket());
  const Json subscription = named.call("events.subscribe", {{"probes", {"one", "two"}}}).at("subscription");
  all.call("events.subscribe");
  of_process.call("events.subscribe", {{"pid", target.pid()}});
  const auto next = [](RpcClient& client) {
    while (const auto message = client.notification())
      if (message->at("method") != "events") return *message;
    return Json();
  };
  const auto removed = [&](RpcClient& client, const Json& ids) {
    const Json message = next(client);
    CHECK_MESSAGE((message.is_object() && message.at("method") == "probe.removed"), message.dump());
    CHECK(message.at("params").at("ids") == ids);
  };
  remove_all(root, {probes[0]});
  for (RpcClient* client : {&named, &all, &of_process}) removed(*client, Json::array({id(0)}));
  remove_all(root, {probes[1], probes[2]});
  removed(named, Json::array({id(1)}));
  const Json ended = next(named);
  CHECK(ended.at("method") == "events.ended");
  CHECK(ended.at("params").at("subscription") == subscription);
  removed(all, Json::array({id(1), id(2)}));
  removed(of_process, Json::array({id(1), id(2)}));
  CHECK(next(of_process).at("method") == "events.ended");
  // It stays: what comes later is its, too.
  Events again(named, {{"probes", {"one"}}});
  const std::vector<Json> later = add(root, target.pid(), {"p:one work"});
  CHECK(target.ask("call 3") == "called 3");
  CHECK(again.reach(3));
  target.target.signal(SIGKILL);
  CHECK(next(named) == Json{{"jsonrpc", "2.0"},
                            {"method", "target.exited"},
                            {"params", {{"pid", target.pid()}, {"signal", SIGKILL}}}});
  CHECK(next(named).at("method") == "events.ended");
  CHECK(next(all).at("method") == "target.exited");
  CHECK(next(of_process).at("method") == "target.exited");
  CHECK(next(of_process).at("method") == "events.ended");
  CHECK(eventually([&] {
    return daemon.process().errors().find("process " + std::to_string(target.pid()) +
                                          " has ended (killed by signal 9)") != std::string::npos;
  }));
}

TEST_CASE("a connection that goes in the middle of a stream frees its target, and nothing else") {
  Daemon daemon;
  RpcClient staying(daemon.socket());
  Watched counter("counter", {"4", "0"}), other("family");
  const Json kept = add(staying, other.pid(), {"work"}).at(0);
  {
    RpcClient leaving(daemon.socket());
    add(leaving, counter.pid(), {"work", "work+0x" SECOND});
    Events events(leaving);
    counter.target.go();
    REQUIRE(counter.runs_threads(5));
    CHECK(events.reach(100));
  }
  CHECK(eventually([&] { return tracer_of(counter.pid()) == 0; }));
  CHECK(text_restored(counter.pid()));
  CHECK(eventually([&] { return list_probes(staying).size() == 1; }));
  CHECK(other.ask("call 2") == "called 2");
  CHECK(counts_of(staying, kept).hits == 2);
  counter.target.go();
  CHECK(counter.target.finish().ok());
}

TEST_CASE("a client that goes before its probe.add is answered leaves no probe behind") {
  Daemon daemon;
  RpcClient staying(daemon.socket());
  Watched target("family");
  for (int i = 0; i < 20; ++i) {
    RpcClient leaving(daemon.socket());
    REQUIRE(leaving.send_raw(request_text("probe.add", add_params(target.pid(), {"work", "work+0x" SECOND}))));
  }
  CHECK(eventually([&] { return list_probes(staying).empty() && staying.call("target.list").at("targets").empty(); }));
  CHECK(target.unharmed());
  CHECK(target.ask("call 2") == "called 2");
}

// What the event loop is told of a connection's end may be under way while another takes its place.
TEST_CASE("a client that connects while another goes in the middle of its requests is not closed for that one's end") {
  constexpr int kTries = 300, kRequests = 60;
  constexpr std::chrono::microseconds kStep{20}, kMost{2000};  // until a client goes: its requests take about as long
  Daemon daemon;
  Watched target("family");
  std::string requests;
  for (int i = 0; i < kRequests; ++i) requests += request_text("daemon.status", Json::object());
  int answered = 0;
  for (int i = 0; i < kTries; ++i) {
    std::optional<RpcClient> leaving(daemon.socket());
    REQUIRE(leaving->send_raw(requests));
    const auto until = Clock::now() + kStep * i % kMost;
    while (Clock::now() < until) continue;
    RpcClient coming(daemon.socket());
    leaving.reset();
    // Answered by way of the tracer, and so not before the end of the other has been dealt with.
    answered += coming.request("probe.add", add_params(target.pid(), {"no_such_function"})).contains("error") ? 1 : 0;
  }
  CHECK(answered == kTries);
  CHECK(target.unharmed());
}

TEST_CASE("when the daemon ends, every target is as it was, and a client hears of it by the end of its connection") {
  Daemon daemon;
  RpcClient client(daemon.socket());
  Watched counter("counter", {"4", "0"}), family("family");
  add(client, counter.pid(), {"work", "work+0x" SECOND}, {{"persist", true}});
  add(client, family.pid(), {"work"});
  counter.target.go();
  REQUIRE(eventually([&] { return client.call("daemon.status").at("hits") > 100; }));
  CHECK(daemon.stop() == Exit{0, 0});
  CHECK(client.closed_by_peer());
  CHECK(family.harm() == "");
  CHECK(tracer_of(counter.pid()) == 0);
  CHECK(text_restored(counter.pid()));
  counter.target.go();
  CHECK(counter.target.finish().ok());
  CHECK(family.ask("call 2") == "called 2");
}

// ---- symbols --------------------------------------------------------------------------------------------------------

TEST_CASE("symbols.functions lists what can be probed, by glob, with its place and size") {
  Scene scene;
  const Json found = scene.client.call("symbols.functions", {{"pid", scene.pid()}, {"glob", "work"}});
  CHECK(found.at("truncated") == false);
  REQUIRE(found.at("functions").size() == 1);
  const Json work = found.at("functions")[0];
  CHECK(work.at("name") == "work");
  CHECK(work.at("module") == "family");
  CHECK(work.at("address") == scene.probe.at("address"));
  CHECK(work.at("size") > 8);
  const Json few = scene.client.call("symbols.functions", {{"pid", scene.pid()}, {"glob", "*"}, {"limit", 5}});
  CHECK(few.at("functions").size() == 5);
  CHECK(few.at("truncated") == true);
}

TEST_CASE("no child is left when everything was torn down") { CHECK(joined(children_left()) == ""); }

}  // namespace
}  // namespace probed::live
