// variables: functions with parameters and variables of every kind. On command, one a line, it calls them and prints
// what their values were, as the members of a JSON object:
//   lines     {"take":N,"late":N}: lines of this file to probe
//   take N    one call of take(); answers with the values of its variables
//   late N    one call of late(), whose variables are computed on the way
//   chain N   one call of chain()
//   arrays N  one call of arrays()
//   lengths N one call of lengths(); {"line":N}: the one to probe
//   bits N    one call of bits()
//   twin N    one call of twin() (variables_twin.c), in builds that have it
//   quit
// Built with several compilers and options (meson.build): the values don't depend on them, their places do.
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "protocol.h"

enum Colour { kBlue = -3, kRed = 1, kGreen = 5 };

struct Point {
  int x, y;
};

struct Inner {
  char name[8];
  const char* text;
  struct Point at;
  unsigned flag : 3;
  int small : 5;
};

struct Node {
  struct Node* next;
  struct Inner inner;
  double weight;
  short values[4];
  struct Point corners[2];
  union {
    uint32_t bits;
    float real;
  };
  enum Colour colour;
};

typedef short Row[4];

struct Open {
  int none[0];
  struct Point no_points[0];
  int after;
  int rest[];
};

struct __attribute__((packed)) Packed {
  unsigned low : 5;
  unsigned over : 30;  // its bits lie in two words
  int whole;
  bool yes : 1;
  long long wide : 60;  // and in eight bytes
  long long wider : 62; // and in nine
  bool no : 1;
  int last : 9;
};

struct Grids {
  int plain[3][2];
  char names[2][4];
  unsigned char deep[2][1][3];
  Row rows[2];
  struct Point points[2][2];
};

static int grid[3][2] = {{1, 2}, {3, 4}, {5, 6}};
static long file_static = -77;
static long twice_named = 5;  // and in variables_twin.c
unsigned short global_number = 65000;
const char* global_words[3] = {"one", "two", "three"};
struct Node* global_list;

// The value is needed here, wherever the compiler keeps it.
#define KEEP(value) __asm__ volatile("" : : "g"(value) : "memory")

static int take_line, late_line, lengths_line;

TARGET_FUNCTION long take(int number, unsigned char byte, const char* text, struct Node* node, enum Colour colour,
                          bool flag, double real, float small, int64_t seventh, int16_t eighth) {
  static int calls;
  ++calls;
  int twice = number * 2;
  struct Point local = {number + 1, number + 2};
  KEEP(&local);
  KEEP(twice);
  long sum = twice + byte + (long)strlen(text) + node->values[0] + colour + flag + (long)real + (long)small + seventh;
  take_line = __LINE__ + 1;
  KEEP(sum);
  KEEP(number);
  KEEP(text);
  KEEP(node);
  KEEP(twice);
  KEEP(colour);
  KEEP(flag);
  KEEP(byte);
  KEEP(seventh);
  KEEP(eighth);
  KEEP(calls);
  KEEP(sum);
  KEEP(&local);
  return sum + eighth + local.x;
}

TARGET_FUNCTION int late(int number) {
  // A comment and an empty line: no code.

  int squared = number * number;
  KEEP(squared);
  for (int i = 0; i < 2; ++i) {
    int inner = squared + i;
    late_line = __LINE__ + 1;
    KEEP(inner);
    KEEP(i);
    KEEP(squared);
  }
  return squared;
}

TARGET_FUNCTION int chain(struct Node* list, int index) { return list->next->values[index & 3]; }

TARGET_FUNCTION int arrays(struct Grids* all, Row* rows, int (*pairs)[2]) {
  KEEP(grid);
  ++twice_named;
  KEEP(&twice_named);
  return all->plain[2][1] + rows[1][3] + pairs[1][0];
}

// And in variables_twin.c.
__attribute__((noinline, used)) static int same(int number) {
  KEEP(number);
  return number + 1;
}

__attribute__((weak)) long twin(long number);
struct Opaque;
__attribute__((weak)) struct Opaque* make_opaque(void);

TARGET_FUNCTION int hide(struct Opaque* opaque, int number) {
  KEEP(opaque);
  return number;
}

TARGET_FUNCTION int bits(struct Packed* packed, struct Packed copy) {
  KEEP(&copy);
  return packed->last;
}

TARGET_FUNCTION int lengths(int count, struct Open* open) {
  int list[count];
  for (int i = 0; i < count; ++i) list[i] = i + 1;
  KEEP(&list);
  lengths_line = __LINE__ + 1;
  KEEP(count);
  KEEP(&list);
  const int sum = list[count - 1] + open->after;
  KEEP(sum);
  KEEP(open);
  return sum;
}

static struct Node nodes[2];
static struct Packed packed;
static struct Grids grids;

static void set_up(int n) {
  struct Node node = {&nodes[1], {"abcdefg", "a text", {n, -n}, 5, -7}, n + 0.25, {1, -2, 300, -400},
                      {{10, 11}, {12, 13}}, {0x40490fdb}, kGreen};
  nodes[0] = node;
  nodes[1] = node;
  nodes[1].next = NULL;
  memcpy(nodes[1].inner.name, "12345678", 8);  // no zero behind it
  nodes[1].colour = (enum Colour)99;
  global_list = nodes;
}

static void obey(const char* line) {
  int n = 0;
  static int calls;
  if (strcmp(line, "lines") == 0) {
    set_up(1);
    take(1, 1, "x", nodes, kRed, true, 1, 1, 1, 1);
    ++calls;
    late(1);
    printf("{\"take\":%d,\"late\":%d}\n", take_line, late_line);
  } else if (sscanf(line, "take %d", &n) == 1) {
    set_up(n);
    ++calls;
    take(n, 200, "some text", nodes, kBlue, true, n + 0.5, 2.25f, 5000000000 + n, -8);
    printf("{\"number\":%d,\"byte\":200,\"text\":\"some text\",\"colour\":\"kBlue\",\"flag\":true,\"real\":%g,"
           "\"small\":2.25,\"seventh\":%lld,\"eighth\":-8,\"twice\":%d,\"calls\":%d,\"node\":\"%p\",\"x\":%d,\"y\":%d}\n",
           n, n + 0.5, 5000000000LL + n, n * 2, calls, (void*)nodes, n + 1, n + 2);
  } else if (sscanf(line, "late %d", &n) == 1) {
    late(n);
    printf("{\"squared\":%d}\n", n * n);
  } else if (sscanf(line, "chain %d", &n) == 1) {
    set_up(n);
    printf("{\"value\":%d}\n", chain(nodes, n));
  } else if (sscanf(line, "arrays %d", &n) == 1) {
    struct Grids all = {{{n, 2}, {3, 4}, {5, 6}},
                        {"abc", "de"},
                        {{{1, 2, 3}}, {{4, 5, 6}}},
                        {{1, 2, 3, 4}, {5, 6, 7, -8}},
                        {{{1, 2}, {3, 4}}, {{5, 6}, {7, 8}}}};
    grids = all;
    arrays(&grids, grids.rows, grid);
    printf("{\"plain\":[[%d,2],[3,4],[5,6]],\"names\":[\"abc\",\"de\"],\"deep\":[[[1,2,3]],[[4,5,6]]],"
           "\"rows\":[[1,2,3,4],[5,6,7,-8]],"
           "\"points\":[[{\"x\":1,\"y\":2},{\"x\":3,\"y\":4}],[{\"x\":5,\"y\":6},{\"x\":7,\"y\":8}]]}\n",
           n);
  } else if (sscanf(line, "bits %d", &n) == 1) {
    struct Packed all = {17, 0x2aaaaaaa, -4, true, -0x0edcba987654321, 5, false, n};
    packed = all;
    bits(&packed, all);
    printf("{\"low\":17,\"over\":%d,\"whole\":-4,\"yes\":true,\"wide\":%lld,\"wider\":null,\"no\":false,"
           "\"last\":%d}\n",
           0x2aaaaaaa, -0x0edcba987654321LL, n);
  } else if (sscanf(line, "lengths %d", &n) == 1) {
    static union {
      struct Open open;
      int words[3];
    } open;
    open.words[0] = n;
    open.words[2] = n + 1;
    lengths(n, &open.open);
    printf("{\"line\":%d}\n", lengths_line);
  } else if (sscanf(line, "twin %d", &n) == 1) {
    if (twin) twin(n);
    same(n);
    if (make_opaque) hide(make_opaque(), n);
    printf("{}\n");
  } else if (strcmp(line, "go") != 0) {
    printf("unknown command\n");
  }
  fflush(stdout);
}

int main(void) {
  KEEP(file_static);
  KEEP(global_number);
  KEEP(global_words[1]);
  set_up(1);
  target_ready("variables");
  for (char line[128]; target_line(line, sizeof line), strcmp(line, "quit") != 0;) obey(line);
  return target_result(1);
}
