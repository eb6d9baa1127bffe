// A second file of variables: the same names stand for other things.
#define KEEP(value) __asm__ volatile("" : : "g"(value) : "memory")

struct Point {
  char text[8];
  int y, x;
};

struct Opaque {
  int count;
  struct Opaque* next;
};

static long twice_named = 500;
static struct Opaque opaque = {7, &opaque};

struct Opaque* make_opaque(void) { return &opaque; }

__attribute__((noinline, used)) static int same(int number) {
  KEEP(number);
  return number + 2;
}

__attribute__((noinline, noclone, used)) long twin(long number) {
  struct Point point = {"twin", -1, -2};
  const void* hidden = &point;
  KEEP(&point);
  ++twice_named;
  KEEP(&twice_named);
  KEEP(hidden);
  return number + point.x + same((int)number);
}
