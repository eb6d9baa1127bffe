// What the environment tells the tests of races. PROBED_TEST_SEED=N repeats a run.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <random>

namespace probed::live {

inline unsigned from_environment(const char* name, unsigned otherwise) {
  const char* text = std::getenv(name);
  return text ? static_cast<unsigned>(std::strtoul(text, nullptr, 10)) : otherwise;
}

// Drawn once, and printed.
inline unsigned seed() {
  static const unsigned value = [] {
    const unsigned chosen = from_environment("PROBED_TEST_SEED", std::random_device()());
    MESSAGE("seed: PROBED_TEST_SEED=" << chosen);
    return chosen;
  }();
  return value;
}

}  // namespace probed::live
