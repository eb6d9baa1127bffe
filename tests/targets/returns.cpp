// returns: functions that are left in every way there is, on the commands of its input. Each answers "COMMAND done
// VALUE", where VALUE is what it has computed; "quit" ends it.
//
//   fib N            recursion
//   throw N          an exception through N + 1 frames of deep(), caught and rethrown on its way in rethrower()
//   jump N           longjmp over N + 1 frames of jumper()
//   sigjump          siglongjmp out of a handler on a stack of its own
//   threads N        4 threads that call add() N times each, at once
//   eight N          8 threads that call counted() N times each
//   leave N          a thread that ends by pthread_exit() below N + 1 frames of leaver()
//   cancel           a thread that is cancelled in canceled()
//   coroutines N     two coroutines that yield N times each from below step(), half of it in another thread
//   borrowed N       N calls of handed(), begun by one of two threads and ended by the other in turn, on a coroutine's
//                    stack that is an array of the first thread's; their sum
//   half N           N calls of halfway(), every other one of which is left by longjmp
//   tail N           tail calls: direct, conditional, through a pointer; a switch in a leaf function
//   odd N            functions of which not every exit can be known
//   fill             a function that writes where its argument points
//   frames N         how many frames backtrace(3) sees below N of its own
//   unwind N         which ones, as a checksum; libunwind N: that library's answer, -1 without it
//   spin N           below N + 1 frames of unwound(), for 200 ms of CPU time
//   crash N          aborts there
//   start, rest      4 threads that call fib(3) over and over meanwhile; how often it was wrong
//   block, unblock   a thread that stands in blocked() meanwhile
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <stdexcept>

#include "exits.h"
#include "protocol.h"

#define KEEP(x) asm volatile("" : "+r"(x))

extern "C" {

TARGET_FUNCTION long fib(long n) {
  if (n < 2) return n;
  long a = fib(n - 1);
  KEEP(a);
  long b = fib(n - 2);
  KEEP(b);
  return a + b;
}

TARGET_FUNCTION long add(long a, long b) { return a + b; }

// Room for a jump in front of its return.
TARGET_FUNCTION long counted(long n) { return n * 12345 + 1; }

// ---- other ways out ----

TARGET_FUNCTION long deep(long n) {
  if (n == 0) throw std::runtime_error("as asked");
  long below = deep(n - 1);
  KEEP(below);
  return below + 1;
}

TARGET_FUNCTION long rethrower(long n) {
  try {
    long below = deep(n);
    KEEP(below);
    return below;
  } catch (const std::exception&) {
    throw;
  }
}

TARGET_FUNCTION long catcher(long n) {
  try {
    return rethrower(n);
  } catch (const std::exception&) {
    return n;
  }
}

static jmp_buf back;

TARGET_FUNCTION long jumper(long n) {
  if (n == 0) longjmp(back, 1);
  long below = jumper(n - 1);
  KEEP(below);
  return below + 1;
}

TARGET_FUNCTION long setter(long n) {
  if (setjmp(back) == 0) return jumper(n);
  return n;
}

static sigjmp_buf back_from_handler;

TARGET_FUNCTION long in_handler(long jump) {
  if (jump) siglongjmp(back_from_handler, 1);
  return 7;
}

static void on_signal(int) {
  in_handler(0);
  in_handler(1);
}

TARGET_FUNCTION long raiser(long n) {
  raise(SIGUSR1);
  return n;
}

TARGET_FUNCTION long sig_setter(long n) {
  if (sigsetjmp(back_from_handler, 1) == 0) return raiser(n) + 1;
  return n;
}

TARGET_FUNCTION long leaver(long n) {
  if (n == 0) pthread_exit(nullptr);
  long below = leaver(n - 1);
  KEEP(below);
  return below + 1;
}

static volatile int never;

TARGET_FUNCTION long canceled(long n) {
  while (!never) pause();
  return n;
}

static int pipe_of_blocked[2];

// Its loop begins at its first instruction.
TARGET_FUNCTION void spin_until(volatile int* flag) {
  while (*flag == 0) {
  }
}

TARGET_FUNCTION long blocked(long n) {
  char c;
  while (read(pipe_of_blocked[0], &c, 1) != 1) {
  }
  return n;
}

// ---- coroutines ----

static ucontext_t coroutine[2];
static ucontext_t* home;
static long done[2];

TARGET_FUNCTION long step(long id, long left) {
  if (left == 0) return id;
  swapcontext(&coroutine[id], home);
  long below = step(id, left - 1);
  KEEP(below);
  return below + 1;
}

static void coroutine_main(int id, int rounds) {
  done[id] = step(id, rounds);
  setcontext(home);
}

// Gives each of the two `turns` turns.
static void run_both(long turns) {
  ucontext_t here;
  home = &here;
  for (long i = 0; i < turns; ++i) {
    swapcontext(&here, &coroutine[0]);
    swapcontext(&here, &coroutine[1]);
  }
}

static ucontext_t borrower, lenders[2];
static sem_t turns[2];
static int whose;
static bool handed_all;

TARGET_FUNCTION long handed(long n) {
  swapcontext(&borrower, &lenders[whose]);
  KEEP(n);
  return n + 1;
}

static void borrow(int calls) {
  for (int i = 0; i < calls; ++i) done[0] += handed(i);
  handed_all = true;
  setcontext(&lenders[whose]);
}

static void lend(int me) {
  for (;;) {
    while (sem_wait(&turns[me]) != 0) {
    }
    whose = me;
    if (!handed_all) swapcontext(&lenders[me], &borrower);
    sem_post(&turns[1 - me]);
    if (handed_all) return;
  }
}

// ---- tail calls ----

TARGET_FUNCTION long callee(long n) { return n * 2; }
TARGET_FUNCTION long caller(long n) { return callee(n + 1); }
TARGET_FUNCTION long through(long n, long (*f)(long)) { return f(n + 2); }
long conditional(long n);
#define ASSEMBLY(name, code)                                                                                          \
  asm(".text; .globl " name "; .type " name ", %function; " name ": .cfi_startproc;" code ".cfi_endproc; .size " name \
      ", .-" name)
ASSEMBLY("conditional", CONDITIONAL_TAIL_CALL);

// ---- functions that are left in ways that no probe can be on ----

long runner(long n), run_into(long n), popper(long n), stack_switcher(long n);
ASSEMBLY("runner", RUNNER);
ASSEMBLY("run_into", RUN_INTO);
ASSEMBLY("popper", POPPER);
ASSEMBLY("stack_switcher", STACK_SWITCHER);

TARGET_FUNCTION long odd_exits(long n) { return runner(n) + run_into(n) + popper(n) + stack_switcher(n); }

TARGET_FUNCTION long switcher(long n) {
  switch (n) {
    case 0: return 11;
    case 1: return 7 * n;
    case 2: return n - 40;
    case 3: return n << 5;
    case 4: return 99;
    case 5: return n ^ 0x77;
    case 6: return callee(n);
    default: return -1;
  }
}

TARGET_FUNCTION long fill(char* text, long n) {
  memset(text, 'x', (size_t)n);
  text[n] = '\0';
  return n;
}

TARGET_FUNCTION long frames(long n) {
  if (n > 0) {
    long below = frames(n - 1);
    KEEP(below);
    return below;
  }
  void* addresses[256];
  return backtrace(addresses, 256);
}

using Unwinder = int(void**, int);

// Every return address that it finds, as one number.
TARGET_FUNCTION long unwound(long n, Unwinder* unwind) {
  if (n > 0) {
    long below = unwound(n - 1, unwind);
    KEEP(below);
    return below;
  }
  void* addresses[256];
  const int count = unwind(addresses, 256);
  unsigned long sum = (unsigned long)count;
  for (int i = 0; i < count; ++i) sum = sum * 31 + (unsigned long)addresses[i];
  return (long)(sum >> 1);
}

}  // extern "C"

static long cpu_time() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

extern "C" TARGET_FUNCTION int spin(void**, int) {
  const long until = cpu_time() + 200;
  while (cpu_time() < until)
    for (long i = 0; i < 100000; ++i) KEEP(i);
  return 0;
}

extern "C" TARGET_FUNCTION int crash(void**, int) { abort(); }

static long by_libunwind(long n) {
  static void* const library = dlopen("libunwind.so.8", RTLD_NOW);
  void* const unwind = library ? dlsym(library, "unw_backtrace") : nullptr;
  return unwind ? unwound(n, (Unwinder*)unwind) : -1;
}

static void* add_many(void* rounds) {
  long sum = 0;
  for (long i = 0; i < (long)rounds; ++i) sum += add(i, 1);
  return (void*)sum;
}

static void* leave(void* n) { return (void*)leaver((long)n); }
static void* be_canceled(void*) { return (void*)canceled(1); }
static void* be_blocked(void*) { return (void*)blocked(5); }

static void* count_many(void* rounds) {
  long sum = 0;
  for (long i = 0; i < (long)rounds; ++i) sum += counted(i);
  return (void*)sum;
}

static long run_eight(long n) {
  pthread_t threads[8];
  long sum = 0;
  for (pthread_t& t : threads) pthread_create(&t, nullptr, count_many, (void*)n);
  for (pthread_t& t : threads) {
    void* result;
    pthread_join(t, &result);
    sum += (long)result;
  }
  return sum;
}

static long run_threads(long n) {
  pthread_t threads[4];
  long sum = 0;
  for (pthread_t& t : threads) pthread_create(&t, nullptr, add_many, (void*)n);
  for (pthread_t& t : threads) {
    void* result;
    pthread_join(t, &result);
    sum += (long)result;
  }
  return sum;
}

static pthread_t busy[4];
static volatile int resting;

static void* be_busy(void*) {
  long wrong = 0;
  while (!resting) wrong += fib(3) != 2;
  return (void*)wrong;
}

static long start_busy() {
  resting = 0;
  for (pthread_t& t : busy) pthread_create(&t, nullptr, be_busy, nullptr);
  return 0;
}

static long rest_busy() {
  long wrong = 0;
  resting = 1;
  for (pthread_t& t : busy) {
    void* result;
    pthread_join(t, &result);
    wrong += (long)result;
  }
  return wrong;
}

static long run_one(void* (*function)(void*), long n, bool cancel) {
  pthread_t thread;
  void* result;
  pthread_create(&thread, nullptr, function, (void*)n);
  if (cancel) pthread_cancel(thread);
  pthread_join(thread, &result);
  return result == PTHREAD_CANCELED ? -1 : (long)result;
}

static void* run_the_rest(void* count) {
  run_both((long)count);
  return nullptr;
}

static long run_coroutines(long n) {
  for (int i = 0; i < 2; ++i) {
    getcontext(&coroutine[i]);
    coroutine[i].uc_stack.ss_sp = malloc(64 << 10);
    coroutine[i].uc_stack.ss_size = 64 << 10;
    makecontext(&coroutine[i], (void (*)())coroutine_main, 2, i, (int)n);
  }
  run_both(n / 2);
  run_one(run_the_rest, n + 1 - n / 2, false);
  return done[0] + done[1];
}

static void* lend_second(void*) { return lend(1), nullptr; }

static long run_borrowed(long n) {
  constexpr std::size_t kSize = 128 << 10;
  char stack[kSize];
  done[0] = 0;
  handed_all = false;
  getcontext(&borrower);
  borrower.uc_stack.ss_sp = stack;
  borrower.uc_stack.ss_size = kSize;
  makecontext(&borrower, (void (*)())borrow, 1, (int)n);
  for (int i = 0; i < 2; ++i) sem_init(&turns[i], 0, i == 0);
  pthread_t second;
  pthread_create(&second, nullptr, lend_second, nullptr);
  lend(0);
  pthread_join(second, nullptr);
  return done[0];
}

static jmp_buf back_from_half;

TARGET_FUNCTION long halfway(long n) {
  if (n % 2 == 0) longjmp(back_from_half, 1);
  KEEP(n);
  return n;
}

TARGET_FUNCTION long halfway_caught(long n) {
  if (setjmp(back_from_half) == 0) return halfway(n);
  return 0;
}

static long run_half(long n) {
  long sum = 0;
  for (long i = 0; i < n; ++i) sum += halfway_caught(i);
  return sum;
}

static long run_tails(long n) {
  return caller(n) + through(n, callee) + conditional(n) + conditional(n + 100) + switcher(n % 8) + switcher(6);
}

// How many of four children, beside their parent, have come to something else than it.
static long run_children(long n) {
  pid_t children[4];
  long wrong = 0;
  for (pid_t& child : children)
    if ((child = fork()) == 0) _exit((int)(fib(n) & 0x7f));
  const long mine = fib(n);
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    wrong += !WIFEXITED(status) || WEXITSTATUS(status) != (mine & 0x7f);
  }
  return wrong;
}

static char memory[64] = "before";
static pthread_t blocked_thread;

static long run(const char* command, long n) {
  const auto is = [&](const char* name) { return strcmp(command, name) == 0; };
  if (is("fib")) return fib(n);
  if (is("throw")) return catcher(n);
  if (is("jump")) return setter(n);
  if (is("sigjump")) return sig_setter(n);
  if (is("threads")) return run_threads(n);
  if (is("eight")) return run_eight(n);
  if (is("leave")) return run_one(leave, n, false);
  if (is("cancel")) return run_one(be_canceled, n, true);
  if (is("coroutines")) return run_coroutines(n);
  if (is("borrowed")) return run_borrowed(n);
  if (is("half")) return run_half(n);
  if (is("tail")) return run_tails(n);
  if (is("odd")) return odd_exits(n);
  if (is("children")) return run_children(n);
  if (is("fill")) return strcpy(memory, "before"), fill(memory, 5);
  if (is("frames")) return frames(n);
  if (is("unwind")) return unwound(n, backtrace);
  if (is("libunwind")) return by_libunwind(n);
  if (is("spin")) return unwound(n, spin);
  if (is("crash")) return unwound(n, crash);
  if (is("start")) return start_busy();
  if (is("rest")) return rest_busy();
  if (is("block")) return pthread_create(&blocked_thread, nullptr, be_blocked, nullptr);
  if (is("unblock")) {
    void* result;
    return write(pipe_of_blocked[1], "x", 1), pthread_join(blocked_thread, &result), (long)result;
  }
  return -2;
}

int main() {
  stack_t stack = {};
  stack.ss_size = 64 << 10;
  stack.ss_sp = malloc(stack.ss_size);
  sigaltstack(&stack, nullptr);
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_ONSTACK | SA_NODEFER;
  sigaction(SIGUSR1, &action, nullptr);
  if (pipe(pipe_of_blocked) != 0) return 2;
  target_ready("returns");
  char line[64], command[64];
  for (;;) {
    target_line(line, sizeof line);
    long n = 0;
    if (sscanf(line, "%63s %ld", command, &n) < 1) return 2;
    if (strcmp(command, "quit") == 0) return target_result(1);
    printf("%s done %ld\n", command, run(command, n));
    fflush(stdout);
  }
}
