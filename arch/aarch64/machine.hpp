// What files and address spaces of this architecture look like. Constant data.
#pragma once

#include <elf.h>

#include <array>
#include <cstdint>
#include <optional>

#include "arch/common.hpp"

namespace probed::arch::aarch64 {

inline constexpr Elf64_Half kElfMachine = EM_AARCH64;
// Relocations that the loader writes the address of a function by: what a resolver returns; a symbol's.
inline constexpr std::uint32_t kRelocationByResolver = R_AARCH64_IRELATIVE;
// What the loader answers with a module's number, and with a variable's offset from the thread pointer.
inline constexpr std::uint32_t kRelocationOfThreadModule = R_AARCH64_TLS_DTPMOD;
inline constexpr std::uint32_t kRelocationOfThreadOffset = R_AARCH64_TLS_TPREL;
inline constexpr std::uint32_t kRelocationsBySymbol[] = {R_AARCH64_JUMP_SLOT, R_AARCH64_GLOB_DAT, R_AARCH64_ABS64};
inline constexpr std::uint32_t kRelocationOfData = R_AARCH64_GLOB_DAT;

// What says that indirect branches have to arrive at landing pads: GNU_PROPERTY_AARCH64_FEATURE_1_AND and its bit BTI
// (ELF for the Arm 64-bit Architecture, 6.2).
inline constexpr std::optional<FileProperty> kGuardProperty = FileProperty{0xc0000000, 1};

// Every instruction begins at a multiple of this.
inline constexpr std::uint64_t kInsnAlignment = 4;

// 48 bits: where kernels have fewer, nothing is mapped up there, and mapping there fails; beyond that the kernel maps
// only what asks for it (Documentation/arm64/memory.rst).
inline constexpr std::uint64_t kHighestAddress = 0xffff'ffff'0000;
// How far from an instruction its copy may be: the copy's b reaches ±128 MiB, and has to get to where a branch of the
// original leads within 1 MiB.
inline constexpr std::uint64_t kCopyReach = 0x0780'0000;

// A program makes the calls of one table only.
inline constexpr std::uint32_t kOtherCalls = 0;
inline constexpr std::array<std::uint16_t, 0> kOtherMadeAgain{};

}  // namespace probed::arch::aarch64
