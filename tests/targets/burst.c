// burst T N: T threads that are there before it is ready, and each call work() N times at once, as fast as they can.
//
// Prints: calls. Then, when the test has sent a second line: checksum, wrong, result.
#include <pthread.h>
#include <stdatomic.h>

#include "work.h"

enum { kMaxThreads = 64 };

struct Worker {
  pthread_t thread;
  long number, calls, wrong;
  unsigned long checksum;
};

static struct Worker workers[kMaxThreads];
static pthread_barrier_t begin;

static void* run(void* argument) {
  struct Worker* w = argument;
  pthread_barrier_wait(&begin);
  for (long i = 0; i < w->calls; ++i) {
    const int got = work((int)w->number, i, work_text(i));
    w->wrong += got != expected_work((int)w->number, i, work_text(i));
    w->checksum += (unsigned)got;
  }
  return NULL;
}

int main(int argc, char** argv) {
  const long threads = argc > 1 ? atol(argv[1]) : 1, calls = argc > 2 ? atol(argv[2]) : 1000;
  unsigned long checksum = 0;
  long wrong = 0;
  char line[64];
  if (threads < 1 || threads > kMaxThreads || pthread_barrier_init(&begin, NULL, (unsigned)threads + 1) != 0) return 2;
  for (long t = 0; t < threads; ++t) {
    workers[t] = (struct Worker){.number = t, .calls = calls};
    if (pthread_create(&workers[t].thread, NULL, run, &workers[t]) != 0) return 2;
  }
  target_ready("burst");
  target_wait_go();
  pthread_barrier_wait(&begin);
  for (long t = 0; t < threads; ++t) {
    pthread_join(workers[t].thread, NULL);
    checksum += workers[t].checksum;
    wrong += workers[t].wrong;
  }
  printf("calls %ld\n", threads * calls);
  fflush(stdout);
  target_line(line, sizeof line);
  printf("checksum %lu\nwrong %ld\n", checksum, wrong);
  return target_result(wrong == 0);
}
