// bench-target FUNCTION THREADS CPU: calls FUNCTION (functions_*.S), and measures itself.
// CPU: where all of its threads stay; -1: wherever the scheduler puts them; -2: each on a CPU of its own.
//
// Prints "ready PID 0xADDRESS", so that probes can be armed, then answers lines:
//   go CALLS               each thread makes CALLS calls, timed over the loop
//   burst CALLS SIZE NAP   the same in bursts of SIZE calls; before each all threads sleep NAP microseconds, untimed
//   pace CALLS PERIOD      one thread calls every PERIOD nanoseconds; a call that is late delays those after it
// The answer, one line: seconds that the slowest thread's calls took, seconds of CPU time of all threads, voluntary
// context switches of all threads, involuntary ones, checksum. A thread that stops for a tracer switches voluntarily,
// once a stop; nothing else in the loop does, naps aside, which aren't counted. Ends with its input.
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

typedef long Function(long, long, const char*);
Function bench_nop, bench_copy, bench_push;

static const struct {
  const char* name;
  Function* function;
} functions[] = {{"bench_nop", bench_nop}, {"bench_copy", bench_copy}, {"bench_push", bench_push}};

enum { kMaxThreads = 64 };

struct Worker {
  pthread_t thread;
  double cpu_seconds, burst_seconds;
  long voluntary, involuntary;
  unsigned long checksum;
};

static struct Worker workers[kMaxThreads];
static long thread_count, calls, burst, nap_us, period_ns;
static const char text[] = "a string of some forty characters, as is";
static long first, count;  // of the burst under way
static Function* function;
static pthread_barrier_t start, end;
static int apart;  // each thread on a CPU of its own

static double seconds(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

// Through a volatile pointer, so that the compiler calls it every time and with all its arguments.
static unsigned long call_it(long from, long times) {
  Function* volatile called = function;
  unsigned long sum = 0;
  for (long i = from; i < from + times; ++i) sum += (unsigned long)called(i, 7, text);
  return sum;
}

static unsigned long call_paced(long times) {
  const double period = (double)period_ns / 1e9;
  unsigned long sum = 0;
  double next = seconds(CLOCK_MONOTONIC);
  for (long i = 0; i < times; ++i) {
    double now;
    while ((now = seconds(CLOCK_MONOTONIC)) < next) {
    }
    sum += call_it(i, 1);
    next = (now > next + period ? now : next) + period;
  }
  return sum;
}

static void measure(struct Worker* worker, long from, long times) {
  struct rusage before, after;
  getrusage(RUSAGE_THREAD, &before);
  const double cpu = seconds(CLOCK_THREAD_CPUTIME_ID);
  const double began = seconds(CLOCK_MONOTONIC);
  worker->checksum += period_ns > 0 ? call_paced(times) : call_it(from, times);
  worker->burst_seconds = seconds(CLOCK_MONOTONIC) - began;
  worker->cpu_seconds += seconds(CLOCK_THREAD_CPUTIME_ID) - cpu;
  getrusage(RUSAGE_THREAD, &after);
  worker->voluntary += after.ru_nvcsw - before.ru_nvcsw;
  worker->involuntary += after.ru_nivcsw - before.ru_nivcsw;
}

// The index-th of the CPUs that it may use.
static void stay_on(long index) {
  cpu_set_t may, one;
  CPU_ZERO(&one);
  if (sched_getaffinity(0, sizeof may, &may) != 0) return;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &may) && index-- == 0) CPU_SET(cpu, &one);
  sched_setaffinity(0, sizeof one, &one);
}

static void* run_worker(void* argument) {
  if (apart) stay_on((struct Worker*)argument - workers);
  for (;;) {
    pthread_barrier_wait(&start);
    measure(argument, first, count);
    pthread_barrier_wait(&end);
  }
  return NULL;
}

static void report(double elapsed) {
  struct Worker all = {0};
  for (long t = 0; t < thread_count; ++t) {
    all.cpu_seconds += workers[t].cpu_seconds;
    all.voluntary += workers[t].voluntary;
    all.involuntary += workers[t].involuntary;
    all.checksum += workers[t].checksum;
  }
  printf("%.9f %.9f %ld %ld %lu\n", elapsed, all.cpu_seconds, all.voluntary, all.involuntary, all.checksum);
}

// The longest that a thread took for its calls; its wake-up isn't in it. One thread measures on the main thread.
static double measure_burst(void) {
  if (thread_count == 1) {
    measure(&workers[0], first, count);
  } else {
    pthread_barrier_wait(&start);
    pthread_barrier_wait(&end);
  }
  double longest = 0;
  for (long t = 0; t < thread_count; ++t)
    if (workers[t].burst_seconds > longest) longest = workers[t].burst_seconds;
  return longest;
}

static void measure_all(void) {
  double elapsed = 0;
  for (long t = 0; t < thread_count; ++t) workers[t] = (struct Worker){.thread = workers[t].thread};
  for (first = 0; first < calls; first += count) {
    count = burst < calls - first ? burst : calls - first;
    if (nap_us > 0) usleep((useconds_t)nap_us);
    elapsed += measure_burst();
  }
  report(elapsed);
}

static int understand(const char* line) {
  nap_us = period_ns = 0;
  if (sscanf(line, "burst %ld %ld %ld", &calls, &burst, &nap_us) == 3) return burst > 0;
  if (sscanf(line, "pace %ld %ld", &calls, &period_ns) != 2 && sscanf(line, "go %ld", &calls) != 1) return 0;
  burst = calls;
  return 1;
}

static int prepare(int argc, char** argv) {
  if (argc != 4) return 0;
  for (size_t i = 0; i < sizeof functions / sizeof *functions; ++i)
    if (strcmp(argv[1], functions[i].name) == 0) function = functions[i].function;
  thread_count = atol(argv[2]);
  const int cpu = atoi(argv[3]);
  if (function == NULL || thread_count < 1 || thread_count > kMaxThreads) return 0;
  apart = cpu == -2;
  if (cpu < 0) return 1;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

static int start_threads(void) {
  const unsigned parties = (unsigned)thread_count + 1;
  if (pthread_barrier_init(&start, NULL, parties) != 0 || pthread_barrier_init(&end, NULL, parties) != 0) return 0;
  for (long t = 0; t < thread_count; ++t)
    if (pthread_create(&workers[t].thread, NULL, run_worker, &workers[t]) != 0) return 0;
  return 1;
}

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (!prepare(argc, argv)) {
    fprintf(stderr, "usage: bench-target FUNCTION THREADS CPU\n");
    return 2;
  }
  if (thread_count > 1 && !start_threads()) return 1;
  // What a tracer's debug information would give, for those that have none.
  printf("ready %d %#lx\n", (int)getpid(), (unsigned long)(uintptr_t)function);
  char line[96];
  while (fgets(line, sizeof line, stdin) != NULL)
    if (understand(line)) measure_all();
  return 0;
}
