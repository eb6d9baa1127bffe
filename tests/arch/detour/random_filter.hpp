// Filters drawn at random.
#pragma once

#include <span>
#include <string>

#include "tests/arch/differential/random.hpp"

namespace probed::test {

struct FilterField {
  const char* name;
  const char* argument;
  unsigned bits;
  bool is_signed;
};

// Comparisons of these fields and of pid, joined up to so many times.
std::string random_filter(Random& random, std::span<const FilterField> fields, unsigned depth);

}  // namespace probed::test
