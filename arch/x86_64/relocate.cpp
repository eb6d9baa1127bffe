// How each kind of instruction is moved. One function per kind, picked by flow.
#include "arch/x86_64/relocate.hpp"

#include <array>
#include <cstring>

#include "arch/x86_64/branch.hpp"
#include "arch/x86_64/call_operand.hpp"
#include "arch/x86_64/copy_writer.hpp"
#include "arch/x86_64/zydis.hpp"
#include "proto/base/check.hpp"

namespace probed::arch::x86_64 {
namespace {

// What every kind works with. bytes are exactly the instruction's.
struct Source {
  std::span<const std::uint8_t> bytes;
  const Insn& insn;
  const Decoded& decoded;
  std::uint64_t original;

  std::uint64_t next() const { return original + insn.length; }
};

// An instruction being rewritten, at most as long as the processor accepts.
struct Rewritten {
  std::array<std::uint8_t, kLongestInsn> bytes{};
  std::size_t size = 0;

  void append(std::span<const std::uint8_t> more) {
    PROBED_CHECK(size + more.size() <= bytes.size(), "refused_forms() keeps rewritten instructions within 15 bytes");
    std::memcpy(bytes.data() + size, more.data(), more.size());
    size += more.size();
  }
  std::span<const std::uint8_t> all() const { return {bytes.data(), size}; }
};

void store_dword(std::uint8_t* to, std::int32_t value) {
  for (unsigned i = 0; i < 4; ++i) to[i] = static_cast<std::uint8_t>(static_cast<std::uint32_t>(value) >> (8 * i));
}

// Makes the rip-relative operand, if there is one, refer to the same address from `address` on. False: out of reach.
// The displacement counts from the end of the instruction, immediate included; legacy, VEX and EVEX encodings alike
// hold it unscaled in 32 bits (SDM 2.2.1.6, 2.7.5).
bool retarget_operand(const Source& source, std::uint64_t address, Rewritten& code) {
  if (!source.insn.pc_relative) return true;
  const ZydisDecodedInstructionRaw& raw = source.decoded.insn.raw;
  PROBED_CHECK(raw.disp.size == 32, "rip-relative operands have 32-bit displacements");
  const std::uint64_t referred = source.next() + static_cast<std::uint64_t>(raw.disp.value);
  const auto disp = displacement(address + code.size, referred);
  if (!disp) return false;
  store_dword(code.bytes.data() + raw.disp.offset, *disp);
  return true;
}

Refusal sequential(const Source& source, CopyWriter& out) {
  Rewritten code;
  code.append(source.bytes);
  if (!retarget_operand(source, out.here(), code)) return Refusal::out_of_range;
  out.before(source.original);
  out.bytes(code.all());
  out.after(source.next());
  out.jump(source.next());
  return Refusal::none;
}

// ret, jmp r/m: nothing follows, control is gone.
Refusal indirect_jump(const Source& source, CopyWriter& out) {
  Rewritten code;
  code.append(source.bytes);
  if (!retarget_operand(source, out.here(), code)) return Refusal::out_of_range;
  out.before(source.original);
  out.bytes(code.all());
  return Refusal::none;
}

Refusal direct_jump(const Source& source, CopyWriter& out) {
  out.before(source.original);
  out.jump(*source.insn.target);
  return Refusal::none;
}

// The branch over: for loop and jrcxz, which have no rel32 form, and for targets out of reach.
//   jcc taken; jmp next; taken: jmp target
void branch_over(const Source& source, const CondBranch& branch, CopyWriter& out) {
  out.before(source.original);
  if (!branch.is_jcc && branch.counts_ecx) out.bytes({0x67});
  if (is_disputed(branch)) out.bytes({branch.repeat});
  const std::uint8_t short_jcc = 0x70 | branch.condition;
  const std::size_t fall_through = out.size() + 2;
  const std::size_t over = out.jump_size(fall_through, source.next());
  out.bytes({branch.is_jcc ? short_jcc : branch.counter_opcode, static_cast<std::uint8_t>(over)});
  out.after(source.next());
  out.jump(source.next());
  out.after(*source.insn.target);
  out.jump(*source.insn.target);
}

Refusal cond_jump(const Source& source, CopyWriter& out) {
  constexpr std::size_t kNearJccSize = 6;
  const CondBranch branch = parse_cond_branch(source.bytes, source.insn);
  const auto near = displacement(out.here() + kNearJccSize, *source.insn.target);
  if (!branch.is_jcc || !near) {
    branch_over(source, branch, out);
    return Refusal::none;
  }
  out.before(source.original);
  out.bytes({0x0f, static_cast<std::uint8_t>(0x80 | branch.condition)});
  out.dword(static_cast<std::uint32_t>(*near));
  out.after(source.next());
  out.jump(source.next());
  return Refusal::none;
}

CopyPoint undone_by(std::int8_t sp, const Source& source) {
  return {.meaning = CopyPoint::Meaning::middle, .undo_sp = sp, .original_pc = source.original};
}

// push [rip+word]: what call leaves on the stack, without a register. A fault in it leaves sp alone, as call's would.
void push_return_address(const Source& source, CopyWriter& out) {
  out.with_word({0xff, 0x35}, source.next());
  out.point(undone_by(kPushed, source));
}

Refusal direct_call(const Source& source, CopyWriter& out) {
  out.before(source.original);
  push_return_address(source, out);
  out.jump(*source.insn.target);
  return Refusal::none;
}

// What follows ff in another instruction with the same operand: /4 is jmp, /6 push.
constexpr std::uint8_t kJump = 4, kPush = 6;

// The call as another instruction of its group, prefixes kept, for execution at `address`. False: out of reach.
bool call_as(std::uint8_t digit, const Source& source, std::uint64_t address, Rewritten& code) {
  const std::size_t modrm_at = source.decoded.insn.raw.modrm.offset;
  code.append(source.bytes);
  code.bytes[modrm_at] = static_cast<std::uint8_t>((code.bytes[modrm_at] & 0xc7) | digit << 3);
  return retarget_operand(source, address, code);
}

// jmp through an rsp-based operand that means the same after a push.
void jump_through_rebased(const Source& source, Rewritten& code) {
  const ZydisDecodedInstructionRaw& raw = source.decoded.insn.raw;
  const std::size_t disp_size = rebased_displacement_size(raw);
  const auto modrm = static_cast<std::uint8_t>((disp_size == 1 ? 0x40 : 0x80) | kJump << 3 | 4);
  const std::uint8_t operand[] = {modrm, source.bytes[raw.sib.offset]};
  std::uint8_t disp[4];
  store_dword(disp, static_cast<std::int32_t>(rebased_displacement(raw)));
  code.append(source.bytes.first(raw.modrm.offset));
  code.append(operand);
  code.append(std::span(disp).first(disp_size));
}

// A call reads its target before it writes the return address, and either may fault. Pushing the target does the same
// two things in the same order, so that a fault is the original's with nothing changed yet.
//   push operand; lea rsp, [rsp+8]
bool try_operand(const Source& source, CopyWriter& out) {
  Rewritten push;
  if (!call_as(kPush, source, out.here(), push)) return false;
  out.bytes(push.all());
  out.point(undone_by(kPushed, source));
  out.bytes({0x48, 0x8d, 0x64, 0x24, 0x08});
  out.point(undone_by(0, source));
  return true;
}

// [push operand; lea rsp, [rsp+8];] push return address; jmp operand
Refusal indirect_call(const Source& source, CopyWriter& out) {
  const ZydisDecodedInstructionRaw& raw = source.decoded.insn.raw;
  const bool reads_memory = raw.modrm.mod != 3;
  out.before(source.original);
  if (reads_memory && !try_operand(source, out)) return Refusal::out_of_range;
  push_return_address(source, out);
  Rewritten jump;
  if (has_rsp_base(raw))
    jump_through_rebased(source, jump);
  else if (!call_as(kJump, source, out.here(), jump))
    return Refusal::out_of_range;
  out.bytes(jump.all());
  return Refusal::none;
}

// Written without its prefixes: they mean nothing, and the kernel restarts a system call by setting pc back 2 bytes
// (arch/x86/kernel/signal.c), which must be the start of the copy.
Refusal system_call(const Source& source, CopyWriter& out) {
  const bool is_syscall = source.decoded.insn.mnemonic == ZYDIS_MNEMONIC_SYSCALL;
  const std::uint64_t link = is_syscall ? source.next() : 0;
  out.point({.meaning = CopyPoint::Meaning::before, .original_pc = source.original, .link = link});
  if (!is_syscall) {
    out.bytes({0xcd, 0x80});
  } else {
    out.bytes({0x0f, 0x05});
    out.point({.meaning = CopyPoint::Meaning::after, .fix_link = true, .original_pc = source.next(), .link = link});
    out.bytes({0x48, 0xb9});  // movabs rcx
    out.qword(link);
  }
  out.after(source.next());
  out.jump(source.next());
  return Refusal::none;
}

// xbegin: the abort handler is reached from wherever the transaction began, so its displacement is moved along.
Refusal transaction(const Source& source, CopyWriter& out) {
  const auto disp = displacement(out.here() + source.insn.length, *source.insn.target);
  if (!disp) return Refusal::out_of_range;
  PROBED_CHECK(source.decoded.insn.raw.imm[0].size == 32, "xbegin rel16 is refused by decode");
  Rewritten code;
  code.append(source.bytes);
  store_dword(code.bytes.data() + source.decoded.insn.raw.imm[0].offset, *disp);
  out.before(source.original);
  out.bytes(code.all());
  out.after(source.next());
  out.jump(source.next());
  return Refusal::none;
}

Refusal write_copy(const Source& source, CopyWriter& out) {
  switch (source.insn.flow) {
    case Flow::next: return sequential(source, out);
    case Flow::jump: return direct_jump(source, out);
    case Flow::cond_jump: return cond_jump(source, out);
    case Flow::call: return direct_call(source, out);
    case Flow::indirect_jump:
    case Flow::ret: return indirect_jump(source, out);
    case Flow::indirect_call: return indirect_call(source, out);
    case Flow::syscall: return system_call(source, out);
    case Flow::transaction: return transaction(source, out);
  }
  return Refusal::unsupported;
}

}  // namespace

RelocateResult relocate(std::span<const std::uint8_t> insn_bytes, const Insn& insn, std::uint64_t original,
                        std::uint64_t copy_address) {
  RelocateResult result;
  result.refusal = insn.refusal;
  if (result.refusal != Refusal::none) return result;
  PROBED_CHECK(insn.length > 0 && insn_bytes.size() >= insn.length, "relocate is given a whole decoded instruction");
  const auto bytes = insn_bytes.first(insn.length);
  Decoded decoded;
  PROBED_CHECK(decode_with_zydis(bytes, decoded), "relocate is given the bytes that decode accepted");
  CopyWriter out(copy_address);
  result.refusal = write_copy({bytes, insn, decoded, original}, out);
  if (result.refusal == Refusal::none) result.copy = out.finish();
  return result;
}

}  // namespace probed::arch::x86_64
