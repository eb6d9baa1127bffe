// The breakpoint instruction and what its trap says about the pc. Any thread; pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "arch/aarch64/regs.hpp"

namespace probed::arch::aarch64 {

// brk #0, 0xd4200000 little-endian.
inline constexpr std::array<std::uint8_t, 4> kBreakpoint{0x00, 0x00, 0x20, 0xd4};
inline constexpr std::size_t kBreakpointSize = kBreakpoint.size();
// Does nothing, and is as long.
inline constexpr std::array<std::uint8_t, kBreakpointSize> kNop{0x1f, 0x20, 0x03, 0xd5};

// Where the breakpoint stands, from the pc of its SIGTRAP: a brk exception's return address is the brk itself.
constexpr std::uint64_t breakpoint_address(std::uint64_t pc_after_trap) { return pc_after_trap; }

// The trap's pc is the breakpoint's: executed or about to be, the thread stands in the same place.
inline constexpr bool kTrapMovesPc = false;

// Whether the program itself has this thread trap after each instruction: it can't, the flag is in the debug registers.
inline bool steps_itself(const Registers&) { return false; }

// Whether a brk, with any immediate, starts here. Fewer than 4 bytes are no instruction.
bool is_breakpoint(std::span<const std::uint8_t> bytes);

}  // namespace probed::arch::aarch64
