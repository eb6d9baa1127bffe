// results: functions that return a value of every kind, and some whose parameters are what the registers of the calling
// convention are hard for. On command, one a line, it calls them and prints the truth as the members of a JSON object:
//   call N   one call of each give_*(); {"give_int":...,...}
//   odd N    one call of each odd_*(), whose results can't be shown
//   fill N   one call of fill(), which writes through its pointers
//   take N   one call of take(): structures by value
//   wide N   one call of wide(): parameters that lie in several registers, or in none
//   stack N  one call of stacked() and of halved(): parameters that don't go where others of their size do
//   tricky N one call of each tricky_*(): parameters that compilers, or conventions, class in unexpected ways
//   tangle N one call of tangled(), whose type has a great many parts
//   make N   an Heir, and one that is a part of a Last
//   quit
// Built with several compilers and options (meson.build).
#include <cstdint>
#include <cstring>
#include <string>

#include "protocol.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // WideVector

#define KEEP(value) __asm__ volatile("" : : "g"(value) : "memory")

// Calls whose results nobody wants would be left out.
template <class T>
static void use(const T& value) {
  KEEP(&value);
}

enum Colour { kBlue = -3, kRed = 1, kGreen = 5 };
enum class Level : unsigned char { low, high = 200 };

struct Longs {
  long a, b;
};
struct DoubleInt {
  double real;
  int number;
};
struct IntDouble {
  int number;
  double real;
};
struct Doubles {
  double x, y;
};
struct Floats {
  float x, y, z;
};
struct Small {
  char letter;
  short number;
  int flag : 3;
  unsigned rest : 5;
};
struct Big {
  long values[4];
  const char* text;
  Small inner;
};
struct Tracked {  // returned and handed over by its address
  int id;
  explicit Tracked(int i) : id(i) {}
  Tracked(const Tracked& other) : id(other.id) {}
  ~Tracked() { KEEP(&id); }
};
struct Grid {
  short cells[3][3];
};
struct Tile {
  char cells[2][2];
};
struct Buffer {
  int length;
  char text[16];
  Buffer* next;
};

extern "C" {
TARGET_FUNCTION int give_int(int n) { return -n; }
TARGET_FUNCTION unsigned char give_byte(int n) { return static_cast<unsigned char>(n + 250); }
TARGET_FUNCTION short give_short(int n) { return static_cast<short>(-n - 300); }
TARGET_FUNCTION uint64_t give_wide(int n) { return 0xffffffff00000000u + static_cast<unsigned>(n); }
TARGET_FUNCTION bool give_bool(int n) { return n > 2; }
TARGET_FUNCTION Colour give_colour(int n) { return n > 2 ? kGreen : kBlue; }
TARGET_FUNCTION Level give_level(int n) { return n > 2 ? Level::high : Level::low; }
TARGET_FUNCTION const char* give_text(int n) { return n > 2 ? "more" : "less"; }
TARGET_FUNCTION double give_double(int n) { return n + 0.25; }
TARGET_FUNCTION float give_float(int n) { return static_cast<float>(n) - 0.5f; }
struct Empty {};
struct NamedOne {
  int id, left;
};
struct NamedTwo {
  int id, right;
};
struct Derived : Empty, NamedOne, NamedTwo {
  int own;
};
TARGET_FUNCTION Derived made_derived(int n) { return {{}, {n, n + 1}, {n + 2, n + 3}, n + 4}; }

TARGET_FUNCTION void give_nothing(int n) { KEEP(n); }
}
TARGET_FUNCTION Longs give_longs(int n) { return {n, -n}; }
TARGET_FUNCTION DoubleInt give_double_int(int n) { return {n + 0.5, n}; }
TARGET_FUNCTION IntDouble give_int_double(int n) { return {n, n + 0.75}; }
TARGET_FUNCTION Doubles give_doubles(int n) { return {n + 0.125, -n - 0.125}; }
TARGET_FUNCTION Floats give_floats(int n) { return {static_cast<float>(n), 2.5f, -3.5f}; }
TARGET_FUNCTION Small give_small(int n) { return {'s', static_cast<short>(-n), -2, 21}; }
TARGET_FUNCTION Big give_big(int n) { return {{n, 2, -3, 4}, "big text", {'b', 7, 1, 3}}; }
TARGET_FUNCTION Grid give_grid(int n) { return {{{static_cast<short>(n), 2, 3}, {4, 5, -6}, {7, 8, 9}}}; }
TARGET_FUNCTION Tracked give_tracked(int n) { return Tracked(n * 2); }
TARGET_FUNCTION std::string give_string(int n) { return "string " + std::to_string(n); }

struct TwoDoubles {
  double v[2];
};
struct ThreeInts {
  int v[3];
};
struct __attribute__((packed)) Packed {
  char letter;
  long number;
};
struct Overlap {
  union {
    float real;
    int whole;
  };
  float other;
  double last;
};
using Vector = float __attribute__((vector_size(16)));

TARGET_FUNCTION long double odd_long_double(int n) { return n + 0.5L; }
__extension__ TARGET_FUNCTION __int128 odd_int128(int n) { return n; }
TARGET_FUNCTION Vector odd_vector(int n) { return Vector{static_cast<float>(n), 2, 3, 4}; }
// Whoever returns it does so in a vector register if his code has those, else in memory.
using Vector32 = float __attribute__((vector_size(32)));
struct WideVector {
  Vector32 v;
};
TARGET_FUNCTION WideVector odd_wide_vector(int n) { return {Vector32{static_cast<float>(n), 2, 3, 4, 5, 6, 7, 8}}; }
TARGET_FUNCTION TwoDoubles give_pair(int n) { return {{n + 0.5, n + 1.5}}; }
TARGET_FUNCTION ThreeInts give_triple(int n) { return {{n, n + 1, n + 2}}; }
TARGET_FUNCTION Packed give_packed(int n) { return {'p', n}; }
TARGET_FUNCTION Overlap give_overlap(int n) { return {{.whole = n}, n + 0.5f, n + 0.25}; }

static Buffer buffers[2];
TARGET_FUNCTION Buffer* give_buffer(int n) {
  buffers[0].length = n;
  return &buffers[0];
}

static int static_count = 10;

TARGET_FUNCTION int fill(Buffer* out, const char* name, int number, const Small& small) {
  KEEP(&small);
  out->length = number;
  std::strcpy(out->text, "filled");
  out->next->length = number + 1;
  ++static_count;
  const int result = static_cast<int>(std::strlen(name)) + number;
  number = 0;
  name = nullptr;
  KEEP(number);
  KEEP(name);
  return result;
}

TARGET_FUNCTION int take(DoubleInt first, Floats second, Big third, Longs fourth, Doubles fifth, Small sixth,
                         Grid seventh, Tile tile, Longs last) {
  KEEP(&first);
  KEEP(&second);
  KEEP(&third);
  KEEP(&fourth);
  KEEP(&fifth);
  KEEP(&sixth);
  KEEP(&seventh);
  KEEP(&tile);
  KEEP(&last);
  return first.number;
}

struct Nothing {};
struct Method {
  int field, other;
  int get() const { return field; }
};
__extension__ TARGET_FUNCTION int wide(int first, Nothing nothing, int second, long double big, int third,
                                       __int128 huge, _Complex double wave, _Complex float ripple, double fourth,
                                       int Method::*data, int (Method::*get)() const, int fifth, __int128 behind,
                                       int sixth) {
  KEEP(&nothing);
  KEEP(&big);
  KEEP(&huge);
  KEEP(&wave);
  KEEP(&ripple);
  KEEP(&data);
  KEEP(&get);
  KEEP(&behind);
  KEEP(second);
  KEEP(third);
  KEEP(fourth);
  KEEP(fifth);
  KEEP(sixth);
  return first;
}

// Those that are hard for who has to know where the next ones are.
struct Reals {
  long double real;
};
struct __attribute__((packed)) Loose {
  long double real;
  char letter;
};
struct Wide128 {
  __extension__ __int128 number;
};
struct alignas(16) Aligned {
  long a, b, c;
};
struct BitPacked {
  char letter;
  long flags : 3;
  long rest : 60;
} __attribute__((packed));
TARGET_FUNCTION Packed stacked(int first, Packed packed, Reals reals, int second, Loose loose, Wide128 wide, int third,
                               Aligned aligned, BitPacked bits, int fourth, Vector vector, double fifth,
                               TwoDoubles pair, Overlap overlap, int sixth, ThreeInts triple, Longs last) {
  KEEP(&packed);
  KEEP(&reals);
  KEEP(&loose);
  KEEP(&wide);
  KEEP(&aligned);
  KEEP(&bits);
  KEEP(&vector);
  KEEP(&pair);
  KEEP(&overlap);
  KEEP(&triple);
  KEEP(&last);
  KEEP(second);
  KEEP(third);
  KEEP(fourth);
  KEEP(&fifth);
  KEEP(sixth);
  return {'r', first};
}
// One register is left for a number that needs two.
__extension__ TARGET_FUNCTION int halved(int a, int b, int c, int d, int e, __int128 number, int f, long g, int h) {
  KEEP(b);
  KEEP(c);
  KEEP(d);
  KEEP(e);
  KEEP(&number);
  KEEP(f);
  KEEP(g);
  KEEP(h);
  return a;
}

// What is handed over in other registers than its parts by themselves would be.
struct PaddedFloats {
  float a;
  alignas(8) float b;
};
union PaddedOrNot {
  PaddedFloats padded;
  float plain[4];
};
struct alignas(16) WideEmpty {};
struct HoldsEmpty {
  WideEmpty nothing;
};
struct Behind : Empty {
  float first, second;
};
TARGET_FUNCTION int tricky_union(int first, PaddedOrNot either, int second, float third) {
  KEEP(&either);
  KEEP(second);
  KEEP(&third);
  return first;
}
__extension__ TARGET_FUNCTION int tricky_complex(int first, _Complex long wave, int second) {
  KEEP(&wave);
  KEEP(second);
  return first;
}
TARGET_FUNCTION int tricky_empty(int first, HoldsEmpty nothing, int second) {
  KEEP(&nothing);
  KEEP(second);
  return first;
}
TARGET_FUNCTION int tricky_base(int first, Behind based, int second, float third) {
  KEEP(&based);
  KEEP(second);
  KEEP(&third);
  return first;
}

// Eight bytes that have 12^6 parts; Clang counts them, too, and does not end.
#define TWELVE(type) type m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11
union Tangle1 {
  TWELVE(long);
};
union Tangle2 {
  TWELVE(Tangle1);
};
union Tangle3 {
  TWELVE(Tangle2);
};
union Tangle4 {
  TWELVE(Tangle3);
};
union Tangle5 {
  TWELVE(Tangle4);
};
union Tangle {
#ifdef __clang__
  TWELVE(Tangle1);
#else
  TWELVE(Tangle5);
#endif
};
TARGET_FUNCTION Tangle tangled(int first, Tangle tangle, int second) {
  KEEP(&tangle);
  KEEP(first);
  KEEP(second);
  return tangle;
}

// Of constructors of classes with virtual bases there are two, of which one is told where those are.
struct Ancestor {
  int rank = 1;
  virtual ~Ancestor() { KEEP(&rank); }
};
struct Heir : virtual Ancestor {
  int id;
  __attribute__((noinline)) Heir(int number, long wide, const char* name) : id(number) {
    KEEP(wide);
    KEEP(name);
  }
};
struct Last : Heir {
  __attribute__((noinline)) Last(int number, const char* name) : Heir(number + 1, 20, name) { KEEP(number); }
};

static void call(int n) {
  use(give_int(n));
  use(give_byte(n));
  use(give_short(n));
  use(give_wide(n));
  use(give_bool(n));
  use(give_colour(n));
  use(give_level(n));
  use(give_text(n));
  use(give_double(n));
  use(give_float(n));
  give_nothing(n);
  use(give_longs(n));
  use(give_double_int(n));
  use(give_int_double(n));
  use(give_doubles(n));
  use(give_floats(n));
  use(give_small(n));
  use(give_big(n));
  use(made_derived(n));
  use(give_grid(n));
  use(give_tracked(n));
  use(give_string(n));
  use(give_buffer(n));
  use(give_pair(n));
  use(give_triple(n));
  use(give_packed(n));
  use(give_overlap(n));
  printf("{\"give_int\":%d,\"give_byte\":%d,\"give_short\":%d,\"give_wide\":%llu,\"give_bool\":%s,", -n,
         (n + 250) % 256, -n - 300, 0xffffffff00000000ull + static_cast<unsigned>(n), n > 2 ? "true" : "false");
  printf("\"give_colour\":\"%s\",\"give_level\":\"%s\",\"give_text\":\"%s\",\"give_double\":%g,\"give_float\":%g,",
         n > 2 ? "kGreen" : "kBlue", n > 2 ? "high" : "low", n > 2 ? "more" : "less", n + 0.25, n - 0.5);
  printf("\"give_longs\":{\"a\":%d,\"b\":%d},\"give_double_int\":{\"real\":%g,\"number\":%d},", n, -n, n + 0.5, n);
  printf("\"give_int_double\":{\"number\":%d,\"real\":%g},\"give_doubles\":{\"x\":%g,\"y\":%g},", n, n + 0.75,
         n + 0.125, -n - 0.125);
  printf("\"give_floats\":{\"x\":%d,\"y\":2.5,\"z\":-3.5},", n);
  printf("\"give_small\":{\"letter\":\"s\",\"number\":%d,\"flag\":-2,\"rest\":21},", -n);
  printf("\"give_big\":{\"values\":[%d,2,-3,4],\"text\":\"big text\",", n);
  printf("\"inner\":{\"letter\":\"b\",\"number\":7,\"flag\":1,\"rest\":3}},");
  printf("\"give_grid\":{\"cells\":[[%d,2,3],[4,5,-6],[7,8,9]]},", n);
  printf("\"give_pair\":{\"v\":[%g,%g]},\"give_triple\":{\"v\":[%d,%d,%d]},", n + 0.5, n + 1.5, n, n + 1, n + 2);
  printf("\"give_packed\":{\"letter\":\"p\",\"number\":%d},", n);
  printf("\"give_tracked\":{\"id\":%d},\"give_string\":\"string %d\",\"give_buffer\":\"%p\"}\n", n * 2, n,
         static_cast<void*>(buffers));
}

static void odd(int n) {
  use(odd_long_double(n));
  use(odd_int128(n));
  use(odd_vector(n));
  use(odd_wide_vector(n));
  printf("{\"n\":%d}\n", n);
}

static void obey(const char* line) {
  int n = 0;
  if (std::sscanf(line, "call %d", &n) == 1) {
    call(n);
  } else if (std::sscanf(line, "odd %d", &n) == 1) {
    odd(n);
  } else if (std::sscanf(line, "fill %d", &n) == 1) {
    buffers[0] = {-1, "before", &buffers[1]};
    buffers[1].length = -2;
    const int before = static_count;
    printf("{\"result\":%d,\"count\":%d}\n", fill(&buffers[0], "a name", n, {'s', 1, 2, 3}), before + 1);
  } else if (std::sscanf(line, "take %d", &n) == 1) {
    take({n + 0.5, n}, {1.5f, 2.5f, 3.5f}, {{n, 2, 3, 4}, "third", {'t', 1, -1, 9}}, {n, -n}, {0.25, 0.75},
         {'x', -5, 3, 30}, {{{1, 2, 3}, {4, 5, static_cast<short>(-n)}, {7, 8, 9}}}, {{"a", "b"}}, {7, 8});
    printf("{\"first\":{\"real\":%g,\"number\":%d},\"second\":{\"x\":1.5,\"y\":2.5,\"z\":3.5},", n + 0.5, n);
    printf("\"third\":{\"values\":[%d,2,3,4],\"text\":\"third\",", n);
    printf("\"inner\":{\"letter\":\"t\",\"number\":1,\"flag\":-1,\"rest\":9}},\"fourth\":{\"a\":%d,\"b\":%d},", n, -n);
    printf("\"fifth\":{\"x\":0.25,\"y\":0.75},\"sixth\":{\"letter\":\"x\",\"number\":-5,\"flag\":3,\"rest\":30},");
    printf("\"seventh\":{\"cells\":[[1,2,3],[4,5,%d],[7,8,9]]},", -n);
    printf("\"last\":{\"a\":7,\"b\":8}}\n");
  } else if (std::sscanf(line, "wide %d", &n) == 1) {
    wide(n, {}, n + 1, 0.5L, n + 2, 1, 2.0, 3.0f, n + 0.5, &Method::other, &Method::get, n + 3, 4, n + 4);
    printf("{\"first\":%d,\"second\":%d,\"third\":%d,\"fourth\":%g,\"fifth\":%d,\"sixth\":%d}\n", n, n + 1, n + 2,
           n + 0.5, n + 3, n + 4);
  } else if (std::sscanf(line, "stack %d", &n) == 1) {
    use(stacked(n, {'q', n + 1}, {0.5L}, n + 2, {1.5L, 'l'}, {-1}, n + 3, {n, 2, 3}, {'b', -1, n}, n + 4,
                Vector{1, 2, 3, 4}, n + 0.5, {{0.25, n + 0.75}}, {{.whole = n}, 1.5f, n + 0.125}, n + 5,
                {{n, n + 1, n + 2}}, {n, -n}));
    halved(n, 2, 3, 4, 5, -6, n + 6, n + 7, n + 8);
    printf("{\"stacked\":{\"first\":%d,\"packed\":{\"letter\":\"q\",\"number\":%d},\"second\":%d,", n, n + 1, n + 2);
    printf("\"third\":%d,\"fourth\":%d,\"fifth\":%g,\"sixth\":%d,", n + 3, n + 4, n + 0.5, n + 5);
    printf("\"aligned\":{\"a\":%d,\"b\":2,\"c\":3},\"last\":{\"a\":%d,\"b\":%d},", n, n, -n);
    printf("\"pair\":{\"v\":[0.25,%g]},\"triple\":{\"v\":[%d,%d,%d]},", n + 0.75, n, n + 1, n + 2);
    printf("\"bits\":{\"letter\":\"b\",\"flags\":-1,\"rest\":%d}},", n);
    printf("\"halved\":{\"a\":%d,\"f\":%d,\"g\":%d,\"h\":%d}}\n", n, n + 6, n + 7, n + 8);
  } else if (std::sscanf(line, "tangle %d", &n) == 1) {
    use(tangled(n, {}, n + 1));
    printf("{\"first\":%d,\"second\":%d}\n", n, n + 1);
  } else if (std::sscanf(line, "tricky %d", &n) == 1) {
    tricky_union(n, {{n + 0.5f, 2.5f}}, n + 1, n + 1.5f);
    tricky_complex(n, {}, n + 2);
    tricky_empty(n, {}, n + 3);
    tricky_base(n, {{}, n + 2.5f, 3.5f}, n + 4, n + 4.5f);
    printf("{\"union\":{\"first\":%d,\"second\":%d,\"third\":%g,\"either.padded.a\":%g},", n, n + 1, n + 1.5, n + 0.5);
    printf("\"complex\":{\"first\":%d,\"second\":%d},\"empty\":{\"first\":%d,\"second\":%d},", n, n + 2, n, n + 3);
    printf("\"base\":{\"first\":%d,\"second\":%d,\"third\":%g,\"based.second\":3.5}}\n", n, n + 4, n + 4.5);
  } else if (std::sscanf(line, "make %d", &n) == 1) {
    use(Heir(n, 8, "nine"));
    use(Last(n, "ten"));
    printf("{}\n");
  } else {
    printf("unknown command\n");
  }
  fflush(stdout);
}

int main() {
  target_ready("results");
  for (char line[128]; target_line(line, sizeof line), std::strcmp(line, "quit") != 0;) obey(line);
  return target_result(1);
}
