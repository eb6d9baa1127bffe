// From bytes to facts: what an aarch64 instruction does to control flow, whether it can carry a probe, and why not. Any
// thread; pure. Decided once when a probe is planned.
#pragma once

#include <cstdint>
#include <span>

#include "arch/common.hpp"

namespace probed::arch::aarch64 {

// bytes: from the instruction on, as many as are readable. Undecodable, of length 0, when there are fewer than 4 or
// when address is no multiple of 4. Every other word has its length, so that a walk goes on behind what is no
// instruction.
Insn decode(std::span<const std::uint8_t> bytes, std::uint64_t address);

}  // namespace probed::arch::aarch64
