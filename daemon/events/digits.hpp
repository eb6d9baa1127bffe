// Numbers to text, eight digits at a time in one register: no step waits for the one before, and nothing branches on
// the number of digits.
//
// Pure. Everything here may write up to kLongestDigits bytes behind `at`, whatever the number is, and returns where its
// text ends.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace probed::events {

inline constexpr std::size_t kLongestDigits = 24;  // 18446744073709551615 are 20; whole words are written
inline constexpr std::size_t kLongestNumber = kLongestDigits + 4;  // with quotes and 0x

namespace digits {

static_assert(std::endian::native == std::endian::little, "the first digit is a word's lowest byte");

constexpr std::uint64_t kZeros = 0x3030303030303030;  // "00000000"
constexpr std::uint64_t k8Digits = 100'000'000;

// The 8 decimal digits of a value below k8Digits, as numbers: the first in the lowest byte.
constexpr std::uint64_t decimal(std::uint64_t value) {
  const std::uint64_t fours = value / 10000 | (value % 10000) << 32;  // 2 lanes of 32 bits, each below 10000
  // x * 10486 >> 20 is x / 100 up to 43698, x * 103 >> 10 is x / 10 up to 178.
  const std::uint64_t hundreds = (fours * 10486 >> 20) & 0x0000'007f'0000'007f;
  const std::uint64_t twos = hundreds | (fours - 100 * hundreds) << 16;  // 4 lanes of 16 bits, each below 100
  const std::uint64_t tens = (twos * 103 >> 10) & 0x000f'000f'000f'000f;
  return tens | (twos - 10 * tens) << 8;
}

// The 8 hexadecimal digits as text: the first in the lowest byte.
constexpr std::uint64_t hexadecimal(std::uint32_t value) {
  std::uint64_t nibbles = value;
  nibbles = (nibbles | nibbles << 16) & 0x0000'ffff'0000'ffff;
  nibbles = (nibbles | nibbles << 8) & 0x00ff'00ff'00ff'00ff;
  nibbles = (nibbles | nibbles << 4) & 0x0f0f'0f0f'0f0f'0f0f;
  nibbles = __builtin_bswap64(nibbles);
  const std::uint64_t letters = ((nibbles + 0x0606'0606'0606'0606) >> 4) & 0x0101'0101'0101'0101;  // 10 to 15
  return nibbles + kZeros + letters * ('a' - '9' - 1);
}

inline char* put_word(char* at, std::uint64_t text) {
  std::memcpy(at, &text, sizeof text);
  return at + sizeof text;
}

// 1 to k8Digits - 1, without leading zeros.
inline char* put_front(char* at, std::uint64_t value) {
  const std::uint64_t numbers = decimal(value);
  const int leading = std::countr_zero(numbers) / 8;
  put_word(at, (numbers | kZeros) >> 8 * leading);
  return at + 8 - leading;
}

}  // namespace digits

// With leading zeros. Precondition: value < 100'000'000.
inline char* put_8_digits(char* at, std::uint64_t value) {
  return digits::put_word(at, digits::decimal(value) | digits::kZeros);
}

inline char* put_number(char* at, std::uint64_t value) {
  using digits::k8Digits;
  if (value < k8Digits) {
    if (value >= 10) return digits::put_front(at, value);
    *at = static_cast<char>('0' + value);
    return at + 1;
  }
  const std::uint64_t front = value / k8Digits;
  if (front < k8Digits)
    at = digits::put_front(at, front);
  else
    at = put_8_digits(digits::put_front(at, front / k8Digits), front % k8Digits);
  return put_8_digits(at, value % k8Digits);
}

inline char* put_number(char* at, std::int64_t value) {
  if (value >= 0) return put_number(at, static_cast<std::uint64_t>(value));
  *at = '-';
  return put_number(at + 1, 0 - static_cast<std::uint64_t>(value));
}

// In lower case, without leading zeros.
inline char* put_hexadecimal(char* at, std::uint64_t value) {
  const int count = value < 16 ? 1 : (67 - std::countl_zero(value)) / 4;
  value <<= 64 - 4 * count;
  digits::put_word(digits::put_word(at, digits::hexadecimal(static_cast<std::uint32_t>(value >> 32))),
                   digits::hexadecimal(static_cast<std::uint32_t>(value)));
  return at + count;
}

}  // namespace probed::events
