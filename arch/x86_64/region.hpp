// Regions, x86-64: which bytes the jump to a detour may replace. Pure; any thread.
#pragma once

#include "arch/region.hpp"

namespace probed::arch::x86_64 {

// Walks through all of a file's code once. Takes some 10 ns for each instruction.
CodeFlow analyse_code(const CodeSource& source);

// Decides for one site; microseconds. Refusals: all but `unsupported`.
//
// An endbr64 at the site moves into the detour like any other instruction: Linux doesn't switch on indirect branch
// tracking for user space (arch/x86/kernel/cet.c, 6.18: a shadow stack is all that arch_prctl enables), and a
// breakpoint in its place, which always comes first, would not be taken for one either.
RegionResult plan_region(const CodeFlow& flow, const RegionRequest& request);

// The form `punned`, for a site that plan_region() refuses. What leads into the function behind the instruction is of
// no concern, as no byte of another one is written. Refusals: no_function, no_instruction, what instructions are
// refused for, neighbour, function_end, page_end; branch_target: something leads into the middle of the instruction;
// no_island: the instruction is long enough for a jump of its own.
RegionResult plan_pun(const CodeFlow& flow, const RegionRequest& request);
// bytes: the site's 5 bytes as they are, the first `length` (1 to 4) of them its instruction. The range may leave the
// address space; jumping to any of it, detour_jump(site, address) ends with the bytes that follow the instruction.
PunRange pun_range(std::uint64_t site, std::span<const std::uint8_t> bytes, std::size_t length);

// The short jump of the form `island`.
std::array<std::uint8_t, kShortJumpSize> short_jump(std::uint64_t site, std::uint64_t island);

}  // namespace probed::arch::x86_64
