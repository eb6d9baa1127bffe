// Zydis set up once, read by any thread.
#include "arch/x86_64/zydis.hpp"

#include "proto/base/check.hpp"

namespace probed::arch::x86_64 {
namespace {

ZydisDecoder make_decoder() {
  ZydisDecoder decoder;
  const ZyanStatus status = ZydisDecoderInit(&decoder, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64);
  PROBED_CHECK(ZYAN_SUCCESS(status), "Zydis knows 64-bit mode");
  return decoder;
}

}  // namespace

bool decode_with_zydis(std::span<const std::uint8_t> bytes, Decoded& out) {
  static const ZydisDecoder decoder = make_decoder();
  return ZYAN_SUCCESS(ZydisDecoderDecodeFull(&decoder, bytes.data(), bytes.size(), &out.insn, out.operands));
}

bool Decoded::has_prefix(std::uint8_t byte) const {
  for (unsigned i = 0; i < insn.raw.prefix_count; ++i)
    if (insn.raw.prefixes[i].value == byte) return true;
  return false;
}

const ZydisDecodedOperandMem* Decoded::pc_relative_operand() const {
  for (unsigned i = 0; i < insn.operand_count_visible; ++i) {
    const ZydisDecodedOperand& operand = operands[i];
    if (operand.type != ZYDIS_OPERAND_TYPE_MEMORY) continue;
    if (operand.mem.base == ZYDIS_REGISTER_RIP || operand.mem.base == ZYDIS_REGISTER_EIP) return &operand.mem;
  }
  return nullptr;
}

bool Decoded::writes(ZydisRegister reg) const {
  for (unsigned i = 0; i < insn.operand_count; ++i) {
    const ZydisDecodedOperand& operand = operands[i];
    if (operand.type == ZYDIS_OPERAND_TYPE_REGISTER && (operand.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0 &&
        whole(operand.reg.value) == reg)
      return true;
  }
  return false;
}

ZydisRegister whole(ZydisRegister part) { return ZydisRegisterGetLargestEnclosing(ZYDIS_MACHINE_MODE_LONG_64, part); }

}  // namespace probed::arch::x86_64
