// In which order events go on, and when: decisions alone, the time is the test's.
#include "client/probectl/event_sorter.hpp"

#include <doctest/doctest.h>

#include "tests/arch/differential/random.hpp"

namespace probed::client {
namespace {

using namespace std::chrono_literals;

constexpr Clock::time_point kStart{1000s};

struct Sorted {
  explicit Sorted(EventSorter::Bounds bounds = {100ms, 4}) : sorter(bounds) {}

  void add(std::uint64_t time, Clock::duration at = 0ms) { sorter.add(time, std::to_string(time), kStart + at); }
  // What goes on at that time, in its order, with a blank behind each.
  std::string at(Clock::duration when) {
    std::string out;
    sorter.release(kStart + when, [&](const EventSorter::Held& held) { out += held.text + " "; });
    return out;
  }
  std::string rest() {
    std::string out;
    sorter.release_all([&](const EventSorter::Held& held) { out += held.text + " "; });
    return out;
  }

  EventSorter sorter;
};

TEST_CASE("events go on in the order of their times, once the first of them has been held long enough") {
  Sorted s;
  CHECK_FALSE(s.sorter.due());
  s.add(30);
  s.add(10, 50ms);
  s.add(20, 60ms);
  CHECK(s.at(99ms).empty());
  CHECK(s.sorter.due() == kStart + 100ms);
  CHECK(s.at(100ms) == "10 20 30 ");
  CHECK(s.sorter.late() == 0);
  CHECK(s.sorter.empty());
  CHECK_FALSE(s.sorter.due());
}

TEST_CASE("what came later and is later is held on") {
  Sorted s;
  s.add(10);
  s.add(20, 50ms);
  CHECK(s.at(100ms) == "10 ");
  CHECK(s.sorter.due() == kStart + 150ms);
  CHECK(s.at(149ms).empty());
  CHECK(s.at(150ms) == "20 ");
}

TEST_CASE("no more are held than there may be: the earliest go on first") {
  Sorted s;
  for (const std::uint64_t time : {50, 40, 30, 20, 10, 60}) s.add(time);
  CHECK(s.at(0ms) == "10 20 ");
  s.add(35);
  CHECK(s.at(1ms) == "30 ");
  CHECK(s.sorter.late() == 0);
  CHECK(s.rest() == "35 40 50 60 ");
}

TEST_CASE("an event that is earlier than one that has gone on does so at once, and is counted") {
  Sorted s;
  s.add(10);
  s.add(30);
  s.at(100ms);
  s.add(40, 110ms);
  s.add(20, 110ms);
  s.add(30, 110ms);  // at the same time: in order
  CHECK(s.sorter.late() == 1);
  CHECK(s.at(110ms) == "20 30 ");
  CHECK(s.at(210ms) == "40 ");
  CHECK(s.sorter.late() == 1);
}

TEST_CASE("events of one time keep the order in which they came") {
  Sorted s({100ms, 100});
  for (const char* name : {"a", "b", "c", "d"}) s.sorter.add(7, name, kStart);
  CHECK(s.at(100ms) == "a b c d ");
}

TEST_CASE("what is said comes behind all that was held then, and in front of what is later") {
  Sorted s;
  s.add(20);
  s.sorter.add_note("said", kStart + 10ms);
  s.add(10, 20ms);
  s.add(30, 20ms);
  CHECK(s.at(99ms).empty());
  CHECK(s.at(100ms) == "10 20 said ");
  CHECK(s.rest() == "30 ");
  CHECK(s.sorter.late() == 0);
}

TEST_CASE("whatever comes, all of it goes on, in order but for those that are counted as late") {
  test::Random random(3);
  Sorted s({100ms, 50});
  std::vector<std::uint64_t> out;
  const auto take = [&](const EventSorter::Held& held) { out.push_back(std::stoull(held.text)); };
  Clock::duration now = 0ms;
  constexpr std::size_t kEvents = 5000;
  for (std::size_t i = 0; i < kEvents; ++i) {
    now += std::chrono::milliseconds(random.below(5));
    const auto milliseconds = static_cast<std::uint64_t>(now / 1ms);
    s.add(1000 + milliseconds - random.below(random.chance(5) ? 300 : 100), now);
    s.sorter.release(kStart + now, take);
  }
  s.sorter.release_all(take);
  REQUIRE(out.size() == kEvents);
  std::uint64_t late = 0, last = 0;
  for (const std::uint64_t time : out) {
    late += time < last ? 1 : 0;
    last = std::max(last, time);
  }
  CHECK(late == s.sorter.late());
  CHECK(late > 0);
  CHECK(late < kEvents / 20);
}

}  // namespace
}  // namespace probed::client
