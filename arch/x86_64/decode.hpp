// From bytes to facts: what an x86-64 instruction does to control flow, whether it can carry a probe, and why not.
// Any thread; pure. Decided once when a probe is planned.
#pragma once

#include <cstdint>
#include <span>

#include "arch/common.hpp"

namespace probed::arch::x86_64 {

// bytes: from the instruction on, as many as are readable; at most kMaxInsnLength are looked at. address: where they
// are in the target, for branch targets. length 0 and Refusal::undecodable when they are no instruction or are cut off;
// a refused instruction still has its length, flow and target, for walking through a function.
Insn decode(std::span<const std::uint8_t> bytes, std::uint64_t address);

}  // namespace probed::arch::x86_64
