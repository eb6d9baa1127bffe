// Numbers in definitions and filters. Pure.
#include "daemon/lang/number.hpp"

#include <charconv>
#include <limits>

namespace probed::lang {
namespace {

std::optional<std::uint64_t> digits(std::string_view text, int base) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value, base);
  if (text.empty() || error != std::errc{} || stop != end) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> magnitude(std::string_view text) {
  if (text.size() > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) return digits(text.substr(2), 16);
  if (text.size() > 1 && text[0] == '0') return digits(text.substr(1), 8);
  return digits(text, 10);
}

}  // namespace

std::optional<std::uint64_t> parse_unsigned(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  return magnitude(text);
}

std::optional<std::int64_t> parse_signed(std::string_view text) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
  const bool negative = text.starts_with('-');
  const auto value = negative ? magnitude(text.substr(1)) : parse_unsigned(text);
  if (!value || *value > kMax + (negative ? 1 : 0)) return std::nullopt;
  return static_cast<std::int64_t>(negative ? 0 - *value : *value);
}

std::optional<std::uint64_t> parse_decimal(std::string_view text) { return digits(text, 10); }

}  // namespace probed::lang
