// From bytes to facts, aarch64. Any thread; pure.
//
// Not done yet: flow and targets of branches are right, but every instruction that is no breakpoint is refused as
// unsupported, because nothing relocates or emulates it.
#pragma once

#include <cstdint>
#include <span>

#include "arch/common.hpp"

namespace probed::arch::aarch64 {

// bytes: from the instruction on, as many as are readable. Undecodable when fewer than 4 or when address is no multiple
// of 4.
Insn decode(std::span<const std::uint8_t> bytes, std::uint64_t address);

}  // namespace probed::arch::aarch64
