// The time, to some milliseconds, for a quarter of the price of Clock::now(): what is asked at every hit.
//
// Any thread.
#pragma once

#include <time.h>

#include <chrono>

namespace probed::tracer {

inline std::chrono::steady_clock::time_point coarse_now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  return std::chrono::steady_clock::time_point(std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec));
}

}  // namespace probed::tracer
