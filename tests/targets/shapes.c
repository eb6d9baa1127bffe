// The table of shapes (shapes.def), and what each must answer.
#include "shapes.h"

#include "protocol.h"

#define VALUE 0x11223344L
#define VECTOR_LOW 0x0123456789abcdefL
#define VECTOR_HIGH 0x1122334455667788L

// No architecture has a use for all of them.
#define ANSWER __attribute__((unused)) static long

ANSWER triple_next(long x) {
  return 3 * (x + 1);
}
ANSWER plus_two(long x) {
  return x + 2;
}
ANSWER plus_four(long x) {
  return x + 4;
}
ANSWER plus_five(long x) {
  return x + 5;
}
ANSWER plus_seven(long x) {
  return x + 7;
}
ANSWER plus_three(long x) {
  return x + 3;
}
ANSWER plus_six(long x) {
  return x + 6;
}
ANSWER plus_eight(long x) {
  return x + 8;
}
ANSWER plus_nine(long x) {
  return x + 9;
}
ANSWER plus_eleven(long x) {
  return x + 11;
}
ANSWER plus_thirteen(long x) {
  return x + 13;
}
ANSWER same(long x) {
  return x;
}
ANSWER above_five(long x) {
  return x > 5 ? 200 : 100;
}
ANSWER rcx_or_none(long x) {
  return (x & 3) ? (x & 3) : -1;
}
ANSWER twice_masked(long x) {
  return 2 * ((x & 7) + 1);
}
ANSWER low_bit(long x) {
  return x & 1;
}
ANSWER zero(long x) {
  return (void)x, 0;
}
ANSWER one(long x) {
  return (void)x, 1;
}
ANSWER minus_seven(long x) {
  return (void)x, -7;
}
ANSWER value(long x) {
  return (void)x, VALUE;
}
ANSWER value_times_three(long x) {
  return (void)x, 3 * VALUE;
}
ANSWER stored_value(long x) {
  return (void)x, -12345;
}
ANSWER vector_low(long x) {
  return (void)x, VECTOR_LOW;
}
ANSWER vector_high(long x) {
  return (void)x, VECTOR_HIGH;
}
ANSWER parent(long x) {
  return (void)x, getppid();
}

// SHAPES: the table of the architecture that this is built for.
#define DIRECT(name, want) long shape_##name(long);
#define DRIVEN(name, hits, want) long drive_##name(long);
#include SHAPES
#undef DIRECT
#undef DRIVEN

#define DIRECT(name, want) {"shape_" #name, 1, shape_##name, want},
#define DRIVEN(name, hits, want) {"shape_" #name, hits, drive_##name, want},
const struct Shape shapes[] = {
#include SHAPES
};
const int shape_count = sizeof shapes / sizeof shapes[0];

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
