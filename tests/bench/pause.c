// bench-pause THREADS: how long its threads stand still while something is done to the process.
//
// One thread spins and looks at the clock; the others sleep some milliseconds at a time. What a thread stood still is
// the time that went by, less what it had asked to sleep, less what it ran (CLOCK_THREAD_CPUTIME_ID), less what it
// waited for a CPU (/proc/thread-self/schedstat, the second number): a stopped thread does none of these three, so
// other load on the machine isn't counted. A sleeper notices a stop that its time to wake falls into; with many of
// them, some do.
//
// Prints "ready PID 0xADDRESS" (of bench_copy, which it never calls), then answers every line "mark" with the longest
// time since the last one, nanoseconds. Ends with its input.
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "standstill.h"

long bench_copy(long, long);

enum { kMaxThreads = 4096, kNapMin = 20 * 1000 * 1000, kNapSpread = 60 * 1000 * 1000, kWorthALook = 20 * 1000 };

static _Atomic int64_t longest;

static int64_t now(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void note(int64_t stood) {
  int64_t before = atomic_load(&longest);
  while (stood > before && !atomic_compare_exchange_weak(&longest, &before, stood)) continue;
}

static void* spin(void* unused) {
  const int schedstat = open_schedstat();
  struct Times before = times_now(schedstat);
  int64_t last = before.wall;
  for (;;) {
    const int64_t t = now(CLOCK_MONOTONIC);
    if (t - last > kWorthALook) {
      const struct Times after = times_now(schedstat);
      note(stood_still(before, after));
      before = after;
      last = now(CLOCK_MONOTONIC);
    } else {
      last = t;
    }
  }
  return unused;
}

static void* doze(void* argument) {
  const int64_t nap = kNapMin + (int64_t)(intptr_t)argument * 7919 * 1000 % kNapSpread;
  const int schedstat = open_schedstat();
  prctl(PR_SET_TIMERSLACK, 1);
  for (;;) {
    const int64_t due = now(CLOCK_MONOTONIC) + nap, waited = waited_for_cpu(schedstat);
    const int64_t ran = now(CLOCK_THREAD_CPUTIME_ID);
    const struct timespec until = {due / 1000000000, due % 1000000000};
    if (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0) abort();
    const int64_t late = now(CLOCK_MONOTONIC) - due;
    if (late > kWorthALook) note(late - (waited_for_cpu(schedstat) - waited) - (now(CLOCK_THREAD_CPUTIME_ID) - ran));
  }
  return NULL;
}

int main(int argc, char** argv) {
  const long threads = argc > 1 ? atol(argv[1]) : 1;
  pthread_attr_t attributes;
  pthread_t thread;
  char line[64];
  if (threads < 1 || threads > kMaxThreads) return 2;
  prctl(PR_SET_PDEATHSIG, 9);
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 64 * 1024);
  for (long i = 0; i < threads; ++i)
    if (pthread_create(&thread, &attributes, i == 0 ? spin : doze, (void*)(intptr_t)i) != 0) return 2;
  printf("ready %d 0x%llx\n", (int)getpid(), (unsigned long long)(uintptr_t)bench_copy);
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    if (strcmp(line, "mark\n") != 0) return 2;
    printf("%lld\n", (long long)atomic_exchange(&longest, 0));
    fflush(stdout);
  }
  return 0;
}
