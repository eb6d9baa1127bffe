// reborn N PAUSE: threads that compute all the time, until one, now the leader and now another, executes the
// program anew, PAUSE microseconds after its start, N times.
//
// Prints: result, at last.
#include <pthread.h>
#include <unistd.h>

#include "work.h"

static void* compute(void* unused) {
  for (int i = 0;; ++i)
    if (work(i, i, work_text(i)) != expected_work(i, i, work_text(i))) _exit(3);
  return unused;
}

static void* execute(void* argument) {
  char** argv = argument;
  const long left = argv[1] ? atol(argv[1]) : 0, pause = argv[1] && argv[2] ? atol(argv[2]) : 1000;
  char next[24], again[24];
  usleep((useconds_t)pause);
  if (left <= 0) {
    printf("result ok\n");
    fflush(stdout);
    _exit(0);
  }
  snprintf(next, sizeof next, "%ld", left - 1);
  snprintf(again, sizeof again, "%ld", pause);
  char* const anew[] = {argv[0], next, again, NULL};
  execv("/proc/self/exe", anew);
  _exit(4);
}

int main(int argc, char** argv) {
  const int by_leader = argc > 1 && atol(argv[1]) % 2 == 0;
  pthread_t thread;
  for (int i = 0; i < 3; ++i)
    if (pthread_create(&thread, NULL, compute, NULL) != 0) return 2;
  if (!by_leader && pthread_create(&thread, NULL, execute, argv) != 0) return 2;
  by_leader ? execute(argv) : compute(NULL);
  return 0;
}
