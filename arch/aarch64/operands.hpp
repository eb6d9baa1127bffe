// What instructions that depend on the pc refer to; shared by the emulator and the relocator. Internal to arch/aarch64.
// Pure.
#pragma once

#include <cstdint>

#include "arch/aarch64/word.hpp"

namespace probed::arch::aarch64 {

// adr: a distance in bytes, its two lowest bits apart from the rest.
constexpr std::uint64_t adr_address(std::uint32_t word, std::uint64_t pc) {
  return pc + static_cast<std::uint64_t>(signed_field(word, 5, 19) * 4 + field(word, 29, 2));
}

// adrp: the same, in pages of 4 KiB whatever the kernel's are.
constexpr std::uint64_t adrp_address(std::uint32_t word, std::uint64_t pc) {
  constexpr std::uint64_t kPage = 4096;
  return (pc & ~(kPage - 1)) + kPage * adr_address(word, 0);
}

// ldr, ldrsw, prfm (literal).
constexpr std::uint64_t literal_address(std::uint32_t word, std::uint64_t pc) {
  return pc + distance_field(word, 5, 19);
}

// The register that a branch through a register goes to, in all its forms.
constexpr unsigned branch_register(std::uint32_t word) { return field(word, 5, 5); }

}  // namespace probed::arch::aarch64
