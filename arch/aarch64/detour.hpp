// Detours, aarch64: code generation for jump-optimised probes. Words out, nothing is touched. Any thread; pure.
//
// What the capture part keeps: every general and vector register, the flags, everything on the stack and 16 bytes
// below. It uses no vector register and at most 192 bytes below sp. With memory tags it makes no checked access
// (PSTATE.TCO), as the daemon's reads are none. What belongs to the order of memory accesses is in detour_runtime.cpp.
//
// The code is new where it lies, or has replaced other code that no thread can be in any more. The kernel's writes
// clean and invalidate the caches for it (copy_to_user_page()); a processor that has older instructions on their way
// drops them when it enters or leaves the kernel, which every thread does between this and the writing of the jump
// (daemon/tracer/jumps/optimiser.cpp, syncing). The jump itself takes the place of a brk: of these two either may be
// executed while one replaces the other (Arm ARM, B2.2.5).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "arch/aarch64/regs.hpp"
#include "arch/detour.hpp"

namespace probed::arch::aarch64 {

inline constexpr std::size_t kDetourAlignment = 16;
// Bytes of the jump that a site gets.
inline constexpr std::size_t kDetourJumpSize = 4;
// Whether detours find a thread's pointer in the word that it points to: in a register, tpidr_el0.
inline constexpr bool kFindsPointerInMemory = false;

// This host's: the one whose processes are traced.
DetourFeatures detour_features();

// The clock of the records that detours write, now: the virtual counter, which every program can read (Linux leaves
// CNTKCTL_EL1.EL0VCTEN set).
std::uint64_t record_clock();

// The routines for detours in reach of `address`, which is where the code will lie (a multiple of 16). Refusals:
// processor: it has no single instructions for atomic changes (FEAT_LSE).
RuntimeCode build_runtime(std::uint64_t address, const ChannelPlaces& places, const DetourFeatures& features);

// The detour of one site. `out` is cleared first; reuse it to spare allocations. Not empty on refusal only. Where the
// region begins with a landing pad that stays, the jump comes from behind it: once more the pad does no harm.
// Refusals: unsupported: an exit whose return address is signed (retaa).
DetourResult build_detour(const DetourRequest& request, const DetourRuntime& runtime, Detour& out);

// What a thread asks for that has run into a runtime's call_trap. The other argument is of no use here.
DetourCall detour_call(const Registers& regs, std::uint64_t return_address);

// The program's registers, of a thread in a detour's capture part; pc: the site. read: a word of its memory.
Registers program_registers(const Registers& regs, const DetourSaves& saves, std::uint64_t site,
                            const std::function<std::uint64_t(std::uint64_t)>& read);

// Whether a Go function begins here that makes sure of its stack first: then 800 bytes of it are left (StackGuard -
// StackSmall, cmd/internal/objabi/stack.go), else there may be none.
bool is_stack_check(std::span<const std::uint8_t> bytes);

// b: the caller keeps the two within ±128 MiB.
std::array<std::uint8_t, kDetourJumpSize> detour_jump(std::uint64_t site, std::uint64_t detour);

}  // namespace probed::arch::aarch64
