// The one place that configures Zydis. Internal to arch/x86_64: nothing outside includes it, so that Zydis' types stay
// behind the seam. Any thread; pure.
#pragma once

#include <Zydis/Zydis.h>

#include <cstdint>
#include <span>

namespace probed::arch::x86_64 {

struct Decoded {
  ZydisDecodedInstruction insn;
  ZydisDecodedOperand operands[ZYDIS_MAX_OPERAND_COUNT];

  bool has_prefix(std::uint8_t byte) const;
  // A REX.W that counts: one directly in front of the opcode. A REX in front of a legacy prefix is void.
  bool has_rex_w() const { return (insn.attributes & ZYDIS_ATTRIB_HAS_REX) != 0 && insn.raw.rex.W != 0; }
  // A memory operand whose base is rip or eip; null: none. There is never more than one.
  const ZydisDecodedOperandMem* pc_relative_operand() const;
  // Whether an operand, said or implied, is that 64-bit register or a part of it and is written.
  bool writes(ZydisRegister reg) const;
};

// The largest register that it is a part of.
ZydisRegister whole(ZydisRegister part);

// 64-bit mode, Intel's reading where vendors differ. False: not an instruction, or more bytes are needed.
bool decode_with_zydis(std::span<const std::uint8_t> bytes, Decoded& out);

}  // namespace probed::arch::x86_64
