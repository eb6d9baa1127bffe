// bench-idle: what a process pays for being traced while no probe is hit. Prints "ready PID 0xADDRESS" (of a function
// that may be probed; it never runs), then answers lines "signal TIMES", a signal sent to itself and handled, and "fork
// TIMES", a child that ends at once and is waited for, with nanoseconds each. Ends with its input.
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

long bench_push(long, long);

static volatile sig_atomic_t handled;

static void on_signal(int number) {
  (void)number;
  ++handled;
}

static int one_signal(void) {
  const sig_atomic_t before = handled;
  return raise(SIGUSR1) == 0 && handled == before + 1;
}

static int one_fork(void) {
  const pid_t child = fork();
  if (child == 0) _exit(7);
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(void) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setvbuf(stdout, NULL, _IOLBF, 0);
  signal(SIGUSR1, on_signal);
  printf("ready %d %#lx\n", (int)getpid(), (unsigned long)(uintptr_t)bench_push);
  char line[64], what[16];
  while (fgets(line, sizeof line, stdin) != NULL) {
    long times = 0;
    if (sscanf(line, "%15s %ld", what, &times) != 2) continue;
    int (*const one)(void) = strcmp(what, "fork") == 0 ? one_fork : one_signal;
    const double began = now();
    for (long i = 0; i < times; ++i)
      if (!one()) return 1;
    printf("%.1f\n", (now() - began) / (double)times);
  }
  return 0;
}
