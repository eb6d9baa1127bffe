// odd: what few programs do, and detours must survive. Reads commands, one a line, answers "NAME ok" or "NAME bad":
//   no-clock ROUNDS     may not read the time stamp counter from then on, and calls point() ROUNDS times
//   waiting ROUNDS      calls point() ROUNDS times with a page that nobody will ever fill (userfaultfd); "waiting none"
//                       where the kernel has no such thing
//   queue ROUNDS        sends ROUNDS numbered real-time signals to a thread that blocks SIGTRAP alone and calls point()
//                       all the time: all must come, in their order
//   keys ROUNDS         calls point() ROUNDS times while it may not write to memory of protection key 0, on a stack of
//                       its own key, as a compartment inside of a program does; "keys none" where there are no keys
//   lock 0              all of its memory is locked, what it will have, too (mlockall)
//   end
// Prints at the end: points, result.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "machine.h"
#include "work.h"

atomic_long points;
TARGET_FUNCTION void point(const volatile void* pointer);
__asm__(
    ".text\n.globl point\n.type point, @function\n"
    "point: " COUNT("points") "ret\n.size point, . - point\n");

// The same in a compartment, which may not count in ordinary memory.
static long entered;
TARGET_FUNCTION void compartment_point(const volatile void* pointer);
__asm__(
    ".text\n.globl compartment_point\n.type compartment_point, @function\n"
    "compartment_point: .rept 5\nnop\n.endr\nret\n.size compartment_point, . - compartment_point\n");

// Some hypervisors let a guest read the counter whatever CR4.TSD says: tried in a child.
static int clock_can_be_switched_off(void) {
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
    READ_CLOCK();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status);
}

static int no_clock(long rounds) {
  const int switched_off = clock_can_be_switched_off();
  prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
  for (long i = 0; i < rounds; ++i) point(&points);
  return switched_off;
}

// Kept open: a page of a closed one can be read.
static void* unfilled_page(void) {
  const int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
  struct uffdio_api api = {.api = UFFD_API};
  if (fd < 0 || ioctl(fd, UFFDIO_API, &api) != 0) return NULL;
  void* page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  struct uffdio_register range = {{(unsigned long)page, 4096}, UFFDIO_REGISTER_MODE_MISSING, 0};
  return ioctl(fd, UFFDIO_REGISTER, &range) == 0 ? page : NULL;
}

static atomic_long next_value, out_of_order;
static atomic_int stop;

static void on_numbered(int number, siginfo_t* info, void* context) {
  (void)number, (void)context;
  if (info->si_code != SI_QUEUE || info->si_pid != getpid() || info->si_value.sival_int != next_value) ++out_of_order;
  ++next_value;
}

static void* runner(void* unused) {
  (void)unused;
  sigset_t trap;
  sigemptyset(&trap);
  sigaddset(&trap, SIGTRAP);
  pthread_sigmask(SIG_SETMASK, &trap, NULL);
  while (!stop) point(&points);
  sigset_t now;
  pthread_sigmask(SIG_SETMASK, NULL, &now);
  if (!sigismember(&now, SIGTRAP) || sigismember(&now, SIGUSR1)) ++out_of_order;
  return NULL;
}

static int queue(long rounds) {
  struct sigaction action = {.sa_sigaction = on_numbered, .sa_flags = SA_SIGINFO | SA_RESTART};
  sigaction(SIGRTMIN + 3, &action, NULL);
  pthread_t thread;
  pthread_create(&thread, NULL, runner, NULL);
  for (long i = 0; i < rounds; ++i) {
    while (pthread_sigqueue(thread, SIGRTMIN + 3, (union sigval){.sival_int = (int)i}) != 0) usleep(100);
    if (i % 5 == 4) usleep(2000);
  }
  for (int patience = 0; next_value < rounds && patience < 20000; ++patience) usleep(1000);
  stop = 1;
  pthread_join(thread, NULL);
  if (next_value != rounds || out_of_order != 0)
    fprintf(stderr, "%ld of %ld signals came, %ld of them wrong\n", (long)next_value, rounds, (long)out_of_order);
  return next_value == rounds && out_of_order == 0;
}

// The rights as they should be behind each call; else they have been changed under it.
#ifdef __x86_64__
static unsigned rights(void) {
  unsigned low, high;
  __asm__ volatile("rdpkru" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}
static void set_rights(unsigned to) { __asm__ volatile("wrpkru" : : "a"(to), "c"(0), "d"(0) : "memory"); }

struct Compartment {
  long rounds, wrong;
  unsigned outside, inside;
  unsigned long stack;
};

// The address of what is in that memory is all that is touched. point() counts in memory of key 0: elsewhere here.
__attribute__((noinline, used)) static void compartment(struct Compartment* c) {
  for (long i = 0; i < c->rounds; ++i) {
    set_rights(c->inside);
    compartment_point(c);
    if (rights() != c->inside) ++c->wrong;
    set_rights(c->outside);
  }
}

static int keys(long rounds) {
  const int key = pkey_alloc(0, 0);
  if (key < 0) return 0;
  const unsigned long size = 1 << 18;
  char* memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || pkey_mprotect(memory, size, PROT_READ | PROT_WRITE, key) != 0) return 0;
  struct Compartment* c = (struct Compartment*)memory;
  *c = (struct Compartment){.rounds = rounds, .outside = rights(), .inside = rights() | 2};
  __asm__ volatile(
      "mov %%rsp, %%rbx\n\tmov %0, %%rsp\n\tcall compartment\n\tmov %%rbx, %%rsp"
      :
      : "r"(memory + size - 256), "D"(c)
      : "rax", "rcx", "rdx", "rsi", "rbx", "r8", "r9", "r10", "r11", "memory", "cc");
  entered += c->rounds;
  return c->wrong == 0 ? 1 : -1;
}
#else
static int keys(long rounds) {
  (void)rounds;
  return 0;
}
#endif

int main(void) {
  target_ready("odd");
  char name[32];
  int good = 1;
  for (long rounds; target_command(name, &rounds);) {
    int ok = 0;
    if (strcmp(name, "no-clock") == 0) ok = no_clock(rounds);
    if (strcmp(name, "queue") == 0) ok = queue(rounds);
    if (strcmp(name, "waiting") == 0) {
      void* page = unfilled_page();
      for (long i = 0; page && i < rounds; ++i) point(page);
      ok = page != NULL;
    }
    if (strcmp(name, "keys") == 0) ok = keys(rounds);
    if (strcmp(name, "lock") == 0) ok = mlockall(MCL_CURRENT | MCL_FUTURE) == 0;
    const int bad = ok < 0 || (!ok && strcmp(name, "queue") == 0);
    good &= !bad;
    printf("%s %s\n", name, bad ? "bad" : ok ? "ok" : "none");
    fflush(stdout);
  }
  printf("points %ld\nentered %ld\n", (long)points, entered);
  return target_result(good);
}
