// Regions, aarch64: which instructions the jump to a detour may replace. Pure; any thread.
//
// The jump is a `b`, as long as every instruction: its region is one instruction, nothing can lead into its middle, and
// where a breakpoint may be a jump may be, as far as the code around it is concerned. Two things remain to be decided:
// whether the instruction may run elsewhere, in a detour that uses the stack, and what arrives at the site.
//
// In a guarded page indirect branches have to arrive at a landing pad (bti, paciasp, pacibsp; a brk is let pass: Arm
// ARM, PSTATE.BTYPE): the processor takes a `b` for none. So a bti stays where it is, and the jump takes the place of
// the instruction behind it, unless something leads there. A pad that signs the return address is refused: executed
// where it is, it would have signed it before arguments are read. What else arrives at a site does so by direct
// branches and from the instruction in front of it. Pages may be guarded that come from files which say so
// (GNU_PROPERTY_AARCH64_FEATURE_1_BTI), or in which a function begins with a bti: a program may guard its pages itself
// (mprotect, PROT_BTI).
#pragma once

#include "arch/region.hpp"

namespace probed::arch::aarch64 {

// Walks through all of a file's code once. Takes some 10 ns for each instruction.
CodeFlow analyse_code(const CodeSource& source);

// Decides for one site; microseconds. Refusals: no_function, no_instruction, indirect_jumps and branch_target (behind a
// landing pad), landing_pad, function_end, neighbour, system_call, stack_pointer, instruction.
RegionResult plan_region(const CodeFlow& flow, const RegionRequest& request);

// Refusals: no_island: every instruction is long enough for a jump of its own.
RegionResult plan_pun(const CodeFlow& flow, const RegionRequest& request);
// Neither is ever asked for: there are no forms but `near`.
PunRange pun_range(std::uint64_t site, std::span<const std::uint8_t> bytes, std::size_t length);
std::array<std::uint8_t, kShortJumpSize> short_jump(std::uint64_t site, std::uint64_t island);

}  // namespace probed::arch::aarch64
