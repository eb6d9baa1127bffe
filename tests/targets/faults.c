// faults [blocking | ignoring]: what a program may do with SIGSEGV and SIGBUS, which a probe that follows a bad pointer
// raises, too. Reads commands "NAME ROUNDS" (below), answers each with "NAME ok" or "NAME bad"; "end" ends it. Every
// command begins and ends with the signals as it found them: handled; with "ignoring" SIGSEGV is ignored, with
// "blocking" it is at its default and blocked, in the only thread.
//
// point(POINTER) is probed; its first instruction counts itself and doesn't touch what it is given. Prints at the end:
// points, result. leads_on(), which is a jump, nobody calls.
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "machine.h"
#include "work.h"

atomic_long points;
TARGET_FUNCTION void point(const volatile void* pointer);
__asm__(
    ".text\n.globl point\n.type point, @function\n"
    "point: " COUNT("points") "ret\n.size point, . - point\n"
    ".globl leads_on\n.type leads_on, @function\n"
    "leads_on: " JUMP("point") ".size leads_on, . - leads_on\n");

static atomic_long wrong;
static _Thread_local volatile sig_atomic_t handled, last_value, last_code, may_jump;
static _Thread_local sigjmp_buf top;
static const char* scenario = "";
static const volatile char* beyond_file;  // mapped, and SIGBUS when it is read
static long many_rounds;

static void expect(const char* what, long got, long want) {
  if (got == want) return;
  if (atomic_fetch_add(&wrong, 1) < 8) fprintf(stderr, "%s: %s: %ld, should be %ld\n", scenario, what, got, want);
}

static void touch(void) {
  point((const void*)8);                     // nothing is mapped there
  point((const void*)0x8000000000000000ul);  // not an address: another exception
  point(beyond_file);
  point(&points);
}

static int blocks(int number) {
  sigset_t now;
  pthread_sigmask(SIG_BLOCK, NULL, &now);
  return sigismember(&now, number);
}
static int is_pending(int number) {
  sigset_t now;
  sigpending(&now);
  return sigismember(&now, number);
}
static void set_blocked(int how, int all) {
  sigset_t set;
  if (all)
    sigfillset(&set);
  else
    sigemptyset(&set);
  sigaddset(&set, SIGSEGV);
  sigaddset(&set, SIGBUS);
  pthread_sigmask(how, &set, NULL);
}
static void expect_blocked(int want) {
  expect("blocks SIGSEGV", blocks(SIGSEGV), want);
  expect("blocks SIGBUS", blocks(SIGBUS), want);
}
static long handler_of(int number) {
  struct sigaction now;
  sigaction(number, NULL, &now);
  return (long)now.sa_handler;
}

static void on_fault(int number, siginfo_t* info, void* context) {
  (void)context;
  ++handled;
  last_code = info->si_code;
  last_value = info->si_value.sival_int;
  touch();
  expect("blocked in its handler", blocks(number), 1);
  touch();
  if (may_jump) siglongjmp(top, 1);
}
static void install(int number, void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO;
  sigaction(number, &action, NULL);
}
static void expect_handlers(void) {
  expect("SIGSEGV's handler", handler_of(SIGSEGV) == (long)on_fault, 1);
  expect("SIGBUS's handler", handler_of(SIGBUS) == (long)on_fault, 1);
}

// A fault of its own, which its handler jumps away from.
static void own_fault(const volatile char* where) {
  may_jump = 1;
  if (sigsetjmp(top, 1) == 0) {
    (void)*where;
    expect("a load of nothing", 1, 0);
  }
  may_jump = 0;
}

// ---- scenarios
// ----------------------------------------------------------------------------------------------------------

static void handler_in_place(void) {
  const long before = handled;
  touch();
  expect("not handled", handled, before);
  own_fault((const char*)16);
  expect("its own fault", handled, before + 1);
  own_fault(beyond_file);
  expect("its own SIGBUS", handled, before + 2);
  raise(SIGSEGV);
  expect("raised", handled, before + 3);
  expect("its si_code", last_code, SI_TKILL);
  expect_handlers();
  expect_blocked(0);
}

static int at_once;
static void blocked(int all) {
  const long before = handled;
  set_blocked(SIG_BLOCK, all);
  touch();
  expect_blocked(1);
  if (!at_once) expect_handlers();
  const union sigval value = {.sival_int = 4711 + all};
  pthread_sigqueue(pthread_self(), SIGSEGV, value);
  touch();
  touch();
  expect("still pending", is_pending(SIGSEGV), 1);
  expect("SIGBUS pending", is_pending(SIGBUS), 0);
  expect_blocked(1);
  expect("not handled", handled, before);
  if (!at_once) expect_handlers();
  set_blocked(SIG_UNBLOCK, all);
  expect("handled", handled, before + 1);
  expect("its si_code", last_code, SI_QUEUE);
  expect("its value", last_value, 4711 + all);
  expect_blocked(0);
}
static void blocked_alone(void) { blocked(0); }
static void blocked_with_all(void) { blocked(1); }

static void blocked_and_killed(void) {
  const long before = handled;
  set_blocked(SIG_BLOCK, 0);
  kill(getpid(), SIGBUS);
  touch();
  expect("still pending", is_pending(SIGBUS), 1);
  expect("not handled", handled, before);
  set_blocked(SIG_UNBLOCK, 0);
  expect("handled", handled, before + 1);
  expect("its si_code", last_code, SI_USER);
}

// A tracer learns of a new action when such a signal comes; a bad pointer before that has spoilt SIG_IGN for it.
static void ignored(void) {
  signal(SIGSEGV, SIG_IGN);
  raise(SIGSEGV);
  const long before = handled;
  touch();
  expect("ignored", handler_of(SIGSEGV) == (long)SIG_IGN, 1);
  raise(SIGSEGV);
  set_blocked(SIG_BLOCK, 1);
  touch();
  expect("still ignored", handler_of(SIGSEGV) == (long)SIG_IGN, 1);
  expect_blocked(1);
  set_blocked(SIG_UNBLOCK, 1);
  raise(SIGSEGV);
  expect("not handled", handled, before);
  install(SIGSEGV, on_fault);
  raise(SIGSEGV);
  expect("handled", handled, before + 1);
}

static void default_and_all_blocked(void) {
  signal(SIGSEGV, SIG_DFL);
  set_blocked(SIG_BLOCK, 1);
  touch();
  expect_blocked(1);
  raise(SIGSEGV);
  touch();
  expect_blocked(1);
  expect("still pending", is_pending(SIGSEGV), 1);
  install(SIGSEGV, on_fault);
  const long before = handled;
  set_blocked(SIG_UNBLOCK, 1);
  expect("handled", handled, before + 1);
}

static void in_children(void) {
  set_blocked(SIG_BLOCK, 1);
  touch();
  const pid_t child = fork();
  if (child == 0) {
    const long before = handled;
    set_blocked(SIG_UNBLOCK, 1);
    raise(SIGSEGV);
    _exit(handled == before + 1 && handler_of(SIGSEGV) == (long)on_fault);
  }
  set_blocked(SIG_UNBLOCK, 1);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  expect("the child's view", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), 1);
}

// ---- at once
// ------------------------------------------------------------------------------------------------------------

static atomic_bool stop_now;
static void* touch_all_the_time(void* unused) {
  (void)unused;
  while (!atomic_load(&stop_now)) {
    touch();
    expect_blocked(0);
  }
  return NULL;
}
static void* block_all_the_time(void* unused) {
  (void)unused;
  while (!atomic_load(&stop_now)) blocked_with_all();
  return NULL;
}
static void* block_alone_all_the_time(void* unused) {
  (void)unused;
  while (!atomic_load(&stop_now)) blocked_alone();
  return NULL;
}
static void* fault_all_the_time(void* unused) {
  (void)unused;
  for (long i = 0; i < many_rounds; ++i) {
    const long before = handled;
    own_fault((const char*)16);
    raise(SIGSEGV);
    expect("handled", handled, before + 2);
  }
  atomic_store(&stop_now, 1);
  return NULL;
}
static void run_threads(void* (*alone)(void*)) {
  void* (*const runs[])(void*) = {touch_all_the_time, block_all_the_time, fault_all_the_time, alone};
  pthread_t thread[4];
  // A tracer can't tell two threads' faults apart until one has been seen to block the signal and not everything.
  blocked(alone != block_alone_all_the_time);
  at_once = 1;
  atomic_store(&stop_now, 0);
  for (int i = 0; i < 4; ++i) pthread_create(&thread[i], NULL, runs[i], NULL);
  for (int i = 0; i < 4; ++i) pthread_join(thread[i], NULL);
  at_once = 0;
  expect_handlers();
}
static void in_threads(void) { run_threads(touch_all_the_time); }
static void in_threads_alone(void) { run_threads(block_alone_all_the_time); }

// ---- as it was started
// ----------------------------------------------------------------------------------------------------

static void left_ignored(void) {
  touch();
  expect("ignored", handler_of(SIGSEGV) == (long)SIG_IGN, 1);
  raise(SIGSEGV);
  touch();
  expect("ignored", handler_of(SIGSEGV) == (long)SIG_IGN, 1);
}
static void left_blocked(void) {
  touch();
  expect("still blocked", blocks(SIGSEGV), 1);
  expect("the default action", handler_of(SIGSEGV) == (long)SIG_DFL, 1);
}

static const struct {
  const char* name;
  void (*run)(void);
} scenarios[] = {
    {"handler_in_place", handler_in_place},
    {"blocked_alone", blocked_alone},
    {"blocked_with_all", blocked_with_all},
    {"blocked_and_killed", blocked_and_killed},
    {"ignored", ignored},
    {"default_and_all_blocked", default_and_all_blocked},
    {"in_children", in_children},
    {"in_threads", in_threads},
    {"in_threads_alone", in_threads_alone},
    {"left_ignored", left_ignored},
    {"left_blocked", left_blocked},
};

static void run(const char* name, long rounds) {
  scenario = name;
  const long before = wrong;
  many_rounds = rounds;
  for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; ++i)
    if (strcmp(scenarios[i].name, name) == 0)
      for (long round = 0; round < (strstr(name, "threads") ? 1 : rounds); ++round) scenarios[i].run();
  printf("%s %s\n", name, wrong == before ? "ok" : "bad");
  fflush(stdout);
}

int main(int argc, char** argv) {
  const char* const start = argc > 1 ? argv[1] : "";
  const int fd = memfd_create("empty", MFD_CLOEXEC);
  beyond_file = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (strcmp(start, "blocking") != 0) install(SIGSEGV, on_fault);
  install(SIGBUS, on_fault);
  if (strcmp(start, "ignoring") == 0) signal(SIGSEGV, SIG_IGN);
  if (strcmp(start, "blocking") == 0) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGSEGV);
    sigprocmask(SIG_BLOCK, &set, NULL);
  }
  target_ready("faults");
  for (char line[64];;) {
    target_line(line, sizeof line);
    if (strcmp(line, "end") == 0) break;
    char* blank = strchr(line, ' ');
    if (blank) *blank = '\0';
    run(line, blank ? atol(blank + 1) : 1);
  }
  printf("points %ld\nwrong %ld\n", (long)points, (long)wrong);
  return target_result(wrong == 0);
}
