// traps [blocking [beside]]: what a program may do with SIGTRAP, which breakpoints use too. Reads commands "NAME ROUNDS"
// (below), answers each with "NAME ok" or "NAME bad"; "end" ends it. Every command begins and ends with SIGTRAP as it
// found it: handled; with "blocking" at its default and blocked, which is what "left_blocked" looks for; "beside": in a
// thread of its own, which the first one waits for.
//
// tick() is probed; its first instruction counts itself. Prints at the end: ticks, result.
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "machine.h"
#include "work.h"

atomic_long ticks, one_byte_ticks;
TARGET_FUNCTION void tick(void);
TARGET_FUNCTION void one_byte_tick(void);
TARGET_FUNCTION void own_breakpoint(void);
__asm__(
    ".text\n.globl tick\n.type tick, @function\n"
    "tick: " COUNT("ticks") "ret\n.size tick, . - tick\n"
    ".globl one_byte_tick\n.type one_byte_tick, @function\n"
    "one_byte_tick: " IN_FRAME(COUNT("one_byte_ticks")) "ret\n.size one_byte_tick, . - one_byte_tick\n"
    ".globl own_breakpoint\n.type own_breakpoint, @function\n"
    "own_breakpoint: " OWN_BREAKPOINT "\nret\n.size own_breakpoint, . - own_breakpoint\n");

#define AS_HANDLER(plain) ((void (*)(int, siginfo_t*, void*))(long)(plain))

static atomic_long wrong;
static _Thread_local volatile sig_atomic_t handled, last_value, last_code, depth;
static _Thread_local sigjmp_buf top;
static const char* scenario = "";

static void expect(const char* what, long got, long want) {
  if (got == want) return;
  if (atomic_fetch_add(&wrong, 1) < 8) fprintf(stderr, "%s: %s: %ld, should be %ld\n", scenario, what, got, want);
}

static void touch(void) {
  tick();
  one_byte_tick();
}

static int blocks_trap(void) {
  sigset_t now;
  pthread_sigmask(SIG_BLOCK, NULL, &now);
  return sigismember(&now, SIGTRAP);
}
static int pending_trap(void) {
  sigset_t now;
  sigpending(&now);
  return sigismember(&now, SIGTRAP);
}
static void set_blocked(int how, int all) {
  sigset_t set;
  if (all)
    sigfillset(&set);
  else
    sigemptyset(&set);
  sigaddset(&set, SIGTRAP);
  pthread_sigmask(how, &set, NULL);
}
static long handler_now(void) {
  struct sigaction now;
  sigaction(SIGTRAP, NULL, &now);
  return (long)now.sa_handler;
}
static void on_trap(int, siginfo_t*, void*);
static void on_trap_again(int, siginfo_t*, void*);
static void on_trap_jump(int, siginfo_t*, void*);
// Or what a tracer has put in its place, to take care of us when it is killed; but for a handler of ours.
static int default_now(void) {
  const long handlers[] = {(long)SIG_IGN, (long)on_trap, (long)on_trap_again, (long)on_trap_jump};
  for (unsigned i = 0; i < sizeof handlers / sizeof *handlers; ++i)
    if (handler_now() == handlers[i]) return 0;
  return 1;
}
static struct sigaction install(void (*handler)(int, siginfo_t*, void*), int flags) {
  struct sigaction action, old;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = handler;
  action.sa_flags = flags;
  sigaction(SIGTRAP, &action, &old);
  return old;
}

// A tracer learns of a new action when a SIGTRAP comes, or from time to time; a hit before that has spoilt SIG_IGN for
// it.
static struct sigaction ignore_trap(void) {
  sigset_t alarms, old_mask;
  sigemptyset(&alarms);
  sigaddset(&alarms, SIGALRM);
  pthread_sigmask(SIG_BLOCK, &alarms, &old_mask);
  const struct sigaction old = install(AS_HANDLER(SIG_IGN), 0);
  raise(SIGTRAP);
  pthread_sigmask(SIG_SETMASK, &old_mask, NULL);
  return old;
}

// ---- handlers
// ---------------------------------------------------------------------------------------------------------

static void on_trap(int number, siginfo_t* info, void* context) {
  if (info->si_code == kTrapCode) pass_breakpoint(context);
  expect("signal", number, SIGTRAP);
  ++handled;
  last_code = info->si_code;
  last_value = info->si_value.sival_int;
  touch();
  expect("blocked in its handler", blocks_trap(), 1);
  touch();
}
static void on_trap_again(int number, siginfo_t* info, void* context) {
  (void)number;
  (void)info;
  (void)context;
  ++handled;
  touch();
  expect("blocked in a handler with SA_NODEFER", blocks_trap(), 0);
  if (++depth == 1) raise(SIGTRAP);
  touch();
  --depth;
}
static void on_trap_jump(int number, siginfo_t* info, void* context) {
  (void)number;
  (void)info;
  (void)context;
  ++handled;
  touch();
  siglongjmp(top, 1);
}
static void on_trap_plain(int number) {
  (void)number;
  ++handled;
  touch();
}

// ---- scenarios: each with the handler on_trap in place
// ------------------------------------------------------------------

static void handler_in_place(void) {
  const long before = handled;
  raise(SIGTRAP);
  expect("raised", handled, before + 1);
  expect("its si_code", last_code, SI_TKILL);
  touch();
  own_breakpoint();
  expect("own breakpoint", handled, before + 2);
  expect("its si_code", last_code, kTrapCode);
  touch();
  expect("handler", handler_now() == (long)on_trap, 1);
  expect("blocked afterwards", blocks_trap(), 0);
}

// While another thread is in the middle of a hit, the action is the default one for a moment.
static int at_once;

static void blocked(int all) {
  const long before = handled;
  set_blocked(SIG_BLOCK, all);
  touch();
  expect("still blocked", blocks_trap(), 1);
  if (!at_once) expect("handler", handler_now() == (long)on_trap, 1);
  const union sigval value = {.sival_int = 4711 + all};
  pthread_sigqueue(pthread_self(), SIGTRAP, value);
  expect("pending", pending_trap(), 1);
  touch();
  touch();
  expect("still pending", pending_trap(), 1);
  expect("still blocked", blocks_trap(), 1);
  expect("not handled", handled, before);
  if (!at_once) expect("handler", handler_now() == (long)on_trap, 1);
  set_blocked(SIG_UNBLOCK, all);
  expect("handled", handled, before + 1);
  expect("its si_code", last_code, SI_QUEUE);
  expect("its value", last_value, 4711 + all);
}
static void blocked_alone(void) { blocked(0); }
static void blocked_with_all(void) { blocked(1); }

// Sent to the process: it waits elsewhere, and isn't merged with ours.
static void blocked_and_killed(void) {
  const long before = handled;
  set_blocked(SIG_BLOCK, 0);
  kill(getpid(), SIGTRAP);
  touch();
  expect("still pending", pending_trap(), 1);
  expect("not handled", handled, before);
  set_blocked(SIG_UNBLOCK, 0);
  expect("handled", handled, before + 1);
  expect("its si_code", last_code, SI_USER);
}

static void waited_for(void) {
  const long before = handled;
  sigset_t set;
  siginfo_t info;
  sigemptyset(&set);
  sigaddset(&set, SIGTRAP);
  set_blocked(SIG_BLOCK, 0);
  const union sigval value = {.sival_int = 99};
  pthread_sigqueue(pthread_self(), SIGTRAP, value);
  touch();
  expect("sigwaitinfo", sigwaitinfo(&set, &info), SIGTRAP);
  expect("its value", info.si_value.sival_int, 99);
  touch();
  set_blocked(SIG_UNBLOCK, 0);
  expect("not handled", handled, before);
}

static void suspended(void) {
  const long before = handled;
  sigset_t none;
  sigemptyset(&none);
  set_blocked(SIG_BLOCK, 0);
  raise(SIGTRAP);
  touch();
  expect("sigsuspend", sigsuspend(&none), -1);
  expect("handled", handled, before + 1);
  expect("blocked again", blocks_trap(), 1);
  touch();
  set_blocked(SIG_UNBLOCK, 0);
}

static void ignored(void) {
  const struct sigaction old = ignore_trap();
  const long before = handled;
  touch();
  raise(SIGTRAP);
  touch();
  expect("ignored", handler_now() == (long)SIG_IGN, 1);
  set_blocked(SIG_BLOCK, 1);
  touch();
  expect("still blocked", blocks_trap(), 1);
  expect("ignored", handler_now() == (long)SIG_IGN, 1);
  set_blocked(SIG_UNBLOCK, 1);
  raise(SIGTRAP);
  expect("not handled", handled, before);
  sigaction(SIGTRAP, &old, NULL);
  raise(SIGTRAP);
  expect("handled", handled, before + 1);
}

static void reset_on_delivery(void) {
  const struct sigaction old = install(on_trap, SA_SIGINFO | SA_RESETHAND);
  const long before = handled;
  raise(SIGTRAP);
  expect("handled", handled, before + 1);
  touch();
  set_blocked(SIG_BLOCK, 1);
  touch();
  set_blocked(SIG_UNBLOCK, 1);
  expect("the default action", default_now(), 1);
  sigaction(SIGTRAP, &old, NULL);
  raise(SIGTRAP);
}

static void not_deferred(void) {
  const struct sigaction old = install(on_trap_again, SA_SIGINFO | SA_NODEFER);
  const long before = handled;
  raise(SIGTRAP);
  expect("handled and nested", handled, before + 2);
  set_blocked(SIG_BLOCK, 0);
  touch();
  expect("handler", handler_now() == (long)on_trap_again, 1);
  expect("still blocked", blocks_trap(), 1);
  set_blocked(SIG_UNBLOCK, 0);
  sigaction(SIGTRAP, &old, NULL);
  raise(SIGTRAP);
}

static void jumped_out_of(void) {
  const struct sigaction old = install(on_trap_jump, SA_SIGINFO);
  const long before = handled;
  if (sigsetjmp(top, 1) == 0) raise(SIGTRAP);
  touch();
  if (sigsetjmp(top, 1) == 0) own_breakpoint();
  touch();
  expect("handled", handled, before + 2);
  expect("blocked", blocks_trap(), 0);
  sigaction(SIGTRAP, &old, NULL);
  raise(SIGTRAP);
}

// signal() twice leaves the same flags and mask: only the program's own SIG_DFL must not be taken for the kernel's.
static void set_to_default(void) {
  struct sigaction old;
  sigaction(SIGTRAP, NULL, &old);
  signal(SIGTRAP, on_trap_plain);
  const long before = handled;
  raise(SIGTRAP);
  expect("handled", handled, before + 1);
  touch();
  signal(SIGTRAP, SIG_DFL);
  touch();
  set_blocked(SIG_BLOCK, 1);
  touch();
  set_blocked(SIG_UNBLOCK, 1);
  expect("the default action", default_now(), 1);
  sigaction(SIGTRAP, &old, NULL);
  raise(SIGTRAP);
}

// Its default action, everything blocked: as C libraries do around clone.
static void default_and_all_blocked(void) {
  const struct sigaction old = install(AS_HANDLER(SIG_DFL), 0);
  set_blocked(SIG_BLOCK, 1);
  touch();
  expect("still blocked", blocks_trap(), 1);
  raise(SIGTRAP);
  touch();
  expect("still blocked", blocks_trap(), 1);
  expect("still pending", pending_trap(), 1);
  sigaction(SIGTRAP, &old, NULL);
  const long before = handled;
  set_blocked(SIG_UNBLOCK, 1);
  expect("handled", handled, before + 1);
}

static void left_blocked(void) {
  touch();
  expect("still blocked", blocks_trap(), 1);
  raise(SIGTRAP);
  touch();
  expect("pending", pending_trap(), 1);
  expect("still blocked", blocks_trap(), 1);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTRAP);
  expect("waited for", sigwaitinfo(&set, NULL), SIGTRAP);
  touch();
  expect("the default action", default_now(), 1);
}

static void in_children(void) {
  for (int ignoring = 0; ignoring < 2; ++ignoring) {
    struct sigaction old;
    sigaction(SIGTRAP, NULL, &old);
    if (ignoring) ignore_trap();
    raise(SIGTRAP);
    touch();
    const pid_t child = fork();
    if (child == 0) {
      const long before = handled;
      raise(SIGTRAP);
      _exit(ignoring ? handler_now() == (long)SIG_IGN && handled == before
                     : handler_now() == (long)on_trap && handled == before + 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    expect("the child's view", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), 1);
    if (ignoring) sigaction(SIGTRAP, &old, NULL);
    raise(SIGTRAP);
  }
}

// ---- at once
// ------------------------------------------------------------------------------------------------------------

static atomic_bool stop_now;
static void* hit_all_the_time(void* unused) {
  (void)unused;
  while (!atomic_load(&stop_now)) {
    touch();
    expect("blocked by nobody here", blocks_trap(), 0);
  }
  return NULL;
}
static void* block_all_the_time(void* unused) {
  (void)unused;
  while (!atomic_load(&stop_now)) blocked_with_all();
  return NULL;
}
static long many_rounds;
static void* handle_all_the_time(void* unused) {
  (void)unused;
  for (long i = 0; i < many_rounds; ++i) {
    const long before = handled;
    raise(SIGTRAP);
    own_breakpoint();
    expect("handled", handled, before + 2);
  }
  atomic_store(&stop_now, 1);
  return NULL;
}
// The others hit the same breakpoints meanwhile. Which of them a handler was reset for must not be mixed up; nor may a
// thread that blocks nothing be left blocking SIGTRAP.
static void in_threads(void) {
  void* (*const runs[])(void*) = {hit_all_the_time, block_all_the_time, handle_all_the_time, hit_all_the_time};
  pthread_t thread[4];
  blocked_with_all();
  at_once = 1;
  atomic_store(&stop_now, 0);
  for (int i = 0; i < 4; ++i) pthread_create(&thread[i], NULL, runs[i], NULL);
  for (int i = 0; i < 4; ++i) pthread_join(thread[i], NULL);
  at_once = 0;
  expect("handler", handler_now() == (long)on_trap, 1);
}
// SIG_IGN can't be put back at once here. It must be in effect all the same, and be back in the end.
static void ignored_in_threads(void) {
  const struct sigaction old = ignore_trap();
  const long before = handled;
  pthread_t thread[2];
  atomic_store(&stop_now, 0);
  for (int i = 0; i < 2; ++i) pthread_create(&thread[i], NULL, hit_all_the_time, NULL);
  for (long i = 0; i < many_rounds; ++i) {
    touch();
    raise(SIGTRAP);
    kill(getpid(), SIGTRAP);
  }
  atomic_store(&stop_now, 1);
  for (int i = 0; i < 2; ++i) pthread_join(thread[i], NULL);
  touch();
  expect("not handled", handled, before);
  // A tracer may hear of the threads' ends a moment after us.
  for (int i = 0; i < 10000 && handler_now() != (long)SIG_IGN; ++i) usleep(1000);
  expect("ignored", handler_now() == (long)SIG_IGN, 1);
  sigaction(SIGTRAP, &old, NULL);
  raise(SIGTRAP);
}

// ---- ends: the process must die of SIGTRAP, after one call of its handler
// ----------------------------------------------

static void report_once(void) {
  static volatile sig_atomic_t times;
  if (++times == 1 && write(STDOUT_FILENO, "handler\n", 8) == 8) return;
  _exit(7);
}
static void crash_by_signal(int number) {
  report_once();
  touch();
  signal(number, SIG_DFL);
  touch();
  raise(number);
}
static void crash_by_sigaction(int number, siginfo_t* info, void* context) {
  (void)info;
  (void)context;
  report_once();
  touch();
  struct sigaction action;
  memset(&action, 0, sizeof action);
  sigaction(number, &action, NULL);
  touch();
  raise(number);
}
static void crash_once(int number, siginfo_t* info, void* context) {
  (void)info;
  (void)context;
  report_once();
  touch();
  raise(number);
}
static void crash_signal(void) {
  signal(SIGTRAP, crash_by_signal);
  raise(SIGTRAP);
}
static void crash_sigaction(void) {
  install(crash_by_sigaction, SA_SIGINFO);
  raise(SIGTRAP);
}
static void crash_resethand(void) {
  install(crash_once, SA_SIGINFO | SA_RESETHAND);
  own_breakpoint();
}
static void crash_blocked_breakpoint(void) {
  report_once();
  set_blocked(SIG_BLOCK, 0);
  touch();
  own_breakpoint();
}
static void exec_ignoring(void) {
  ignore_trap();
  touch();
  execl("/proc/self/exe", "traps", "ignoring?", NULL);
}
static void exec_ignoring_in_threads(void) {
  ignore_trap();
  pthread_t thread;
  pthread_create(&thread, NULL, hit_all_the_time, NULL);
  for (int i = 0; i < 100; ++i) touch();
  execl("/proc/self/exe", "traps", "ignoring?", NULL);
}

static const struct {
  const char* name;
  void (*run)(void);
} scenarios[] = {
    {"handler_in_place", handler_in_place},
    {"blocked_alone", blocked_alone},
    {"blocked_with_all", blocked_with_all},
    {"blocked_and_killed", blocked_and_killed},
    {"waited_for", waited_for},
    {"suspended", suspended},
    {"ignored", ignored},
    {"reset_on_delivery", reset_on_delivery},
    {"not_deferred", not_deferred},
    {"jumped_out_of", jumped_out_of},
    {"set_to_default", set_to_default},
    {"default_and_all_blocked", default_and_all_blocked},
    {"left_blocked", left_blocked},
    {"in_children", in_children},
    {"in_threads", in_threads},
    {"ignored_in_threads", ignored_in_threads},
    {"crash_signal", crash_signal},
    {"crash_sigaction", crash_sigaction},
    {"crash_resethand", crash_resethand},
    {"crash_blocked_breakpoint", crash_blocked_breakpoint},
    {"exec_ignoring", exec_ignoring},
    {"exec_ignoring_in_threads", exec_ignoring_in_threads},
};

// One at a time: however long the handler takes, something is done in between.
static volatile long storm_us;
static void next_alarm(void) {
  const struct itimerval once = {{0, 0}, {0, storm_us}};
  setitimer(ITIMER_REAL, &once, NULL);
}
static void on_alarm(int number) {
  (void)number;
  touch();
  next_alarm();
}
static void set_storm(long microseconds) {
  storm_us = microseconds;
  next_alarm();
}

static void run(const char* name, long rounds) {
  scenario = name;
  const long before = wrong;
  many_rounds = rounds;
  if (strcmp(name, "storm") == 0) set_storm(rounds);
  for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; ++i)
    if (strcmp(scenarios[i].name, name) == 0)
      for (long round = 0; round < (strstr(name, "threads") ? 1 : rounds); ++round) scenarios[i].run();
  printf("%s %s\n", name, wrong == before ? "ok" : "bad");
  fflush(stdout);
}

// With the flags that are left when nobody has touched it.
static void print_action(void) {
  struct sigaction now;
  sigaction(SIGTRAP, NULL, &now);
  printf("action %d %x %d\n", now.sa_sigaction == on_trap, (unsigned)now.sa_flags, sigismember(&now.sa_mask, SIGTRAP));
  fflush(stdout);
}

static void* obey(void* blocks) {
  if (blocks) set_blocked(SIG_BLOCK, 0);
  target_ready("traps");
  for (char line[64];;) {
    target_line(line, sizeof line);
    if (strcmp(line, "end") == 0) return NULL;
    if (strcmp(line, "action") == 0) {
      print_action();
      continue;
    }
    char* blank = strchr(line, ' ');
    if (blank) *blank = '\0';
    run(line, blank ? atol(blank + 1) : 1);
  }
}

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "ignoring?") == 0) return handler_now() == (long)SIG_IGN ? 42 : 43;
  struct sigaction alarm_action;
  memset(&alarm_action, 0, sizeof alarm_action);
  alarm_action.sa_handler = on_alarm;
  alarm_action.sa_flags = SA_RESTART;
  sigaction(SIGALRM, &alarm_action, NULL);
  void* blocks = NULL;
  if (argc > 1 && strcmp(argv[1], "blocking") == 0)
    blocks = argv[1];
  else
    install(on_trap, SA_SIGINFO);
  pthread_t thread;
  if (argc > 2) {
    pthread_create(&thread, NULL, obey, blocks);
    pthread_join(thread, NULL);
  } else {
    obey(blocks);
  }
  set_storm(0);
  printf("ticks %ld\none_byte_ticks %ld\nwrong %ld\n", (long)ticks, (long)one_byte_ticks, (long)wrong);
  return target_result(wrong == 0);
}
