// signals [N]: N rounds of everything a program may do with signals that a tracer could spoil; every count is checked.
//
// Prints: calls (of work()), handler_calls (of work_in_handler()), one line per kind of signal, result.
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>

#include "machine.h"
#include "work.h"

static volatile sig_atomic_t usr1, own_breakpoint, raised_trap, faults, jumps, alarms, storming, wrong_info, handler_calls;
static sigjmp_buf jump_target;
static long calls, wrong;
extern const char faulting_load_after[];

TARGET_FUNCTION int work_in_handler(int n) {
  return n * 3 + 1;
}

// The program's own breakpoint, and a function whose first instruction faults.
TARGET_FUNCTION void hit_own_breakpoint(void);
TARGET_FUNCTION long faulting_load(const long* from);
__asm__(
    ".text\n.globl hit_own_breakpoint\n.type hit_own_breakpoint, @function\n"
    "hit_own_breakpoint: " OWN_BREAKPOINT "\nret\n.size hit_own_breakpoint, . - hit_own_breakpoint\n"
    ".globl faulting_load, faulting_load_after\n.type faulting_load, @function\n"
    "faulting_load: " LOAD "faulting_load_after: ret\n.size faulting_load, . - faulting_load\n");

static void call_work(int times) {
  for (int i = 0; i < times; ++i, ++calls) wrong += work(i, calls, "signal") != expected_work(i, calls, "signal");
}

static void on_usr1(int number) {
  (void)number;
  ++usr1;
  if (work_in_handler(usr1) == usr1 * 3 + 1) ++handler_calls;
}

static void on_trap(int number, siginfo_t* info, void* context) {
  (void)number;
  if (info->si_code == kTrapCode) {
    ++own_breakpoint;
    if (*program_counter(context) != (long)hit_own_breakpoint + kTrapPlace) ++wrong_info;
    pass_breakpoint(context);
  } else if (info->si_code == SI_TKILL && info->si_pid == getpid()) {
    ++raised_trap;
  } else {
    ++wrong_info;
  }
}

// The fault must look as if it happened at the function's own first instruction.
static void on_fault(int number, siginfo_t* info, void* context) {
  (void)number;
  ++faults;
  if (info->si_code != SEGV_MAPERR || info->si_addr != (void*)0x10) ++wrong_info;
  if (*program_counter(context) != (long)faulting_load) ++wrong_info;
  *program_counter(context) = (long)faulting_load_after;
}

static void on_usr2(int number) {
  (void)number;
  ++jumps;
  siglongjmp(jump_target, 1);
}

// One at a time: however long a handler takes, something is done in between.
static void next_alarm(void) {
  const struct itimerval once = {{0, 0}, {0, storming ? 500 : 0}};
  setitimer(ITIMER_REAL, &once, NULL);
}

static void on_alarm(int number) {
  (void)number;
  ++alarms;
  if (work_in_handler(alarms) == alarms * 3 + 1) ++handler_calls;
  next_alarm();
}

static void install(int number, void (*plain)(int), void (*full)(int, siginfo_t*, void*), int flags) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  if (full)
    action.sa_sigaction = full;
  else
    action.sa_handler = plain;
  action.sa_flags = flags | (full ? SA_SIGINFO : 0);
  if (sigaction(number, &action, NULL) != 0) _exit(2);
}

static int disposition_is(int number, void (*handler)(int)) {
  struct sigaction now;
  return sigaction(number, NULL, &now) == 0 && now.sa_handler == handler;
}

// Probes are hit while SIGTRAP is blocked and pending; it stays both.
static void with_trap_blocked(void) {
  sigset_t trap, old, pending, now;
  sigemptyset(&trap);
  sigaddset(&trap, SIGTRAP);
  sigprocmask(SIG_BLOCK, &trap, &old);
  call_work(2);
  const int before = raised_trap;
  raise(SIGTRAP);
  call_work(2);
  sigpending(&pending);
  sigprocmask(SIG_BLOCK, NULL, &now);
  if (!sigismember(&pending, SIGTRAP) || !sigismember(&now, SIGTRAP) || raised_trap != before) ++wrong;
  if (disposition_is(SIGTRAP, SIG_DFL)) ++wrong;
  sigprocmask(SIG_SETMASK, &old, NULL);
  if (raised_trap != before + 1) ++wrong;
}

static void with_trap_ignored(void) {
  struct sigaction old;
  const int before = raised_trap;
  sigaction(SIGTRAP, NULL, &old);
  install(SIGTRAP, SIG_IGN, NULL, 0);
  raise(SIGTRAP);
  call_work(2);
  if (!disposition_is(SIGTRAP, SIG_IGN) || raised_trap != before) ++wrong;
  sigaction(SIGTRAP, &old, NULL);
}

static void jump_out_of_handler(void) {
  if (sigsetjmp(jump_target, 1) == 0) raise(SIGUSR2);
  call_work(1);
}

static void wait_for_signal(void) {
  sigset_t term, old;
  siginfo_t info;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  sigprocmask(SIG_BLOCK, &term, &old);
  raise(SIGTERM);
  call_work(1);
  if (sigwaitinfo(&term, &info) != SIGTERM) ++wrong;
  sigprocmask(SIG_SETMASK, &old, NULL);
}

static void alarm_storm(int rounds) {
  storming = 1;
  next_alarm();
  for (int i = 0; i < rounds || alarms < 5; ++i) call_work(20);
  storming = 0;
  next_alarm();
}

static void one_round(void) {
  raise(SIGUSR1);
  hit_own_breakpoint();
  raise(SIGTRAP);
  faulting_load((const long*)0x10);
  with_trap_blocked();
  with_trap_ignored();
  jump_out_of_handler();
  wait_for_signal();
  call_work(1);
}

static void install_all(void) {
  static char alternate[64 * 1024];
  const stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
  sigaltstack(&stack, NULL);
  install(SIGUSR1, on_usr1, NULL, SA_RESTART);
  install(SIGUSR2, on_usr2, NULL, 0);
  install(SIGTRAP, NULL, on_trap, 0);
  install(SIGSEGV, NULL, on_fault, SA_ONSTACK);
  install(SIGALRM, on_alarm, NULL, SA_RESTART);
}

static void check(const char* name, long got, long want) {
  printf("%s %ld\n", name, got);
  if (got == want) return;
  ++wrong;
  fprintf(stderr, "%s: %ld, should be %ld\n", name, got, want);
}

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? atoi(argv[1]) : 100;
  install_all();
  target_ready("signals");
  target_wait_go();
  for (int i = 0; i < rounds; ++i) one_round();
  alarm_storm(rounds);
  check("usr1", usr1, rounds);
  check("own_breakpoint", own_breakpoint, rounds);
  check("raised_trap", raised_trap, 2 * rounds);
  check("faults", faults, rounds);
  check("jumps", jumps, rounds);
  check("handler_calls", handler_calls, usr1 + alarms);
  check("wrong_info", wrong_info, 0);
  printf("alarms %ld\ncalls %ld\nwrong %ld\n", (long)alarms, calls, wrong);
  return target_result(wrong == 0);
}
