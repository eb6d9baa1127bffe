// From the clock of the records that detours write (the processor's time stamp counter) to CLOCK_MONOTONIC.
//
// Asio thread. A straight line through the last two looks at both clocks would jump at every look by the error of the
// looks (some 50 ns); so the line's slope is corrected instead, such that it meets the clock again within a second. The
// result never goes back between two records whose counters don't.
#pragma once

#include <cstdint>

namespace probed::events {

class RecordClock {
 public:
  // Looks at both clocks. Call it before a batch of records is converted, and at least every few minutes.
  void look();
  // Nanoseconds of CLOCK_MONOTONIC.
  std::uint64_t nanoseconds(std::uint64_t counter) const {
    const auto since = static_cast<double>(static_cast<std::int64_t>(counter - counter_));
    return base_ + static_cast<std::uint64_t>(static_cast<std::int64_t>(since * slope_));
  }
  // The other way round.
  std::uint64_t counter(std::uint64_t nanoseconds) const {
    const auto since = static_cast<double>(static_cast<std::int64_t>(nanoseconds - base_));
    return slope_ == 0 ? 0 : counter_ + static_cast<std::uint64_t>(static_cast<std::int64_t>(since / slope_));
  }

 private:
  std::uint64_t counter_ = 0, base_ = 0;              // a point of the line
  std::uint64_t first_counter_ = 0, first_time_ = 0;  // the first look
  double slope_ = 0;                                  // ns for each tick
};

}  // namespace probed::events
