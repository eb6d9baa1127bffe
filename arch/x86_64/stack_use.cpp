#include "arch/x86_64/stack_use.hpp"

namespace probed::arch::x86_64 {
namespace {

bool is_stack_pointer(ZydisRegister r) { return whole(r) == ZYDIS_REGISTER_RSP; }
bool is_frame_base(ZydisRegister r) { return r == ZYDIS_REGISTER_RSP || r == ZYDIS_REGISTER_RBP; }

bool writes_stack_pointer(const ZydisDecodedOperand& operand) {
  return operand.type == ZYDIS_OPERAND_TYPE_REGISTER && (operand.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0 &&
         is_stack_pointer(operand.reg.value);
}

// One bit for each general register.
class Registers16 {
 public:
  void add(ZydisRegister r) { bits_ |= bit(r); }
  bool holds_all_of(const Registers16& other) const { return (other.bits_ & ~bits_) == 0; }

 private:
  static std::uint32_t bit(ZydisRegister r) {
    const ZyanI8 id = ZydisRegisterGetId(whole(r));
    return id < 0 ? 0 : 1u << id;
  }
  std::uint32_t bits_ = 0;
};

class Walk {
 public:
  // False: rsp becomes something that nothing here says is a stack's.
  bool step(const Decoded& d) {
    const ZydisDecodedOperand &to = d.operands[0], &from = d.operands[1];
    const bool copies = d.insn.mnemonic == ZYDIS_MNEMONIC_MOV || d.insn.mnemonic == ZYDIS_MNEMONIC_LEA;
    if (!sets_stack_pointer(d)) {
      if (copies && to.type == ZYDIS_OPERAND_TYPE_REGISTER && comes_from_stack(from)) from_stack_.add(to.reg.value);
      return true;
    }
    switch (d.insn.mnemonic) {
      case ZYDIS_MNEMONIC_ADD:
      case ZYDIS_MNEMONIC_SUB:
      case ZYDIS_MNEMONIC_AND:
      case ZYDIS_MNEMONIC_INC:
      case ZYDIS_MNEMONIC_DEC: return d.insn.operand_width == 64;
      case ZYDIS_MNEMONIC_MOV:
      case ZYDIS_MNEMONIC_LEA: return d.insn.operand_width == 64 && set_from(from, d.insn.mnemonic);
      default: return false;
    }
  }
  bool ends_well() const { return from_stack_.holds_all_of(sources_); }

 private:
  static bool comes_from_stack(const ZydisDecodedOperand& from) {
    if (from.type == ZYDIS_OPERAND_TYPE_REGISTER) return is_stack_pointer(from.reg.value);
    return from.type == ZYDIS_OPERAND_TYPE_MEMORY && from.mem.base == ZYDIS_REGISTER_RSP;
  }

  bool set_from(const ZydisDecodedOperand& from, ZydisMnemonic how) {
    if (from.type == ZYDIS_OPERAND_TYPE_REGISTER)
      return is_frame_base(from.reg.value) || known_elsewhere(from.reg.value);
    if (from.type != ZYDIS_OPERAND_TYPE_MEMORY || from.mem.base == ZYDIS_REGISTER_NONE) return false;
    if (is_frame_base(from.mem.base)) return true;
    return how == ZYDIS_MNEMONIC_LEA && from.mem.base != ZYDIS_REGISTER_RIP && known_elsewhere(from.mem.base);
  }
  bool known_elsewhere(ZydisRegister r) {
    sources_.add(r);
    return true;
  }

  Registers16 from_stack_, sources_;
};

}  // namespace

bool sets_stack_pointer(const Decoded& decoded) {
  for (unsigned i = 0; i < decoded.insn.operand_count_visible; ++i)
    if (writes_stack_pointer(decoded.operands[i])) return true;
  return false;
}

bool keeps_stack(std::span<const std::uint8_t> bytes) {
  Walk walk;
  Decoded decoded;
  while (!bytes.empty() && decode_with_zydis(bytes, decoded)) {
    if (!walk.step(decoded)) return false;
    bytes = bytes.subspan(decoded.insn.length);
  }
  return walk.ends_well();
}

}  // namespace probed::arch::x86_64
