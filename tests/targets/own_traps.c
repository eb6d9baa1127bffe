// own_traps [vforks]: two threads that send themselves SIGTRAP and count what their handler gets, two that block every
// signal and run work(), which is probed; with "vforks" one that waits for vfork children all the time, which nothing
// interrupts. A line ends it; result ok when each signal was handled.
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "protocol.h"

static atomic_long traps, handled, calls;
static atomic_int stop_now;

TARGET_FUNCTION long work(long n) { return 3 * n + 1; }

static void on_trap(int signal) {
  (void)signal;
  ++handled;
}

static void* trap(void* unused) {
  while (!stop_now) {
    syscall(SYS_tgkill, getpid(), (pid_t)syscall(SYS_gettid), SIGTRAP);
    ++traps;
    usleep(200);
  }
  return unused;
}

static void* block(void* unused) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, NULL);
  while (!stop_now) {
    work(++calls);
    usleep(100);
  }
  return unused;
}

static void* wait_for_children(void* unused) {
  while (!stop_now) {
    const pid_t child = vfork();
    if (child == 0) {
      const struct timespec pause = {0, 200 * 1000 * 1000};
      nanosleep(&pause, NULL);
      _exit(0);
    }
    waitpid(child, NULL, 0);
  }
  return unused;
}

int main(int argc, char** argv) {
  signal(SIGTRAP, on_trap);
  void* (*const runs[])(void*) = {trap, trap, block, block, wait_for_children};
  const int threads = argc > 1 && strcmp(argv[1], "vforks") == 0 ? 5 : 4;
  pthread_t thread[5];
  for (int i = 0; i < threads; ++i) pthread_create(&thread[i], NULL, runs[i], NULL);
  target_ready("own_traps");
  char line[16];
  target_line(line, sizeof line);
  stop_now = 1;
  for (int i = 0; i < threads; ++i) pthread_join(thread[i], NULL);
  printf("traps %ld\nhandled %ld\ncalls %ld\n", (long)traps, (long)handled, (long)calls);
  return target_result(traps == handled);
}
