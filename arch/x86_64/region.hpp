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

// The short jump of the forms `island` and `hosted`.
std::array<std::uint8_t, kShortJumpSize> short_jump(std::uint64_t site, std::uint64_t island);

}  // namespace probed::arch::x86_64
