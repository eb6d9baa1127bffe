// The event path: batching, order, accounting with slow readers, control calls beside a stream.
#include <doctest/doctest.h>

#include <memory>

#include "daemon/api/outbox.hpp"
#include "tests/unit/api/harness.hpp"

using namespace probed;
using namespace probed::test;
using api::Outbox;
using api::OutboxLimits;
using api::Outgoing;

namespace {

// An outbox that knows subscriptions 1 and 2.
class ReadyOutbox : public Outbox {
 public:
  explicit ReadyOutbox(OutboxLimits limits = {}) : Outbox(limits) {
    expect(1);
    expect(2);
    release();
  }
};

// Everything an outbox has ready, as lines.
std::vector<std::string> drained(Outbox& outbox) {
  std::vector<std::string> out;
  for (Outgoing message; outbox.next(proto::Framing::lines, message);) {
    out.push_back(message.body.substr(0, message.body.size() - 1));
    outbox.done(std::move(message));
  }
  return out;
}

std::string events_line(int subscription, const std::string& events, int missed) {
  return R"({"jsonrpc":"2.0","method":"events","params":{"subscription":)" + std::to_string(subscription) +
         R"(,"events":[)" + events + R"(],"missed":)" + std::to_string(missed) + "}}";
}

struct Tally {
  std::uint64_t events = 0, missed = 0, empty = 0;
  std::int64_t last = -1;
  bool ordered = true;
};

void count(Tally& tally, const Json& notification) {
  const Json& params = notification["params"];
  tally.missed += params["missed"].get<std::uint64_t>();
  tally.empty += params["events"].empty();
  for (const Json& event : params["events"]) {
    const auto n = event["n"].get<std::int64_t>();
    tally.ordered = tally.ordered && n > tally.last;
    tally.last = n;
    ++tally.events;
  }
}

std::string numbered(int n) { return "{\"n\":" + std::to_string(n) + ",\"pad\":\"" + std::string(200, 'x') + "\"}"; }

}  // namespace

TEST_CASE("a burst may wait in full; a client that stays behind has less room until it has caught up") {
  constexpr std::string_view kEvent = R"({"n":1})";  // 8 bytes with what separates it
  const auto taken = [&](Outbox& outbox) {
    int count = 0;
    while (count < 1000 && outbox.offer(1, kEvent)) ++count;
    return count;
  };
  OutboxLimits limits{.event_buffer = 1600, .own_share = 80, .steady_buffer = 800, .burst = std::chrono::hours(1)};
  ReadyOutbox in_time(limits);
  CHECK(taken(in_time) == 200);
  drained(in_time);
  CHECK(taken(in_time) == 200);

  limits.burst = std::chrono::milliseconds(-1);  // has always lasted too long
  ReadyOutbox late(limits);
  CHECK(taken(late) == 100);
  CHECK(taken(late) == 0);
  drained(late);
  CHECK(taken(late) == 100);
}

TEST_CASE("an outbox gathers events into one notification for each subscription") {
  ReadyOutbox outbox;
  CHECK(outbox.offer(1, "{1}"));
  CHECK(outbox.offer(2, "{2}"));
  CHECK(outbox.offer(1, "{3}"));
  CHECK(drained(outbox) == std::vector{events_line(1, "{1},{3}", 0), events_line(2, "{2}", 0)});
  CHECK(outbox.empty());
  CHECK(outbox.unsent_events() == 0);
}

TEST_CASE("batches end at their size, and an event longer than a batch goes alone") {
  ReadyOutbox outbox(OutboxLimits{1000, 100, 1000});
  const std::string large(150, 'L');
  CHECK(outbox.offer(1, "a"));
  CHECK(outbox.offer(1, large));
  CHECK(outbox.offer(1, "b"));
  CHECK(drained(outbox) == std::vector{events_line(1, "a", 0), events_line(1, large, 0), events_line(1, "b", 0)});
}

TEST_CASE("the event buffer is bounded, and has room again when its contents have been written") {
  ReadyOutbox outbox(OutboxLimits{10, 100, 1000});
  CHECK(outbox.offer(1, "1234"));
  CHECK(outbox.offer(1, "1234"));
  CHECK_FALSE(outbox.offer(1, "1"));
  CHECK_FALSE(outbox.offer(2, "1"));
  CHECK_FALSE(outbox.offer(1, std::string(100, 'x')));
  Outgoing message;
  REQUIRE(outbox.next(proto::Framing::lines, message));
  CHECK_FALSE(outbox.offer(1, "1"));  // on its way is not written
  outbox.done(std::move(message));
  CHECK(outbox.offer(1, "1"));
}

TEST_CASE("the outboxes of one user share their room, and what one leaves is the others'") {
  const auto room = std::make_shared<api::UserShare>(api::UserShare{.most = 30});
  const OutboxLimits limits{20, 100, 1000, room, 0};
  ReadyOutbox first(limits);
  CHECK(first.offer(1, std::string(14, 'a')));
  {
    ReadyOutbox second(limits);
    CHECK_FALSE(second.offer(1, std::string(15, 'b')));
    CHECK(second.offer(1, std::string(14, 'b')));
    CHECK_FALSE(first.offer(1, ""));
  }
  CHECK(room->used == 15);
  CHECK(drained(first).size() == 1);
  CHECK(room->used == 0);
  CHECK(first.offer(1, std::string(19, 'a')));
}

TEST_CASE("those of a user who don't read take nothing from one who does") {
  const auto room = std::make_shared<api::UserShare>(api::UserShare{.most = 100});
  const OutboxLimits limits{1000, 100, 1000, room, 50};
  ReadyOutbox stuck(limits), reader(limits);
  while (stuck.offer(1, std::string(9, 'a'))) {
  }
  CHECK(room->used == 100);
  for (int i = 0; i < 10; ++i) {
    for (int n = 0; n < 5; ++n) CHECK(reader.offer(1, std::string(9, 'b')));
    CHECK_FALSE(reader.offer(1, std::string(9, 'b')));
    CHECK_FALSE(drained(reader).empty());
  }
  CHECK(room->used == 100);
}

TEST_CASE("events that go before a subscription's last answer take no room of the user's answers") {
  const auto share = std::make_shared<api::UserShare>(api::UserShare{.most = 10'000, .most_answers = 100});
  {
    ReadyOutbox outbox(OutboxLimits{10'000, 1000, 1000, share, 0});
    for (int i = 0; i < 20; ++i) CHECK(outbox.offer(1, std::string(50, 'x')));
    outbox.seal(1);
    CHECK(outbox.unsent_answers() > 1000);  // no request is read before they are
    CHECK(outbox.may_answer(100));
    outbox.answer(std::string(60, 'a'));
    CHECK_FALSE(outbox.may_answer(41));
    CHECK(drained(outbox).size() >= 2);
    CHECK(outbox.unsent_answers() == 0);
    CHECK(outbox.may_answer(100));
    outbox.answer(std::string(60, 'a'));
  }
  CHECK(share->answers == 0);
}

// They are of the same user's room.
TEST_CASE("buffers are kept for the next events as long as there is room for others' events, too") {
  const auto room = std::make_shared<api::UserShare>(api::UserShare{.most = 10'000});
  const auto fill = [](Outbox& outbox) {
    for (std::uint64_t i = 0; i < 12; ++i) CHECK(outbox.offer(1 + i % 2, std::string(600, 'x')));
  };
  {
    ReadyOutbox first(OutboxLimits{20'000, 1000, 1000, room, 0});
    fill(first);
    CHECK(drained(first).size() == 12);
    CHECK(room->used >= 4000);
    CHECK(room->used <= 6000);
    fill(first);
    CHECK(room->used <= 5 * 1000 + 7 * 601);  // the whole of a buffer that was kept
  }
  CHECK(room->used == 0);
}

TEST_CASE("losses are told with the events around them, or alone") {
  ReadyOutbox outbox;
  outbox.missed(1, 3);
  outbox.missed(1, 0);
  outbox.missed(1, 4);
  CHECK(drained(outbox) == std::vector{events_line(1, "", 7)});
  CHECK(outbox.offer(1, "a"));
  outbox.missed(1, 2);
  CHECK(outbox.offer(1, "b"));
  CHECK(drained(outbox) == std::vector{events_line(1, "a,b", 2)});
  outbox.missed(1, 0);
  CHECK(drained(outbox).empty());
}

TEST_CASE("losses between notifications that nobody reads are one number") {
  ReadyOutbox outbox;
  CHECK(outbox.offer(1, "a"));
  for (int i = 0; i < 100; ++i) {
    outbox.notification("N");
    outbox.missed(1, 1);
    outbox.missed(2, 2);
  }
  auto messages = drained(outbox);
  CHECK(messages.size() == 102);
  CHECK(messages.front() == events_line(1, "a", 100));
  CHECK(std::erase(messages, "N") == 100);
  CHECK(messages.back() == events_line(2, "", 200));
  outbox.missed(1, 3);
  CHECK(drained(outbox) == std::vector{events_line(1, "", 3)});
}

TEST_CASE("answers overtake events, notifications keep their place among them") {
  ReadyOutbox outbox;
  CHECK(outbox.offer(1, "a"));
  outbox.notification("N");
  CHECK(outbox.offer(1, "b"));
  outbox.answer("A");
  CHECK(drained(outbox) == std::vector<std::string>{"A", events_line(1, "a", 0), "N", events_line(1, "b", 0)});
}

TEST_CASE("a sealed subscription's events go before the answer that follows, and leave the others alone") {
  ReadyOutbox outbox;
  CHECK(outbox.offer(1, "a"));
  CHECK(outbox.offer(2, "x"));
  outbox.notification("N");
  CHECK(outbox.offer(1, "b"));
  outbox.missed(1, 1);
  outbox.seal(1);
  outbox.answer("A");
  CHECK(drained(outbox) ==
        std::vector<std::string>{events_line(1, "a", 0), events_line(1, "b", 1), "A", events_line(2, "x", 0), "N"});
  CHECK(outbox.unsent_events() == 0);
  CHECK(outbox.unsent_answers() == 0);
}

TEST_CASE("a subscription nobody knows yet waits, others don't") {
  ReadyOutbox outbox;
  CHECK(outbox.offer(3, "a"));
  CHECK(outbox.offer(2, "x"));
  outbox.notification("N");
  CHECK(drained(outbox) == std::vector<std::string>{events_line(2, "x", 0), "N"});
  outbox.expect(3);
  CHECK(drained(outbox).empty());
  outbox.release();
  CHECK(drained(outbox) == std::vector{events_line(3, "a", 0)});
}

TEST_CASE("an outbox says when notifications pile up") {
  ReadyOutbox outbox(OutboxLimits{10, 10, 10});
  outbox.notification("12345");
  CHECK_FALSE(outbox.overflowed());
  outbox.notification("123456");
  CHECK(outbox.overflowed());
}

// ---- over a real socket ----

TEST_CASE("many events come in few notifications of bounded size, in order, all of them") {
  LiveServer server;
  TestClient client(server.path());
  client.result("events.subscribe");
  constexpr int kMany = 10000;
  server.loop([&] {
    for (int i = 0; i < kMany; ++i) server.controller().emit(1, numbered(i));
    server.controller().flush(1);
  });
  Tally tally;
  int notifications = 0;
  std::size_t longest = 0;
  while (tally.events + tally.missed < kMany) {
    const std::string line = client.read_line().value();
    longest = std::max(longest, line.size());
    count(tally, Json::parse(line));
    ++notifications;
  }
  CHECK(tally.events == kMany);
  CHECK(tally.missed == 0);
  CHECK(tally.ordered);
  CHECK(longest <= (64 << 10) + 200);
  CHECK(notifications < kMany / 100);
}

// 8 MiB of events for each client, so that a test needn't make more than that.
api::ServerOptions small_buffer() {
  api::ServerOptions options;
  options.session.outbox.event_buffer = options.session.outbox.steady_buffer;
  return options;
}

TEST_CASE("a slow reader loses events, and delivered and missed add up to what was offered") {
  LiveServer server(small_buffer());
  TestClient client(server.path());
  client.result("events.subscribe");
  constexpr int kMany = 60000;  // 13 MB into 8 MiB of buffer
  for (int i = 0; i < kMany; i += 100)
    server.loop([&] {
      for (int k = i; k < i + 100; ++k) server.controller().emit(1, numbered(k));
      server.controller().flush(1);
    });
  const auto [delivered, missed] = server.loop([&] {
    const auto& s = server.controller().subscriptions.at(1);
    return std::pair(s.delivered, s.missed);
  });
  CHECK(missed > 0);
  CHECK(delivered + missed == kMany);

  const Json totals = client.result("events.unsubscribe", {{"subscription", 1}});
  Tally tally;
  for (const Json& notification : client.notifications) count(tally, notification);
  CHECK(tally.ordered);
  CHECK(tally.events == delivered);
  CHECK(tally.missed == missed);
  CHECK(totals["delivered"] == delivered);
  CHECK(totals["missed"] == missed);
}

TEST_CASE("losses that no event follows are told as soon as there is room") {
  LiveServer server;
  TestClient client(server.path());
  client.result("events.subscribe");
  const int offered = server.loop([&] {
    int n = 0;
    while (server.controller().subscriptions.at(1).missed == 0) server.controller().emit(1, numbered(n++));
    server.controller().subscriptions.at(1).client->flush_events();
    return n;
  });
  Tally tally;
  while (tally.events < static_cast<std::uint64_t>(offered) - 1) count(tally, client.read_notification());
  CHECK(tally.missed == 0);
  server.loop([&] { server.controller().flush(1); });
  const Json last = client.read_notification();
  CHECK(last["params"]["events"].empty());
  CHECK(last["params"]["missed"] == 1);
}

TEST_CASE("a stream nobody reads never blocks control calls of the same connection") {
  LiveServer server(small_buffer());
  TestClient client(server.path());
  client.result("events.subscribe");
  server.loop([&] {
    for (int i = 0; i < 60000; ++i) server.controller().emit(1, numbered(i));
    server.controller().flush(1);
  });
  // The answer comes after what the socket holds already and one write, not after four mebibytes of events.
  std::size_t bytes = 0;
  client.send_line(R"({"jsonrpc":"2.0","id":1,"method":"daemon.status"})");
  CHECK(eventually([&] { return server.loop([&] { return server.controller().subscriptions.at(1).missed > 0; }); }));
  while (true) {
    const std::string line = client.read_line().value();
    if (line.find("\"id\":1") != std::string::npos) break;
    bytes += line.size();
  }
  CHECK(bytes < 2 << 20);
}

TEST_CASE("one client that reads slowly takes nothing from another") {
  LiveServer server(small_buffer());
  TestClient slow(server.path()), quick(server.path());
  slow.result("events.subscribe");
  quick.result("events.subscribe");
  constexpr int kMany = 60000;
  std::thread reader([&] {
    Tally tally;
    while (tally.events + tally.missed < kMany) count(tally, quick.read_notification());
    CHECK(tally.events == kMany);
    CHECK(tally.ordered);
  });
  for (int i = 0; i < kMany; ++i) {
    // Paced by the quick reader's own buffer, so that what it loses would be the slow one's fault.
    const bool paced = eventually([&] {
      return server.loop([&] {
        auto* client = server.controller().subscriptions.at(2).client;
        for (int k = 0; k < 100 && i < kMany; ++k, ++i) {
          if (!client->offer_event(2, numbered(i))) {
            client->flush_events();
            return false;
          }
          server.controller().emit(1, numbered(i));
        }
        server.controller().flush(1);
        client->flush_events();
        return true;
      });
    });
    REQUIRE(paced);
    --i;
  }
  reader.join();
  server.loop([&] { CHECK(server.controller().subscriptions.at(1).missed > 0); });
}

TEST_CASE("no event comes before its subscription is known, not even inside a batch") {
  LiveServer server;
  server.loop([&] {
    server.controller().events_inside_subscribe = true;
    server.controller().defer = true;
  });
  TestClient client(server.path());
  client.send_line(
      R"([{"jsonrpc":"2.0","id":1,"method":"events.subscribe"},{"jsonrpc":"2.0","id":2,"method":"daemon.arm"}])");
  CHECK(eventually([&] { return server.calls().size() == 1; }));
  server.loop([&] {
    server.controller().emit(1, "{\"late\":true}");
    server.controller().flush(1);
    server.controller().release_deferred();
  });
  CHECK(client.read_json().is_array());
  const Json events = client.read_json();
  CHECK(events["params"]["events"].size() == 2);

  TestClient other(server.path());
  other.send_line(R"({"jsonrpc":"2.0","id":1,"method":"events.subscribe"})");
  CHECK(other.read_json().contains("result"));
  CHECK(other.read_json()["method"] == "events");
}

TEST_CASE("a connection cannot end another one's subscription") {
  LiveServer server;
  TestClient owner(server.path()), other(server.path());
  const Json subscription = owner.result("events.subscribe");
  CHECK(other.error("events.unsubscribe", subscription)["data"]["reason"] == "no-such-subscription");
  owner.result("events.unsubscribe", subscription);
}

TEST_CASE("subscriptions of one connection are limited") {
  LiveServer server;
  TestClient client(server.path());
  for (int i = 0; i < 256; ++i) client.result("events.subscribe");
  CHECK(client.error("events.subscribe")["data"]["reason"] == "limit-exceeded");
}

TEST_CASE(
    "lifecycle notifications arrive behind the events before them, and a client that lets them pile up is dropped") {
  api::ServerOptions options;
  options.session.outbox.notifications = 1 << 20;
  LiveServer server(options);
  TestClient client(server.path());
  client.result("events.subscribe");
  server.loop([&] {
    server.controller().emit(1, numbered(1));
    server.controller().subscriptions.at(1).client->notify("target.exited", "{\"pid\":5}");
    server.controller().emit(1, numbered(2));
    server.controller().flush(1);
  });
  CHECK(client.read_notification()["params"]["events"][0]["n"] == 1);
  CHECK(client.read_notification()["params"]["pid"] == 5);
  CHECK(client.read_notification()["params"]["events"][0]["n"] == 2);
  const std::string params = "{\"pad\":\"" + std::string(1000, 'x') + "\"}";
  server.loop([&] {
    auto* notified = server.controller().subscriptions.at(1).client;
    for (int i = 0; i < 3000; ++i) notified->notify("target.exited", params);
  });
  CHECK(eventually([&] { return server.sessions() == 0; }));
}

// Whether it is over within ten seconds.
bool says_farewell(LiveServer& server, std::chrono::milliseconds limit) {
  const auto said = std::make_shared<std::promise<void>>();  // it may come too late for this test
  server.loop([&] { server.server().say_farewell("Terminated", limit, [said] { said->set_value(); }); });
  return said->get_future().wait_for(10s) == std::future_status::ready;
}

// Steps of a daemon that is being stopped: no requests, then the events still to come, then the farewell.
TEST_CASE("at an orderly end subscribers get the last events, are told, and the connection ends; others end at once") {
  LiveServer server;
  TestClient subscriber(server.path()), other(server.path()), waiting(server.path());
  subscriber.result("events.subscribe");
  waiting.result("events.subscribe");
  other.result("daemon.status");
  server.loop([&] { server.controller().defer = true; });
  waiting.send_line(R"({"jsonrpc":"2.0","id":9,"method":"target.attach","params":{"pid":10}})");
  REQUIRE(eventually([&] { return server.calls().size() == 1; }));
  server.loop([&] { server.server().close_door(); });
  CHECK_FALSE(connect_to(server.path()));
  CHECK_FALSE(other.read_line().has_value());
  CHECK(eventually([&] { return server.sessions() == 2; }));
  subscriber.send_line(R"({"jsonrpc":"2.0","id":7,"method":"daemon.status"})");  // too late: not carried out
  server.loop([&] {
    for (int i = 0; i < 3; ++i) server.controller().emit(1, numbered(i));
    server.controller().emit(2, numbered(7));
  });
  CHECK(says_farewell(server, 60s));
  CHECK(server.sessions() == 0);
  // Its request was under way: it gets no answer, but its events.
  const std::string others = waiting.read_all();
  CHECK_MESSAGE(others.find("daemon.stopping") != std::string::npos, others);
  CHECK_MESSAGE(others.find("\"n\":7") < others.find("daemon.stopping"), others);
  CHECK_MESSAGE(others.find("\"id\":9") == std::string::npos, others);
  const std::string all = subscriber.read_all();
  const auto last = all.find(R"({"jsonrpc":"2.0","method":"daemon.stopping","params":{"message":"Terminated"}})");
  CHECK_MESSAGE(all.find("\"n\":2") < last, all);
  CHECK_MESSAGE(last != std::string::npos, all);
  CHECK_MESSAGE(all.find("\"id\":7") == std::string::npos, all);
}

TEST_CASE("a client that doesn't read its last events holds up the end for no longer than is said") {
  std::string logged;
  api::ServerOptions options;
  options.log = [&](std::string_view line) { logged = line; };
  LiveServer server(options);
  TestClient client(server.path());
  client.result("events.subscribe");
  server.loop([&] {
    for (int i = 0; i < 60000; ++i) server.controller().emit(1, numbered(i));
  });
  CHECK(says_farewell(server, 50ms));
  CHECK(server.sessions() == 0);
  CHECK(server.loop([&] { return logged; }).starts_with("1 client(s) have not read their last events in time: "));
}

TEST_CASE("whoever was refused, or doesn't read its answers, holds up no end that has no events for it") {
  std::string logged;
  api::ServerOptions options;
  options.log = [&](std::string_view line) { logged = line; };
  LiveServer server(options);
  TestClient refused(server.path());
  refused.send_line("hello");
  CHECK(refused.read_line().has_value());  // why; it stays connected
  TestClient silent(server.path());
  server.loop([&] {
    server.controller().function_views.assign(50000, {"a_function_with_a_name()", "_Z24a", "m", {0x1000}, 16});
  });
  silent.send_line(R"({"jsonrpc":"2.0","id":1,"method":"symbols.functions","params":{"pid":)" +
                   std::to_string(getpid()) + "}}");
  REQUIRE(eventually([&] { return server.calls().size() == 1; }));
  CHECK(says_farewell(server, 60s));
  CHECK(server.loop([&] { return logged; }) == "");
}
