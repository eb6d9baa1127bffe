// threads: makes short-lived threads all the time, and says how it gets on. So do the other programs here.
//
// Each prints "beat N" every 20 ms or so. N is the number of rounds of the worker that has done the fewest: it stands
// still when one of them does. A round that computes something wrong prints "WRONG" and why.
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kMakers = 3, kNumbers = 32 };

static atomic_ulong rounds[kMakers];

static void wrong(const char* what, uint64_t seed) {
  printf("WRONG %s of seed %lu\n", what, (unsigned long)seed);
  fflush(stdout);
}

static int ascending(const void* left, const void* right) {
  const uint64_t a = *(const uint64_t*)left, b = *(const uint64_t*)right;
  return (a > b) - (a < b);
}

static uint64_t next(uint64_t seed) { return seed * 6364136223846793005u + 1442695040888963407u; }

// The seed again, by way of the C library.
static void* short_life(void* argument) {
  const uint64_t seed = (uintptr_t)argument;
  char* text = malloc(64 + seed % 4000);
  snprintf(text, 64, "%lu %s", (unsigned long)seed, "behind it");
  uint64_t numbers[kNumbers], sum = 0, value = seed;
  for (int i = 0; i < kNumbers; ++i) sum += numbers[i] = value = next(value);
  qsort(numbers, kNumbers, sizeof *numbers, ascending);
  for (int i = 0; i < kNumbers; ++i) sum -= numbers[i];
  for (int i = 1; i < kNumbers; ++i)
    if (numbers[i - 1] > numbers[i]) wrong("the order", seed);
  if (sum != 0) wrong("the sum", seed);
  if (strcmp(strchr(text, ' '), " behind it") != 0) wrong("the text", seed);
  char* copy = strdup(text);
  const uint64_t read_back = strtoul(copy, NULL, 10);
  free(copy);
  free(text);
  return (void*)(uintptr_t)read_back;
}

static void* make_threads(void* argument) {
  atomic_ulong* const count = argument;
  const struct timespec pause = {0, 3 * 1000 * 1000};
  for (uint64_t seed = (uintptr_t)argument;; seed = next(seed)) {
    pthread_t thread;
    void* result = NULL;
    if (pthread_create(&thread, NULL, short_life, (void*)(uintptr_t)seed) != 0)
      wrong("no thread", seed);
    else if (pthread_join(thread, &result) != 0 || (uintptr_t)result != seed)
      wrong("the result", seed);
    atomic_fetch_add(count, 1);
    nanosleep(&pause, NULL);
  }
  return NULL;
}

int main(void) {
  const struct timespec pause = {0, 20 * 1000 * 1000};
  for (int i = 0; i < kMakers; ++i) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, make_threads, &rounds[i]) != 0) return 1;
  }
  for (;;) {
    unsigned long fewest = atomic_load(&rounds[0]);
    for (int i = 1; i < kMakers; ++i) {
      const unsigned long count = atomic_load(&rounds[i]);
      if (count < fewest) fewest = count;
    }
    printf("beat %lu\n", fewest);
    if (fflush(stdout) != 0) return 1;
    nanosleep(&pause, NULL);
  }
}
