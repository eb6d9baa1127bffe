// What surrounds an instruction and forbids a probe on it. Any thread; pure. Decided once when a probe is planned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "arch/common.hpp"

namespace probed::arch::aarch64 {

// How much is looked at in front of an instruction and behind it, bytes.
inline constexpr std::size_t kContextReach = 1024;

// code: the instruction at offset `at`, and as much around it as there is of its function within kContextReach.
// Refusals:
//   exclusive    between an exclusive load and its store: the trap's exception would clear the monitor, so that the
//                store fails and the program tries again, for ever (Arm ARM, B2.9.5)
//   sequence     the instruction in front of it prepares it (movprfx, pacm)
//   undecodable  a load of the same function reads it: it is data
Refusal refusal_in_context(std::span<const std::uint8_t> code, std::size_t at);

}  // namespace probed::arch::aarch64
