// Detours, x86-64: code generation for jump-optimised probes. Bytes out, nothing is touched. Any thread; pure.
//
// What the capture part keeps: every general and vector register, the flags, the red zone, everything on the stack. It
// uses no vector register and no thread-local storage, at most 200 bytes below the red zone, and may be interrupted
// anywhere by a signal handler that runs through the same detour. It may not be left behind: a handler that jumps out
// of it (siglongjmp) leaves a reservation without a record.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "arch/detour.hpp"
#include "arch/x86_64/regs.hpp"

namespace probed::arch::x86_64 {

inline constexpr std::size_t kDetourAlignment = 16;
// Bytes of the jump that a site gets.
inline constexpr std::size_t kDetourJumpSize = 5;
// Whether detours find a thread's pointer in the word that it points to: %fs:0, which every C library makes point to
// itself.
inline constexpr bool kFindsPointerInMemory = true;

// This host's: the one whose processes are traced.
DetourFeatures detour_features();

// The clock of the records that detours write, now: the processor's time stamp counter, the same on every CPU where it
// is invariant (CPUID 80000007h, EDX bit 8).
std::uint64_t record_clock();

// The routines for detours in reach of `address`, which is where the code will lie (a multiple of 16). Refusals:
// processor.
RuntimeCode build_runtime(std::uint64_t address, const ChannelPlaces& places, const DetourFeatures& features);

// The detour of one site. `out` is cleared first; reuse it to spare allocations. Not empty on refusal only.
DetourResult build_detour(const DetourRequest& request, const DetourRuntime& runtime, Detour& out);

// What a thread asks for that has run into a runtime's call_trap; return_address: the word on its stack.
DetourCall detour_call(const Registers& regs, std::uint64_t return_address);

// The program's registers, of a thread in a detour's capture part whose rsp stands where it does between the blocks;
// pc: the site. read: a word of its memory.
Registers program_registers(const Registers& regs, const DetourSaves& saves, std::uint64_t site,
                            const std::function<std::uint64_t(std::uint64_t)>& read);

// Whether a Go function begins here that makes sure of its stack first: then 800 bytes of it are left (StackGuard -
// StackSmall, cmd/internal/objabi/stack.go), else there may be none.
bool is_stack_check(std::span<const std::uint8_t> bytes);

// jmp rel32 from the site; the caller keeps the two within ±2 GiB.
std::array<std::uint8_t, kDetourJumpSize> detour_jump(std::uint64_t site, std::uint64_t detour);

}  // namespace probed::arch::x86_64
