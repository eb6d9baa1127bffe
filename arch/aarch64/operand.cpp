// Operands as assemblers for aarch64 write them, in the notes of static probes. Pure.
#include "arch/operand.hpp"

#include <charconv>

#include "arch/aarch64/regs.hpp"

namespace probed::arch::aarch64 {
namespace {

std::optional<Operand> vector_register(std::string_view name) {
  if (name.size() < 2 || std::string_view("bhsdqv").find(name[0]) == std::string_view::npos) return std::nullopt;
  unsigned number = 0;
  const auto [end, error] = std::from_chars(name.data() + 1, name.data() + name.size(), number);
  if (error != std::errc{} || end != name.data() + name.size() || number >= 32) return std::nullopt;
  Operand out;
  out.kind = Operand::Kind::vector;
  out.number = number;
  return out;
}

// x0 to x30, sp: whole; w0 to w30: the lower half.
std::optional<Operand> general_register(std::string_view name) {
  Operand out;
  out.kind = Operand::Kind::value;
  const bool half = name.starts_with('w');
  out.base = register_offset(half ? "x" + std::string(name.substr(1)) : std::string(name));
  out.bits = half ? 32 : 64;
  return out.base ? std::optional(out) : std::nullopt;
}

// [x0], [sp, 12]
std::optional<Operand> memory(std::string_view inner) {
  const std::size_t comma = inner.find(',');
  auto base = general_register(inner.substr(0, comma));
  if (!base || base->bits != 64) return std::nullopt;
  base->kind = Operand::Kind::memory;
  if (comma == inner.npos) return base;
  std::string_view offset = inner.substr(comma + 1);
  while (offset.starts_with(' ') || offset.starts_with('#')) offset.remove_prefix(1);
  const auto number = parse_displacement(offset);
  if (!number) return std::nullopt;
  base->number = *number;
  return base;
}

}  // namespace

std::optional<Operand> parse_operand(std::string_view text) {
  if (text.starts_with('[') && text.ends_with(']')) return memory(text.substr(1, text.size() - 2));
  if (const auto number = parse_displacement(text)) {
    Operand out;
    out.number = *number;
    return out;
  }
  if (auto out = vector_register(text)) return out;
  return general_register(text);
}

}  // namespace probed::arch::aarch64
