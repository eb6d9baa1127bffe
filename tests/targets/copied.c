// copied: a function of which GCC makes a copy that returns nothing, as nobody uses its result (-fipa-sra). Each line of
// input makes 3 calls.
#include <stdio.h>

struct Bounds {
  int spare[8];
  int most;
};

static volatile int sink;

__attribute__((noinline)) static int clamped(const struct Bounds* bounds, int value) {
  const int result = value > bounds->most ? bounds->most : value;
  sink = result;
  return result;
}

int main(void) {
  static struct Bounds bounds = {{0}, 100};
  char line[16];
  puts("ready");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin))
    for (int i = 0; i < 3; ++i) clamped(&bounds, 99 + i + (line[0] == 'x'));
  return 0;
}
