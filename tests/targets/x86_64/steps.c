// steps: steps itself by the trap flag over one instruction of each kind. Reads names of kinds, one a line, and answers
// "NAME OFFSET...": where it has trapped, counted from the place step_NAME, each with a letter where the flag or the
// place that the signal tells was another. Or "NAME none". "kinds": answers with all names. "end" ends it. Prints result.
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

#include "protocol.h"

// Between the flag's being set and cleared: `before`, the instruction, `behind`. rbx, r12 and r13 are free, too.
#define KINDS(KIND) \
  KIND(nop, "", "nop", "") \
  KIND(long_nop, "", "nopl 8(%rax)", "") \
  KIND(endbr, "", "endbr64", "") \
  KIND(lea, "", "lea 8(%rdi), %rax", "") \
  KIND(load, "", "mov scratch(%rip), %rax", "") \
  KIND(jump, "", "jmp 5f\nnop", "5: ") \
  KIND(jump_taken, "xor %eax, %eax\n", "jz 5f\nnop", "5: ") \
  KIND(jump_not_taken, "xor %eax, %eax\n", "jnz 5f\nnop", "5: ") \
  KIND(loop_taken, "mov $2, %ecx\n", "loop 5f\nnop", "5: ") \
  KIND(loop_not_taken, "mov $1, %ecx\n", "loop 5f\nnop", "5: ") \
  KIND(jrcxz_taken, "xor %ecx, %ecx\n", "jrcxz 5f\nnop", "5: ") \
  KIND(jump_through, "lea 5f(%rip), %rax\n", "jmp *%rax\nnop", "5: ") \
  KIND(call, "", "call 6f", "") \
  KIND(call_through, "lea 6f(%rip), %rax\n", "call *%rax", "") \
  KIND(ret, "lea 5f(%rip), %rax\npush %rax\n", "ret\nnop", "5: ") \
  KIND(push, "", "push %rax", "pop %rax\n") \
  KIND(pop, "push %rax\n", "pop %rax", "") \
  KIND(pushf, "", "pushf", "pop %rax\n") \
  KIND(popf, "pushf\n", "popf", "") \
  KIND(popf_clears, "pushf\nandq $~0x100, (%rsp)\n", "popf", "pushf\norq $0x100, (%rsp)\npopf\n") \
  KIND(syscall, "mov $39, %eax\n", "syscall", "") \
  KIND(int80, "mov $20, %eax\n", "int $0x80", "") \
  KIND(two_calls, "mov $39, %eax\n", "syscall", "mov $39, %eax\nsyscall\n") \
  KIND(call_next, "mov $39, %eax\nsyscall\n", "nopl 8(%rax)", "") \
  KIND(old_call_next, "mov $20, %eax\nint $0x80\n", "nopl 8(%rax)", "") \
  KIND(call_behind_call, "mov $39, %eax\nsyscall\n", "syscall", "") \
  KIND(old_behind_old, "mov $20, %eax\nint $0x80\n", "int $0x80", "") \
  KIND(repeat, "lea scratch(%rip), %rdi\nmov $3, %ecx\nxor %eax, %eax\n", "rep stosb", "") \
  KIND(repeat_none, "lea scratch(%rip), %rdi\nxor %ecx, %ecx\n", "rep stosb", "") \
  KIND(string, "lea scratch(%rip), %rdi\nxor %eax, %eax\n", "stosb", "") \
  KIND(load_ss, "mov %ss, %eax\n", "mov %eax, %ss", "") \
  KIND(ss_next, "mov %ss, %eax\nmov %eax, %ss\n", "nopl 8(%rax)", "") \
  KIND(ss_then_call, "mov %ss, %r12d\nmov $39, %eax\nmov %r12d, %ss\n", "syscall", "") \
  KIND(load_ds, "mov %ds, %eax\n", "mov %eax, %ds", "") \
  KIND(cpuid, "xor %eax, %eax\n", "cpuid", "") \
  KIND(rdtsc, "", "rdtsc", "") \
  KIND(pause, "", "pause", "") \
  KIND(locked, "", "lock incq scratch(%rip)", "") \
  KIND(enter, "", "enter $16, $0", "leave\n") \
  KIND(leave, "enter $16, $0\n", "leave", "")

#define DEFINE(name, before, insn, behind) \
  TARGET_FUNCTION void step_over_##name(void); \
  extern const char step_##name[]; \
  __asm__(".text\n.p2align 4\n.globl step_over_" #name "\n.type step_over_" #name ", @function\n" \
          "step_over_" #name ": push %rbp\npush %rbx\npush %r12\npush %r13\npush %r13\n" \
          "pushf\norq $0x100, (%rsp)\npopf\n" before ".globl step_" #name "\nstep_" #name ": " insn "\n" behind \
          "nop\nnopl 8(%rax)\nnop\n" \
          "pushf\nandq $~0x100, (%rsp)\npopf\n" \
          "pop %r13\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n" \
          ".p2align 4\n6: nop\nret\n" \
          ".size step_over_" #name ", . - step_over_" #name "\n");
KINDS(DEFINE)

long scratch[2];

static const struct Kind {
  const char* name;
  void (*run)(void);
  const char* place;
} kKinds[] = {
#define ROW(name, before, insn, behind) {#name, step_over_##name, step_##name},
    KINDS(ROW)};

enum { kMost = 64, kTrapFlag = 0x100 };
static volatile int count;
static struct {
  uintptr_t pc;
  char how;
} traps[kMost];

static void on_trap(int signal, siginfo_t* info, void* context) {
  const ucontext_t* const at = context;
  const uintptr_t pc = (uintptr_t)at->uc_mcontext.gregs[REG_RIP];
  (void)signal;
  if (count == kMost) return;
  traps[count].pc = pc;
  traps[count].how = info->si_code != TRAP_TRACE                               ? 'c'
                     : info->si_addr != (void*)pc                              ? 'a'
                     : (at->uc_mcontext.gregs[REG_EFL] & kTrapFlag) == 0 ? 'f'
                                                                               : ' ';
  ++count;
}

int main(void) {
  struct sigaction trap = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
  sigaction(SIGTRAP, &trap, NULL);
  target_ready("steps");
  for (char line[64];;) {
    target_line(line, sizeof line);
    if (strcmp(line, "end") == 0) break;
    const struct Kind* kind = NULL;
    if (strcmp(line, "kinds") == 0) {
      for (size_t i = 0; i < sizeof kKinds / sizeof kKinds[0]; ++i) printf("%s ", kKinds[i].name);
      printf("\n");
      fflush(stdout);
    }
    for (size_t i = 0; i < sizeof kKinds / sizeof kKinds[0]; ++i)
      if (strcmp(kKinds[i].name, line) == 0) kind = &kKinds[i];
    if (!kind) continue;
    count = 0;
    kind->run();
    printf("%s", kind->name);
    for (int i = 0; i < count; ++i) printf(" %ld%c", (long)(traps[i].pc - (uintptr_t)kind->place), traps[i].how);
    printf("%s\n", count == 0 ? " none" : "");
    fflush(stdout);
  }
  return target_result(1);
}
