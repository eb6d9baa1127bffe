// What the tests need to know of the processor; the same names in each architecture's folder.
#pragma once

#include <signal.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>

// Registers as definitions write them: of the first arguments, of a result, the program counter.
#define ARG1 "%di"
#define ARG2 "%si"
#define ARG3 "%dx"
#define ARG4 "%cx"
#define RESULT "%ax"
#define GO_ARG1 "%ax"  // Go's own convention
#define GO_ARG2 "%bx"
#define GO_RESULT "%ax"
#define RETURN_ADDRESS "$stack0"  // at a function's first instruction
#define PC "%ip"

// All of them, without the %; those that never change, with what they hold.
#define REGISTERS                                                                                               \
  {                                                                                                             \
    "ax", "bx", "cx", "dx", "si", "di", "bp", "sp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "ip", \
        "flags", "cs", "ss"                                                                                     \
  }
#define CONSTANT_REGISTERS           \
  {                                  \
    {"cs", "0x33"}, { "ss", "0x2b" } \
  }
// What there is to see at the entry of v_ten() (tests/targets/values.c), in registers and on the stack; its arguments
// that are there.
#define ENTRY_VALUES                                                                                              \
  "%di", "%r8", "%r9:s32", "$stack1:s64", "$stack2:s64", "$stack3:s32", "$stack4:s8", "$stack0", "$stack", "%sp", \
      "%ip", "%bp", "%bx", "%r12", "%r13", "%r14", "%r15", "%cs", "%ss", "%orig_ax:s64"
#define STACK_ARGUMENTS "g=$stack1:s64 h=$stack2:s64 i=+24($stack):s64 j=+32(%sp):s64"

// Where instructions of work() (tests/targets/work.c) begin behind its first one, hexadecimal.
#define SECOND "2"
#define THIRD "4"
#define INSIDE "15"
// From a breakpoint of the program's own to the instruction behind it.
#define BEHIND_BREAKPOINT "+1"

// The flags, hexadecimal, of an action with SA_SIGINFO that the C library has set, and that bears our mark;
// glibc adds SA_RESTORER here.
#define MARKED_FLAGS "4000006"

// Shapes (tests/targets/<cpu>/shapes.S): two ordinary ones; one that is moved as it is, so many bytes; some for a
// storm; some with the offsets of their instructions, and of their end.
#define ORDINARY_SHAPE "shape_push"
#define OTHER_SHAPE "shape_call_rel32"
#define MOVED_SHAPE "shape_mov_fs"
#define STORM_SHAPES "shape_syscall", "shape_call_rsp", "shape_push", "shape_rep_movsb", "shape_call_reg", "shape_loop"
#define SHAPE_LAYOUTS                                                                                                 \
  {                                                                                                                   \
    {"shape_push_imm", {0, 2, 3}, 4}, {"shape_cmp_rip_imm32", {0, 10, 13, 16}, 17}, {"shape_mov_fs", {0, 9, 18}, 19}, \
    {                                                                                                                 \
      "shape_sse_rip", {0, 8, 13}, 14                                                                                 \
    }                                                                                                                 \
  }

namespace probed::live {

// At least so many functions belong to the shapes, and so many instructions.
inline constexpr std::size_t kShapeFunctions = 60, kShapeInsns = 120;
inline constexpr std::size_t kBreakpointSize = 1, kMovedSize = 9;

// Whether every shape has a copy that can be stepped; else some are emulated only.
inline constexpr bool kStepsAllShapes = true;
// Whether probes become jumps.
inline constexpr bool kHasJumps = true;
// Whether this kernel has 32-bit code and its calls (ia32_emulation): asked for in a child, by int 0x80.
inline bool executes_32bit_code() {
  static const bool does = [] {
    const pid_t child = ::fork();
    if (child == 0) {
      ::signal(SIGSEGV, SIG_DFL);
      long number = 20;  // getpid
      __asm__ volatile("int $0x80" : "+a"(number) : : "memory", "r8", "r9", "r10", "r11");
      ::_exit(number == ::getpid() ? 0 : 1);
    }
    int status = 1;
    return child > 0 && ::waitpid(child, &status, 0) == child && status == 0;
  }();
  return does;
}
// Whether a jump can read where a thread's own variables are: by rdfsbase, where processor and kernel allow it
// (Documentation/arch/x86/x86_64/fsgs.rst: AT_HWCAP2, bit 1).
inline bool jumps_read_thread_pointers() { return (getauxval(AT_HWCAP2) & 2) != 0; }
inline constexpr bool kHasVsyscall = true;
// Whether the daemon decodes instructions with Zydis, which knows x86 only.
inline constexpr bool kHasZydis = true;
// Whether one instruction, the first of a function of ASSEMBLY()'s that COUNT()s, does that.
inline constexpr bool kCountsAtOnce = true;
// Whether a breakpoint is as long as any instruction, so that who rewrites one takes the breakpoint away.
inline constexpr bool kBreakpointCoversInsn = false;

// A breakpoint, or the jump that takes its place, short or long.
inline bool begins_with_probe(std::span<const std::uint8_t> code) {
  return !code.empty() && (code[0] == 0xcc || code[0] == 0xe9 || code[0] == 0xeb);
}

}  // namespace probed::live
