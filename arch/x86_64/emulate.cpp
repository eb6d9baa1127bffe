// Branches and nops computed from registers (SDM volume 2: Jcc, LOOP, JMP, NOP, ENDBR64).
#include "arch/x86_64/emulate.hpp"

#include "arch/x86_64/branch.hpp"
#include "proto/base/check.hpp"

namespace probed::arch::x86_64 {
namespace {

constexpr std::uint64_t kCarry = 1u << 0, kParity = 1u << 2, kZero = 1u << 6, kSign = 1u << 7, kOverflow = 1u << 11;

// tttn: three bits pick the predicate, the lowest negates it.
bool holds(std::uint8_t condition, std::uint64_t flags) {
  const bool less = ((flags & kSign) != 0) != ((flags & kOverflow) != 0);
  const bool predicates[8] = {
      (flags & kOverflow) != 0,         // o
      (flags & kCarry) != 0,            // b
      (flags & kZero) != 0,             // e
      (flags & (kCarry | kZero)) != 0,  // be
      (flags & kSign) != 0,             // s
      (flags & kParity) != 0,           // p
      less,                             // l
      less || (flags & kZero) != 0,     // le
  };
  return predicates[(condition >> 1) & 7] != ((condition & 1) != 0);
}

// The counter after loop's decrement. Writing ecx clears the upper half of rcx, as every 32-bit write does.
std::uint64_t decremented(std::uint64_t rcx, bool counts_ecx) {
  return counts_ecx ? static_cast<std::uint32_t>(rcx - 1) : rcx - 1;
}

bool counter_branch_taken(const CondBranch& branch, Registers& regs) {
  if (branch.counter_opcode == 0xe3) return (branch.counts_ecx ? static_cast<std::uint32_t>(regs.rcx) : regs.rcx) == 0;
  regs.rcx = decremented(regs.rcx, branch.counts_ecx);
  if (regs.rcx == 0) return false;
  const bool zero = (regs.eflags & kZero) != 0;
  return branch.counter_opcode == 0xe2 || zero == (branch.counter_opcode == 0xe1);
}

bool taken(const CondBranch& branch, Registers& regs) {
  return branch.is_jcc ? holds(branch.condition, regs.eflags) : counter_branch_taken(branch, regs);
}

}  // namespace

CondBranch parse_cond_branch(std::span<const std::uint8_t> insn_bytes, const Insn& insn) {
  PROBED_CHECK(insn.flow == Flow::cond_jump && insn.length >= 2 && insn_bytes.size() >= insn.length,
               "only whole conditional branches are parsed");
  // The displacement ends the instruction, so the opcode is found from there. 0f is no prefix, so it stands six bytes
  // before the end only in the two-byte opcode with rel32.
  const std::size_t length = insn.length;
  CondBranch branch;
  if (length >= 6 && insn_bytes[length - 6] == 0x0f) {
    branch.is_jcc = true;
    branch.condition = insn_bytes[length - 5] & 0xf;
    return branch;
  }
  const std::uint8_t opcode = insn_bytes[length - 2];
  branch.is_jcc = (opcode & 0xf0) == 0x70;
  branch.condition = opcode & 0xf;
  branch.counter_opcode = branch.is_jcc ? std::uint8_t{0} : opcode;
  for (const std::uint8_t byte : insn_bytes.first(length - 2)) {
    branch.counts_ecx |= byte == 0x67;
    if (byte == 0xf2 || byte == 0xf3) branch.repeat = byte;
  }
  return branch;
}

bool emulate(std::span<const std::uint8_t> insn_bytes, const Insn& insn, Registers& regs) {
  if (!insn.emulable) return false;
  const std::uint64_t next = regs.rip + insn.length;
  if (insn.flow == Flow::next) {
    regs.rip = next;
    return true;
  }
  PROBED_CHECK(insn.target.has_value(), "a direct branch has a target");
  const bool jumps = insn.flow == Flow::jump || taken(parse_cond_branch(insn_bytes, insn), regs);
  regs.rip = jumps ? *insn.target : next;
  return true;
}

bool has_executed(std::span<const std::uint8_t> insn_bytes, const Registers& before, const Registers& now) {
  const std::uint8_t code = insn_bytes.empty() ? 0 : insn_bytes[0];
  const bool pushes = (code >= 0x50 && code <= 0x57) || code == 0x9c;
  const bool pops = (code >= 0x58 && code <= 0x5f && code != 0x5c) || code == 0x9d;  // 5c: pop %rsp
  if (!pushes && !pops && code != 0xc9) return false;
  Registers after = before;
  after.rip = now.rip;
  after.rsp = pushes ? before.rsp - kWordSize : pops ? before.rsp + kWordSize : before.rbp + kWordSize;
  std::uint64_t* const numbered[] = {&after.rax, &after.rcx, &after.rdx, &after.rbx,
                                     nullptr,    &after.rbp, &after.rsi, &after.rdi};
  const std::uint64_t loaded[] = {now.rax, now.rcx, now.rdx, now.rbx, 0, now.rbp, now.rsi, now.rdi};
  if (code == 0x9d) after.eflags = now.eflags;
  if (code == 0xc9) after.rbp = now.rbp;
  if (pops && code != 0x9d) *numbered[code - 0x58] = loaded[code - 0x58];
  return same_execution(after, now);
}

}  // namespace probed::arch::x86_64
