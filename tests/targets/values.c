// values [N]: N rounds (default 1) of calls with known arguments. Prints the truth of each call as one JSON object a
// line before it is made:
//   {"call":"v_signed","args":{...}}   and first {"globals":{...}}
// Integers are JSON numbers, pointers "0x..." strings, strings JSON strings; bytes that are no UTF-8 are escaped as
// \udc80 ... \udcff (Python's surrogateescape), what can't be read is null.
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "protocol.h"

struct Node {
  int32_t id;
  struct Node* next;
  const char* name;
  int16_t small;
  uint32_t packed;  // 3 bits, 5 bits, 24 bits
};

// Data symbols for @SYM.
__attribute__((visibility("default"))) uint32_t g_u32 = 0x12345678;
__attribute__((visibility("default"))) int64_t g_s64 = -1234567890123456789;
__attribute__((visibility("default"))) int8_t g_s8 = -5;
__attribute__((visibility("default"))) char g_text[32] = "global text";
__attribute__((visibility("default"))) const char* g_text_pointer = "pointed-to text";
__attribute__((visibility("default"))) int16_t g_array[4] = {-1, 2, -3, 4};

static volatile long sink;

TARGET_FUNCTION int v_signed(int8_t a, int16_t b, int32_t c, int64_t d) {
  return (int)(sink = a + b + c + d);
}
TARGET_FUNCTION int v_unsigned(uint8_t a, uint16_t b, uint32_t c, uint64_t d) {
  return (int)(sink = (long)(a + b + c + d));
}
TARGET_FUNCTION int v_string(const char* s, long number) {
  return (int)(sink = number + (s ? 1 : 0));
}
TARGET_FUNCTION int v_chain(const struct Node* first) {
  return (int)(sink = first->next->next->id);
}
TARGET_FUNCTION int v_pointer(const void* p, long number) {
  return (int)(sink = number + (p == NULL));
}
TARGET_FUNCTION long v_ten(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j) {
  return sink = a + b + c + d + e + f + g + h + i + j;
}
TARGET_FUNCTION double v_floats(double x, float y, int between, double z) {
  return x + (double)y + between + z;
}
TARGET_FUNCTION long v_return(long x) {
  return sink = x * 3 - 1;
}
TARGET_FUNCTION const char* v_return_text(int which) {
  return which ? "odd" : "even";
}
TARGET_FUNCTION int v_array(const int32_t* four) {
  return (int)(sink = four[0] + four[3]);
}

static int utf8_length(const unsigned char* s) {
  const int want = s[0] < 0x80 ? 1 : (s[0] & 0xe0) == 0xc0 && s[0] >= 0xc2 ? 2 : (s[0] & 0xf0) == 0xe0 ? 3 : 0;
  for (int i = 1; i < want; ++i)
    if ((s[i] & 0xc0) != 0x80) return 0;
  return want;  // longer sequences do not occur here
}

static void print_text(const char* text) {
  putchar('"');
  for (const unsigned char* s = (const unsigned char*)text; *s;) {
    const int length = utf8_length(s);
    if (length == 0) {
      printf("\\udc%02x", *s++);
    } else if (length == 1 && (*s < 0x20 || *s == '"' || *s == '\\')) {
      printf("\\u%04x", *s++);
    } else {
      fwrite(s, 1, (size_t)length, stdout);
      s += length;
    }
  }
  putchar('"');
}

static void call_string(const char* text, int readable, long number) {
  printf("{\"call\":\"v_string\",\"args\":{\"s\":");
  if (readable)
    print_text(text);
  else
    printf("null");
  printf(",\"number\":%ld}}\n", number);
  fflush(stdout);
  v_string(text, number);
}

static void call_pointer(unsigned long p, long number) {
  printf("{\"call\":\"v_pointer\",\"args\":{\"p\":\"0x%lx\",\"number\":%ld}}\n", p, number);
  fflush(stdout);
  v_pointer((const void*)p, number);
}

static void call_signed(int8_t a, int16_t b, int32_t c, int64_t d) {
  printf("{\"call\":\"v_signed\",\"args\":{\"a\":%d,\"b\":%d,\"c\":%d,\"d\":%ld}}\n", a, b, c, (long)d);
  fflush(stdout);
  v_signed(a, b, c, d);
}

static void call_unsigned(uint8_t a, uint16_t b, uint32_t c, uint64_t d) {
  printf("{\"call\":\"v_unsigned\",\"args\":{\"a\":%u,\"b\":%u,\"c\":%u,\"d\":%lu}}\n", a, b, c, (unsigned long)d);
  fflush(stdout);
  v_unsigned(a, b, c, d);
}

static void integers(void) {
  call_signed(-1, -2, -3, -4);
  call_signed(INT8_MIN, INT16_MIN, INT32_MIN, INT64_MIN);
  call_signed(INT8_MAX, INT16_MAX, INT32_MAX, INT64_MAX);
  call_unsigned(1, 2, 3, 4);
  call_unsigned(UINT8_MAX, UINT16_MAX, UINT32_MAX, UINT64_MAX);
}

// Two pages, the second one taken away again: text that runs to the very end of readable memory.
static char* page_end(void) {
  const long page = sysconf(_SC_PAGESIZE);
  char* two = mmap(NULL, (size_t)(2 * page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (two == MAP_FAILED || munmap(two + page, (size_t)page) != 0) _exit(2);
  return two + page;
}

static void strings(void) {
  char big[301];
  memset(big, 'x', 300);
  big[300] = '\0';
  call_string("hello", 1, 0);
  call_string("", 1, 1);
  call_string(
      "gr\xc3\xbc\xc3\x9f"
      "e",
      1, 2);
  call_string("raw \xff\xfe\x80 bytes", 1, 3);
  call_string("quote \" back\\slash\ttab\nnewline", 1, 4);
  call_string(big, 1, 5);
  char* end = page_end();
  memcpy(end - 5, "edge", 5);
  call_string(end - 5, 1, 6);
  memcpy(end - 4, "runs", 4);
  call_string(end - 4, 0, 7);
  call_string(NULL, 0, 8);
}

static void pointers(void) {
  call_pointer(0, 0);
  call_pointer(0x10, 1);
  call_pointer(0x8000000000000000ul, 2);  // not canonical
  call_pointer(0xffffffffff600000ul, 3);  // vsyscall
  call_pointer(0x7ffffffff000ul, 4);      // the last user address there is, plus one
}

static void structures(void) {
  static struct Node third = {33, NULL, "third", -300, 0}, second = {22, &third, "second", 200, 0};
  static struct Node first = {11, &second, "first", -100, 5u | 19u << 3 | 0xabcdefu << 8};
  printf(
      "{\"call\":\"v_chain\",\"args\":{\"id\":%d,\"next_id\":%d,\"next_next_name\":\"%s\",\"small\":%d,"
      "\"low3\":%u,\"mid5\":%u,\"high24\":%u}}\n",
      first.id, second.id, third.name, first.small, first.packed & 7, first.packed >> 3 & 31, first.packed >> 8);
  fflush(stdout);
  v_chain(&first);
  static const int32_t four[4] = {10, -20, 30, -40};
  printf("{\"call\":\"v_array\",\"args\":{\"four\":[10,-20,30,-40]}}\n");
  fflush(stdout);
  v_array(four);
}

static int others(void) {
  printf(
      "{\"call\":\"v_ten\",\"args\":{\"a\":1,\"b\":-2,\"c\":3,\"d\":-4,\"e\":5,\"f\":-6,\"g\":7,\"h\":-8,\"i\":9,\"j\":"
      "-10}}\n");
  fflush(stdout);
  int ok = v_ten(1, -2, 3, -4, 5, -6, 7, -8, 9, -10) == -5;
  printf("{\"call\":\"v_floats\",\"args\":{\"x\":1.5,\"y\":-2.25,\"between\":7,\"z\":0.25}}\n");
  fflush(stdout);
  ok &= v_floats(1.5, -2.25f, 7, 0.25) == 6.5;
  printf("{\"call\":\"v_return\",\"args\":{\"x\":-14,\"retval\":-43}}\n");
  fflush(stdout);
  ok &= v_return(-14) == -43;
  printf("{\"call\":\"v_return_text\",\"args\":{\"which\":1,\"retval\":\"odd\"}}\n");
  fflush(stdout);
  return ok & (strcmp(v_return_text(1), "odd") == 0);
}

static void globals(void) {
  printf(
      "{\"globals\":{\"g_u32\":%u,\"g_s64\":%ld,\"g_s8\":%d,\"g_text\":\"%s\",\"g_text_pointer\":\"%s\","
      "\"g_array\":[%d,%d,%d,%d]}}\n",
      g_u32, (long)g_s64, g_s8, g_text, g_text_pointer, g_array[0], g_array[1], g_array[2], g_array[3]);
}

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? atoi(argv[1]) : 1;
  int ok = 1;
  target_ready("values");
  target_wait_go();
  globals();
  for (int i = 0; i < rounds; ++i) {
    integers();
    strings();
    pointers();
    structures();
    ok &= others();
  }
  return target_result(ok);
}
