// places: variables in places that are hard to find, functions that exist only inlined, and what one casts. On command,
// one a line:
//   inline N   calls outer_first() and outer_second(), both of which have twice_of() inlined; answers "inline done"
//   count N    N calls of count(), one line of which has functions of a header inlined; answers "count done"
//   tls N      sets the thread-local variables to N, N+1, ... and calls look(); answers "tls done"
//   thread N   the same in a thread of its own; answers "tls done"
//   cast N     one call of opaque() with the address of a structure, as void* and as a number; answers its address
//   shared N   sets the library's variable to N, calls change_library() with 3, which calls the library; answers what
//   the
//              variable is then
//   quit
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "placeslib.h"
#include "protocol.h"

#define KEEP(value) __asm__ volatile("" : : "g"(value) : "memory")

struct Inside {
  short small[2];
  const char* text;
};
struct Hidden {
  int id;
  struct Inside* inside;
  struct Hidden* self;
};
typedef struct Hidden HiddenAlias;

__thread int tls_count = 5;
static __thread char tls_text[8] = "tls";
static __thread struct Inside tls_inside;
static unsigned char array[8] = {1, 2, 3, 4, 5, 6, 7, 8};

static inline __attribute__((always_inline)) int twice_of(int number) {
  int sum = number + 100;
  KEEP(sum);
  KEEP(number);
  return sum * 2;
}

TARGET_FUNCTION int outer_first(int n) {
  KEEP(n);
  return twice_of(n) + 1;
}
TARGET_FUNCTION int outer_second(int n) {
  KEEP(n);
  return twice_of(n + 1) + twice_of(n + 2);
}

static long counter;
TARGET_FUNCTION int count(int n) {
  add_to(&counter, n);
  add_by_way(&counter, 1);  // one line: counted once
  KEEP(counter);
  return n;
}

TARGET_FUNCTION int look(int n) {
  KEEP(&tls_count);
  KEEP(tls_text);
  KEEP(&tls_inside);
  return n + look_in_library(n);
}

TARGET_FUNCTION long opaque(void* pointer, unsigned long word, int small) {
  KEEP(pointer);
  KEEP(word);
  KEEP(array);
  return small;
}

static void* set_and_look(void* number) {
  const int n = *(int*)number;
  tls_count = n;
  snprintf(tls_text, sizeof tls_text, "t%d", n + 1);
  tls_inside.small[1] = (short)-n;
  tls_inside.text = "inside";
  set_in_library(n + 2);
  look(n);
  return NULL;
}

TARGET_FUNCTION int change_library(int n) {
  KEEP(&library_number);
  return count_in_library(n);
}

static struct Inside inside = {{7, -8}, "a text"};
static struct Hidden hidden = {0, &inside, &hidden};

static void obey(const char* line) {
  int n = 0;
  if (sscanf(line, "inline %d", &n) == 1) {
    outer_first(n);
    outer_second(n);
    printf("inline done\n");
  } else if (sscanf(line, "count %d", &n) == 1) {
    for (int i = 0; i < n; ++i) count(i);
    printf("count done\n");
  } else if (sscanf(line, "tls %d", &n) == 1) {
    set_and_look(&n);
    printf("tls done\n");
  } else if (sscanf(line, "thread %d", &n) == 1) {
    pthread_t thread;
    pthread_create(&thread, NULL, set_and_look, &n);
    pthread_join(thread, NULL);
    printf("tls done\n");
  } else if (sscanf(line, "shared %d", &n) == 1) {
    library_number = n;
    printf("%d\n", change_library(3));
  } else if (sscanf(line, "cast %d", &n) == 1) {
    hidden.id = n;
    opaque(&hidden, (unsigned long)&hidden, -3);
    printf("%p\n", (void*)&hidden);
  } else {
    printf("unknown command\n");
  }
  fflush(stdout);
}

int main(void) {
  HiddenAlias* alias = &hidden;
  KEEP(alias);
  target_ready("places");
  for (char line[128]; target_line(line, sizeof line), strcmp(line, "quit") != 0;) obey(line);
  return target_result(1);
}
