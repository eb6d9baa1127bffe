// soaked T [blocking]: T threads that go through the same round of calls all the time and check what each computes; who
// asks is told how many rounds there were, while they stand still between two. "blocking": they block every signal.
//
//   go       they begin
//   pause    "paused ROUNDS FIRST WRONG": rounds of all threads, of thread 0, calls that computed something else
//   resume   "running"
//   fork     "forked": one more thread is in vfork(2), in an uninterruptible wait
//   join     "joined": not any more
//   burst N  "burst WRONG": the main thread has called work() N times, with every signal blocked
//   wait N   "waited MS": the longest of N waits of the main thread, each for 400 ms
//   quit     the end
//
// A round: work() once, leaf() twice, nest() four times (of which three by itself); every 64th also getppid().
// Prints at the end: rounds, wrong, result.
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "work.h"

enum { kMaxThreads = 64, kDepth = 3 };

struct Worker {
  pthread_t thread;
  long number, rounds, wrong;
};

static struct Worker workers[kMaxThreads];
static long threads;
static int blocking;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t all_stand = PTHREAD_COND_INITIALIZER, go_on = PTHREAD_COND_INITIALIZER;
static long standing;
static atomic_bool pausing, quitting;

TARGET_FUNCTION long leaf(long n) { return n * 12345 + 1; }

TARGET_FUNCTION long nest(long n) {
  if (n == 0) return 7;
  long below = nest(n - 1);
  __asm__ volatile("" : "+r"(below));
  return below + n;
}

static void expect(struct Worker* w, const char* what, long got, long want) {
  if (got == want) return;
  if (w->wrong++ < 8)
    fprintf(stderr, "%s: thread %ld round %ld: %ld, not %ld\n", what, w->number, w->rounds, got, want);
}

static void one_round(struct Worker* w) {
  const int number = (int)w->number;
  const long n = w->rounds;
  expect(w, "work", work(number, n, work_text(n)), expected_work(number, n, work_text(n)));
  expect(w, "leaf", leaf(n) + leaf(-n), 2);
  expect(w, "nest", nest(kDepth), 7 + 1 + 2 + 3);
  static pid_t parent;
  if (parent == 0) parent = getppid();
  if ((n & 63) == 0) expect(w, "getppid", getppid(), parent);
  ++w->rounds;
}

static void stand_still(void) {
  pthread_mutex_lock(&lock);
  if (++standing == threads) pthread_cond_signal(&all_stand);
  while (atomic_load(&pausing)) pthread_cond_wait(&go_on, &lock);
  --standing;
  pthread_mutex_unlock(&lock);
}

static void block_all(sigset_t* before) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, before);
}

static void* run_worker(void* argument) {
  struct Worker* w = argument;
  if (blocking) block_all(NULL);
  while (!atomic_load_explicit(&quitting, memory_order_relaxed)) {
    one_round(w);
    if (atomic_load_explicit(&pausing, memory_order_relaxed)) stand_still();
  }
  return NULL;
}

static void pause_all(void) {
  pthread_mutex_lock(&lock);
  atomic_store(&pausing, 1);
  while (standing < threads) pthread_cond_wait(&all_stand, &lock);
  pthread_mutex_unlock(&lock);
}

static void resume_all(void) {
  pthread_mutex_lock(&lock);
  atomic_store(&pausing, 0);
  pthread_cond_broadcast(&go_on);
  pthread_mutex_unlock(&lock);
}

// Of the threads that stand still.
static long total_rounds(void) {
  long sum = 0;
  for (long t = 0; t < threads; ++t) sum += workers[t].rounds;
  return sum;
}
static long total_wrong(void) {
  long sum = 0;
  for (long t = 0; t < threads; ++t) sum += workers[t].wrong;
  return sum;
}

// Its child executes nothing of ours: it waits to read a byte, and ends.
static pthread_t forking;
static int gate[2];
static void* fork_and_wait(void* unused) {
  (void)unused;
  char byte;
  const pid_t child = vfork();
  if (child == 0) {
    syscall(SYS_read, gate[0], &byte, 1);
    syscall(SYS_exit_group, 0);
  }
  waitpid(child, NULL, 0);
  return NULL;
}
static void start_forking(void) {
  if (pipe(gate) != 0 || pthread_create(&forking, NULL, fork_and_wait, NULL) != 0) exit(2);
}
static void end_forking(void) {
  if (write(gate[1], "", 1) != 1) exit(2);
  pthread_join(forking, NULL);
  close(gate[0]);
  close(gate[1]);
}

static long burst(long count) {
  sigset_t before;
  long wrong = 0;
  block_all(&before);
  for (long n = 0; n < count; ++n)
    if (work(0, n, work_text(n)) != expected_work(0, n, work_text(n))) ++wrong;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return wrong;
}

static long longest_wait(long count) {
  long longest = 0;
  const int nothing = epoll_create1(0);
  for (long n = 0; n < count; ++n) {
    struct epoll_event event;
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    epoll_wait(nothing, &event, 1, 400);
    clock_gettime(CLOCK_MONOTONIC, &end);
    const long took = (end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1000000;
    if (took > longest) longest = took;
  }
  close(nothing);
  return longest;
}

static void obey(const char* line) {
  if (strcmp(line, "pause") == 0) {
    pause_all();
    printf("paused %ld %ld %ld\n", total_rounds(), workers[0].rounds, total_wrong());
  } else if (strcmp(line, "resume") == 0) {
    resume_all();
    printf("running\n");
  } else if (strcmp(line, "fork") == 0) {
    start_forking();
    printf("forked\n");
  } else if (strcmp(line, "join") == 0) {
    end_forking();
    printf("joined\n");
  } else if (strncmp(line, "burst ", 6) == 0) {
    printf("burst %ld\n", burst(atol(line + 6)));
  } else if (strncmp(line, "wait ", 5) == 0) {
    printf("waited %ld\n", longest_wait(atol(line + 5)));
  } else {
    printf("unknown %s\n", line);
  }
  fflush(stdout);
}

int main(int argc, char** argv) {
  threads = argc > 1 ? atol(argv[1]) : 2;
  if (threads < 1 || threads > kMaxThreads) return 2;
  blocking = argc > 2 && strcmp(argv[2], "blocking") == 0;
  target_ready("soaked");
  target_wait_go();
  for (long t = 0; t < threads; ++t) {
    workers[t].number = t;
    if (pthread_create(&workers[t].thread, NULL, run_worker, &workers[t]) != 0) return 2;
  }
  for (char line[64]; target_line(line, sizeof line), strcmp(line, "quit") != 0;) obey(line);
  atomic_store(&quitting, 1);
  resume_all();
  for (long t = 0; t < threads; ++t) pthread_join(workers[t].thread, NULL);
  printf("rounds %ld\nwrong %ld\n", total_rounds(), total_wrong());
  return target_result(total_wrong() == 0);
}
