// The table and its predicates.
#include "arch/x86_64/refusals.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "arch/x86_64/call_operand.hpp"
#include "arch/x86_64/zydis.hpp"

namespace probed::arch::x86_64 {
namespace {

template <ZydisMnemonic... names>
bool is(const Decoded& decoded) {
  return ((decoded.insn.mnemonic == names) || ...);
}

// int n, by n.
bool is_int(const Decoded& decoded, bool (*vector)(std::uint64_t)) {
  return decoded.insn.mnemonic == ZYDIS_MNEMONIC_INT && vector(decoded.insn.raw.imm[0].value.u & 0xff);
}

// Zydis 4.0 decodes them although its mode for them is off.
bool is_knights_corner(const Decoded& decoded) {
  const ZydisISAExt set = decoded.insn.meta.isa_ext;
  return set == ZYDIS_ISA_EXT_KNC || set == ZYDIS_ISA_EXT_KNCE || set == ZYDIS_ISA_EXT_KNCV;
}

bool is_breakpoint(const Decoded& decoded) {
  return is<ZYDIS_MNEMONIC_INT3, ZYDIS_MNEMONIC_INT1>(decoded) || is_int(decoded, [](auto n) { return n == 3; });
}

bool is_other_interrupt(const Decoded& decoded) {
  return is_int(decoded, [](auto n) { return n != 3 && n != 0x80; });
}

bool is_io(const Decoded& decoded) {
  return is<ZYDIS_MNEMONIC_IN, ZYDIS_MNEMONIC_OUT, ZYDIS_MNEMONIC_INSB, ZYDIS_MNEMONIC_INSW, ZYDIS_MNEMONIC_INSD,
            ZYDIS_MNEMONIC_OUTSB, ZYDIS_MNEMONIC_OUTSW, ZYDIS_MNEMONIC_OUTSD>(decoded);
}

// The named ones are not marked by Zydis 4.0.
bool is_ring0_only(const Decoded& decoded) {
  return (decoded.insn.attributes & ZYDIS_ATTRIB_IS_PRIVILEGED) != 0 ||
         is<ZYDIS_MNEMONIC_LGDT, ZYDIS_MNEMONIC_GETSEC, ZYDIS_MNEMONIC_ENCLV, ZYDIS_MNEMONIC_CLGI, ZYDIS_MNEMONIC_STGI,
            ZYDIS_MNEMONIC_SKINIT, ZYDIS_MNEMONIC_VMLOAD, ZYDIS_MNEMONIC_VMSAVE, ZYDIS_MNEMONIC_VMRUN>(decoded);
}

bool is_far_branch(const Decoded& decoded) { return decoded.insn.meta.branch_type == ZYDIS_BRANCH_TYPE_FAR; }

// REX.W overrides 66h on every processor; compilers emit that form (TLS calls are padded with it).
bool is_disputed_branch(const Decoded& decoded) {
  const ZydisDecodedInstruction& insn = decoded.insn;
  const bool near_branch = insn.meta.branch_type == ZYDIS_BRANCH_TYPE_SHORT ||
                           insn.meta.branch_type == ZYDIS_BRANCH_TYPE_NEAR || insn.mnemonic == ZYDIS_MNEMONIC_XBEGIN;
  return near_branch && decoded.has_prefix(0x66) && !decoded.has_rex_w();
}

bool is_narrow_pc_relative(const Decoded& decoded) {
  const ZydisDecodedOperandMem* operand = decoded.pc_relative_operand();
  return operand != nullptr && operand->base == ZYDIS_REGISTER_EIP;
}

bool is_indirect_call(const Decoded& decoded) {
  return decoded.insn.mnemonic == ZYDIS_MNEMONIC_CALL && decoded.insn.raw.imm[0].is_relative == 0;
}

bool calls_rsp(const Decoded& decoded) { return is_indirect_call(decoded) && is_rsp_operand(decoded.insn.raw); }

bool calls_through_stack(const Decoded& decoded) { return is_indirect_call(decoded) && has_rsp_base(decoded.insn.raw); }

bool calls_through_pushed_word(const Decoded& decoded) {
  return calls_through_stack(decoded) && may_read_pushed_word(decoded.insn.raw);
}

bool calls_past_displacement(const Decoded& decoded) {
  return calls_through_stack(decoded) &&
         rebased_displacement(decoded.insn.raw) > std::numeric_limits<std::int32_t>::max();
}

bool calls_with_too_many_prefixes(const Decoded& decoded) {
  return calls_through_stack(decoded) && rebased_length(decoded.insn) > kLongestInsn;
}

// What merely faults (ud2, a load from nowhere, sgdt where it is forbidden) is not here: it faults in the copy just as
// it would have, and the tracer maps the pc back.
constexpr RefusedForm kForms[] = {
    {.what = "bytes that are no instruction in 64-bit mode, or a part of one",
     .example = "06",
     .refusal = Refusal::undecodable,
     .why = "what the decoder doesn't know can't be moved: a copy of it might do something else",
     .by = RefusedBy::decoder},
    {.what = "what only Xeon Phi x100 (Knights Corner) knows: jkzd, jknzd, kmerge2l1h, delay, spflt, ...",
     .example = "c5 f8 84 00 00 00 00",
     .refusal = Refusal::undecodable,
     .why = "no 64-bit Linux runs on it; on other processors the same bytes mean something else or nothing",
     .matches = is_knights_corner},
    {.what = "int3, int 3, int1 (icebp)",
     .example = "cc",
     .refusal = Refusal::breakpoint,
     .why = "a probe in its place would swallow a trap that the program or its debugger waits for",
     .matches = is_breakpoint},
    // int n raises vector n only if the kernel opened its gate to user space: 3, 4 and 0x80 are open.
    {.what = "int n but for int 0x80 (and int 3)",
     .example = "cd 21",
     .refusal = Refusal::software_interrupt,
     .why = "no kernel service answers it, so it faults or belongs to an emulator that looks at the bytes",
     .matches = is_other_interrupt},
    {.what = "in, out, ins, outs, with any prefix",
     .example = "e4 60",
     .refusal = Refusal::privileged,
     .why = "it faults without I/O privilege (iopl, ioperm); with it, the timing of a device must not be stretched",
     .matches = is_io},
    {.what = "cli, sti",
     .example = "fa",
     .refusal = Refusal::privileged,
     .why = "it faults without I/O privilege; with iopl(3) the kernel only pretends to execute it, by its bytes",
     .matches = is<ZYDIS_MNEMONIC_CLI, ZYDIS_MNEMONIC_STI>},
    {.what = "iret, iretd, iretq",
     .example = "48 cf",
     .refusal = Refusal::far_transfer,
     .why = "it loads cs, rflags and rsp from memory and may arrive in 32-bit code, where no jump back means what we "
            "planned",
     .matches = is<ZYDIS_MNEMONIC_IRET, ZYDIS_MNEMONIC_IRETD, ZYDIS_MNEMONIC_IRETQ>},
    {.what = "sysexit, sysret",
     .example = "0f 35",
     .refusal = Refusal::far_transfer,
     .why = "a ring 0 instruction that leaves for another code segment",
     .matches = is<ZYDIS_MNEMONIC_SYSEXIT, ZYDIS_MNEMONIC_SYSRET>},
    {.what = "sysenter",
     .example = "0f 34",
     .refusal = Refusal::far_transfer,
     .why = "it keeps no return address: Linux returns to a fixed place in the 32-bit vdso (entry_64_compat.S)",
     .matches = is<ZYDIS_MNEMONIC_SYSENTER>},
    {.what = "call far, jmp far, retf",
     .example = "ff 18",
     .refusal = Refusal::far_transfer,
     .why = "it loads cs and may arrive in 32-bit code, where no jump back means what we planned",
     .matches = is_far_branch},
    {.what = "hlt, mov cr/dr, rdmsr, wrmsr, lgdt, invlpg, swapgs, clac, getsec, vmrun, encls and other ring 0 "
             "instructions",
     .example = "f4",
     .refusal = Refusal::privileged,
     .why = "it always faults in user space, so a probe there tells nothing that the signal doesn't",
     .matches = is_ring0_only},
    // EENTER leaves the address of the next instruction in rcx.
    {.what = "enclu",
     .example = "0f 01 d7",
     .refusal = Refusal::unsupported,
     .why = "asynchronous exits from an enclave come back to the address of its enclu, which the enclave holds: a "
            "copy would leak, and be entered again at any later time",
     .matches = is<ZYDIS_MNEMONIC_ENCLU>},
    {.what = "66h (without REX.W) on near call, jmp, ret, jcc, loop, jrcxz, xbegin",
     .example = "66 e8 00 00 00 00",
     .refusal = Refusal::operand_override,
     .why = "Intel ignores the prefix, AMD cuts rip to 16 bits and rel32 to rel16: even the length is in doubt",
     .matches = is_disputed_branch},
    {.what = "67h with a rip-relative operand ([eip+disp32]), in every encoding",
     .example = "67 48 8b 05 00 00 00 00",
     .refusal = Refusal::operand_override,
     .why = "the address is cut to 32 bits, so that no displacement refers to the same place from a copy elsewhere",
     .matches = is_narrow_pc_relative},
    {.what = "call rsp",
     .example = "ff d4",
     .refusal = Refusal::stack_operand,
     .why = "it jumps to rsp's value from before the push, which after the push is nowhere",
     .matches = calls_rsp},
    {.what = "call [rsp-15] to [rsp-1], call [rsp+index*n-disp]",
     .example = "ff 54 24 f8",
     .refusal = Refusal::stack_operand,
     .why = "its target is, or may be, in the word that the call itself overwrites with the return address",
     .matches = calls_through_pushed_word},
    {.what = "call [rsp+0x7ffffff8] and above",
     .example = "ff 94 24 f8 ff ff 7f",
     .refusal = Refusal::stack_operand,
     .why = "after the push the operand's displacement would need more than 32 bits",
     .matches = calls_past_displacement},
    {.what = "call [rsp+disp] with so many prefixes that the displacement can't grow",
     .example = "3e 3e 3e 3e 3e 3e 3e 3e 3e 3e 3e 3e ff 14 24",
     .refusal = Refusal::stack_operand,
     .why = "after the push the operand needs a longer displacement, and the instruction would exceed 15 bytes",
     .matches = calls_with_too_many_prefixes},
    {.what = "a rip-relative operand, or xbegin's target, more than 2 GiB from the copy",
     .example = "48 8b 05 00 00 00 00",
     .refusal = Refusal::out_of_range,
     .why = "the displacement has 32 bits; jumps and calls have no such limit, they go through a word in the copy",
     .by = RefusedBy::distance},
};

}  // namespace

std::span<const RefusedForm> refused_forms() { return kForms; }

const RefusedForm* find_refused(const Decoded& decoded) {
  for (const RefusedForm& form : kForms)
    if (form.matches != nullptr && form.matches(decoded)) return &form;
  return nullptr;
}

}  // namespace probed::arch::x86_64
