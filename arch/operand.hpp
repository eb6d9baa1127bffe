// Operands as assemblers write them: what the notes of static probes (USDT) describe their arguments by. Pure.
//
// parse_operand() of each architecture takes the text behind the '@' of an argument ("%edi", "-16(%rbp)", "$5",
// "buf+8(%rip)", "(%rax,%rbx,8)"; "x0", "[sp, 12]", "5") and says what it reads. nullopt: it isn't understood.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace probed::arch {

struct Operand {
  enum class Kind : std::uint8_t {
    constant,  // number
    value,     // a register: `bits` of it, from bit `shift` on
    memory,    // at base + (index << scale) + symbol + number
    vector,    // the low 64 bits of floating-point register `number`; bits 0: one that can't be read
  };
  Kind kind = Kind::constant;
  std::optional<std::size_t> base, index;  // offsets in native::Registers
  std::uint8_t scale = 0;                  // 0 to 3
  std::uint8_t bits = 64, shift = 0;
  std::uint64_t number = 0;  // a constant, or a displacement; two's complement
  std::string symbol;        // counted from the program counter or absolute, which comes to the same; empty: none
};

namespace x86_64 {
std::optional<Operand> parse_operand(std::string_view text);
}
namespace aarch64 {
std::optional<Operand> parse_operand(std::string_view text);
}

// "12", "-0x10"; nullopt: anything else.
std::optional<std::uint64_t> parse_displacement(std::string_view text);

}  // namespace probed::arch
