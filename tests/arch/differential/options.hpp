// What the environment says about a run.
#pragma once

#include <sched.h>

#include <cstdint>
#include <cstdlib>
#include <random>

namespace probed::test {

inline std::uint64_t from_environment(const char* name, std::uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 0);
}

// PROBED_TEST_SEED, or another one every time; to be printed.
inline std::uint64_t chosen_seed() { return from_environment("PROBED_TEST_SEED", std::random_device{}()); }

// cpuid and rdpid answer by CPU.
inline void stay_on_this_cpu() {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(sched_getcpu()), &set);
  sched_setaffinity(0, sizeof set, &set);
}

}  // namespace probed::test
