// Whose job is next: a decision alone, without threads.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "daemon/control/workers.hpp"

namespace probed::control {
namespace {

using namespace std::chrono_literals;
constexpr uid_t kRoot = 0, kAnna = 1000, kBert = 1001, kOwn = 77;

struct Queue {
  Turns turns{kOwn};
  Turns::Clock::time_point now = Turns::Clock::now();
  std::vector<Turns::Handle> begun;

  void put(uid_t user, Work kind, int count = 1) {
    for (int i = 0; i < count; ++i) turns.put({user, kind, [] {}, nullptr});
  }
  // The users of all jobs that may begin now, in their order; changes in brackets.
  std::string take_all() {
    std::string users;
    while (auto next = turns.take(now)) {
      const std::string user = std::to_string(next->first.user);
      users += (users.empty() ? "" : " ") + (next->first.kind == Work::change ? "[" + user + "]" : user);
      begun.push_back(next->second);
    }
    return users;
  }
  void end(std::size_t which) { turns.ended(begun[which]); }
};

}  // namespace

TEST_CASE("a user's look-ups take no more than his share, and none of it from his changes to probes") {
  Queue queue;
  queue.put(kAnna, Work::look, 12);
  CHECK(queue.take_all() == "1000 1000");
  queue.put(kAnna, Work::change, 2);
  CHECK(queue.take_all() == "[1000]");
  queue.end(2);
  CHECK(queue.take_all() == "[1000]");
  queue.end(0);
  CHECK(queue.take_all() == "1000");
}

TEST_CASE("users take turns, and root waits for none of them") {
  Queue queue;
  queue.put(kAnna, Work::look, 12);
  queue.put(kBert, Work::look, 12);
  CHECK(queue.take_all() == "1000 1001 1000 1001");
  queue.put(kRoot, Work::look, 2);
  queue.put(kRoot, Work::change);
  queue.put(kOwn, Work::change, 2);
  CHECK(queue.take_all() == "[0] [77] 0 [77]");
  queue.end(1);
  CHECK(queue.take_all() == "1001");
  queue.end(0);
  CHECK(queue.take_all() == "1000");
}

TEST_CASE("what doesn't come back stays in its user's share, and out of the others' way") {
  Queue queue;
  queue.put(kAnna, Work::look, 12);
  queue.put(kBert, Work::look, 2);
  CHECK(queue.take_all() == "1000 1001 1000 1001");
  queue.put(1002, Work::look);
  CHECK(queue.take_all().empty());
  queue.now += Turns::kStuck;
  CHECK(queue.take_all() == "1002");
  CHECK(queue.turns.any_waits());
}

}  // namespace probed::control
