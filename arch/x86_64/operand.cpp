// Operands in AT&T notation, as gcc and clang write them into the notes of static probes. Pure.
#include "arch/operand.hpp"

#include <array>

#include "arch/x86_64/regs.hpp"

namespace probed::arch::x86_64 {
namespace {

struct Part {
  std::size_t offset;
  std::uint8_t bits, shift;
};

// The eight old registers by the letters they share: eax, ax, al, ah; esi, si, sil.
struct OldRegister {
  std::string_view wide, narrow, low, high;  // %e..; %..; 8 bits of it
};
constexpr std::array<OldRegister, 8> kOld = {{{"eax", "ax", "al", "ah"},
                                              {"ebx", "bx", "bl", "bh"},
                                              {"ecx", "cx", "cl", "ch"},
                                              {"edx", "dx", "dl", "dh"},
                                              {"esi", "si", "sil", ""},
                                              {"edi", "di", "dil", ""},
                                              {"ebp", "bp", "bpl", ""},
                                              {"esp", "sp", "spl", ""}}};

std::optional<Part> old_register(std::string_view name) {
  for (const OldRegister& r : kOld) {
    const std::size_t offset = *register_offset(r.narrow);
    if (name == r.wide) return Part{offset, 32, 0};
    if (name == r.narrow) return Part{offset, 16, 0};
    if (name == r.low) return Part{offset, 8, 0};
    if (!name.empty() && name == r.high) return Part{offset, 8, 8};
  }
  return std::nullopt;
}

// r8d, r8w, r8b
std::optional<Part> new_register(std::string_view name) {
  if (name.size() < 3 || name[0] != 'r') return std::nullopt;
  const char last = name.back();
  const auto offset = register_offset(name.substr(0, name.size() - 1));
  if (!offset || (last != 'd' && last != 'w' && last != 'b')) return std::nullopt;
  return Part{*offset, static_cast<std::uint8_t>(last == 'd' ? 32 : last == 'w' ? 16 : 8), 0};
}

// name: without its '%'.
std::optional<Part> general_register(std::string_view name) {
  if (const auto part = old_register(name)) return part;
  if (const auto part = new_register(name)) return part;
  if (!name.starts_with('r')) return std::nullopt;
  const auto offset = register_offset(name);
  return offset ? std::optional(Part{*offset, 64, 0}) : std::nullopt;
}

// xmm0 to xmm15, and the same of wider ones; all others (x87, MMX, masks) can't be read.
std::optional<Operand> vector_register(std::string_view name) {
  constexpr unsigned kReadable = 16;
  Operand out;
  out.kind = Operand::Kind::vector;
  out.bits = 0;
  if (name.starts_with("st") || name.starts_with("mm") || name.starts_with("k")) return out;
  if (!name.starts_with("xmm") && !name.starts_with("ymm") && !name.starts_with("zmm")) return std::nullopt;
  const auto number = parse_displacement(name.substr(3));
  if (!number || *number >= 2 * kReadable) return std::nullopt;
  out.number = *number;
  out.bits = *number < kReadable ? 64 : 0;
  return out;
}

// A register that an address is made of: 64 bits of it, or we don't know what it would mean.
bool address_register(std::string_view text, std::optional<std::size_t>& out) {
  if (text.empty()) return true;
  if (!text.starts_with('%')) return false;
  const auto part = general_register(text.substr(1));
  if (!part || part->bits != 64) return false;
  out = part->offset;
  return true;
}

// What stands in front of the bracket: numbers and at most one symbol, joined by signs: 52+CheckpointStats, buf-8.
bool displacement(std::string_view text, Operand& out) {
  while (!text.empty()) {
    std::size_t end = text.find_first_of("+-", 1);
    if (end == text.npos) end = text.size();
    const std::string_view term = text.substr(0, end);
    text.remove_prefix(end);
    if (const auto number = parse_displacement(term)) {
      out.number += *number;
      continue;
    }
    const std::string_view name = term.starts_with('+') ? term.substr(1) : term;
    if (name.empty() || name[0] == '-' || !out.symbol.empty()) return false;
    out.symbol = name;
  }
  return true;
}

std::optional<Operand> memory(std::string_view text) {
  Operand out;
  out.kind = Operand::Kind::memory;
  const std::size_t open = text.find('(');
  if (!displacement(text.substr(0, open), out)) return std::nullopt;
  if (open == text.npos) return out;
  if (!text.ends_with(')')) return std::nullopt;
  const std::string_view inner = text.substr(open + 1, text.size() - open - 2);
  if (inner == "%rip") return out.symbol.empty() ? std::nullopt : std::optional(out);
  const std::size_t comma = inner.find(',');
  if (!address_register(inner.substr(0, comma), out.base)) return std::nullopt;
  if (comma == inner.npos) return out.base ? std::optional(out) : std::nullopt;
  const std::string_view rest = inner.substr(comma + 1);
  const std::size_t second = rest.find(',');
  if (!address_register(rest.substr(0, second), out.index) || !out.index) return std::nullopt;
  if (second == rest.npos) return out;
  const std::string_view scale = rest.substr(second + 1);
  if (scale != "1" && scale != "2" && scale != "4" && scale != "8") return std::nullopt;
  while (1u << out.scale < static_cast<unsigned>(scale[0] - '0')) ++out.scale;
  return out;
}

}  // namespace

std::optional<Operand> parse_operand(std::string_view text) {
  Operand out;
  if (text.starts_with('$')) {
    const auto number = parse_displacement(text.substr(1));
    if (!number) return std::nullopt;
    out.number = *number;
    return out;
  }
  if (!text.starts_with('%')) return text.empty() ? std::nullopt : memory(text);
  const std::string_view name = text.substr(1);
  if (const auto part = general_register(name)) {
    out.kind = Operand::Kind::value;
    out.base = part->offset;
    out.bits = part->bits;
    out.shift = part->shift;
    return out;
  }
  return vector_register(name);
}

}  // namespace probed::arch::x86_64
