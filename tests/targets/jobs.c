// jobs N: a shell's view. A child runs probed code in two threads; its parent stops and continues it N times by each of
// several signals, and must be told of every stop and every continuation by waitpid, no more and no fewer.
//
// The test attaches to the child ("child PID" line). Prints: stops, ticks (of the child, as it says itself), result.
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include "machine.h"
#include "work.h"

struct Shared {
  atomic_long ticks, usr1;
};
struct Shared* shared;
TARGET_FUNCTION void tick(void);
__asm__(
    ".text\n.globl tick\n.type tick, @function\n"
    "tick: " COUNT_IN("shared") "ret\n.size tick, . - tick\n");

static long wrong;
static void expect(const char* what, long got, long want) {
  if (got == want) return;
  if (++wrong < 8) fprintf(stderr, "%s: %ld, should be %ld\n", what, got, want);
}

static volatile sig_atomic_t ending;
static void on_term(int number) {
  (void)number;
  ending = 1;
}
static void on_usr1(int number) {
  (void)number;
  tick();
  atomic_fetch_add(&shared->usr1, 1);
}

static void* tick_on(void* unused) {
  (void)unused;
  while (!ending) {
    tick();
    if (work(1, 2, "jobs") != expected_work(1, 2, "jobs")) _exit(9);
  }
  return NULL;
}
static int child_main(void) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGTERM, on_term);
  signal(SIGUSR1, on_usr1);
  pthread_t thread;
  pthread_create(&thread, NULL, tick_on, NULL);
  tick_on(NULL);
  pthread_join(thread, NULL);
  return 42;
}

static void sleep_us(long microseconds) {
  const struct timespec t = {0, microseconds * 1000};
  nanosleep(&t, NULL);
}

static int status_of(pid_t child, int options) {
  int status = -1;
  expect("waitpid", waitpid(child, &status, options), child);
  return status;
}

static void stop_and_continue(pid_t child, int number) {
  kill(child, number);
  const int stopped = status_of(child, WUNTRACED);
  expect("stopped", WIFSTOPPED(stopped), 1);
  expect("by", WSTOPSIG(stopped), number);
  // It rests: nothing that a tracer does may set it going, and a signal waits.
  const long before = atomic_load(&shared->ticks), usr1 = atomic_load(&shared->usr1);
  kill(child, SIGUSR1);
  sleep_us(500);
  expect("ticks while stopped", atomic_load(&shared->ticks), before);
  expect("nothing more to tell", waitpid(child, NULL, WUNTRACED | WCONTINUED | WNOHANG), 0);
  kill(child, SIGCONT);
  const int continued = status_of(child, WCONTINUED);
  expect("continued", WIFCONTINUED(continued), 1);
  for (int i = 0; i < 10000 && (atomic_load(&shared->usr1) == usr1 || atomic_load(&shared->ticks) == before); ++i)
    sleep_us(1000);
  expect("the signal that waited", atomic_load(&shared->usr1), usr1 + 1);
  if (atomic_load(&shared->ticks) == before) expect("it goes on", 0, 1);
}

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? atoi(argv[1]) : 100;
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  const pid_t child = fork();
  if (child == 0) {
    setpgid(0, 0);  // not orphaned, as a shell's job: SIGTSTP and SIGTTIN stop it
    _exit(child_main());
  }
  while (atomic_load(&shared->ticks) < 100) sleep_us(1000);  // it has its handlers, and both threads
  target_ready("jobs");
  printf("child %d\n", (int)child);
  fflush(stdout);
  target_wait_go();
  static const int stops[] = {SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU};
  long done = 0;
  for (int i = 0; i < rounds && wrong == 0; ++i, ++done) {
    stop_and_continue(child, stops[i % 4]);
    sleep_us(i * 37 % 1000);
  }
  kill(child, SIGTERM);
  const int status = status_of(child, 0);
  expect("its exit", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), 42);
  printf("stops %ld\nticks %ld\nwrong %ld\n", done, (long)shared->ticks, wrong);
  return target_result(wrong == 0);
}
