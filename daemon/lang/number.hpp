// Numbers as the kernel's kstrtoul family reads them (lib/kstrtox.c): the whole text must be the number.
//
// Base 0: 0x or 0X followed by a digit is hexadecimal, another leading 0 octal, else decimal. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace probed::lang {

// kstrtoull(text, 0): one leading '+' is allowed. nullopt: not a number, or out of range.
std::optional<std::uint64_t> parse_unsigned(std::string_view text);
// kstrtoll(text, 0): '-' and a number, or what parse_unsigned takes. nullopt: not a number, or out of range.
std::optional<std::int64_t> parse_signed(std::string_view text);
// Decimal digits only, without a sign; leading zeroes mean nothing.
std::optional<std::uint64_t> parse_decimal(std::string_view text);

// "10ms", "1.5s", "200us", "5ns" in nanoseconds, whole ones. nullopt: not written so, or out of range.
std::optional<std::uint64_t> parse_time(std::string_view text);
// "64K", "1M", "2G" in bytes, of 1024 each. nullopt: not written so, or out of range.
std::optional<std::uint64_t> parse_size(std::string_view text);

}  // namespace probed::lang
