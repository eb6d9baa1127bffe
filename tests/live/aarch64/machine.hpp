// What the tests need to know of the processor; the same names in each architecture's folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

// Registers as definitions write them: of the first arguments, of a result, the program counter.
#define ARG1 "%x0"
#define ARG2 "%x1"
#define ARG3 "%x2"
#define ARG4 "%x3"
#define RESULT "%x0"
#define GO_ARG1 "%x0"  // Go's own convention
#define GO_ARG2 "%x1"
#define GO_RESULT "%x0"
#define RETURN_ADDRESS "%lr"  // at a function's first instruction
#define PC "%pc"

// All of them, without the %; those that never change, with what they hold.
#define REGISTERS                                                                                                     \
  {                                                                                                                   \
    "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16",      \
        "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x29", "x30", "lr", "sp", \
        "pc", "pstate"                                                                                                \
  }
#define CONSTANT_REGISTERS \
  {}
// What there is to see at the entry of v_ten() (tests/targets/values.c), in registers and on the stack; its arguments
// that are there.
#define ENTRY_VALUES                                                                                                 \
  "%x0", "%x7", "%x5:s32", "$stack0:s64", "$stack1:s64", "$stack2:s32", "$stack1:s8", "$stack", "%sp", "%pc", "%lr", \
      "%x30", "%x18", "%x19", "%x20", "%x21", "%x22", "%x23", "%x24", "%x25", "%x26", "%x27", "%x28", "%x29"
#define STACK_ARGUMENTS "i=$stack0:s64 j=+8(%sp):s64"

// Where instructions of work() (tests/targets/work.c) begin behind its first one, hexadecimal.
#define SECOND "4"
#define THIRD "8"
#define INSIDE "14"
// From a breakpoint of the program's own to the instruction behind it.
#define BEHIND_BREAKPOINT "+4"

// The flags, hexadecimal, of an action with SA_SIGINFO that the C library has set, and that bears our mark;
// no SA_RESTORER here.
#define MARKED_FLAGS "6"

// Shapes (tests/targets/<cpu>/shapes.S): two ordinary ones; one that is moved as it is, so many bytes; some for a
// storm; some with the offsets of their instructions, and of their end.
#define ORDINARY_SHAPE "shape_stp"
#define OTHER_SHAPE "shape_bl"
#define MOVED_SHAPE "shape_mrs"
#define STORM_SHAPES "shape_svc", "shape_blr_link", "shape_stp", "shape_ldr_literal", "shape_blr", "shape_loop"
#define SHAPE_LAYOUTS                                                                              \
  {                                                                                                \
    {"shape_adr", {0, 4, 8}, 12}, {"shape_nop", {0, 4, 8}, 12}, { "shape_mrs", {0, 4, 8, 12}, 16 } \
  }

namespace probed::live {

// At least so many functions belong to the shapes, and so many instructions.
inline constexpr std::size_t kShapeFunctions = 40, kShapeInsns = 80;
inline constexpr std::size_t kBreakpointSize = 4, kMovedSize = 4;

// Whether every shape has a copy that can be stepped; else some are emulated only.
inline constexpr bool kStepsAllShapes = false;
// Whether probes become jumps.
inline constexpr bool kHasJumps = true;
// Whether a jump can read where a thread's own variables are.
inline bool jumps_read_thread_pointers() { return true; }
inline constexpr bool kHasVsyscall = false;
// Whether the daemon decodes instructions with Zydis, which knows x86 only.
inline constexpr bool kHasZydis = false;
// Whether a breakpoint is as long as any instruction, so that who rewrites one takes the breakpoint away.
inline constexpr bool kBreakpointCoversInsn = true;

// Whether one instruction, the first of a function of ASSEMBLY()'s that COUNT()s, does that.
inline constexpr bool kCountsAtOnce = false;

// brk #0, or the b that takes its place.
inline bool begins_with_probe(std::span<const std::uint8_t> code) {
  if (code.size() < 4) return false;
  const bool breakpoint = code[0] == 0 && code[1] == 0 && code[2] == 0x20 && code[3] == 0xd4;
  return breakpoint || (code[3] & 0xfc) == 0x14;
}

}  // namespace probed::live
