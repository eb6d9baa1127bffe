// Regions, aarch64. Not done yet: everything is refused. Pure; any thread.
//
// Seam for the port: the jump is one instruction, so that nothing can lead into its middle; what remains to be decided
// is whether the instruction may be moved, and the branch's reach of 128 MiB.
#pragma once

#include "arch/region.hpp"

namespace probed::arch::aarch64 {

CodeFlow analyse_code(const CodeSource& source);
// Refusals: unsupported, always.
RegionResult plan_region(const CodeFlow& flow, const RegionRequest& request);
RegionResult plan_pun(const CodeFlow& flow, const RegionRequest& request);
PunRange pun_range(std::uint64_t site, std::span<const std::uint8_t> bytes, std::size_t length);
std::array<std::uint8_t, kShortJumpSize> short_jump(std::uint64_t site, std::uint64_t island);

}  // namespace probed::arch::aarch64
