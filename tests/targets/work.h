// work(): the function the tests probe; the same in every target. expected_work() is its formula, inlined, so that a
// target can tell whether a call computed what it should have.
#pragma once

#include "protocol.h"

// Exported. Returns a value that depends on every argument.
TARGET_FUNCTION int work(int a, long b, const char* s);

static inline int expected_work(int a, long b, const char* s) {
  unsigned sum = (unsigned)a * 31u + (unsigned)b * 17u;
  for (; *s; ++s) sum = sum * 33u + (unsigned char)*s;
  return (int)sum;
}

// The string that call number i passes.
static inline const char* work_text(long i) {
  static const char* const texts[] = {"alpha", "beta", "", "delta"};
  return texts[i & 3];
}
