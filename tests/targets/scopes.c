// scopes: names that mean one thing in a function and another in what is inlined into it, and functions whose arguments
// are hard to find. On command, one a line, it calls them and prints what their variables were as a JSON object:
//   lines       {"helper":N,"outer":N}: lines of this file to probe
//   helper N    one call of helper(), inlined into caller(), whose own variables have the same names
//   scaled N    two calls of scaled(), inlined: {"x":[A,B],"y":[A,B]}
//   aligned N   one call of aligned(), which aligns its stack
//   typed N     one call of typed(), which is given structures and an enumeration by value
//   old N       one call of old(), which is defined as K&R did
//   swapped N   one call of swapped(), whose structure's bytes are in the other order
//   outer N     one call of outer(), which has a function of its own where the compiler knows such
//   both N      three calls of both(): inlined twice, then its own code
//   copied N    three calls of copied(): twice that of the copy for a constant, if the compiler has made one, then its own
//   halved N    one call of halved(), whose second half GCC makes a function of its own, and inlines again
//   quit
#include <stdint.h>
#include <string.h>

#include "machine.h"
#include "protocol.h"

#ifdef __SANITIZE_ADDRESS__
// A traced process can't be looked through by its own leak detector.
const char* __asan_default_options(void) { return "detect_leaks=0"; }
#endif

static volatile int sink;
static volatile double result;  // calls without one are left out
static int* volatile keep;
int mode = 500;
static int state = 600;

static const int helper_line = __LINE__ + 3;
static inline __attribute__((always_inline)) int helper(int v) {
  const int dropped = v + 1;
  sink = v + mode + state;
  sink = v;
  return dropped;
}

TARGET_FUNCTION int caller(int mode, int dropped) {
  int state = mode * 2;
  keep = &state;
  sink = helper(mode + 7);
  return state + mode + dropped;
}

static inline __attribute__((always_inline)) int scaled(int x, int y) {
  sink = x;
  sink = y;
  return x * y;
}

TARGET_FUNCTION int scales(const volatile int* n) {
  const int x = *n - 1000;
  int product = scaled(*n, *n + 3);
  product += scaled(product, 77);
  sink = x;
  return product;
}

TARGET_FUNCTION long aligned(int a, long b, const char* s, double d) {
  _Alignas(64) volatile char buffer[64];
  for (unsigned i = 0; i < sizeof buffer; ++i) buffer[i] = s[0];
  return a + b + (long)d + buffer[63];
}

struct Pair {
  int a;
  double b;
};
struct Chain {
  struct Pair pair;
  const char* name;
  struct Chain* next;
};
enum Colour { kBlue = 1, kRed = 2 };

TARGET_FUNCTION double typed(struct Pair pair, enum Colour colour, const struct Chain* chain, int last) {
  return pair.a + pair.b + colour + chain->pair.a + last;
}

#pragma GCC diagnostic ignored "-Wdeprecated-non-prototype"
TARGET_FUNCTION double old(y, z)
float y;
int z;
{
  return y + z;
}

#ifdef __clang__
struct Swapped {
  int a;
};
#else
struct __attribute__((scalar_storage_order("big-endian"))) Swapped {
  int a;
};
#endif
TARGET_FUNCTION int swapped(const struct Swapped* p, int z) {
  return p->a + z;
}

static const int outer_line = __LINE__ + 9;
TARGET_FUNCTION int outer(int n) {
#ifndef __clang__
  __attribute__((noinline)) int inner(int hidden) {
    sink = hidden;
    return hidden + 1;
  }
  sink = inner(n + 20);
#endif
  sink = n;
  return n;
}

static inline __attribute__((always_inline)) int both(int v, int w) {
  sink = v;
  sink = w;
  return v * 3;
}
static int (*volatile both_called)(int, int) = both;
TARGET_FUNCTION int uses_both(int v) {
  int sum = both(v, -1);
  sum += both(v + 1, -2);
  return sum + both_called(v + 2, -3);
}

// Exists only inlined; one of its places can't be probed: it begins with a breakpoint.
static inline __attribute__((always_inline)) void half_odd(const int odd) {
  if (odd)
    __asm__ volatile(OWN_BREAKPOINT);
  else
    __asm__ volatile("nop");
}
TARGET_FUNCTION int uses_half_odd(int n) {
  sink = n;
  half_odd(0);
  sink = n + 1;
  return n;
}
TARGET_FUNCTION int never_called(int n) {
  sink = n;
  half_odd(1);
  sink = n + 1;
  return n;
}

static int table[8];
__attribute__((noinline)) int copied(int v, int how) {
  sink = v;
  for (int i = 0; i < how; ++i) table[i] += v * sink;
  return v + how;
}
static int (*volatile copied_called)(int, int) = copied;
__attribute__((noinline)) int uses_copied(int v) {
  const int sum = copied(v, 3) + copied(v + 1, 3);
  return sum + copied_called(v + 2, 4);
}

int halved(int v, int how) {
  if (v == 0) return how;
  for (int i = 0; i < how; i++) {
    sink += v * i;
    if (sink == 12345) half_odd(1);
    sink ^= how;
    sink += 3 * i;
  }
  for (int i = 0; i < v; i++) {
    sink -= v * i;
    sink ^= 77;
    sink += how;
  }
  return v + sink;
}
static int (*volatile halved_called)(int, int) = halved;

static void obey(const char* line) {
  int n = 0;
  if (strcmp(line, "lines") == 0) {
    printf("{\"helper\":%d,\"outer\":%d}\n", helper_line, outer_line);
  } else if (sscanf(line, "helper %d", &n) == 1) {
    ++mode, ++state;
    result = caller(n, -n);
    printf("{\"v\":%d,\"mode\":%d,\"state\":%d,\"dropped\":%d}\n", n + 7, mode, state, n + 8);
  } else if (sscanf(line, "scaled %d", &n) == 1) {
    const volatile int number = n;
    result = scales(&number);
    printf("{\"x\":[%d,%d],\"y\":[%d,77]}\n", n, n * (n + 3), n + 3);
  } else if (sscanf(line, "aligned %d", &n) == 1) {
    result = aligned(n, n * 10L, "text", n + 0.5);
    printf("{\"a\":%d,\"b\":%ld,\"s\":\"text\",\"d\":%g}\n", n, n * 10L, n + 0.5);
  } else if (sscanf(line, "typed %d", &n) == 1) {
    struct Chain chain = {{n + 1, 2.5}, "chain", NULL};
    result = typed((struct Pair){n, n + 0.5}, kRed, &chain, 99);
    printf("{\"pair\":{\"a\":%d,\"b\":%g},\"colour\":\"kRed\",\"name\":\"chain\",\"last\":99}\n", n, n + 0.5);
  } else if (sscanf(line, "old %d", &n) == 1) {
    result = old(n + 0.5f, n);
    printf("{\"y\":%g,\"z\":%d}\n", n + 0.5, n);
  } else if (sscanf(line, "swapped %d", &n) == 1) {
    struct Swapped s;
    s.a = n;
    result = swapped(&s, n);
    printf("{\"a\":%d,\"z\":%d}\n", n, n);
  } else if (sscanf(line, "outer %d", &n) == 1) {
    result = outer(n);
    printf("{\"n\":%d}\n", n);
  } else if (sscanf(line, "both %d", &n) == 1) {
    result = uses_both(n);
    printf("{\"v\":[%d,%d,%d]}\n", n, n + 1, n + 2);
  } else if (sscanf(line, "copied %d", &n) == 1) {
    result = uses_copied(n);
    printf("{\"v\":[%d,%d,%d]}\n", n, n + 1, n + 2);
  } else if (sscanf(line, "halved %d", &n) == 1) {
    result = halved_called(n, 3);
    printf("{\"v\":%d}\n", n);
  } else if (strcmp(line, "go") != 0) {
    printf("unknown command\n");
  }
  fflush(stdout);
}

int main(void) {
  target_ready("scopes");
  for (char line[128]; target_line(line, sizeof line), strcmp(line, "quit") != 0;) obey(line);
  return target_result(1);
}
