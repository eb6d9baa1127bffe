// What the shapes of x86-64 need from C.
#include <string.h>

#include "../shapes.h"

long rep_movsb(void* to, const void* from, long count);
long drive_rep_movsb(long x) {
  char from[200], to[200];
  memset(from, (int)(x & 0x7f) + 1, sizeof from);
  memset(to, 0, sizeof to);
  const long end = rep_movsb(to, from, 199);
  return end == (long)(to + 199) && memcmp(from, to, 199) == 0 && to[199] == 0 ? x : -1;
}

int shape_usable(const struct Shape* shape) {
  __builtin_cpu_init();
  if (strcmp(shape->name, "shape_avx_rip") == 0) return __builtin_cpu_supports("avx");
  if (strcmp(shape->name, "shape_evex_rip") == 0) return __builtin_cpu_supports("avx512f");
  return 1;
}
