// mixed T: T threads call every function of mixed.S until the test sends a second line.
//
// Prints: calls, wrong, result.
#include <pthread.h>
#include <stdatomic.h>

#include "protocol.h"

int mixed_pad(int n);
int mixed_pads(int n);
int mixed_call(void);
int mixed_jump(void);
int mixed_load(void);
int mixed_lea(void);
int mixed_table(int n);
int mixed_string(void);
int mixed_object(void);

enum { kMaxThreads = 16 };

static atomic_bool stop_now;
static atomic_long calls, wrong;

static int all_right(int n) {
  return mixed_pad(n) == n + 1 && mixed_pads(n) == 2 * n + 3 && mixed_call() == 7 && mixed_jump() == 7 &&
         mixed_load() == 7 && mixed_lea() == 7 && mixed_table(n) == 10 * (n % 4 + 1) && mixed_string() == 7 &&
         mixed_object() == 7;
}

static void* run_worker(void* argument) {
  (void)argument;
  long made = 0, bad = 0;
  for (int n = 0; !atomic_load_explicit(&stop_now, memory_order_relaxed); n = (n + 1) % 1000) {
    bad += !all_right(n);
    ++made;
  }
  atomic_fetch_add(&calls, made);
  atomic_fetch_add(&wrong, bad);
  return NULL;
}

int main(int argc, char** argv) {
  const long threads = argc > 1 ? atol(argv[1]) : 1;
  if (threads < 1 || threads > kMaxThreads) return 2;
  target_ready("mixed");
  target_wait_go();
  pthread_t ids[kMaxThreads];
  for (long t = 0; t < threads; ++t) pthread_create(&ids[t], NULL, run_worker, NULL);
  target_wait_go();
  atomic_store(&stop_now, 1);
  for (long t = 0; t < threads; ++t) pthread_join(ids[t], NULL);
  printf("calls %ld\nwrong %ld\n", calls, wrong);
  return target_result(wrong == 0 && calls > 0);
}
