// How fast the clock of the records runs, for the tracer, which is asked about the time of a record now and then.
//
// Owning thread: the tracer thread.
#pragma once

#include <chrono>
#include <cstdint>

#include "arch/arch.hpp"

namespace probed::tracer {

class TickRate {
 public:
  // Looks at both clocks for the first time, some while before the first question.
  void begin() {
    if (ticks_ == 0) time_ = now(), ticks_ = arch::native::record_clock();
  }
  // CLOCK_MONOTONIC, ns, when the clock of the records was at `ticks`, which has been, not long ago. Errors: parts in
  // 10^4 of how long ago.
  std::uint64_t time_of(std::uint64_t ticks) const {
    const std::uint64_t time = now(), clock = arch::native::record_clock();
    if (ticks_ == 0 || clock <= ticks_ || ticks >= clock) return time;
    const double rate = static_cast<double>(time - time_) / static_cast<double>(clock - ticks_);
    const auto ago = static_cast<std::uint64_t>(static_cast<double>(clock - ticks) * rate);
    return ago < time ? time - ago : 0;
  }

 private:
  static std::uint64_t now() {
    const auto t = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(std::chrono::nanoseconds(t).count());
  }

  std::uint64_t ticks_ = 0, time_ = 0;
};

}  // namespace probed::tracer
