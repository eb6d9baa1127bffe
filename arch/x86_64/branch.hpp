// The shape of a conditional branch, read off its bytes; shared by the emulator (on every hit, so no decoder) and the
// relocator. Internal to arch/x86_64. Pure.
#pragma once

#include <cstdint>
#include <span>

#include "arch/common.hpp"

namespace probed::arch::x86_64 {

// Either jcc, then `condition` is its 4-bit tttn field; or one of e0 loopne, e1 loope, e2 loop, e3 jrcxz/jecxz, which
// exist with an 8-bit displacement only.
struct CondBranch {
  bool is_jcc = false;
  std::uint8_t condition = 0;
  std::uint8_t counter_opcode = 0;
  bool counts_ecx = false;  // 67h: the counter is ecx; meaningless for jcc
  std::uint8_t repeat = 0;  // the last of f2h, f3h, if there is one; meaningless for jcc
};

// Whether the processor decides what the branch does. AMD (seen on Zen 3) lets f2h and f3h replace loop's own
// condition, as they replace rep's: f3 e0 branches like loope. Intel documents no effect.
constexpr bool is_disputed(const CondBranch& branch) { return !branch.is_jcc && branch.repeat != 0; }

// insn_bytes: at least insn.length bytes of an instruction whose flow is cond_jump.
CondBranch parse_cond_branch(std::span<const std::uint8_t> insn_bytes, const Insn& insn);

}  // namespace probed::arch::x86_64
