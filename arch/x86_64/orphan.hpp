// The landing for orphaned threads (arch/orphan.hpp), x86-64. Any thread; pure.
#pragma once

#include <cstdint>

#include "arch/orphan.hpp"
#include "arch/x86_64/regs.hpp"

namespace probed::arch::x86_64 {

inline constexpr bool kHasLanding = true;

// address: where its first byte will be.
LandingCode build_landing(std::uint64_t address);

// The thread has been dealt with: should its tracer die before it is resumed, the SIGTRAP it stands in is delivered, and
// the landing must not take it for one that nobody has seen. The resume flag says so, in the same write as the new pc.
// The program can't see it: the processor clears it with the next instruction, pushf and syscall leave it out
// (SDM volume 3, 18.3.1.1; arch/x86/entry/entry_64.S), and an int3's own trap has it clear.
inline void mark_dealt_with(Registers& regs) { regs.eflags |= 1u << 16; }

}  // namespace probed::arch::x86_64
