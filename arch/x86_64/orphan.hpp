// The landing for orphaned threads (arch/orphan.hpp), x86-64. Any thread; pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "arch/orphan.hpp"
#include "arch/x86_64/regs.hpp"

namespace probed::arch::x86_64 {

inline constexpr bool kHasLanding = true;

// address: where its first byte will be.
LandingCode build_landing(std::uint64_t address);

// The thread has been dealt with: should its tracer die before it is resumed, the SIGTRAP it stands in is delivered,
// and the landing must not take it for one that nobody has seen. The resume flag says so, in the same write as the new
// pc. The program can't see it: the processor clears it with the next instruction, pushf and syscall leave it out (SDM
// volume 3, 18.3.1.1; arch/x86/entry/entry_64.S), and an int3's own trap has it clear.
inline void mark_dealt_with(Registers& regs) { regs.eflags |= 1u << 16; }

// ---- calls for the tracer ----

// What the way back restores, in the order of the encoding's numbers.
struct CallRecord {
  CallPadHead head;
  std::uint64_t mask = 0, flags = 0, rip = 0;
  std::array<std::uint64_t, 16> registers{};
};
inline constexpr std::size_t kCallPadSize = 512, kCallPadData = 256;
inline constexpr std::size_t kAfterCall = 2;  // where a pad's way back begins; at 0 is the call
inline constexpr std::size_t kUnblocked = 32;
// Whether pads are in what was mapped before, the vdso or files; else in landings' pages.
inline constexpr bool kPadsInFiles = true;
// Whether call_record() needs the vector registers.
inline constexpr bool kRecordsVectors = false;

// address: where its first byte will be.
std::vector<std::uint8_t> build_call_pad(std::uint64_t address);
// regs: the thread's as it was stopped, maybe inside a system call that the kernel would restart on the way out
// (arch/x86/kernel/signal.c, arch_do_signal_or_restart).
CallRecord call_record(const Registers& regs, std::uint64_t mask, std::span<const std::byte> vectors);

}  // namespace probed::arch::x86_64
