// puns T N: T threads call each function of puns.S N times, half of it with a number that leaves out the instruction
// that is to be probed. N = 0: until the test sends a second line. With a signal that is handled every 100 us.
//
// Prints: calls (that execute the instruction, of each function, all threads together), wrong, signals, result.
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>

#include "protocol.h"

long pun_one(long n);
int pun_two(int n);
long pun_three(long n, long m);
long pun_four(long n);

enum { kMaxThreads = 64 };

static atomic_bool stop_now;
static atomic_long calls, wrong, signals;

static void on_alarm(int signal) {
  (void)signal;
  atomic_fetch_add(&signals, 1);
}

static void call_all(long n) {
  const int ok = pun_one(n) == (n < 0 ? 0x34e05678 : n + 1) && pun_two((int)n) == (int)(0xe111 + (n < 0 ? n : 0)) &&
                 pun_three(7, n) == 7 + 0xe2 + (n < 0 ? 0 : n) && pun_four(n) == (n < 0 ? n : n + 1);
  if (!ok) atomic_fetch_add(&wrong, 1);
}

static void* run_worker(void* argument) {
  const long wanted = (long)argument;
  long made = 0;
  for (long i = 0; wanted == 0 ? !atomic_load_explicit(&stop_now, memory_order_relaxed) : i < wanted; ++i) {
    call_all(i % 1000);
    call_all(-1 - i % 1000);
    ++made;
  }
  atomic_fetch_add(&calls, made);
  return NULL;
}

int main(int argc, char** argv) {
  const long threads = argc > 1 ? atol(argv[1]) : 1, wanted = argc > 2 ? atol(argv[2]) : 1000;
  if (threads < 1 || threads > kMaxThreads) return 2;
  signal(SIGALRM, on_alarm);
  target_ready("puns");
  target_wait_go();
  const struct itimerval every = {{0, 100}, {0, 100}};
  setitimer(ITIMER_REAL, &every, NULL);
  pthread_t ids[kMaxThreads];
  for (long t = 0; t < threads; ++t) pthread_create(&ids[t], NULL, run_worker, (void*)wanted);
  if (wanted == 0) target_wait_go();
  atomic_store(&stop_now, 1);
  for (long t = 0; t < threads; ++t) pthread_join(ids[t], NULL);
  printf("calls %ld\nwrong %ld\nsignals %ld\n", calls, wrong, signals);
  return target_result(wrong == 0 && signals > 0);
}
