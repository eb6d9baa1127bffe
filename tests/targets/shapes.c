// The table of shapes (shapes.S), and what each must answer.
#include "shapes.h"

#include <string.h>

#include "protocol.h"

#define VALUE 0x11223344L
#define VECTOR_LOW 0x0123456789abcdefL
#define VECTOR_HIGH 0x1122334455667788L

static long triple_next(long x) {
  return 3 * (x + 1);
}
static long plus_two(long x) {
  return x + 2;
}
static long plus_four(long x) {
  return x + 4;
}
static long plus_five(long x) {
  return x + 5;
}
static long plus_seven(long x) {
  return x + 7;
}
static long plus_three(long x) {
  return x + 3;
}
static long plus_six(long x) {
  return x + 6;
}
static long plus_eight(long x) {
  return x + 8;
}
static long plus_nine(long x) {
  return x + 9;
}
static long plus_eleven(long x) {
  return x + 11;
}
static long plus_thirteen(long x) {
  return x + 13;
}
static long same(long x) {
  return x;
}
static long above_five(long x) {
  return x > 5 ? 200 : 100;
}
static long rcx_or_none(long x) {
  return (x & 3) ? (x & 3) : -1;
}
static long twice_masked(long x) {
  return 2 * ((x & 7) + 1);
}
static long low_bit(long x) {
  return x & 1;
}
static long zero(long x) {
  return (void)x, 0;
}
static long one(long x) {
  return (void)x, 1;
}
static long minus_seven(long x) {
  return (void)x, -7;
}
static long value(long x) {
  return (void)x, VALUE;
}
static long value_times_three(long x) {
  return (void)x, 3 * VALUE;
}
static long stored_value(long x) {
  return (void)x, -12345;
}
static long vector_low(long x) {
  return (void)x, VECTOR_LOW;
}
static long vector_high(long x) {
  return (void)x, VECTOR_HIGH;
}
static long parent(long x) {
  return (void)x, getppid();
}

long drive_rep_movsb(void* to, const void* from, long count);
static long run_rep_movsb(long x) {
  char from[200], to[200];
  memset(from, (int)(x & 0x7f) + 1, sizeof from);
  memset(to, 0, sizeof to);
  const long end = drive_rep_movsb(to, from, 199);
  return end == (long)(to + 199) && memcmp(from, to, 199) == 0 && to[199] == 0 ? x : -1;
}

#define DIRECT(name, want) long shape_##name(long);
#define DRIVEN(name, hits, want) long drive_##name(long);
#include "shapes.def"
#undef DIRECT
#undef DRIVEN

#define DIRECT(name, want) {"shape_" #name, 1, shape_##name, want},
#define DRIVEN(name, hits, want) {"shape_" #name, hits, drive_##name, want},
const struct Shape shapes[] = {
#include "shapes.def"
    {"shape_rep_movsb", 1, run_rep_movsb, same},
};
const int shape_count = sizeof shapes / sizeof shapes[0];

int shape_usable(const struct Shape* shape) {
  __builtin_cpu_init();
  if (strcmp(shape->name, "shape_avx_rip") == 0) return __builtin_cpu_supports("avx");
  if (strcmp(shape->name, "shape_evex_rip") == 0) return __builtin_cpu_supports("avx512f");
  return 1;
}

static long run_shape(const struct Shape* shape, long x) {
  const long want = shape->want(x), got = shape->run(x);
  if (got == want) return 0;
  fprintf(stderr, "%s(%ld) = %ld, should be %ld\n", shape->name, x, got, want);
  return 1;
}

long run_shapes(long rounds) {
  long wrong = 0;
  for (int i = 0; i < shape_count; ++i)
    if (shape_usable(&shapes[i]))
      for (long x = 0; x < rounds; ++x) wrong += run_shape(&shapes[i], x);
  return wrong;
}
