// itself: functions that have code of their own and are inlined, too. "N": calls fib(N), and each of the others N
// times; prints "done CALLS", calls of fib by the source. "end".
#include <cstdio>

#include "protocol.h"

#define INLINED __attribute__((always_inline))

static long calls;

// clang-format off
int fib(int n) { ++calls; return n < 2 ? n : fib(n - 1) + fib(n - 2); }
// clang-format on

static volatile int sink;

INLINED void saved(int n) { sink = sink + n; }
static INLINED void only_inlined(int n) { sink = sink * n; }

namespace shop {
struct Cart {
  void put(int n);
  void put(const char* name);
};
INLINED void Cart::put(int n) { sink = sink - n; }
INLINED void Cart::put(const char* name) { sink = sink ^ name[0]; }
}  // namespace shop

int main() {
  target_ready("itself");
  char name[32];
  for (long ignored = 0; target_command(name, &ignored) != 0;) {
    const int n = atoi(name);
    calls = 0;
    shop::Cart cart;
    const int result = fib(n);
    for (int i = 0; i < n; ++i) {
      saved(i);
      only_inlined(result);
      cart.put(i);
      cart.put(name);
    }
    printf("done %ld\n", calls);
    fflush(stdout);
  }
  return target_result(1);
}
