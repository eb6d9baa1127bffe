// sigstorm T N [jump]: T threads run probed code under a storm of signals: a timer each, N queued signals each, process
// wide ones, some that raise others in their handlers, some read from a signalfd or by sigwaitinfo. All on alternate
// stacks. With "jump" the timers' handlers leave by siglongjmp.
//
// Every queued signal must arrive once, in order, with its siginfo; each probed instruction counts itself.
// Prints: ticks, tocks, handler_ticks (how often the instruction of that name ran), one line per count, result.
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

#include "machine.h"
#include "work.h"

enum { kMaxThreads = 16, kStack = 64 * 1024 };

atomic_long ticks, tocks, handler_ticks;
TARGET_FUNCTION void tick(void);
TARGET_FUNCTION void tock(void);
TARGET_FUNCTION void handler_tick(void);
// The first instruction of each is probed: a relocated one that counts itself, and a one-byte one that is emulated and
// then counted.
__asm__(
    ".text\n.globl tick\n.type tick, @function\n"
    "tick: " COUNT("ticks") "ret\n.size tick, . - tick\n"
    ".globl handler_tick\n.type handler_tick, @function\n"
    "handler_tick: " COUNT("handler_ticks") "ret\n.size handler_tick, . - handler_tick\n"
    ".globl tock\n.type tock, @function\n"
    "tock: " IN_FRAME(COUNT("tocks")) "ret\n.size tock, . - tock\n");

struct Worker {
  pthread_t thread;
  timer_t timer;
  char* stack;
  sigjmp_buf top;
  atomic_int tid, may_jump;
  long number, made;
  atomic_long queued, timers, jumps, nested;
};
static struct Worker workers[kMaxThreads];
static _Thread_local struct Worker* self;
static atomic_long wrong, shared, by_fd, by_wait, alarms;
static atomic_bool stop_now;
static int jumping;
static long per_thread, threads;

static int timer_signal(void) { return SIGRTMIN + 1; }
static int queued_signal(void) { return SIGRTMIN + 2; }
static int shared_signal(void) { return SIGRTMIN + 3; }
static int fd_signal(void) { return SIGRTMIN + 4; }
static int wait_signal(void) { return SIGRTMIN + 5; }
static int nested_signal(void) { return SIGRTMIN + 6; }

static void bad(const char* what, long got, long want) {
  if (atomic_fetch_add(&wrong, 1) < 5) fprintf(stderr, "%s: %ld, should be %ld\n", what, got, want);
}
static void expect(const char* what, long got, long want) {
  if (got != want) bad(what, got, want);
}

static void check_stack(void) {
  const char here = 0;
  if (!self)
    bad("a handler in a foreign thread", 0, 1);
  else if (&here < self->stack || &here >= self->stack + kStack) bad("not on the alternate stack", 0, 1);
}

static void check_sent(const siginfo_t* info, int code) {
  expect("si_code", info->si_code, code);
  expect("si_pid", info->si_pid, getpid());
  expect("si_uid", info->si_uid, (long)getuid());
}

// One at a time: however long a handler takes, something is done in between. No two threads' timers keep in step.
static void next_timer(struct Worker* w) {
  const struct itimerspec once = {{0, 0}, {0, 211000 + 97000 * (w - workers)}};
  timer_settime(w->timer, 0, &once, NULL);
}
static void next_alarm(void) {
  const struct itimerval once = {{0, 0}, {0, atomic_load(&stop_now) ? 0 : 700}};
  setitimer(ITIMER_REAL, &once, NULL);
}

static void on_timer(int number, siginfo_t* info, void* context) {
  (void)context;
  const int saved = errno;
  check_stack();
  expect("timer's signal", number, timer_signal());
  expect("timer's si_code", info->si_code, SI_TIMER);
  expect("timer's value", info->si_value.sival_int, (long)(self - workers));
  ++self->timers;
  handler_tick();
  next_timer(self);
  errno = saved;
  if (jumping && atomic_load(&self->may_jump)) {
    atomic_store(&self->may_jump, 0);
    ++self->jumps;
    siglongjmp(self->top, 1);
  }
}

static void on_queued(int number, siginfo_t* info, void* context) {
  (void)number;
  (void)context;
  const int saved = errno;
  check_stack();
  check_sent(info, SI_QUEUE);
  expect("queued value", info->si_value.sival_int, self->queued);
  ++self->queued;
  handler_tick();
  if (self->queued % 4 == 0) {
    const long before = self->nested;
    const union sigval value = {.sival_int = (int)self->queued};
    pthread_sigqueue(pthread_self(), nested_signal(), value);
    expect("nested", self->nested, before + 1);
  }
  errno = saved;
}

static void on_nested(int number, siginfo_t* info, void* context) {
  (void)number;
  (void)context;
  check_stack();
  check_sent(info, SI_QUEUE);
  expect("nested value", info->si_value.sival_int, self->queued);
  ++self->nested;
  handler_tick();
  expect("work in a nested handler", work(3, self->nested, "nested"), expected_work(3, self->nested, "nested"));
}

static void on_shared(int number, siginfo_t* info, void* context) {
  (void)number;
  (void)context;
  check_stack();
  check_sent(info, SI_QUEUE);
  atomic_fetch_add(&shared, info->si_value.sival_int);
  handler_tick();
}

static void on_alarm(int number) {
  (void)number;
  check_stack();
  ++alarms;
  handler_tick();
  next_alarm();
}

static void install(int number, void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  if (jumping) sigaddset(&action.sa_mask, timer_signal());  // who jumps out of another handler leaves it half done
  if (sigaction(number, &action, NULL) != 0) _exit(2);
}

static void install_all(void) {
  install(timer_signal(), on_timer);
  install(queued_signal(), on_queued);
  install(shared_signal(), on_shared);
  install(nested_signal(), on_nested);
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_alarm;
  action.sa_flags = SA_ONSTACK | SA_RESTART;
  sigaddset(&action.sa_mask, timer_signal());
  sigaction(SIGALRM, &action, NULL);
}

static void block(int how, int first, ...) {
  sigset_t set;
  sigemptyset(&set);
  va_list rest;
  va_start(rest, first);
  for (int number = first; number != 0; number = va_arg(rest, int)) sigaddset(&set, number);
  va_end(rest);
  pthread_sigmask(how, &set, NULL);
}

static void start_timer(struct Worker* w) {
  struct sigevent event;
  memset(&event, 0, sizeof event);
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = timer_signal();
  event.sigev_value.sival_int = (int)(w - workers);
  event._sigev_un._tid = (int)syscall(SYS_gettid);
  if (timer_create(CLOCK_MONOTONIC, &event, &w->timer) != 0) _exit(2);
  next_timer(w);
}

static void* run_worker(void* argument) {
  struct Worker* volatile w = argument;
  self = w;
  w->stack = malloc(kStack);
  const stack_t stack = {.ss_sp = w->stack, .ss_size = kStack};
  sigaltstack(&stack, NULL);
  block(SIG_UNBLOCK, timer_signal(), queued_signal(), shared_signal(), nested_signal(), SIGALRM, 0);
  if (sigsetjmp(w->top, 1) == 0) {
    start_timer(w);
    atomic_store(&w->tid, (int)syscall(SYS_gettid));
  }
  while (!atomic_load(&stop_now)) {
    atomic_store(&w->may_jump, 1);
    for (int i = 0; i < 3; ++i) {
      tick();
      tock();
    }
    atomic_store(&w->may_jump, 0);
    expect("work", work((int)w->number, w->made, "storm"), expected_work((int)w->number, w->made, "storm"));
    ++w->made;
  }
  timer_delete(w->timer);
  return NULL;
}

static void* read_signalfd(void* argument) {
  (void)argument;
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, fd_signal());
  const int fd = signalfd(-1, &set, SFD_CLOEXEC);
  for (long i = 0; i < per_thread; ++i) {
    struct signalfd_siginfo info;
    if (read(fd, &info, sizeof info) != sizeof info) {
      bad("signalfd", errno, 0);
      break;
    }
    tick();
    expect("signalfd's value", info.ssi_int, i);
    expect("signalfd's si_code", info.ssi_code, SI_QUEUE);
    ++by_fd;
  }
  close(fd);
  return NULL;
}

static void* wait_for_signals(void* argument) {
  (void)argument;
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, wait_signal());
  for (long i = 0; i < per_thread; ++i) {
    siginfo_t info;
    if (sigwaitinfo(&set, &info) != wait_signal()) {
      bad("sigwaitinfo", errno, 0);
      break;
    }
    tick();
    expect("sigwaitinfo's value", info.si_value.sival_int, i);
    expect("sigwaitinfo's si_code", info.si_code, SI_QUEUE);
    ++by_wait;
  }
  return NULL;
}

// EAGAIN: RLIMIT_SIGPENDING is the user's, not ours alone.
static void send(pthread_t thread, int number, long value) {
  const union sigval v = {.sival_int = (int)value};
  const struct timespec blink = {0, 1000000};
  while ((thread ? pthread_sigqueue(thread, number, v) : sigqueue(getpid(), number, v) == 0 ? 0 : errno) == EAGAIN)
    nanosleep(&blink, NULL);
}

// Sixteen in a row at most: more than one waits at a time, and the queue doesn't grow without bounds.
static void send_all(void) {
  const struct timespec blink = {0, 200000};
  for (long i = 0; i < per_thread; ++i) {
    for (long t = 0; t < threads; ++t) send(workers[t].thread, queued_signal(), i);
    send(0, shared_signal(), 1);
    send(0, fd_signal(), i);
    send(0, wait_signal(), i);
    while (workers[i % threads].queued + 16 < i) nanosleep(&blink, NULL);
  }
}

static int all_received(void) {
  for (long t = 0; t < threads; ++t)
    if (workers[t].queued < per_thread) return 0;
  return shared >= per_thread && by_fd >= per_thread && by_wait >= per_thread;
}

static void check(const char* name, long got, long want) {
  printf("%s %ld\n", name, got);
  expect(name, got, want);
}

static void report(void) {
  long timers = 0, jumps = 0, made = 0;
  for (long t = 0; t < threads; ++t) {
    check("queued", workers[t].queued, per_thread);
    check("nested", workers[t].nested, per_thread / 4);
    timers += workers[t].timers;
    jumps += workers[t].jumps;
    made += workers[t].made;
  }
  check("shared", shared, per_thread);
  check("by_fd", by_fd, per_thread);
  check("by_wait", by_wait, per_thread);
  if (timers == 0 || alarms == 0 || (jumping && jumps == 0)) bad("no storm at all", 0, 1);
  printf("timers %ld\njumps %ld\nalarms %ld\nmade %ld\nticks %ld\ntocks %ld\nhandler_ticks %ld\nwrong %ld\n", timers, jumps,
         (long)alarms, made, (long)ticks, (long)tocks, (long)handler_ticks, (long)wrong);
}

int main(int argc, char** argv) {
  threads = argc > 1 ? atol(argv[1]) : 2;
  per_thread = argc > 2 ? atol(argv[2]) : 1000;
  jumping = argc > 3 && strcmp(argv[3], "jump") == 0;
  if (threads < 1 || threads > kMaxThreads) return 2;
  install_all();
  // Everything is blocked but in the workers, which unblock what is theirs.
  block(SIG_BLOCK, timer_signal(), queued_signal(), shared_signal(), fd_signal(), wait_signal(), nested_signal(), SIGALRM, 0);
  target_ready("sigstorm");
  target_wait_go();
  pthread_t reader, waiter;
  pthread_create(&reader, NULL, read_signalfd, NULL);
  pthread_create(&waiter, NULL, wait_for_signals, NULL);
  for (long t = 0; t < threads; ++t) {
    workers[t].number = t;
    if (pthread_create(&workers[t].thread, NULL, run_worker, &workers[t]) != 0) return 2;
  }
  const struct timespec blink = {0, 1000000};
  for (long t = 0; t < threads; ++t)
    while (atomic_load(&workers[t].tid) == 0) nanosleep(&blink, NULL);
  next_alarm();
  send_all();
  for (int i = 0; i < 20000 && !all_received(); ++i) nanosleep(&blink, NULL);
  atomic_store(&stop_now, 1);
  for (long t = 0; t < threads; ++t) pthread_join(workers[t].thread, NULL);
  pthread_join(reader, NULL);
  pthread_join(waiter, NULL);
  report();
  return target_result(wrong == 0);
}
