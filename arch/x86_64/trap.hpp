// The breakpoint instruction and what its trap says about the pc. Any thread; pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "arch/x86_64/regs.hpp"

namespace probed::arch::x86_64 {

// int3, the one-byte form: it never reaches into the next instruction.
inline constexpr std::array<std::uint8_t, 1> kBreakpoint{0xcc};
inline constexpr std::size_t kBreakpointSize = kBreakpoint.size();
// Does nothing, and is as long.
inline constexpr std::array<std::uint8_t, kBreakpointSize> kNop{0x90};

// Where the breakpoint stands, from the pc of its SIGTRAP: #BP is a trap, its saved pc is behind the instruction.
constexpr std::uint64_t breakpoint_address(std::uint64_t pc_after_trap) { return pc_after_trap - kBreakpointSize; }

// The trap's pc is behind the breakpoint: where it stands tells that it was executed.
inline constexpr bool kTrapMovesPc = true;

// Whether the program itself has this thread trap after each instruction: the trap flag. (The kernel hides the one that
// it sets for a tracer's step: arch/x86/kernel/ptrace.c, get_flags.)
inline bool steps_itself(const Registers& regs) { return (regs.eflags & 0x100) != 0; }

// Whether an instruction that traps into a debugger starts here: cc, cd 03, f1, with any prefixes in front. Bytes that
// end inside prefixes are no breakpoint.
bool is_breakpoint(std::span<const std::uint8_t> bytes);

}  // namespace probed::arch::x86_64
