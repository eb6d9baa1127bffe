// CHECK: an assertion that stays on in release builds. It documents an invariant; failing means a bug in probed itself,
// never a misbehaving target, client or file.
#pragma once

#include <cstdio>
#include <cstdlib>

#define PROBED_CHECK(condition, what)                                                                           \
  do {                                                                                                          \
    if (!(condition)) [[unlikely]] {                                                                            \
      std::fprintf(stderr, "probed: %s:%d: invariant broken: %s (%s)\n", __FILE__, __LINE__, what, #condition); \
      std::abort();                                                                                             \
    }                                                                                                           \
  } while (false)
