// What the targets need of their processor; the same names in each architecture's folder. `ret` is the same everywhere.
#pragma once

#include <signal.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>

// ---- code ----

// One more in a 64-bit variable, atomically; in one that is pointed to.
#define ADD_ONE "1: ldxr x10, [x9]\nadd x10, x10, 1\nstxr w11, x10, [x9]\ncbnz w11, 1b\n"
#define COUNT(variable) "adrp x9, " variable "\nadd x9, x9, :lo12:" variable "\n" ADD_ONE
#define COUNT_IN(pointer) "adrp x9, " pointer "\nldr x9, [x9, :lo12:" pointer "]\n" ADD_ONE
// Around something that changes no register that a callee keeps, beginning with one byte where there are such.
#define IN_FRAME(code) "stp x29, x30, [sp, -16]!\n" code "ldp x29, x30, [sp], 16\n"
#define JUMP(target) "b " target "\n"
// The result of a function is the word that its argument points to.
#define LOAD "ldr x0, [x0]\n"
// call(number, a, b, c): makes a system call, whose instruction is called `at`, and the place behind it `behind`.
#define CALL(at, behind) "mov x8, x0\nmov x0, x1\nmov x1, x2\nmov x2, x3\n" at ": svc 0\n" behind ": ret\n"
#define READ_CLOCK()                                      \
  do {                                                    \
    long now;                                             \
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(now)::); \
  } while (0)

// nanosleep without a C library, and what is in the register of the call's number behind it: calls don't change that.
static inline long sleep_inline(const struct timespec* time, long* number) {
  register long x0 __asm__("x0") = (long)time;
  register long x1 __asm__("x1") = 0;
  register long x8 __asm__("x8") = SYS_nanosleep;
  __asm__ volatile("svc 0" : "+r"(x0), "+r"(x8) : "r"(x1) : "memory");
  *number = x8;
  return x0;
}

// A program's own breakpoint: where its trap says that it stands, counted from the instruction, and why it came.
#define OWN_BREAKPOINT "brk 1"
enum { kTrapPlace = 0, kTrapCode = TRAP_BRKPT, kBreakpointSize = 4 };

// Functions as bytes. plus_two: add w0, w0, 2; ret. first: 3 * x + 1: mov w1, 1; add w0, w0, w0, lsl 1; add w0, w0, w1;
// ret; second: 5 * x + 1, likewise. other: a breakpoint, and 7 * x behind it: lsl w1, w0, 3; sub w0, w1, w0; ret.
#define CODE_OF_PLUS_TWO {0x00, 0x08, 0x00, 0x11, 0xc0, 0x03, 0x5f, 0xd6}
#define CODE_OF_FIRST \
  {0x21, 0x00, 0x80, 0x52, 0x00, 0x04, 0x00, 0x0b, 0x00, 0x00, 0x01, 0x0b, 0xc0, 0x03, 0x5f, 0xd6}
#define CODE_OF_SECOND \
  {0x21, 0x00, 0x80, 0x52, 0x00, 0x08, 0x00, 0x0b, 0x00, 0x00, 0x01, 0x0b, 0xc0, 0x03, 0x5f, 0xd6}
#define CODE_OF_OTHER \
  {0x20, 0x00, 0x20, 0xd4, 0x01, 0x70, 0x1d, 0x53, 0x20, 0x00, 0x00, 0x4b, 0xc0, 0x03, 0x5f, 0xd6}
#define ASSEMBLY_OF_FIRST "mov w1, 1; add w0, w0, w0, lsl 1; add w0, w0, w1; ret;"
#define ASSEMBLY_OF_SECOND "mov w1, 1; add w0, w0, w0, lsl 2; add w0, w0, w1; ret;"
// What linkers fill gaps between functions with.
#define FILLING "0"
enum { kFilling = 0 };
// After code was written.
static inline void made_code(void* at, size_t size) { __builtin___clear_cache((char*)at, (char*)at + size); }
// Makes first compute 3 * x + k, by another first instruction.
static inline void set_addend(unsigned char* first, int k) {
  *(volatile unsigned int*)first = 0x52800001 | (unsigned)k << 5;
  made_code(first, 4);
}

// ---- contexts ----

static inline long* program_counter(void* context) { return (long*)&((ucontext_t*)context)->uc_mcontext.pc; }
static inline long* call_result(void* context) { return (long*)&((ucontext_t*)context)->uc_mcontext.regs[0]; }
// In its handler: goes on behind it.
static inline void pass_breakpoint(void* context) { *program_counter(context) += 4; }

// ---- static probes ----

// Operands that no compiler would write, and what is in the registers for them.
#define OPERANDS_BY_HAND "-4@[x0] -4@[x0, #-4] -4@[x1, 0xc] 1@w2 1@x3 8f@z0 2@w4 4@-1 -4@[x1, 12]"
// Of a double and a float in registers, and a double in memory.
#define FLOATS_BY_HAND "8f@%d0 4f@%s1 8f@%2 -8f@%d0"
#define IN_FLOAT_REGISTER "w"
#define PLACE_BY_HAND(note, array, index, global)              \
  do {                                                         \
    register const int* element __asm__("x0") = array + index; \
    register const int* numbers_ __asm__("x1") = global;       \
    register long low __asm__("x2") = 0xab12;                  \
    register long high __asm__("x3") = 0x1234;                 \
    register long word __asm__("x4") = 0xabcd1234;             \
    __asm__ volatile(note : : "r"(element), "r"(numbers_), "r"(low), "r"(high), "r"(word)); \
  } while (0)
