#include "daemon/events/record_clock.hpp"

#include <time.h>

#include <algorithm>

#include "arch/arch.hpp"

namespace probed::events {
namespace {

constexpr double kSecond = 1e9;

std::uint64_t monotonic() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(t.tv_nsec);
}

struct Look {
  std::uint64_t counter = 0, time = 0;
};

// The best of a few: one that nothing came in between of.
Look look_at_both() {
  Look best;
  std::uint64_t least = ~0ull;
  for (int i = 0; i < 3; ++i) {
    const std::uint64_t before = arch::native::record_clock();
    const std::uint64_t time = monotonic();
    const std::uint64_t width = arch::native::record_clock() - before;
    if (width >= least) continue;
    least = width;
    best = {before + width / 2, time};
  }
  return best;
}

}  // namespace

void RecordClock::look() {
  Look now = look_at_both();
  if (first_counter_ == 0) {
    first_counter_ = now.counter;
    first_time_ = now.time;
    // The first records would have to wait for a slope: a few hundred microseconds give one good to a few in 10^5.
    while (now.time < first_time_ + 500'000) now = look_at_both();
    counter_ = first_counter_;
    base_ = first_time_;
  }
  const double slope = static_cast<double>(now.time - first_time_) /
                       static_cast<double>(std::max<std::uint64_t>(1, now.counter - first_counter_));
  if (slope_ == 0) slope_ = slope;
  const std::uint64_t predicted = nanoseconds(now.counter);
  const auto error = static_cast<double>(static_cast<std::int64_t>(now.time - predicted));
  // Far off (the machine slept): there's nothing to be smooth about.
  base_ = error > kSecond / 100 || error < -kSecond / 100 ? now.time : predicted;
  counter_ = now.counter;
  slope_ = slope * (1 + std::clamp(error / kSecond, -0.01, 0.01));
}

}  // namespace probed::events
