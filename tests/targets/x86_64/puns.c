// puns T N: T threads call each function of puns.S N times, half of it with a number that leaves out the instruction
// that is to be probed. N = 0: until the test sends a second line. With a signal that is handled every 100 us.
//
// puns T 0 rewrite: at a line before that, changes the instruction behind the probed one of pun_one.
// puns T 0 fork: at that line, a child that goes on doing the same.
//
// Prints: calls (that execute the instruction, of each function, all threads together), wrong, signals, result.
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "protocol.h"

long pun_one(long n);
int pun_two(int n);
long pun_three(long n, long m);
long pun_four(long n);

enum { kMaxThreads = 64 };
// What pun_one makes of negative numbers; the second one only after it has been rewritten.
enum { kOne = 0x34e05678, kOneRewritten = 0x34345678, kRewrittenByte = 9 + 1 + 1 + 2 };

static atomic_bool stop_now, rewritten;
static atomic_long calls, wrong, signals;

static void on_alarm(int signal) {
  (void)signal;
  atomic_fetch_add(&signals, 1);
}

static void rewrite(void) {
  uint8_t* const byte = (uint8_t*)(uintptr_t)pun_one + kRewrittenByte;
  void* const page = (void*)((uintptr_t)byte & ~4095ul);
  if (*byte != 0xe0 || mprotect(page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) atomic_fetch_add(&wrong, 1);
  *(volatile uint8_t*)byte = 0x34;
  if (mprotect(page, 4096, PROT_READ | PROT_EXEC) != 0) atomic_fetch_add(&wrong, 1);
  atomic_store(&rewritten, 1);
}

static void call_all(long n) {
  const int was_rewritten = atomic_load(&rewritten);
  const long one = pun_one(n);
  const int one_ok = n < 0 ? one == kOneRewritten || (one == kOne && !was_rewritten) : one == n + 1;
  const int ok = one_ok && pun_two((int)n) == (int)(0xe111 + (n < 0 ? n : 0)) &&
                 pun_three(7, n) == 7 + 0xe2 + (n < 0 ? 0 : n) && pun_four(n) == (n < 0 ? n : n + 1);
  if (!ok) atomic_fetch_add(&wrong, 1);
}

// Not over before *stop, which is shared.
static pid_t run_child(const atomic_bool* stop) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (long i = 0; !atomic_load(stop); ++i) {
    call_all(i % 1000);
    call_all(-1 - i % 1000);
  }
  _exit(wrong != 0);
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
  const int forks = argc > 3 && strcmp(argv[3], "fork") == 0;
  atomic_bool* const stop_child = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pid_t child = 0;
  if (argc > 3) {
    target_wait_go();
    if (forks) child = run_child(stop_child);
    if (!forks) rewrite();
  }
  if (wanted == 0) target_wait_go();
  atomic_store(&stop_now, 1);
  for (long t = 0; t < threads; ++t) pthread_join(ids[t], NULL);
  atomic_store(stop_child, 1);
  int status = 0;
  if (forks && (waitpid(child, &status, 0) != child || status != 0)) ++wrong;
  printf("calls %ld\nwrong %ld\nsignals %ld\n", calls, wrong, signals);
  return target_result(wrong == 0 && signals > 0);
}
