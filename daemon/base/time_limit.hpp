// How long a worker may go on reading the files of one request. Checked where bytes are read: what is read behind the
// limit is as if it weren't there, and whoever gathers it looks at the end whether it is whole.
//
// Thread: each has its own.
#pragma once

#include <chrono>
#include <optional>
#include <utility>

namespace probed {

class TimeLimit {
 public:
  using Clock = std::chrono::steady_clock;
  explicit TimeLimit(Clock::duration limit) : before_(std::exchange(end_, Clock::now() + limit)) {}
  ~TimeLimit() { end_ = before_; }
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

  // Whether this thread has one.
  static bool is_set() { return end_.has_value(); }
  // Of this thread; false: it has none.
  static bool passed() { return end_ && Clock::now() >= *end_; }

 private:
  static inline thread_local std::optional<Clock::time_point> end_;
  std::optional<Clock::time_point> before_;
};

}  // namespace probed
