// counter T N [ROUNDS]: T threads call work() N times each, then every shape (shapes.S) ROUNDS times (default 1).
// N = 0: until the test sends a second line.
// counter --list-shapes: "NAME HITS-PER-CALL" lines.
//
// Prints: calls, shape_rounds (of all threads together), checksum (of what work() returned), result.
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "shapes.h"
#include "work.h"

enum { kMaxThreads = 4096 };

struct Worker {
  pthread_t thread;
  long number, calls, rounds;
  long made, wrong;
  unsigned long checksum;
};

static atomic_bool stop_now;
static struct Worker workers[kMaxThreads];
extern volatile long lock_incremented;

static void one_call(struct Worker* w) {
  const int got = work((int)w->number, w->made, work_text(w->made));
  const int expected = expected_work((int)w->number, w->made, work_text(w->made));
  if (got != expected) {
    ++w->wrong;
    fprintf(stderr, "wrong: thread %ld call %ld: %d, not %d\n", w->number, w->made, got, expected);
  }
  w->checksum += (unsigned)got;
  ++w->made;
}

static void* run_worker(void* argument) {
  struct Worker* w = argument;
  if (w->calls == 0)
    while (!atomic_load_explicit(&stop_now, memory_order_relaxed)) one_call(w);
  while (w->made < w->calls) one_call(w);
  w->wrong += run_shapes(w->rounds);
  return NULL;
}

static int list_shapes(void) {
  for (int i = 0; i < shape_count; ++i)
    if (shape_usable(&shapes[i])) printf("%s %d\n", shapes[i].name, shapes[i].hits);
  return 0;
}

static int start_workers(long threads, long calls, long rounds) {
  for (long t = 0; t < threads; ++t) {
    workers[t] = (struct Worker){.number = t, .calls = calls, .rounds = rounds};
    if (pthread_create(&workers[t].thread, NULL, run_worker, &workers[t]) != 0) return 0;
  }
  return 1;
}

static int join_and_report(long threads, long rounds) {
  long calls = 0, wrong = 0;
  unsigned long checksum = 0;
  for (long t = 0; t < threads; ++t) {
    pthread_join(workers[t].thread, NULL);
    calls += workers[t].made;
    wrong += workers[t].wrong;
    checksum += workers[t].checksum;
  }
  if (lock_incremented != threads * rounds) ++wrong;
  printf("calls %ld\nshape_rounds %ld\nchecksum %lu\nwrong %ld\n", calls, threads * rounds, checksum, wrong);
  return target_result(wrong == 0);
}

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "--list-shapes") == 0) return list_shapes();
  const long threads = argc > 1 ? atol(argv[1]) : 1, calls = argc > 2 ? atol(argv[2]) : 1000,
             rounds = argc > 3 ? atol(argv[3]) : 1;
  if (threads < 1 || threads > kMaxThreads || calls < 0) return 2;
  target_ready("counter");
  target_wait_go();
  if (!start_workers(threads, calls, rounds)) return 2;
  if (calls == 0) {
    char line[64];
    target_line(line, sizeof line);
    atomic_store(&stop_now, 1);
  }
  return join_and_report(threads, rounds);
}
