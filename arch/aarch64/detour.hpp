// Detours, aarch64. Not done yet: everything is refused. Any thread; pure.
//
// Seam for the port: a site is one `b` (±128 MiB), so a region is one instruction and no boundary is ever interior.
// There is no red zone. lahf's part is mrs/msr nzcv; reservations are an ldxr/stxr or LSE cas loop in both kinds of
// lane, as no single instruction is atomic against signals alone; the commit is an stlr, since plain stores are not
// ordered; the time stamp is cntvct_el0 and the thread pointer tpidr_el0.
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
inline constexpr std::size_t kDetourJumpSize = 4;
// Whether detours find a thread's pointer in the word that it points to: in a register, tpidr_el0.
inline constexpr bool kFindsPointerInMemory = false;

DetourFeatures detour_features();
// The clock of the records that detours write, now.
std::uint64_t record_clock();
// Refusals: unsupported, always.
RuntimeCode build_runtime(std::uint64_t address, const ChannelPlaces& places, const DetourFeatures& features);
// Refusals: unsupported, always.
DetourResult build_detour(const DetourRequest& request, const DetourRuntime& runtime, Detour& out);
// Nobody runs into a call_trap.
DetourCall detour_call(const Registers& regs, std::uint64_t return_address);
Registers program_registers(const Registers& regs, const DetourSaves& saves, std::uint64_t site,
                            const std::function<std::uint64_t(std::uint64_t)>& read);
// Whether a Go function begins here that makes sure of its stack first.
bool is_stack_check(std::span<const std::uint8_t> bytes);
// b: the caller keeps the two within ±128 MiB.
std::array<std::uint8_t, kDetourJumpSize> detour_jump(std::uint64_t site, std::uint64_t detour);

}  // namespace probed::arch::aarch64
