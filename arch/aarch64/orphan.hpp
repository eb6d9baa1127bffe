// The landing for orphaned threads (arch/orphan.hpp), aarch64. Any thread; pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "arch/aarch64/regs.hpp"
#include "arch/orphan.hpp"

namespace probed::arch::aarch64 {

inline constexpr bool kHasLanding = true;

// address: where its first byte will be, a multiple of 8.
LandingCode build_landing(std::uint64_t address);

// A thread that has been dealt with stands elsewhere than its siginfo says; or at a breakpoint, from which the landing
// may as well send it on.
inline void mark_dealt_with(Registers&) {}

// ---- calls for the tracer ----

// There is no jump through memory, and no register is free: the way back is a return from a signal that never came. So
// the record is the kernel's struct ucontext (asm/ucontext.h, asm/sigcontext.h), the code lies where the signal's
// siginfo would, and the vector registers, which that return takes from there, too, must be in it.
struct CallRecord {
  CallPadHead head;                                // uc_flags, uc_link: not looked at
  std::array<std::uint64_t, 3> stack{0, 0x55, 0};  // uc_stack, with flags that make it be left alone
  std::uint64_t mask = 0;
  std::array<std::uint64_t, 16> unused{};
  std::uint64_t fault_address = 0;
  std::array<std::uint64_t, 31> x{};
  std::uint64_t sp = 0, pc = 0, pstate = 0, padding = 0;
  // struct fpsimd_context, and the empty one behind it.
  std::array<std::uint32_t, 2> vectors_head{0x46508001, 528};
  std::array<std::uint32_t, 2> status{};
  std::array<std::uint64_t, 64> vectors{};
  std::array<std::uint64_t, 2> end{};
};
static_assert(offsetof(CallRecord, mask) == 40 && offsetof(CallRecord, fault_address) == 176);
static_assert(offsetof(CallRecord, pstate) == 448 && offsetof(CallRecord, vectors_head) == 464);

// The record is 128 bytes behind the pad's beginning: struct rt_sigframe.
inline constexpr std::size_t kCallPadSize = 1152, kCallPadData = 128;
inline constexpr std::size_t kAfterCall = 4;  // where a pad's way back begins; at 0 is the call
// All comes back at once, and what is pending finds the thread where it was.
inline constexpr std::size_t kUnblocked = kAfterCall;
// In landings' pages only: a vdso of one page has no room for them, and a program would keep a page of its text for
// itself. So the calls that map the landing are made without.
inline constexpr bool kPadsInFiles = false;
// The register set that has the vector registers (linux/elf.h, NT_PRFPREG), for call_record().
inline constexpr bool kRecordsVectors = true;

// address: where its first byte will be, a multiple of 16.
std::vector<std::uint8_t> build_call_pad(std::uint64_t address);
// regs: the thread's as it was stopped; vectors: its register set.
CallRecord call_record(const Registers& regs, std::uint64_t mask, std::span<const std::byte> vectors);

}  // namespace probed::arch::aarch64
