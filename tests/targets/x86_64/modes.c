// modes: a 64-bit program that goes to 32-bit and 16-bit code and back, and whose segments are such as the kernel takes from
// no tracer. Linked below 4 GiB. Reads commands, one a line, answers "NAME RESULT":
//   own ROUNDS      runs into a breakpoint of its own in 32-bit code
//   code ROUNDS     calls answer32(), 32-bit code that a probe may be put on
//   both ROUNDS     calls either(), the same bytes as 64-bit and as 32-bit code
//   calls ROUNDS    makes system calls by int 0x80 in 32-bit code: one, and waits of 20 ms
//   ticks ROUNDS    gets ROUNDS signals of a timer in 32-bit code
//   stay MS         is in 32-bit code for so long, without a call or a signal
//   own16 ROUNDS    runs into a breakpoint of its own in a 16-bit segment of the LDT
//   segments ROUNDS calls with_segments() with a base of gs and of fs in the upper half, and with a selector of privilege 1
//   raise ROUNDS    raises SIGTRAP, gs's base in the upper half; sigtrap() handles it
//   end
// Prints at the end: calls (of each of the functions), result.
#include <asm/ldt.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>

#include "protocol.h"

enum { kStack = 65536, kWaited = 20 };

// Calls `code` as 32-bit code on that stack: it has ebx, and leaves by a far jump to back64.
TARGET_FUNCTION long run32(void* stack, const void* code, long argument);
// The same on a 16-bit segment, by the far pointer that `to` is.
TARGET_FUNCTION long run16(void* stack, uint64_t to);
extern const char own_trap32[], answer32[], either[], call32[], spin32[];
extern volatile uint32_t leave32, ticks32;
__asm__(
    ".text\n.globl run32\n.type run32, @function\n"
    "run32: push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov $0x2b, %eax\nmov %eax, %ds\nmov %eax, %es\n"  // a 64-bit program has none of its own
    "mov %rsp, %r15\nmov %rdi, %rsp\nmov %rdx, %rbx\npushq $0x23\npush %rsi\nlretq\n"
    "back64: xor %ecx, %ecx\nmov %ecx, %ds\nmov %ecx, %es\nmov %r15, %rsp\nmov %eax, %eax\npop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
    ".size run32, . - run32\n"
    ".globl run16\n.type run16, @function\n"
    "run16: push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, %r15\nmov %rdi, %rsp\nmov %rsi, %rax\nshr $32, %rax\npush %rax\nmov %esi, %esi\npush %rsi\nlretq\n"
    ".size run16, . - run16\n"
    ".globl own_trap32\nown_trap32: .code32\nint3\nnop\nljmp $0x33, $back64\n"
    ".p2align 4\n.globl answer32\n.type answer32, @function\n"
    "answer32: nop\nmov $1, %eax\nlea 6(%ebx), %eax\nljmp $0x33, $back64\n.size answer32, . - answer32\n"
    ".p2align 4\n.globl call32\ncall32: mov $2000, %ecx\n1: dec %ecx\njnz 1b\n"
    "mov 0(%ebx), %eax\nmov 8(%ebx), %ecx\nmov 12(%ebx), %edx\nmov 16(%ebx), %esi\nmov 4(%ebx), %ebx\nint $0x80\n"
    "ljmp $0x33, $back64\n"
    ".p2align 4\n.globl spin32\nspin32: mov leave32, %eax\ntest %eax, %eax\njnz 1f\ncmp ticks32, %ebx\nja spin32\n"
    "1: ljmp $0x33, $back64\n"
    ".code64\n"
    // lea 5(%rdi), %rax in 64-bit code, dec %eax and lea 5(%edi), %eax in 32-bit code
    ".p2align 4\n.globl either\n.type either, @function\n"
    "either: nop\nmov %edi, %eax\nlea 5(%rdi), %rax\nnopl (%rax)\nret\n.size either, . - either\n"
    ".globl call_either32\ncall_either32: .code32\nmov %ebx, %edi\ncall either\nljmp $0x33, $back64\n.code64\n"
    ".data\n.globl leave32, ticks32\nleave32: .long 0\nticks32: .long 0\n.text\n");
extern const char call_either32[], back64[];

// Executes with_base's instructions with that base of gs or fs, or that selector in ds; its result is n + 9.
TARGET_FUNCTION long with_gs(long n, uint64_t base);
TARGET_FUNCTION long with_fs(long n, uint64_t base);
TARGET_FUNCTION long with_ds(long n, uint64_t selector);
TARGET_FUNCTION long in_segments(long n);
__asm__(
    ".text\n.globl in_segments\n.type in_segments, @function\n"
    "in_segments: lea 9(%rdi), %rax\nnopl 8(%rax)\nnopl 8(%rax)\nret\n.size in_segments, . - in_segments\n"
    ".globl with_gs\nwith_gs: rdgsbase %rdx\nwrgsbase %rsi\ncall in_segments\nwrgsbase %rdx\nret\n"
    ".globl with_fs\nwith_fs: rdfsbase %rdx\nwrfsbase %rsi\ncall in_segments\nwrfsbase %rdx\nret\n"
    ".globl with_ds\nwith_ds: mov %ds, %edx\nmov %esi, %ds\ncall in_segments\nmov %edx, %ds\nret\n");

static volatile long traps, raised;
static char* low;  // memory below 4 GiB: a stack, and what 32-bit code is given

TARGET_FUNCTION void sigtrap(int signal) {
  (void)signal;
  ++traps;
}
static void on_alarm(int signal) {
  (void)signal;
  ++ticks32;
}

static void* stack(void) { return low + kStack - 64; }

static int own(long rounds) {
  for (long i = 0; i < rounds; ++i) run32(stack(), own_trap32, 0);
  return traps == rounds;
}

static long answers, eithers, segment_calls;

static int code(long rounds) {
  int ok = 1;
  for (long i = 0; i < rounds; ++i, ++answers) ok &= run32(stack(), answer32, i) == i + 6;
  return ok;
}

static int both(long rounds) {
  int ok = 1;
  long (*const native)(long) = (long (*)(long))(uintptr_t)either;
  for (long i = 0; i < rounds; ++i, eithers += 2)
    ok &= native(i) == i + 5 && run32(stack(), call_either32, i) == i + 5;
  return ok;
}

// Of the 32-bit table (arch/x86/entry/syscalls/syscall_32.tbl).
enum { kGetPid = 20, kCreateEvents = 329, kWaitForEvents = 256, kNoSuchCall = -38 };

static int call_by_int80(uint32_t number, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  uint32_t* const call = (uint32_t*)(low + kStack);
  const uint32_t all[] = {number, a, b, c, d};
  memcpy(call, all, sizeof all);
  return (int)run32(stack(), call32, (long)(uintptr_t)call);
}

static int calls(long rounds) {
  int ok = 1;
  const int made = call_by_int80(kCreateEvents, 0, 0, 0, 0);
  if (made == kNoSuchCall) return 1;
  for (long i = 0; i < rounds; ++i) {
    ok &= call_by_int80(kGetPid, 0, 0, 0, 0) == getpid();
    ok &= call_by_int80(kWaitForEvents, (uint32_t)made, (uint32_t)(uintptr_t)(low + kStack + 256), 4, kWaited) == 0;
  }
  close(made);
  return ok && made >= 0;
}

static int get_ticks(long rounds) {
  const struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
  ticks32 = 0;
  setitimer(ITIMER_REAL, &often, NULL);
  run32(stack(), spin32, rounds);
  setitimer(ITIMER_REAL, &never, NULL);
  return ticks32 >= rounds;
}

static int stay(long ms) {
  const struct itimerval once = {{0, 0}, {ms / 1000, ms % 1000 * 1000}};
  ticks32 = 0;
  setitimer(ITIMER_REAL, &once, NULL);
  printf("in\n");
  fflush(stdout);
  run32(stack(), spin32, 1);
  return ticks32 == 1;
}

// int3; far jump with a 32-bit offset to back64.
static int own16(long rounds) {
  uint8_t* const segment = (uint8_t*)low + kStack + 1024;
  const uint8_t code[] = {0x90, 0xcc, 0x90, 0x66, 0xea};
  const uint32_t to = (uint32_t)(uintptr_t)back64;
  const uint16_t selector = 0x33;
  memcpy(segment, code, sizeof code);
  memcpy(segment + sizeof code, &to, sizeof to);
  memcpy(segment + sizeof code + sizeof to, &selector, sizeof selector);
  struct user_desc entry = {.entry_number = 0, .base_addr = (unsigned)(uintptr_t)segment, .limit = 0xfff, .contents = 2};
  if (syscall(SYS_modify_ldt, 1, &entry, sizeof entry) != 0) return 1;  // kernels without CONFIG_MODIFY_LDT_SYSCALL
  for (long i = 0; i < rounds; ++i) run16(stack(), 7ULL << 32);
  return traps == rounds;
}

static int has_base_instructions(void) { return (getauxval(AT_HWCAP2) & 2) != 0; }

static int segments(long rounds) {
  const uint64_t upper = 0xffffffffffff0000;
  int ok = 1;
  for (long i = 0; i < rounds; ++i, segment_calls += 4) {
    ok &= with_ds(i, 1) == i + 9 && with_ds(i, 0x28) == i + 9;
    if (!has_base_instructions()) continue;
    ok &= with_gs(i, upper) == i + 9 && with_fs(i, upper) == i + 9;
  }
  return ok;
}

static int raise_traps(long rounds) {
  uint64_t was = 0;
  if (has_base_instructions()) {
    __asm__ volatile("rdgsbase %0" : "=r"(was));
    __asm__ volatile("wrgsbase %0" ::"r"(0xffffffffffff0000UL));
  }
  for (long i = 0; i < rounds; ++i, ++raised) raise(SIGTRAP);
  if (has_base_instructions()) __asm__ volatile("wrgsbase %0" ::"r"(was));
  return traps == rounds;
}

int main(void) {
  static char handlers_stack[65536];
  const stack_t alternate = {.ss_sp = handlers_stack, .ss_size = sizeof handlers_stack};
  sigaltstack(&alternate, NULL);
  struct sigaction trap = {.sa_handler = sigtrap, .sa_flags = SA_ONSTACK};
  struct sigaction alarm_ = {.sa_handler = on_alarm, .sa_flags = SA_ONSTACK | SA_RESTART};
  sigaction(SIGTRAP, &trap, NULL);
  sigaction(SIGALRM, &alarm_, NULL);
  low = mmap(NULL, 2 * kStack, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
  if (low == MAP_FAILED) return 2;
  target_ready("modes");
  char name[32];
  int good = 1;
  for (long rounds; target_command(name, &rounds);) {
    int ok = 0;
    traps = 0;
    if (strcmp(name, "own") == 0) ok = own(rounds);
    if (strcmp(name, "code") == 0) ok = code(rounds);
    if (strcmp(name, "both") == 0) ok = both(rounds);
    if (strcmp(name, "calls") == 0) ok = calls(rounds);
    if (strcmp(name, "ticks") == 0) ok = get_ticks(rounds);
    if (strcmp(name, "stay") == 0) ok = stay(rounds);
    if (strcmp(name, "own16") == 0) ok = own16(rounds);
    if (strcmp(name, "segments") == 0) ok = segments(rounds);
    if (strcmp(name, "raise") == 0) ok = raise_traps(rounds);
    printf("%s %s\n", name, ok ? "ok" : "bad");
    fflush(stdout);
    good &= ok;
  }
  printf("answers %ld\neithers %ld\nsegments %ld\nraised %ld\n", answers, eithers, segment_calls, raised);
  return target_result(good);
}
