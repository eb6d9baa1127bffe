// Instructions done by changing registers alone: no copy is executed, so nothing can be interrupted in the middle.
// Any thread; pure. Called on every hit of such a probe.
#pragma once

#include <cstdint>
#include <span>

#include "arch/aarch64/regs.hpp"
#include "arch/common.hpp"

namespace probed::arch::aarch64 {

// Does nop, bti, adr, adrp, prfm (literal) and every branch that isn't authenticated. insn_bytes: at least 4. The pc of
// regs must be the instruction's address. True: regs are as after it. False (regs untouched): !insn.emulable.
bool emulate(std::span<const std::uint8_t> insn_bytes, const Insn& insn, Registers& regs);

// Of no use here, where a trap leaves the pc at the breakpoint.
inline bool has_executed(std::span<const std::uint8_t>, const Registers&, const Registers&) { return false; }

}  // namespace probed::arch::aarch64
