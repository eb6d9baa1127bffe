// Instruction facts from Zydis' decoding, and the table of what can't carry a probe.
#include "arch/x86_64/decode.hpp"

#include <algorithm>
#include <iterator>

#include "arch/x86_64/zydis.hpp"

namespace probed::arch::x86_64 {
namespace {

struct Excluded {
  ZydisMnemonic mnemonic;
  Refusal refusal;
};

// Instructions excluded by name. What merely faults (ud2, sgdt under UMIP, ...) is not here: it faults in the copy just
// as it would have, and the tracer maps the pc back.
constexpr Excluded kExcluded[] = {
    // Already breakpoints. A probe that replaced one would swallow a trap the program or its debugger waits for.
    {ZYDIS_MNEMONIC_INT3, Refusal::breakpoint},
    {ZYDIS_MNEMONIC_INT1, Refusal::breakpoint},
    // Need I/O privilege. With iopl(3) or ioperm() they would work, but a device access inside a probed window is
    // timing
    // we must not stretch, and ins/outs could not be restarted.
    {ZYDIS_MNEMONIC_IN, Refusal::privileged},
    {ZYDIS_MNEMONIC_OUT, Refusal::privileged},
    {ZYDIS_MNEMONIC_INSB, Refusal::privileged},
    {ZYDIS_MNEMONIC_INSW, Refusal::privileged},
    {ZYDIS_MNEMONIC_INSD, Refusal::privileged},
    {ZYDIS_MNEMONIC_OUTSB, Refusal::privileged},
    {ZYDIS_MNEMONIC_OUTSW, Refusal::privileged},
    {ZYDIS_MNEMONIC_OUTSD, Refusal::privileged},
    {ZYDIS_MNEMONIC_CLI, Refusal::privileged},
    {ZYDIS_MNEMONIC_STI, Refusal::privileged},
    // Ring 0 only, but not marked so by Zydis 4.0.
    {ZYDIS_MNEMONIC_LGDT, Refusal::privileged},
    {ZYDIS_MNEMONIC_GETSEC, Refusal::privileged},
    {ZYDIS_MNEMONIC_ENCLV, Refusal::privileged},
    {ZYDIS_MNEMONIC_CLGI, Refusal::privileged},
    {ZYDIS_MNEMONIC_STGI, Refusal::privileged},
    {ZYDIS_MNEMONIC_SKINIT, Refusal::privileged},
    {ZYDIS_MNEMONIC_VMLOAD, Refusal::privileged},
    {ZYDIS_MNEMONIC_VMSAVE, Refusal::privileged},
    {ZYDIS_MNEMONIC_VMRUN, Refusal::privileged},
    // Load cs (and with iret, rflags and rsp) from memory: control may arrive in 32-bit code, where neither a
    // breakpoint
    // nor a 64-bit jump back means what we planned.
    {ZYDIS_MNEMONIC_IRET, Refusal::far_transfer},
    {ZYDIS_MNEMONIC_IRETD, Refusal::far_transfer},
    {ZYDIS_MNEMONIC_IRETQ, Refusal::far_transfer},
    {ZYDIS_MNEMONIC_SYSEXIT, Refusal::far_transfer},
    {ZYDIS_MNEMONIC_SYSRET, Refusal::far_transfer},
    // Keeps no return address at all: Linux returns to a fixed place in the 32-bit vdso (entry_64_compat.S).
    {ZYDIS_MNEMONIC_SYSENTER, Refusal::far_transfer},
    // EENTER leaves the address of the next instruction in rcx, and asynchronous exits come back to an enclu whose
    // address
    // the enclave holds: a copy would leak, and be re-entered, at any later time.
    {ZYDIS_MNEMONIC_ENCLU, Refusal::unsupported},
};

Refusal refusal_by_name(ZydisMnemonic mnemonic) {
  const auto* row = std::ranges::find(kExcluded, mnemonic, &Excluded::mnemonic);
  return row == std::end(kExcluded) ? Refusal::none : row->refusal;
}

// int n raises vector n only if the kernel opened its gate to user space: 3 and 4 (which trap) and 0x80. `cd 03` is
// int3 written long; the rest are #GP, or belong to emulators that look at the bytes.
Refusal refusal_of_int(const ZydisDecodedInstruction& insn) {
  switch (insn.raw.imm[0].value.u & 0xff) {
    case 0x80:
      return Refusal::none;
    case 3:
      return Refusal::breakpoint;
    default:
      return Refusal::software_interrupt;
  }
}

// 66h on a near branch in 64-bit mode: Intel ignores it, AMD truncates rip (and shortens rel32 to rel16), so even the
// length is in doubt. REX.W overrides 66h on both; compilers emit that form (TLS calls are padded with it).
bool is_disputed_branch(const Decoded& decoded) {
  const ZydisDecodedInstruction& insn = decoded.insn;
  const bool near_branch = insn.meta.branch_type == ZYDIS_BRANCH_TYPE_SHORT ||
                           insn.meta.branch_type == ZYDIS_BRANCH_TYPE_NEAR || insn.mnemonic == ZYDIS_MNEMONIC_XBEGIN;
  return near_branch && decoded.has_prefix(0x66) && !decoded.has_rex_w();
}

Refusal refusal_of(const Decoded& decoded) {
  const ZydisDecodedInstruction& insn = decoded.insn;
  if (const Refusal named = refusal_by_name(insn.mnemonic); named != Refusal::none) return named;
  if (insn.mnemonic == ZYDIS_MNEMONIC_INT) return refusal_of_int(insn);
  if (insn.meta.branch_type == ZYDIS_BRANCH_TYPE_FAR) return Refusal::far_transfer;
  if ((insn.attributes & ZYDIS_ATTRIB_IS_PRIVILEGED) != 0) return Refusal::privileged;
  if (is_disputed_branch(decoded)) return Refusal::operand_override;
  // 67h rip-relative: the sum is cut to 32 bits, so no displacement reaches the same place from a copy elsewhere.
  const ZydisDecodedOperandMem* operand = decoded.pc_relative_operand();
  if (operand != nullptr && operand->base == ZYDIS_REGISTER_EIP) return Refusal::operand_override;
  return Refusal::none;
}

Flow flow_of(const ZydisDecodedInstruction& insn) {
  const bool direct = insn.raw.imm[0].is_relative != 0;
  if (insn.mnemonic == ZYDIS_MNEMONIC_XBEGIN) return Flow::transaction;
  if (insn.mnemonic == ZYDIS_MNEMONIC_UIRET) return Flow::ret;
  // A nop outside of a transaction; inside, it undoes everything including the hit.
  if (insn.mnemonic == ZYDIS_MNEMONIC_XABORT) return Flow::next;
  switch (insn.meta.category) {
    case ZYDIS_CATEGORY_CALL:
      return direct ? Flow::call : Flow::indirect_call;
    case ZYDIS_CATEGORY_UNCOND_BR:
      return direct ? Flow::jump : Flow::indirect_jump;
    case ZYDIS_CATEGORY_COND_BR:
      return direct ? Flow::cond_jump : Flow::next;
    case ZYDIS_CATEGORY_RET:
    case ZYDIS_CATEGORY_SYSRET:
      return Flow::ret;
    case ZYDIS_CATEGORY_SYSCALL:
      return Flow::syscall;
    default:
      break;
  }
  const bool int80 = insn.mnemonic == ZYDIS_MNEMONIC_INT && (insn.raw.imm[0].value.u & 0xff) == 0x80;
  return int80 ? Flow::syscall : Flow::next;
}

// pushf stores TF, popf replaces it, and syscall leaves rflags with TF in r11 (SDM, SYSCALL), where the kernel does not
// clean it: a single step across any of them shows itself to the program.
bool exposes_trap_flag(ZydisMnemonic mnemonic) {
  constexpr ZydisMnemonic kList[] = {ZYDIS_MNEMONIC_PUSHF, ZYDIS_MNEMONIC_PUSHFD, ZYDIS_MNEMONIC_PUSHFQ,
                                     ZYDIS_MNEMONIC_POPF,  ZYDIS_MNEMONIC_POPFD,  ZYDIS_MNEMONIC_POPFQ,
                                     ZYDIS_MNEMONIC_UIRET, ZYDIS_MNEMONIC_SYSCALL};
  return std::ranges::find(kList, mnemonic) != std::end(kList);
}

bool is_emulable(const ZydisDecodedInstruction& insn, Flow flow) {
  return flow == Flow::jump || flow == Flow::cond_jump || insn.mnemonic == ZYDIS_MNEMONIC_NOP ||
         insn.mnemonic == ZYDIS_MNEMONIC_ENDBR64 || insn.mnemonic == ZYDIS_MNEMONIC_ENDBR32;
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
  result.refusal = refusal_of(decoded);
  result.pc_relative = decoded.pc_relative_operand() != nullptr;
  result.may_block = result.flow == Flow::syscall;
  result.repeats = (insn.attributes & kRepeatPrefixes) != 0;
  result.sees_trap_flag = exposes_trap_flag(insn.mnemonic);
  result.emulable = result.refusal == Refusal::none && is_emulable(insn, result.flow);
  if (insn.raw.imm[0].is_relative != 0)
    result.target = address + insn.length + static_cast<std::uint64_t>(insn.raw.imm[0].value.s);
  return result;
}

}  // namespace probed::arch::x86_64
