// One instruction word. Internal to arch/aarch64. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace probed::arch::aarch64 {

inline constexpr std::size_t kInsnSize = 4;

// Instructions are little-endian whatever the data endianness (Arm ARM, B2.6). bytes: at least kInsnSize.
inline std::uint32_t load_word(std::span<const std::uint8_t> bytes) {
  std::uint32_t word = 0;
  for (std::size_t i = 0; i < kInsnSize; ++i) word |= std::uint32_t{bytes[i]} << (8 * i);
  return word;
}

inline constexpr bool is_brk(std::uint32_t word) {
  return (word & 0xffe0001fu) == 0xd4200000u;
}

}  // namespace probed::arch::aarch64
