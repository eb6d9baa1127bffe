// Numbers in definitions and filters. Pure.
#include "daemon/lang/number.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string>

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

std::optional<std::uint64_t> parse_time(std::string_view text) {
  const std::size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view unit = text.substr(end), number = text.substr(0, end);
  const std::size_t decimals = unit == "s" ? 9 : unit == "ms" ? 6 : unit == "us" ? 3 : 0;
  if ((decimals == 0 && unit != "ns") || number.empty() || number[0] == '.') return std::nullopt;
  const std::size_t point = std::min(number.find('.'), number.size());
  std::string written(number.substr(0, point));
  std::string_view fraction = number.substr(std::min(point + 1, number.size()));
  if (fraction.size() > decimals || (point < number.size() && fraction.empty())) return std::nullopt;
  written += fraction;
  return digits(written.append(decimals - fraction.size(), '0'), 10);
}

std::optional<std::uint64_t> parse_size(std::string_view text) {
  const std::size_t unit = text.empty() ? text.npos : std::string_view("KMG").find(text.back());
  const auto number = unit == text.npos ? std::nullopt : digits(text.substr(0, text.size() - 1), 10);
  const std::size_t shift = 10 * (unit + 1);
  if (!number || *number > std::numeric_limits<std::uint64_t>::max() >> shift) return std::nullopt;
  return *number << shift;
}

}  // namespace probed::lang
