// Instructions done by changing registers alone, aarch64. Not done yet: no instruction is emulable. Any thread; pure.
#pragma once

#include <cstdint>
#include <span>

#include "arch/aarch64/regs.hpp"
#include "arch/common.hpp"

namespace probed::arch::aarch64 {

// False, regs untouched: !insn.emulable, which is always so for now.
bool emulate(std::span<const std::uint8_t> insn_bytes, const Insn& insn, Registers& regs);

}  // namespace probed::arch::aarch64
