// One instruction word and its fields. Internal to arch/aarch64. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace probed::arch::aarch64 {

inline constexpr std::size_t kInsnSize = 4;
// x30; and the number that means xzr or sp, depending on the operand (Arm ARM, C1.2.5).
inline constexpr unsigned kLinkRegister = 30, kZeroRegister = 31;

// Instructions are little-endian whatever the data endianness (Arm ARM, B2.6). bytes: at least kInsnSize.
inline std::uint32_t load_word(std::span<const std::uint8_t> bytes) {
  std::uint32_t word = 0;
  for (std::size_t i = 0; i < kInsnSize; ++i) word |= std::uint32_t{bytes[i]} << (8 * i);
  return word;
}

constexpr std::array<std::uint8_t, kInsnSize> word_bytes(std::uint32_t word) {
  return {static_cast<std::uint8_t>(word), static_cast<std::uint8_t>(word >> 8), static_cast<std::uint8_t>(word >> 16),
          static_cast<std::uint8_t>(word >> 24)};
}

// `count` bits from bit `from` on.
constexpr std::uint32_t field(std::uint32_t word, unsigned from, unsigned count) {
  return word >> from & ((1u << count) - 1);
}

// The same, its highest bit being the sign.
constexpr std::int64_t signed_field(std::uint32_t word, unsigned from, unsigned count) {
  return static_cast<std::int32_t>(word << (32 - from - count)) >> (32 - count);
}

// A field that counts instructions, as a distance in bytes.
constexpr std::uint64_t distance_field(std::uint32_t word, unsigned from, unsigned count) {
  return static_cast<std::uint64_t>(signed_field(word, from, count) * std::int64_t{kInsnSize});
}

constexpr bool is_brk(std::uint32_t word) { return (word & 0xffe0001fu) == 0xd4200000u; }

}  // namespace probed::arch::aarch64
