// How much of a processor may be had before others. A decision alone: no clock, no thread, no system call.
#pragma once

#include <algorithm>
#include <chrono>

namespace probed::tracer {

// A bucket of processor time. It fills by a share of the time that passes, up to `most`; what is used before others
// empties it. Who has emptied it waits in line with everybody until there is `resume` in it again; what it is given
// there is its own.
class Allowance {
 public:
  using Time = std::chrono::nanoseconds;
  struct Limits {
    Time most;         // that can be used at once
    unsigned percent;  // of one processor, for good
    Time resume;       // less than `most`
  };

  explicit Allowance(const Limits& limits) : limits_(limits), left_(limits.most) {}

  // now, used: the time, and the processor time used, both from any beginning. Whether it may go first from now on.
  bool look(Time now, Time used) {
    if (begun_) left_ += (now - now_) / 100 * limits_.percent - (first_ ? used - used_ : Time::zero());
    begun_ = true;
    now_ = now, used_ = used;
    // What was overdrawn between two looks is paid back, but never more than is filled in a second.
    left_ = std::clamp(left_, -Time(std::chrono::seconds(1)) / 100 * limits_.percent, limits_.most);
    first_ = left_ > (first_ ? Time::zero() : limits_.resume);
    return first_;
  }
  bool first() const { return first_; }

 private:
  Limits limits_;
  Time left_, now_{}, used_{};
  bool begun_ = false, first_ = true;
};

}  // namespace probed::tracer
