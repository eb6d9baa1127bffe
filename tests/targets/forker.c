// forker [N]: N rounds of every way to make a process, each child's exit code checked.
// forker --exec: after the go, executes itself; the new image prints "ready" again, waits, calls work() 100 times.
//
// Every way calls work() once in the parent and once in the child. Prints: children; calls (work() in this address
// space: the parent's and those of children that share its memory); child_calls (in copies of it); result.
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "work.h"

extern char** environ;
static long children, calls, child_calls, wrong;
static char* child_stack;
enum { kStack = 256 * 1024 };

static int exit_code(int i) {
  return work(i, i + 1, work_text(i)) & 0x7f;
}
static int expected_code(int i) {
  return expected_work(i, i + 1, work_text(i)) & 0x7f;
}

static void check_child(pid_t pid, int i, int wait_options) {
  int status = 0;
  pid_t got;
  do got = waitpid(pid, &status, wait_options);
  while (got < 0 && errno == EINTR);
  ++children;
  if (got == pid && WIFEXITED(status) && WEXITSTATUS(status) == expected_code(i)) return;
  ++wrong;
  fprintf(stderr, "child %d of %d: pid %d status 0x%x\n", i, (int)pid, (int)got, (unsigned)status);
}

static void by_fork(int i) {
  const pid_t pid = fork();
  if (pid == 0) _exit(exit_code(i));
  ++child_calls;
  check_child(pid, i, 0);
}

static void by_vfork(int i) {
  const pid_t pid = vfork();
  if (pid == 0) _exit(exit_code(i));
  ++calls;
  check_child(pid, i, 0);
}

static char number_text[16];
static char* const child_argv[] = {"forker", "--child", number_text, NULL};

static void by_vfork_exec(int i) {
  const pid_t pid = vfork();
  if (pid == 0) {
    execv("/proc/self/exe", child_argv);
    _exit(126);
  }
  ++child_calls;
  check_child(pid, i, 0);
}

static void by_fork_exec(int i) {
  const pid_t pid = fork();
  if (pid == 0) {
    execv("/proc/self/exe", child_argv);
    _exit(126);
  }
  ++child_calls;
  check_child(pid, i, 0);
}

static void by_posix_spawn(int i) {
  pid_t pid = -1;
  if (posix_spawn(&pid, "/proc/self/exe", NULL, NULL, child_argv, environ) != 0) ++wrong;
  ++child_calls;
  check_child(pid, i, 0);
}

static int cloned(void* argument) {
  return exit_code((int)(long)argument);
}

static void by_clone(int i, int flags, int wait_options) {
  const pid_t pid = clone(cloned, child_stack + kStack, flags, (void*)(long)i);
  if (flags & CLONE_VM)
    ++calls;
  else
    ++child_calls;
  check_child(pid, i, wait_options);
}

static void one_round(int i) {
  snprintf(number_text, sizeof number_text, "%d", i);
  by_fork(i);
  by_vfork(i);
  by_vfork_exec(i);
  by_fork_exec(i);
  by_posix_spawn(i);
  by_clone(i, SIGCHLD, 0);
  by_clone(i, CLONE_VM | SIGCHLD, 0);
  by_clone(i, CLONE_VM | CLONE_VFORK | SIGCHLD, 0);
  by_clone(i, CLONE_VM, __WCLONE);  // no exit signal: only a __WCLONE wait sees it
  by_clone(i, CLONE_PARENT_SETTID | SIGUSR1, __WCLONE);
  for (int k = 0; k < 9; ++k, ++calls) wrong += work(i, k, "p") != expected_work(i, k, "p");
}

static int second_image(void) {
  target_ready("forker-second");
  target_wait_go();
  for (int i = 0; i < 100; ++i, ++calls) wrong += work(2, i, "second") != expected_work(2, i, "second");
  printf("calls %ld\n", calls);
  return target_result(wrong == 0);
}

static int exec_self(void) {
  target_ready("forker");
  target_wait_go();
  execl("/proc/self/exe", "forker", "--second", NULL);
  return 126;
}

int main(int argc, char** argv) {
  if (argc == 3 && strcmp(argv[1], "--child") == 0) return exit_code(atoi(argv[2]));
  if (argc == 2 && strcmp(argv[1], "--second") == 0) return second_image();
  if (argc == 2 && strcmp(argv[1], "--exec") == 0) return exec_self();
  const int rounds = argc > 1 ? atoi(argv[1]) : 10;
  child_stack = mmap(NULL, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (child_stack == MAP_FAILED || signal(SIGUSR1, SIG_IGN) == SIG_ERR) return 2;
  target_ready("forker");
  target_wait_go();
  for (int i = 0; i < rounds; ++i) one_round(i);
  printf("children %ld\ncalls %ld\nchild_calls %ld\nwrong %ld\n", children, calls, child_calls, wrong);
  return target_result(wrong == 0);
}
