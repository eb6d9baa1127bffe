// stacks: code that leaves a jump no stack, or sees that there is one. Reads commands, one a line, answers "NAME RESULT":
//   pop ROUNDS     sums up an array with pop, the stack pointer in it, ROUNDS times; the array must stay as it is
//   step ROUNDS    single-steps itself (the trap flag) through stepped() ROUNDS times; the result is the number of steps
//                  that it has seen and of those that were outside of stepped() and the code around it
//   edge ROUNDS    calls at_edge() ROUNDS times with a few bytes of stack left; the result is the number of faults
//   wait ROUNDS    waits for events 20 ms long by int 0x80, which has a table of calls of its own
//   end
// Prints at the end: pops (of each round), edges (calls), result.
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "protocol.h"

enum { kNumbers = 100, kTrapFlag = 0x100 };

// The sum of `count` numbers. Hand-written assembly does so where it lacks registers.
TARGET_FUNCTION long sum_by_pop(const long* numbers, long count);
__asm__(
    ".text\n.globl sum_by_pop\n.type sum_by_pop, @function\n"
    "sum_by_pop: mov %rsp, %r8\n"
    "mov %rdi, %rsp\n"
    "xor %eax, %eax\n"
    "1: pop %rdx\n"
    ".globl sum_by_pop_add\nsum_by_pop_add: add %rdx, %rax\n"
    "nopl (%rax)\n"
    "dec %rsi\n"
    "jnz 1b\n"
    "mov %r8, %rsp\n"
    "ret\n.size sum_by_pop, . - sum_by_pop\n");

// Sets the trap flag, calls stepped() and clears it.
TARGET_FUNCTION long stepped(long n);
TARGET_FUNCTION long step_through(long n);
extern const char steps_end[];
__asm__(
    ".text\n.globl stepped\n.type stepped, @function\n"
    "stepped: lea 1(%rdi), %rax\n"
    "nopl 8(%rax)\n"
    "nopl 8(%rax)\n"
    "imul %rdi, %rax\n"
    "jmp 1f\n"
    "1: mov %rax, scratch(%rip)\n"
    "lea scratch(%rip), %rdi\n"
    "mov $3, %ecx\n"
    ".globl stepped_repeats\nstepped_repeats: rep stosb\n"
    ".globl stepped_calls\nstepped_calls: call 2f\n"
    "nopl 8(%rax)\n"
    "ret\n.size stepped, . - stepped\n"
    ".p2align 4\n"
    "2: ret\n"
    ".p2align 4\n"
    ".globl step_through\n.type step_through, @function\n"
    "step_through: push %rbp\n"
    "pushf\norq $0x100, (%rsp)\npopf\n"
    "call stepped\n"
    "pushf\nandq $~0x100, (%rsp)\npopf\n"
    "pop %rbp\n"
    "ret\n.size step_through, . - step_through\n"
    ".globl steps_end\nsteps_end:\n");

// Needs no stack but its return address's.
TARGET_FUNCTION long at_edge(long n);
// Calls at_edge(n) with `room` as what is left of a stack that ends at `end`.
TARGET_FUNCTION long call_at_edge(long n, void* end, long room);
__asm__(
    ".text\n.globl at_edge\n.type at_edge, @function\n"
    "at_edge: lea 7(%rdi), %rax\n"
    "nopl 8(%rax)\n"
    "nopl 8(%rax)\n"
    "ret\n.size at_edge, . - at_edge\n"
    ".p2align 4\n"
    ".globl call_at_edge\n.type call_at_edge, @function\n"
    "call_at_edge: push %rbp\n"
    "mov %rsp, %rbp\n"
    "lea 8(%rsi,%rdx), %rsp\n"
    "call at_edge\n"
    "mov %rbp, %rsp\n"
    "pop %rbp\n"
    "ret\n.size call_at_edge, . - call_at_edge\n");

long scratch[2];
static volatile long steps, steps_elsewhere, faults;
static long pops, edges;

static void on_trap(int signal, siginfo_t* info, void* context) {
  const ucontext_t* const at = context;
  const uintptr_t pc = (uintptr_t)at->uc_mcontext.gregs[REG_RIP];
  (void)signal;
  ++steps;
  const int inside = pc >= (uintptr_t)stepped && pc < (uintptr_t)steps_end;
  if (!inside || info->si_code != TRAP_TRACE || info->si_addr != (void*)pc || (at->uc_mcontext.gregs[REG_EFL] & kTrapFlag) == 0) ++steps_elsewhere;
}

// Once only: whoever comes here would come here for ever.
static void on_fault(int signal, siginfo_t* info, void* context) {
  (void)info, (void)context;
  ++faults;
  struct sigaction standard = {.sa_handler = SIG_DFL};
  sigaction(signal, &standard, NULL);
}

static int pop(long rounds) {
  long numbers[kNumbers], was[kNumbers], sum = 0;
  for (long i = 0; i < kNumbers; ++i) sum += numbers[i] = was[i] = i * i + 3;
  int ok = 1;
  for (long round = 0; round < rounds; ++round) {
    ok &= sum_by_pop(numbers, kNumbers) == sum && memcmp(numbers, was, sizeof numbers) == 0;
    pops += kNumbers;
  }
  return ok;
}

static int step(long rounds) {
  int ok = 1;
  for (long n = 0; n < rounds; ++n) ok &= step_through(n) == n * (n + 1);
  return ok;
}

static int edge(long rounds) {
  char* const stack = mmap(NULL, 2 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stack == MAP_FAILED || mprotect(stack + 4096, 4096, PROT_READ | PROT_WRITE) != 0) return 0;
  int ok = 1;
  for (long n = 0; n < rounds; ++n, ++edges) ok &= call_at_edge(n, stack + 4096, 64) == n + 7;
  munmap(stack, 2 * 4096);
  return ok;
}

// epoll_create1 and epoll_wait of the 32-bit table (arch/x86/entry/syscalls/syscall_32.tbl).
enum { kCreateEvents = 329, kWaitForEvents = 256, kNoSuchCall = -38 };

static int other_call(long number, long a, long b, long c, long d) {
  long result;
  __asm__ volatile("int $0x80"
                   : "=a"(result)
                   : "a"(number), "b"(a), "c"(b), "d"(c), "S"(d)
                   : "memory", "r8", "r9", "r10", "r11");
  return (int)result;
}

static int wait_for_nothing(long rounds) {
  static void* events;
  if (!events)
    events = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
  const int made = other_call(kCreateEvents, 0, 0, 0, 0);
  int good = 1;
  for (long i = 0; i < rounds && made >= 0; ++i)
    good &= other_call(kWaitForEvents, made, (long)(intptr_t)events, 4, 20) == 0;
  if (made >= 0) close(made);
  return good && (made >= 0 || made == kNoSuchCall);  // kernels without CONFIG_IA32_EMULATION have no such calls
}

int main(void) {
  static char handlers_stack[65536];
  const stack_t alternate = {.ss_sp = handlers_stack, .ss_size = sizeof handlers_stack};
  sigaltstack(&alternate, NULL);
  struct sigaction trap = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  struct sigaction fault = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  sigaction(SIGTRAP, &trap, NULL);
  sigaction(SIGSEGV, &fault, NULL);
  target_ready("stacks");
  char name[32];
  int good = 1;
  for (long rounds; target_command(name, &rounds);) {
    int ok = 0;
    steps = steps_elsewhere = 0;
    if (strcmp(name, "pop") == 0) ok = pop(rounds);
    if (strcmp(name, "step") == 0) ok = step(rounds);
    if (strcmp(name, "edge") == 0) ok = edge(rounds);
    if (strcmp(name, "wait") == 0) ok = wait_for_nothing(rounds);
    printf("%s %s, %ld steps, %ld elsewhere, %ld faults\n", name, ok ? "ok" : "bad", steps, steps_elsewhere, faults);
    fflush(stdout);
    good &= ok;
  }
  printf("pops %ld\nedges %ld\n", pops, edges);
  return target_result(good);
}
