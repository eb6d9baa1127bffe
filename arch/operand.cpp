// What the operand parsers share. Pure.
#include "arch/operand.hpp"

#include <charconv>

namespace probed::arch {

std::optional<std::uint64_t> parse_displacement(std::string_view text) {
  const bool minus = text.starts_with('-');
  if (minus || text.starts_with('+')) text.remove_prefix(1);
  const bool hex = text.starts_with("0x");
  if (hex) text.remove_prefix(2);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, hex ? 16 : 10);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return minus ? 0 - value : value;
}

}  // namespace probed::arch
