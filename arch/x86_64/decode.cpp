// Instruction facts from Zydis' decoding. What can't carry a probe stands in refusals.cpp.
#include "arch/x86_64/decode.hpp"

#include <algorithm>
#include <iterator>

#include "arch/x86_64/branch.hpp"
#include "arch/x86_64/refusals.hpp"
#include "arch/x86_64/zydis.hpp"

namespace probed::arch::x86_64 {
namespace {

Flow flow_of(const ZydisDecodedInstruction& insn) {
  const bool direct = insn.raw.imm[0].is_relative != 0;
  if (insn.mnemonic == ZYDIS_MNEMONIC_XBEGIN) return Flow::transaction;
  if (insn.mnemonic == ZYDIS_MNEMONIC_UIRET) return Flow::ret;
  // A nop outside of a transaction; inside, it undoes everything including the hit.
  if (insn.mnemonic == ZYDIS_MNEMONIC_XABORT) return Flow::next;
  switch (insn.meta.category) {
    case ZYDIS_CATEGORY_CALL: return direct ? Flow::call : Flow::indirect_call;
    case ZYDIS_CATEGORY_UNCOND_BR: return direct ? Flow::jump : Flow::indirect_jump;
    case ZYDIS_CATEGORY_COND_BR: return direct ? Flow::cond_jump : Flow::next;
    case ZYDIS_CATEGORY_RET:
    case ZYDIS_CATEGORY_SYSRET: return Flow::ret;
    case ZYDIS_CATEGORY_SYSCALL: return Flow::syscall;
    default: break;
  }
  const bool int80 = insn.mnemonic == ZYDIS_MNEMONIC_INT && (insn.raw.imm[0].value.u & 0xff) == 0x80;
  return int80 ? Flow::syscall : Flow::next;
}

// A load of ss: no trap comes between it and the next instruction (Intel SDM 3A 6.8.3).
bool loads_ss(const ZydisDecodedInstruction& insn) {
  constexpr unsigned kStackSegment = 2;  // of a segment register in a ModRM byte
  return insn.mnemonic == ZYDIS_MNEMONIC_MOV && insn.opcode_map == ZYDIS_OPCODE_MAP_DEFAULT && insn.opcode == 0x8e &&
         insn.raw.modrm.reg == kStackSegment;
}

// pushf stores TF, popf replaces it, and syscall leaves rflags with TF in r11 (SDM, SYSCALL), where the kernel does not
// clean it: a single step across any of them shows itself to the program.
bool exposes_trap_flag(ZydisMnemonic mnemonic) {
  constexpr ZydisMnemonic kList[] = {ZYDIS_MNEMONIC_PUSHF, ZYDIS_MNEMONIC_PUSHFD, ZYDIS_MNEMONIC_PUSHFQ,
                                     ZYDIS_MNEMONIC_POPF,  ZYDIS_MNEMONIC_POPFD,  ZYDIS_MNEMONIC_POPFQ,
                                     ZYDIS_MNEMONIC_UIRET, ZYDIS_MNEMONIC_SYSCALL};
  return std::ranges::find(kList, mnemonic) != std::end(kList);
}

// Only 90 and 0f 1f, which do nothing everywhere. Zydis' other nops are hints that some processors reject (0f 0d with a
// register is #UD on AMD) or have given a meaning since (0f 1a, 0f 1e).
bool does_nothing(const ZydisDecodedInstruction& insn) {
  if (insn.mnemonic == ZYDIS_MNEMONIC_ENDBR64 || insn.mnemonic == ZYDIS_MNEMONIC_ENDBR32) return true;
  if (insn.mnemonic != ZYDIS_MNEMONIC_NOP) return false;
  const bool one_byte = insn.opcode_map == ZYDIS_OPCODE_MAP_DEFAULT && insn.opcode == 0x90;
  const bool multi_byte = insn.opcode_map == ZYDIS_OPCODE_MAP_0F && insn.opcode == 0x1f;
  return one_byte || multi_byte;
}

// facts: complete but for `emulable`.
bool is_emulable(const ZydisDecodedInstruction& insn, std::span<const std::uint8_t> bytes, const Insn& facts) {
  if (facts.refusal != Refusal::none) return false;
  if (facts.flow == Flow::cond_jump) return !is_disputed(parse_cond_branch(bytes, facts));
  return facts.flow == Flow::jump || does_nothing(insn);
}

constexpr ZydisInstructionAttributes kRepeatPrefixes =
    ZYDIS_ATTRIB_HAS_REP | ZYDIS_ATTRIB_HAS_REPE | ZYDIS_ATTRIB_HAS_REPNE;

}  // namespace

Insn decode(std::span<const std::uint8_t> bytes, std::uint64_t address) {
  Insn result;
  Decoded decoded;
  if (!decode_with_zydis(bytes.first(std::min(bytes.size(), kMaxInsnLength)), decoded)) {
    result.refusal = Refusal::undecodable;
    return result;
  }
  const ZydisDecodedInstruction& insn = decoded.insn;
  result.length = insn.length;
  result.flow = flow_of(insn);
  if (const RefusedForm* form = find_refused(decoded)) result.refusal = form->refusal;
  result.pc_relative = decoded.pc_relative_operand() != nullptr;
  result.may_block = result.flow == Flow::syscall;
  result.repeats = (insn.attributes & kRepeatPrefixes) != 0;
  result.sees_trap_flag = exposes_trap_flag(insn.mnemonic) || loads_ss(insn);
  result.emulable = is_emulable(insn, bytes, result);
  if (insn.raw.imm[0].is_relative != 0)
    result.target = address + insn.length + static_cast<std::uint64_t>(insn.raw.imm[0].value.s);
  return result;
}

}  // namespace probed::arch::x86_64
