// leaps: code that is entered in ways which neither its branches nor relocations show. Reads commands, one a line, answers
// "NAME ok" or "NAME bad":
//   differences ROUNDS  jumps to a label's address plus a difference of labels
//   threaded ROUNDS     jumps by a table of addresses that was made of differences of labels
//   repaired ROUNDS     a SIGSEGV handler goes on where a table of distances from themselves says
//   entered ROUNDS      enters another function's unrolled loop at its begin plus a distance
//   swallowed ROUNDS    enters a function's middle from code without a name that follows data
//   dropped ROUNDS      gives back one of the two pages that a function lies in
//   copied ROUNDS       copies a page of its code to memory of its own at the same place, as for huge pages, and calls it
//   restarted ROUNDS    two threads count in a restartable sequence whose descriptor is made at run time
//   skipped ROUNDS      a SIGSEGV handler skips the instruction that has faulted
//   landed ROUNDS       calls a function behind its endbr64, by a pointer and a distance
//   end                 ends with exit status 0 if everything was right
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/rseq.h>
#include <ucontext.h>
#include <unistd.h>

#include "protocol.h"

// ---- differences of labels: "Labels as Values" in GCC's manual ------------------------------------------------------

__attribute__((noinline, noclone)) int by_difference(int op) {
  static const int offsets[] = {&&a - &&a, &&b - &&a, &&c - &&a};
  volatile int x = 0;
  void *const target = &&a + offsets[op];
  goto *target;
a:
  x++;
b:
  x++;
c:
  x++;
  return x;
}

static int differences(long rounds) {
  int good = 1;
  for (long i = 0; i < rounds; ++i) good &= by_difference((int)(i % 3)) == 3 - (int)(i % 3);
  return good;
}

#define LABEL(n) &&l##n - &&l0
#define STEP(n) \
  l##n : a ^= b; \
  __asm__ volatile("" : "+r"(a));

__attribute__((noinline, noclone)) long by_table(int op, long a, long b) {
  static const int offsets[] = {LABEL(0), LABEL(1), LABEL(2), LABEL(3), LABEL(4), LABEL(5),  LABEL(6),
                                LABEL(7), LABEL(8), LABEL(9), LABEL(10), LABEL(11)};
  static void *table[12];
  if (!table[0])
    for (int i = 0; i < 12; i++) table[i] = &&l0 + offsets[i];
  goto *table[op];
  STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7) STEP(8) STEP(9) STEP(10)
l11:
  return a;
}

static int threaded(long rounds) {
  int good = 1;
  for (long i = 0; i < rounds; ++i) {
    const int op = (int)(i % 12);
    good &= by_table(op, 12, 3) == ((11 - op) % 2 ? 15 : 12);
  }
  return good;
}

// ---- a table of instructions that may fault, and where to go on: as in the kernel -----------------------------------

struct repair {
  int32_t insn, next;  // from themselves
};
extern const struct repair __start_repairs[], __stop_repairs[];
int guarded_copy(const long *from, long *to);
__asm__(
    ".pushsection repairs,\"a\"\n .fill 40, 4, 0x100\n.popsection\n"
    ".text\n.globl guarded_copy\n.type guarded_copy, @function\nguarded_copy:\n"
    " mov $-14, %eax\n"
    "1: mov (%rdi), %rcx\n"
    " mov %rcx, (%rsi)\n"
    " xor %eax, %eax\n"
    "2: nop\n nop\n ret\n"
    ".size guarded_copy, . - guarded_copy\n"
    ".pushsection repairs,\"a\"\n .long 1b - ., 2b - .\n.popsection\n");

static void repair(int signal, siginfo_t *info, void *context) {
  (void)signal, (void)info;
  greg_t *const pc = &((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
  for (const struct repair *r = __start_repairs; r < __stop_repairs; ++r) {
    if ((intptr_t)&r->insn + r->insn != *pc) continue;
    *pc = (intptr_t)&r->next + r->next;
    return;
  }
  _exit(9);
}

static int repaired(long rounds) {
  const struct sigaction action = {.sa_sigaction = repair, .sa_flags = SA_SIGINFO};
  sigaction(SIGSEGV, &action, NULL);
  int good = 1;
  long from = 7, to = 0;
  for (long i = 0; i < rounds; ++i) {
    good &= guarded_copy(&from, &to) == 0 && to == 7;
    good &= guarded_copy((long *)8, &to) == -14;
  }
  return good;
}

// ---- code that is copied to other memory at the same place ----------------------------------------------------------

extern char own_page[];
long on_own_page(long x);
__asm__(
    ".pushsection .text.own_page, \"ax\", @progbits\n.p2align 12\n.globl own_page\nown_page:\n"
    ".globl on_own_page\n.type on_own_page, @function\non_own_page:\n"
    " nop\n nop\n nop\n nop\n nop\n lea 1(%rdi), %rax\n ret\n.size on_own_page, . - on_own_page\n"
    ".p2align 12\n.popsection\n");

static int copied(long rounds) {
  static char copy[4096];
  char *volatile page = own_page;  // what code reads by name is taken for data
  const int protection = PROT_READ | PROT_WRITE | PROT_EXEC;
  if (!copy[0]) {
    memcpy(copy, page, sizeof copy);
    mmap(page, sizeof copy, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    memcpy(page, copy, sizeof copy);
  }
  int good = 1;
  for (long i = 0; i < rounds; ++i) good &= on_own_page(i) == i + 1;
  return good;
}

// ---- a function that is called behind its landing pad ---------------------------------------------------------------

long padded(long a);
__asm__(
    ".text; .balign 16; .globl padded; .type padded,@function\n"
    "padded: .cfi_startproc; endbr64; lea 1(%rdi),%rax; add %rdi,%rax; xor $5,%rax; ret\n"
    ".cfi_endproc; .size padded,.-padded");

__attribute__((noinline)) static int landed(long rounds) {
  enum { kPad = 4 };
  long (*volatile entry)(long) = padded;
  int good = 1;
  for (long i = 0; i < rounds; ++i) {
    long (*const behind)(long) = (long (*)(long))((uintptr_t)entry + kPad);
    good &= entry(i) == ((2 * i + 1) ^ 5) && behind(i) == ((2 * i + 1) ^ 5);
  }
  return good;
}

// ---- an instruction that is skipped when it faults ------------------------------------------------------------------

int skippable(const int *from);
extern const char skippable_begin[];
__asm__(
    ".text\n.globl skippable\n.type skippable, @function\n"
    "skippable: skippable_begin: movl (%rdi), %eax\n addl $7, %eax\n movl %eax, %eax\n ret\n"
    ".size skippable, . - skippable\n");

static void skip(int signal, siginfo_t *info, void *context) {
  greg_t *const registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  if (signal != SIGSEGV || info->si_addr != (void *)16 || registers[REG_RIP] != (greg_t)skippable_begin) _exit(9);
  registers[REG_RAX] = -1;
  registers[REG_RIP] += 2;
}

static int skipped(long rounds) {
  const struct sigaction action = {.sa_sigaction = skip, .sa_flags = SA_SIGINFO};
  sigaction(SIGSEGV, &action, NULL);
  int good = 1;
  const int from = 35;
  for (long i = 0; i < rounds; ++i) {
    good &= skippable(&from) == 42;
    good &= skippable((const int *)16) == 6;
  }
  return good;
}

// ---- assembly that enters others ------------------------------------------------------------------------------------

long enter_at(long skipped, long from);
__asm__(
    ".text\n.globl unrolled\n.type unrolled, @function\n.p2align 4\nunrolled:\n"
    ".rept 16\n add $1, %rax\n.endr\n ret\n.size unrolled, . - unrolled\n"
    ".globl enter_at\n.type enter_at, @function\n.p2align 4\nenter_at:\n"
    " mov %rsi, %rax\n lea unrolled(%rip), %rdx\n lea (%rdx,%rdi,4), %rdx\n jmp *%rdx\n"
    ".size enter_at, . - enter_at\n");

static int entered(long rounds) {
  int good = 1;
  for (long i = 0; i < rounds; ++i) good &= enter_at(i % 16, i) == i + 16 - i % 16;
  return good;
}

// Data, the first two bytes of a long instruction, and then the code that `side` points to.
long both(long x);
extern long (*const side)(long);
__asm__(
    ".text\n.globl both\n.type both, @function\n.p2align 4\nboth:\n"
    " add $1, %rdi\n.Lmiddle: add $1, %rdi\n lea (%rdi), %rax\n nop\n nop\n nop\n ret\n.size both, . - both\n"
    " .byte 0x48, 0xb8\n.Lside: jmp .Lmiddle\n .byte 0x90, 0x90, 0x90, 0x90\n"
    ".pushsection .data.rel.ro, \"aw\"\n.globl side\n.p2align 3\nside: .quad .Lside\n.popsection\n");

static int swallowed(long rounds) {
  int good = 1;
  for (long i = 0; i < rounds; ++i) good &= both(i) == i + 2 && side(i) == i + 1;
  return good;
}

// ---- pages that are given back: they come from the file again -------------------------------------------------------

extern char two_pages[];
long across_pages(long x);
__asm__(
    ".pushsection .text.two_pages, \"ax\", @progbits\n.p2align 12\n.globl two_pages\ntwo_pages:\n"
    ".skip 4096 - 2, 0xcc\n.globl across_pages\n.type across_pages, @function\nacross_pages:\n"
    " nop\n nop\n nop\n nop\n nop\n lea 1(%rdi), %rax\n ret\n.size across_pages, . - across_pages\n"
    ".p2align 12\n.popsection\n");

static int dropped(long rounds) {
  int good = 1;
  for (long i = 0; i < rounds; ++i)
    good &= across_pages(i) == i + 1 && madvise(two_pages + 4096 * (i % 2), 4096, MADV_DONTNEED) == 0 &&
            across_pages(i) == i + 1;
  return good;
}

// ---- a restartable sequence -----------------------------------------------------------------------------------------

struct sequence {
  uint32_t version, flags;
  uint64_t start, size, abort;
} __attribute__((aligned(32)));
extern char sequence_start[], sequence_end[], sequence_abort[];
int restartable_add(const struct sequence *sequence, uint64_t *armed, volatile long *count);
// The signature and what it belongs to: rseq(2). The loop makes it likely that a thread is preempted in the middle.
__asm__(
    ".text\n.globl restartable_add, sequence_start, sequence_end, sequence_abort\n"
    ".type restartable_add, @function\nrestartable_add:\n"
    " mov %rdi, (%rsi)\n"
    "sequence_start: mov (%rdx), %rax\n"
    " lea 1(%rax), %rax\n"
    " lea 0(%rcx), %rcx\n"
    " mov $300, %ecx\n"
    "9: dec %ecx\n jnz 9b\n nop\n nop\n"
    " mov %rax, (%rdx)\n"
    "sequence_end: xor %eax, %eax\n ret\n"
    " .byte 0x0f, 0xb9, 0x3d\n .long 0x53053053\n"
    "sequence_abort: mov $1, %eax\n ret\n"
    ".size restartable_add, . - restartable_add\n");

static volatile long counted;

TARGET_FUNCTION void *count(void *rounds) {
  struct rseq *const mine = (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
  struct sequence sequence = {0, 0, (uint64_t)sequence_start, (uint64_t)(sequence_end - sequence_start),
                              (uint64_t)sequence_abort};
  for (long i = 0; i < (long)rounds; ++i)
    while (restartable_add(&sequence, (uint64_t *)&mine->rseq_cs, &counted)) {
    }
  __atomic_store_n((uint64_t *)&mine->rseq_cs, 0, __ATOMIC_RELAXED);  // before its memory is something else
  return NULL;
}

static int restarted(long rounds) {
  if (__rseq_size == 0) return 1;  // not registered: glibc.pthread.rseq, or an old kernel
  cpu_set_t before, one;
  sched_getaffinity(0, sizeof before, &before);
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  sched_setaffinity(0, sizeof one, &one);
  counted = 0;
  pthread_t threads[2];
  for (int i = 0; i < 2; ++i) pthread_create(&threads[i], NULL, count, (void *)rounds);
  for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
  sched_setaffinity(0, sizeof before, &before);
  return counted == 2 * rounds;
}

// ---- commands -------------------------------------------------------------------------------------------------------

int main(void) {
  target_ready("leaps");
  char name[32];
  int good = 1;
  for (long rounds; target_command(name, &rounds);) {
    int ok = 0;
    if (strcmp(name, "differences") == 0) ok = differences(rounds);
    if (strcmp(name, "threaded") == 0) ok = threaded(rounds);
    if (strcmp(name, "repaired") == 0) ok = repaired(rounds);
    if (strcmp(name, "skipped") == 0) ok = skipped(rounds);
    if (strcmp(name, "landed") == 0) ok = landed(rounds);
    if (strcmp(name, "entered") == 0) ok = entered(rounds);
    if (strcmp(name, "swallowed") == 0) ok = swallowed(rounds);
    if (strcmp(name, "dropped") == 0) ok = dropped(rounds);
    if (strcmp(name, "copied") == 0) ok = copied(rounds);
    if (strcmp(name, "restarted") == 0) ok = restarted(rounds);
    printf("%s %s\n", name, ok ? "ok" : "bad");
    fflush(stdout);
    good &= ok;
  }
  return target_result(good);
}
