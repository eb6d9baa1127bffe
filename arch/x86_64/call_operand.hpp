// The operand of an indirect call, seen by one who has to push the return address before reading it. Internal to
// arch/x86_64. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "arch/x86_64/zydis.hpp"

namespace probed::arch::x86_64 {

// Bytes by which a push lowers rsp.
inline constexpr std::int8_t kPushed = 8;
// The longest instruction that the processor executes (SDM volume 2, 2.3.11).
inline constexpr std::size_t kLongestInsn = 15;

// call rsp: jumps to the value from before its own push.
inline bool is_rsp_operand(const ZydisDecodedInstructionRaw& raw) {
  return raw.modrm.mod == 3 && raw.modrm.rm == 4 && raw.rex.B == 0;
}

inline bool has_rsp_base(const ZydisDecodedInstructionRaw& raw) {
  return raw.modrm.mod != 3 && raw.modrm.rm == 4 && raw.sib.base == 4 && raw.rex.B == 0;
}

// Whether an rsp-based operand may overlap the word that is pushed. With an index nobody knows, but nothing that a
// compiler puts on the stack is addressed from below it.
inline bool may_read_pushed_word(const ZydisDecodedInstructionRaw& raw) {
  const bool indexed = raw.sib.index != 4 || raw.rex.X != 0;
  return raw.disp.value < 0 && (indexed || raw.disp.value > -(kPushed + kPushed));
}

// An rsp-based operand's displacement that means the same after the push.
inline std::int64_t rebased_displacement(const ZydisDecodedInstructionRaw& raw) { return raw.disp.value + kPushed; }

// How many bytes that displacement takes. A displacement of four bytes stays one.
inline std::size_t rebased_displacement_size(const ZydisDecodedInstructionRaw& raw) {
  const std::int64_t disp = rebased_displacement(raw);
  return disp == static_cast<std::int8_t>(disp) && raw.modrm.mod != 2 ? 1 : 4;
}

// How long `jmp` through the rebased operand is, prefixes kept.
inline std::size_t rebased_length(const ZydisDecodedInstruction& insn) {
  return insn.length - insn.raw.disp.size / 8 + rebased_displacement_size(insn.raw);
}

}  // namespace probed::arch::x86_64
