// Puts events in the order of their times. What the daemon sends keeps no order across threads, nor between what a
// breakpoint saw and what a jump recorded; so each event is held back for a while, in case an earlier one comes.
//
// Pure: the caller says what time it is. Main thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/connection.hpp"

namespace probed::client {

class EventSorter {
 public:
  // An event goes on when it has been held for `window`, or when more than `events` are held; with it all that are
  // earlier. The daemon itself may put a new thread's events aside for 200 ms, until it knows whose they are.
  struct Bounds {
    Clock::duration window = std::chrono::milliseconds(250);
    std::size_t events = 65'536;
  };
  struct Held {
    std::string text;      // of an event: as it came
    bool is_note = false;  // something said of the trace, which isn't an event
  };
  using Take = std::function<void(Held)>;

  EventSorter() : EventSorter(Bounds()) {}
  explicit EventSorter(Bounds bounds) : bounds_(bounds) {}

  // time: the event's own, in nanoseconds. One that is earlier than one that has gone on is late, and goes on at once.
  void add(std::uint64_t time, std::string text, Clock::time_point now);
  // Goes on behind every event that is held now.
  void add_note(std::string text, Clock::time_point now);

  // Hands on what has been held long enough, or all of it, in order.
  void release(Clock::time_point now, const Take& take);
  void release_all(const Take& take);
  // When release() has something to do; nothing is held: never.
  std::optional<Clock::time_point> due() const;

  bool empty() const { return heap_.empty(); }
  std::uint64_t late() const { return late_; }  // events that are out of order

 private:
  using Key = std::pair<std::uint64_t, std::uint64_t>;  // time, and which came first of those that have the same
  struct Item {
    Key key;
    Held held;
  };
  struct Arrival {
    Clock::time_point at;
    Key key;
  };
  static bool is_later(const Item& a, const Item& b) { return a.key > b.key; }

  void hold(std::uint64_t time, Held held, Clock::time_point now);
  void pop(const Take& take);

  const Bounds bounds_;
  std::vector<Item> heap_;  // the earliest in front
  std::deque<Arrival> arrivals_;
  std::uint64_t added_ = 0, late_ = 0;
  std::uint64_t newest_ = 0, gone_on_ = 0;  // times of events
  Key until_{0, 0};                         // what is earlier, or this, is to go on
};

}  // namespace probed::client
