// Every instruction form that the decoder knows, found by asking it about the whole opcode space: prefix, map, opcode,
// ModRM digit, and for VEX, XOP and EVEX the fields of those prefixes. Built once; constant afterwards.
#pragma once

#include <Zydis/Zydis.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "arch/common.hpp"

namespace probed::test {

enum class Encoding : std::uint8_t { legacy, now3d, vex, xop, evex };

struct Form {
  Encoding encoding = Encoding::legacy;
  std::uint8_t prefix = 0;  // legacy: the mandatory prefix byte or 0; else the pp field
  std::uint8_t map = 0;     // legacy: 0 one-byte, 1 0f, 2 0f38, 3 0f3a; else the map field
  std::uint8_t opcode = 0;  // now3d: the byte behind the operands
  std::uint8_t length = 0;  // L or L'L
  bool wide = false;        // W
  bool broadcast = false;   // EVEX.b
  bool masked = false;      // EVEX.aaa is not 0
  bool zeroing = false;     // EVEX.z
  bool has_modrm = false;
  bool memory = false;      // ModRM.mod is not 3
  std::uint64_t modrm = 0;  // bit reg * 8 + rm is set: that combination is this form; of memory rm counts as 0
  ZydisMnemonic mnemonic = ZYDIS_MNEMONIC_INVALID;
  ZydisISASet isa_set = ZYDIS_ISA_SET_INVALID;
  ZydisISAExt isa_ext = ZYDIS_ISA_EXT_INVALID;
  ZydisInstructionCategory category = ZYDIS_CATEGORY_INVALID;
  arch::Flow flow = arch::Flow::next;
  arch::Refusal refusal = arch::Refusal::none;  // of decode(), for the first combination found
};

// Legacy, 3DNow!, VEX and XOP forms; those that decode() refuses too.
std::span<const Form> forms();
// EVEX forms.
std::span<const Form> evex_forms();

// The forms that a random case is drawn from, by what is drawn first: a family, then a mnemonic, then a form of it.
struct Family {
  std::string_view name;
  unsigned weight;  // in cases
  std::vector<std::vector<const Form*>> mnemonics;
};
// Only forms which decode() accepts and which this processor executes.
const std::vector<Family>& families();

}  // namespace probed::test
