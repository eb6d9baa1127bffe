// How much of a processor may be had before others.
#include "daemon/tracer/kernel/allowance.hpp"

#include <doctest/doctest.h>

namespace probed::tracer {
namespace {

using namespace std::chrono_literals;

constexpr Allowance::Limits kLimits{300ms, 30, 6ms};

// Somebody who uses a processor whenever it goes first, and is looked at every 4 ms.
struct Busy {
  Allowance allowance{kLimits};
  Allowance::Time now = 1h, used{};  // any beginnings will do

  bool step() {
    const bool first = allowance.look(now, used);
    now += 4ms;
    if (first) used += 4ms;
    return first;
  }
  // How much it has used in so long.
  Allowance::Time run(Allowance::Time how_long) {
    const auto before = used;
    for (const auto end = now + how_long; now < end;) step();
    return used - before;
  }
};

TEST_CASE("who asks for little goes first always") {
  Allowance allowance(kLimits);
  Allowance::Time used{};
  for (Allowance::Time now = 1h; now < 1h + 20s; now += 4ms, used += 1ms) REQUIRE(allowance.look(now, used));
}

TEST_CASE("who asks for all has it for a moment, and its share after that, in short turns") {
  Busy busy;
  CHECK(busy.run(300ms) == 300ms);
  busy.run(2s);
  const auto later = busy.run(10s);
  CHECK(later > 2900ms);
  CHECK(later < 3100ms);
  for (int i = 0; i < 100; ++i) {
    const bool first = busy.step();
    const auto since = busy.now;
    while (busy.step() == first) CHECK(busy.now - since <= 32ms);
  }
}

TEST_CASE("what it is given in line with others isn't charged") {
  Allowance allowance(kLimits);
  Allowance::Time now = 1h, used{}, first{};
  for (; now < 1h + 10s; now += 4ms, used += 4ms)
    if (allowance.look(now, used)) first += 4ms;
  CHECK(first > 3s);
  CHECK(first < 3400ms);
}

TEST_CASE("what has been left comes back with time, and no more than that") {
  Busy busy;
  busy.run(5s);
  busy.now += 60s;  // it sleeps
  const auto before = busy.used;
  while (busy.step()) {
  }
  CHECK(busy.used - before >= 300ms);
  CHECK(busy.used - before < 500ms);
}

TEST_CASE("one long absence of the keeper costs a second's share at most") {
  Allowance allowance(kLimits);
  allowance.look(1h, 0s);
  CHECK(!allowance.look(1h + 10s, 10s));
  CHECK(!allowance.look(1h + 10s + 900ms, 10s));
  CHECK(allowance.look(1h + 10s + 1100ms, 10s));
}

}  // namespace
}  // namespace probed::tracer
