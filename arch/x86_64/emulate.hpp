// Instructions done by changing registers alone: no copy is executed, so nothing can be interrupted in the middle.
// Any thread; pure. Called on every hit of such a probe.
#pragma once

#include <cstdint>
#include <span>

#include "arch/common.hpp"
#include "arch/x86_64/regs.hpp"

namespace probed::arch::x86_64 {

// Does nop, endbr, jmp rel, jcc, loop* and jrcxz exactly. insn_bytes: at least insn.length of them. regs.rip must be
// the instruction's address. True: regs are as after it. False (regs untouched): !insn.emulable.
bool emulate(std::span<const std::uint8_t> insn_bytes, const Insn& insn, Registers& regs);

// Whether a thread with the registers `now`, behind a one-byte instruction, has just executed that with the registers
// `before`: of push, pop, leave, pushf and popf the stack pointer tells. What they load isn't looked at. False for
// every other instruction.
bool has_executed(std::span<const std::uint8_t> insn_bytes, const Registers& before, const Registers& now);

}  // namespace probed::arch::x86_64
