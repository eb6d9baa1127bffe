// What a soak has done and what went wrong, and the dice it throws.
//
// Thread: the soak's own.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/live/harness.hpp"

namespace probed::soak {

using live::Clock;
using live::Json;
using live::Millis;
using Micros = std::chrono::microseconds;

// All that is random comes from one of these, and the first of them from the printed seed. The order of the actions and
// all their parameters are a seed's; the moments at which the kernel runs which thread are not.
class Dice {
 public:
  explicit Dice(std::uint32_t seed) : random_(seed) {}
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }
  std::uint32_t between(std::uint32_t low, std::uint32_t high) { return low + below(high - low + 1); }  // both included
  bool one_in(std::uint32_t n) { return below(n) == 0; }
  template <class Range>
  const auto& any(const Range& of) {
    return of[below(static_cast<std::uint32_t>(std::size(of)))];
  }
  template <class T>
  void shuffle(std::vector<T>& of) {
    std::shuffle(of.begin(), of.end(), random_);
  }
  std::string bytes(std::size_t count);
  Dice child() { return Dice(static_cast<std::uint32_t>(random_())); }

 private:
  std::mt19937 random_;
};

// What must not happen. Each has a line in the table, and must be 0 there.
enum class Wrong { target_lost, result, unaccounted, leak, daemon };

class Ledger {
 public:
  explicit Ledger(std::uint32_t seed) : seed_(seed) {}

  // What goes on now: named by each failure.
  void begin(unsigned life, std::string action);
  unsigned step() const { return step_; }
  void fail(Wrong kind, const std::string& expected, const std::string& seen);
  // seen == expected, or a failure of that kind.
  void check(Wrong kind, const std::string& what, std::uint64_t expected, std::uint64_t seen);
  bool clean() const;

  struct Figures {
    unsigned lives = 0, kills = 0, guard_kills = 0, terms = 0, recovered_by_guard = 0, recovered_by_next = 0,
             recovered_by_hand = 0;
    unsigned faults = 0;  // injected: targets killed, memory scribbled over, code unmapped, clients that misbehave
    unsigned targets = 0, targets_ended = 0;
    std::uint64_t rounds = 0;  // that standing targets have gone through and checked
    unsigned accounts = 0;     // probes whose calls, hits and events were compared exactly
    std::uint64_t accounted_calls = 0, accounted_events = 0;
    std::map<std::string, std::uint64_t> hits;  // by tier, as the daemons last said
    double alive_s = 0;                         // daemons, together
    long daemon_rss_kb = 0, daemon_fds = 0;     // at most
    unsigned left_fds = 0;                      // open in a standing target when it ends, of daemons that were killed
    long left_kb = 0;                           // still mapped when a standing target ends, of daemons that were killed
  } figures;
  void count_action(const std::string& name) { ++actions_[name]; }

  void print(double seconds) const;

 private:
  std::uint32_t seed_;
  unsigned life_ = 0, step_ = 0;
  std::string action_;
  std::array<unsigned, 5> wrong_{};
  std::map<std::string, unsigned> actions_;
};

}  // namespace probed::soak
