// leaving [filter]: a thread that blocks everything but SIGALRM and what instructions raise makes system calls right
// behind a function's entry, and runs into faults there, while alarms come; until the line "end". With "filter" below a
// seccomp filter that answers EPERM to every call that isn't made here. Prints then: rounds, alarms, faults, result.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

#include "machine.h"
#include "protocol.h"

TARGET_FUNCTION long load(const long* from);
__asm__(".text\n.globl load\n.type load, @function\nload: " LOAD "ret\n.size load, . - load\n");

static sigset_t own_mask;
static volatile long alarms, faults, wrong;
static sigjmp_buf back;

static void fail(const char* what, long got) {
  if (wrong++ < 8) fprintf(stderr, "%s: %ld\n", what, got);
}

// But for SIGTRAP's bit, which a tracer that is slow to come may cost a thread that doesn't block everything.
static void expect_mask(const char* what, const void* mask) {
  const long trap = 1L << (SIGTRAP - 1), now = *(const long*)mask, own = *(const long*)&own_mask;
  if ((now & ~trap) != (own & ~trap)) fail(what, now);
}

static void next_alarm(void) {
  const struct itimerval once = {{0, 0}, {0, 150}};
  setitimer(ITIMER_REAL, &once, NULL);
}
static void on_alarm(int number, siginfo_t* info, void* context) {
  (void)number;
  (void)info;
  ++alarms;
  expect_mask("the mask that an alarm found", &((ucontext_t*)context)->uc_sigmask);
  next_alarm();
}
static void on_fault(int number, siginfo_t* info, void* context) {
  (void)number;
  (void)info;
  ++faults;
  expect_mask("the mask that a fault found", &((ucontext_t*)context)->uc_sigmask);
  if (*program_counter(context) != (long)load) fail("the place of a fault", *program_counter(context));
  siglongjmp(back, 1);
}

static void filter(void) {
  const long allowed[] = {SYS_getppid, SYS_getpid, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_setitimer, SYS_ppoll, SYS_read,
                          SYS_write, SYS_exit_group, SYS_restart_syscall};
  struct sock_filter code[2 * sizeof allowed / sizeof *allowed + 2];
  unsigned n = 0;
  code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
  for (unsigned i = 0; i < sizeof allowed / sizeof *allowed; ++i) {
    code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)allowed[i], 0, 1);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  }
  code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1);
  const struct sock_fprog program = {(unsigned short)n, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) _exit(77);
}

int main(int argc, char** argv) {
  const long parent = getppid();
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = on_fault;
  sigaddset(&action.sa_mask, SIGALRM);
  sigaction(SIGSEGV, &action, NULL);
  sigemptyset(&action.sa_mask);
  action.sa_sigaction = on_alarm;
  sigaction(SIGALRM, &action, NULL);
  target_ready("leaving");
  if (argc > 1 && strcmp(argv[1], "filter") == 0) filter();
  sigset_t mask;
  sigfillset(&mask);
  const int open[] = {SIGALRM, SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGSYS};
  for (unsigned i = 0; i < sizeof open / sizeof *open; ++i) sigdelset(&mask, open[i]);
  sigprocmask(SIG_SETMASK, &mask, NULL);
  sigprocmask(SIG_SETMASK, NULL, &own_mask);
  next_alarm();
  long rounds = 0;
  struct pollfd input = {0, POLLIN, 0};
  const struct timespec now = {0, 0};
  do {
    for (int i = 0; i < 1000; ++i, ++rounds) {
      const long got = getppid();
      if (got != parent) fail("the parent", got);
      if (i % 50 == 0 && sigsetjmp(back, 1) == 0) fail("a load from nowhere", load((const long*)8));
    }
  } while (ppoll(&input, 1, &now, NULL) <= 0);
  printf("rounds %ld\nalarms %ld\nfaults %ld\n", rounds, alarms, faults);
  return target_result(wrong == 0);
}
