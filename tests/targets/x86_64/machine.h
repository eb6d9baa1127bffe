// What the targets need of their processor; the same names in each architecture's folder. `ret` is the same everywhere.
#pragma once

#include <signal.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>

// ---- code ----

// One more in a 64-bit variable, atomically, by an instruction that is a function's first; in one that is pointed to.
#define COUNT(variable) "lock incq " variable "(%rip)\n"
#define COUNT_IN(pointer) "mov " pointer "(%rip), %rax\nlock incq (%rax)\n"
// Around something that changes no register that a callee keeps, beginning with one byte where there are such.
#define IN_FRAME(code) "push %rbp\n" code "pop %rbp\n"
#define JUMP(target) ".byte 0xe9\n.long " target " - . - 4\n"
// The result of a function is the word that its argument points to.
#define LOAD "mov (%rdi), %rax\n"
// call(number, a, b, c): makes a system call, whose instruction is called `at`, and the place behind it `behind`.
#define CALL(at, behind) \
  "mov %rdi, %rax\nmov %rsi, %rdi\nmov %rdx, %rsi\nmov %rcx, %rdx\n" at ": syscall\n" behind ": ret\n"
#define READ_CLOCK() __asm__ volatile("rdtsc" ::: "eax", "edx")

// nanosleep without a C library, and what is in the register of the call's number behind it: the result, here.
static inline long sleep_inline(const struct timespec* time, long* number) {
  long result = *number = SYS_nanosleep;
  __asm__ volatile("syscall" : "+a"(result) : "D"(time), "S"(0L) : "rcx", "r11", "memory");
  return result;
}

// A program's own breakpoint: where its trap says that it stands, counted from the instruction, and why it came.
#define OWN_BREAKPOINT "int3"
enum { kTrapPlace = 1, kTrapCode = SI_KERNEL, kBreakpointSize = 1 };
// In its handler: goes on behind it.
static inline void pass_breakpoint(void* context) { (void)context; }

// Functions as bytes. plus_two: lea eax,[rdi+2]; ret. first: 3 * x + 1; second: 5 * x + 1: lea eax,[rdi+rdi*N+1]; ret.
// other: a breakpoint, and 7 * x behind it, none of whose bytes is in the same place of first: nop; imul eax,edi,7; ret.
#define CODE_OF_PLUS_TWO {0x8d, 0x47, 0x02, 0xc3}
#define CODE_OF_FIRST {0x8d, 0x44, 0x7f, 0x01, 0xc3}
#define CODE_OF_SECOND {0x8d, 0x44, 0xbf, 0x01, 0xc3}
#define CODE_OF_OTHER {0xcc, 0x90, 0x6b, 0xc7, 0x07, 0xc3}
#define ASSEMBLY_OF_FIRST "lea 1(%rdi,%rdi,2),%eax; ret;"
#define ASSEMBLY_OF_SECOND "lea 1(%rdi,%rdi,4),%eax; ret;"
// What linkers fill gaps between functions with.
#define FILLING "0xcc"
enum { kFilling = 0xcc };
// Makes first compute 3 * x + k; leaves its first byte alone.
static inline void set_addend(unsigned char* first, int k) { ((volatile unsigned char*)first)[3] = (unsigned char)k; }
// After code was written.
static inline void made_code(void* at, size_t size) { (void)at, (void)size; }

// ---- contexts ----

static inline long* program_counter(void* context) {
  return (long*)&((ucontext_t*)context)->uc_mcontext.gregs[REG_RIP];
}
static inline long* call_result(void* context) { return (long*)&((ucontext_t*)context)->uc_mcontext.gregs[REG_RAX]; }

// ---- static probes ----

// Operands that no compiler would write, and what is in the registers for them.
#define OPERANDS_BY_HAND                                                                                     \
  "-4@(%%rdi,%%rsi,4) -4@-4(%%rdi,%%rsi,4) -4@usdt_global+12(%%rip) 1@%%ah 1@%%al 8f@%%st(1) 2@%%cx 4@$-1 " \
  "-4@12+usdt_global(%%rip)"
// Of a double and a float in registers, and a double in memory.
#define FLOATS_BY_HAND "8f@%0 4f@%1 8f@%2 -8f@%0"
#define IN_FLOAT_REGISTER "x"
#define PLACE_BY_HAND(note, array, index, global) \
  __asm__ volatile(note : : "D"(array), "S"(index), "a"(0x1234), "c"(0xabcd1234))
