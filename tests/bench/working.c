// bench-working: how much work a program gets done that calls the C library all the time, and how long it stands still.
//
// One thread goes round some thirty functions of the C library, and counts. Work is told by the time that the thread had
// or was kept from: what it waited for a CPU (standstill.h) is left out, so that other load on the machine isn't counted.
//
// Prints "ready PID", then answers every line "mark" with what has been since the last one: rounds, the time that they
// had, and the longest time that the thread stood still in one; both nanoseconds. Ends with its input.
#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

#include "standstill.h"

enum { kWorthALook = 20 * 1000 };

struct Done {
  _Atomic int64_t rounds, time, longest;
};
static struct Done done;
static atomic_int asked;  // for a sum up to now; the worker clears it

static int by_value(const void* a, const void* b) {
  const int x = *(const int*)a, y = *(const int*)b;
  return (x > y) - (x < y);
}

// What ordinary programs do with it, without a system call.
static uintptr_t work(unsigned n) {
  char text[64], copy[64];
  wchar_t wide[16];
  int numbers[4] = {(int)n, 3, 7, 1};
  div_t parts = div((int)(n & 0xffff), 7);
  char* const memory = malloc(16 + n % 64);
  char* const zeros = calloc(1, 32);
  unsigned seed = n;
  uintptr_t sum = (uintptr_t)snprintf(text, sizeof text, "%u:%s", n, "work");
  sum += strlen(text) + (uintptr_t)strtol(text, NULL, 10) + (uintptr_t)atoi(text);
  strcpy(copy, text);
  strncpy(copy, "abcdefgh", 8);
  sum += (uintptr_t)(strcmp(copy, text) != 0) + (uintptr_t)(strchr(text, ':') != NULL);
  sum += (uintptr_t)(memchr(text, 'k', sizeof text) != NULL) + (uintptr_t)(strstr(text, "rk") != NULL);
  sum += (uintptr_t)tolower(text[0]) + (uintptr_t)toupper(copy[1]) + (uintptr_t)rand_r(&seed);
  qsort(numbers, 4, sizeof numbers[0], by_value);
  sum += (uintptr_t)(getenv("PATH") != NULL) + (uintptr_t)(strpbrk(text, "xyz") != NULL) + strcspn(text, ":");
  sum += strspn(text, "0123456789") + (uintptr_t)strncmp(text, copy, 3) + (uintptr_t)ffs((int)n);
  sum += wcslen(wmemset(wide, L'\0', 16)) + (uintptr_t)parts.quot + (uintptr_t)labs((long)n);
  memset(memory, 1, 16);
  memmove(zeros, memory, 16);
  sum += (uintptr_t)memcmp(memory, zeros, 16);
  free(zeros);
  free(memory);
  return sum;
}

static void* go_round(void* unused) {
  const int schedstat = open_schedstat();
  struct Times begun = times_now(schedstat), before = begun;
  int64_t rounds = 0, longest = 0;
  static volatile uintptr_t sum;
  for (unsigned n = 0;; ++n) {
    sum += work(n);
    ++rounds;
    // A look at the clock takes as long as a few of the functions.
    if (n % 4 != 0 && atomic_load_explicit(&asked, memory_order_relaxed) == 0) continue;
    const int64_t wall = call_for_time(CLOCK_MONOTONIC);
    const int ask = atomic_load(&asked);
    if (wall - before.wall > kWorthALook || ask != 0) {
      const struct Times now = times_now(schedstat);
      const int64_t stood = stood_still(before, now);
      if (stood > longest) longest = stood;
      before = now;
    }
    if (ask == 0) continue;
    atomic_store(&done.rounds, rounds);
    atomic_store(&done.time, before.wall - begun.wall - (before.waited - begun.waited));
    atomic_store(&done.longest, longest);
    begun = before;
    rounds = longest = 0;
    atomic_store(&asked, 0);
  }
  return unused;
}

int main(void) {
  pthread_t thread;
  char line[64];
  prctl(PR_SET_PDEATHSIG, 9);
  if (pthread_create(&thread, NULL, go_round, NULL) != 0) return 2;
  printf("ready %d\n", (int)getpid());
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    if (strcmp(line, "mark\n") != 0) return 2;
    atomic_store(&asked, 1);
    const struct timespec soon = {0, 100 * 1000};
    while (atomic_load(&asked) != 0) clock_nanosleep(CLOCK_MONOTONIC, 0, &soon, NULL);
    printf("%lld %lld %lld\n", (long long)done.rounds, (long long)done.time, (long long)done.longest);
    fflush(stdout);
  }
  return 0;
}
