// How long a thread has stood still: the time that went by, less what it ran (CLOCK_THREAD_CPUTIME_ID), less what it
// waited for a CPU (/proc/thread-self/schedstat, the second number). A stopped thread does neither of these two, so other
// load on the machine isn't counted. All in nanoseconds.
#pragma once

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// System calls without the C library: all of its functions may be probed, and a stop in the middle of a look at the
// clocks would be one more wait for a CPU.
static inline long call_kernel(long number, long a, long b, long c, long d) {
#if defined(__x86_64__)
  long result;
  register long fourth __asm__("r10") = d;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
                   : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long first __asm__("x0") = a, second __asm__("x1") = b, third __asm__("x2") = c, fourth __asm__("x3") = d,
                which __asm__("x8") = number;
  __asm__ volatile("svc #0" : "+r"(first) : "r"(second), "r"(third), "r"(fourth), "r"(which) : "memory");
  return first;
#else
#error "no system calls for this machine"
#endif
}

static inline int64_t waited_for_cpu(int schedstat) {
  char text[64];
  const long size = call_kernel(SYS_pread64, schedstat, (long)text, sizeof text - 1, 0);
  if (size <= 0) __builtin_trap();
  text[size] = '\0';
  const char* at = text;
  while (*at != ' ' && *at != '\0') ++at;
  int64_t waited = 0;
  for (++at; *at >= '0' && *at <= '9'; ++at) waited = waited * 10 + (*at - '0');
  return waited;
}

static inline int64_t call_for_time(clockid_t clock) {
  struct timespec t;
  if (call_kernel(SYS_clock_gettime, clock, (long)&t, 0, 0) != 0) __builtin_trap();
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline int open_schedstat(void) {
  const int fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  if (fd < 0) abort();
  return fd;
}

struct Times {
  int64_t wall, ran, waited;
};

// All of the same moment: a thread that loses its CPU between two of them reads them again.
static inline struct Times times_now(int schedstat) {
  struct Times t;
  int64_t waited = waited_for_cpu(schedstat);
  do {
    t.waited = waited;
    t.wall = call_for_time(CLOCK_MONOTONIC), t.ran = call_for_time(CLOCK_THREAD_CPUTIME_ID);
    waited = waited_for_cpu(schedstat);
  } while (waited != t.waited);
  return t;
}

static inline int64_t stood_still(struct Times from, struct Times until) {
  return until.wall - from.wall - (until.ran - from.ran) - (until.waited - from.waited);
}
