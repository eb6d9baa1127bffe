// family: makes processes, and ends, on command, one a line; a child stands still until the test lets it go on.
//   fork | vfork | clone-vm | clone-vfork | clone-untraced | spawn | fork-exec | vfork-exec
//       "child PID"; the child reads a line, calls work() kCalls times and exits; then "reaped CODE" (42: all right)
//   call N        work() N times: "called N"
//   exec          executes itself: "ready PID family" again      thread-exec   the same by a thread that isn't the
//   leader exit CODE | thread-exit CODE | raise SIGNAL                   the end; with thread-exit another thread ends
//   it quit
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "work.h"

enum { kCalls = 5, kGood = 42, kStack = 256 * 1024 };
extern char** environ;
static long wrong;
static char* child_stack;
static char* const child_argv[] = {"family", "--child", NULL};

static int call_work(long times) {
  int bad = 0;
  for (long i = 0; i < times; ++i) bad += work(3, i, work_text(i)) != expected_work(3, i, work_text(i));
  return bad;
}

// No stdio: it may run in its parent's memory.
static int child(void* unused) {
  (void)unused;
  dprintf(STDOUT_FILENO, "child %d\n", (int)getpid());
  char line[16];
  target_line(line, sizeof line);
  _exit(call_work(kCalls) == 0 ? kGood : 1);
}

static int exec_child(void) {
  execv("/proc/self/exe", child_argv);
  _exit(126);
}

static pid_t by_clone(int flags) {
  return clone(child, child_stack + kStack, flags, NULL);
}

static pid_t by_spawn(void) {
  pid_t pid = -1;
  return posix_spawn(&pid, "/proc/self/exe", NULL, NULL, child_argv, environ) == 0 ? pid : -1;
}

static void reap(pid_t pid) {
  int status = 0;
  const pid_t got = waitpid(pid, &status, __WALL);
  const int code = got == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -(status & 0x7f);
  wrong += code != kGood;
  printf("reaped %d\n", code);
}

static int make_child(const char* how) {
  pid_t pid = 0;
  if (strcmp(how, "fork") == 0) {
    pid = fork();
    if (pid == 0) child(NULL);
  } else if (strcmp(how, "fork-exec") == 0) {
    pid = fork();
    if (pid == 0) exec_child();
  } else if (strcmp(how, "vfork") == 0) {
    pid = vfork();
    if (pid == 0) child(NULL);
  } else if (strcmp(how, "vfork-exec") == 0) {
    pid = vfork();
    if (pid == 0) exec_child();
  } else if (strcmp(how, "clone-vm") == 0) {
    pid = by_clone(CLONE_VM | SIGCHLD);
  } else if (strcmp(how, "clone-vfork") == 0) {
    pid = by_clone(CLONE_VM | CLONE_VFORK | SIGCHLD);
  } else if (strcmp(how, "clone-untraced") == 0) {
    pid = by_clone(CLONE_UNTRACED | SIGCHLD);
  } else if (strcmp(how, "spawn") == 0) {
    pid = by_spawn();
  } else {
    return 0;
  }
  reap(pid);
  return 1;
}

static void* exec_in_thread(void* unused) {
  (void)unused;
  execl("/proc/self/exe", "family", NULL);
  _exit(126);
}

static void* exit_in_thread(void* code) {
  exit((int)(long)code);
}

static void in_thread(void* (*run)(void*), long argument) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, run, (void*)argument) != 0) _exit(2);
  pthread_join(thread, NULL);
}

static void obey(const char* line) {
  long n = 0;
  if (make_child(line)) {
  } else if (sscanf(line, "call %ld", &n) == 1) {
    wrong += call_work(n);
    printf("called %ld\n", n);
  } else if (strcmp(line, "exec") == 0) {
    exec_in_thread(NULL);
  } else if (strcmp(line, "thread-exec") == 0) {
    in_thread(exec_in_thread, 0);
  } else if (sscanf(line, "exit %ld", &n) == 1) {
    exit((int)n);
  } else if (sscanf(line, "thread-exit %ld", &n) == 1) {
    in_thread(exit_in_thread, n);
  } else if (sscanf(line, "raise %ld", &n) == 1) {
    raise((int)n);
  } else {
    printf("unknown command\n");
  }
  fflush(stdout);
}

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "--child") == 0) return child(NULL);
  child_stack = mmap(NULL, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (child_stack == MAP_FAILED) return 2;
  target_ready("family");
  for (char line[128]; target_line(line, sizeof line), strcmp(line, "quit") != 0;) obey(line);
  return target_result(wrong == 0);
}
