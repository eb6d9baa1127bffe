// What surrounds an instruction and forbids a probe on it: nothing here. Any thread; pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "arch/common.hpp"

namespace probed::arch::x86_64 {

// How much is looked at in front of an instruction and behind it, bytes.
inline constexpr std::size_t kContextReach = 0;

constexpr Refusal refusal_in_context(std::span<const std::uint8_t>, std::size_t) { return Refusal::none; }

}  // namespace probed::arch::x86_64
