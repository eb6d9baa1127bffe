// crowd T: T threads call 4000 functions, some at a time, and check what they compute; another has children that
// end with a status, meanwhile. Until the test sends a second line. Prints: calls, wrong, result.
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "protocol.h"

typedef long Function(long);

// DO(name) for 4000 names.
#define TEN(DO, n) DO(n##0) DO(n##1) DO(n##2) DO(n##3) DO(n##4) DO(n##5) DO(n##6) DO(n##7) DO(n##8) DO(n##9)
#define HUNDRED(DO, n)                                                                                      \
  TEN(DO, n##0) TEN(DO, n##1) TEN(DO, n##2) TEN(DO, n##3) TEN(DO, n##4) TEN(DO, n##5) TEN(DO, n##6) TEN(DO, n##7) \
  TEN(DO, n##8) TEN(DO, n##9)
#define THOUSAND(DO, n)                                                                                     \
  HUNDRED(DO, n##0) HUNDRED(DO, n##1) HUNDRED(DO, n##2) HUNDRED(DO, n##3) HUNDRED(DO, n##4) HUNDRED(DO, n##5)     \
  HUNDRED(DO, n##6) HUNDRED(DO, n##7) HUNDRED(DO, n##8) HUNDRED(DO, n##9)
#define ALL(DO) THOUSAND(DO, crowd_0) THOUSAND(DO, crowd_1) THOUSAND(DO, crowd_2) THOUSAND(DO, crowd_3)

#define DEFINE(name)                                  \
  __attribute__((noinline, used)) long name(long a) { \
    __asm__ volatile("" : "+r"(a));                   \
    long result = a * 3 + 1;                          \
    __asm__ volatile("" : "+r"(result));              \
    return result;                                    \
  }
ALL(DEFINE)
#define ADDRESS(name) name,
static Function* const functions[] = {ALL(ADDRESS)};

enum { kMaxThreads = 64, kFunctions = sizeof functions / sizeof *functions, kAtOnce = 20, kStatus = 3 };

static atomic_bool stop_now;
static atomic_long calls, wrong;

static void* run_worker(void* argument) {
  for (long i = (long)argument * 37; !atomic_load(&stop_now); usleep(2000)) {
    for (int n = 0; n < kAtOnce; ++n, ++i)
      if (functions[i % kFunctions](i) != i * 3 + 1) atomic_fetch_add(&wrong, 1);
    atomic_fetch_add(&calls, kAtOnce);
  }
  return NULL;
}

static int child_ends_well(void) {
  const pid_t child = fork();
  if (child == 0) _exit(functions[getpid() % kFunctions](1) == 4 ? kStatus : 1);
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == kStatus;
}

static void* have_children(void* unused) {
  (void)unused;
  for (; !atomic_load(&stop_now); usleep(20000))
    if (!child_ends_well()) atomic_fetch_add(&wrong, 1);
  return NULL;
}

int main(int argc, char** argv) {
  const long threads = argc > 1 ? atol(argv[1]) : 4;
  if (threads < 1 || threads > kMaxThreads) return 2;
  target_ready("crowd");
  target_wait_go();
  pthread_t workers[kMaxThreads + 1];
  for (long t = 0; t <= threads; ++t)
    if (pthread_create(&workers[t], NULL, t == threads ? have_children : run_worker, (void*)t) != 0) return 2;
  char line[64];
  target_line(line, sizeof line);
  atomic_store(&stop_now, 1);
  for (long t = 0; t <= threads; ++t) pthread_join(workers[t], NULL);
  printf("calls %ld\nwrong %ld\n", atomic_load(&calls), atomic_load(&wrong));
  return target_result(atomic_load(&wrong) == 0);
}
