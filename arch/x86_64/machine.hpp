// What files and address spaces of this architecture look like. Constant data.
#pragma once

#include <elf.h>

#include <cstdint>
#include <optional>

#include "arch/common.hpp"

namespace probed::arch::x86_64 {

inline constexpr Elf64_Half kElfMachine = EM_X86_64;
// Relocations that the loader writes the address of a function by: what a resolver returns; a symbol's.
inline constexpr std::uint32_t kRelocationByResolver = R_X86_64_IRELATIVE;
// What the loader answers with a module's number, and with a variable's offset from the thread pointer.
inline constexpr std::uint32_t kRelocationOfThreadModule = R_X86_64_DTPMOD64;
inline constexpr std::uint32_t kRelocationOfThreadOffset = R_X86_64_TPOFF64;
inline constexpr std::uint32_t kRelocationsBySymbol[] = {R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT, R_X86_64_64};

// What says that indirect branches have to arrive at landing pads. Linux lets no program ask for that here
// (arch/x86/kernel/cet.c, 6.18).
inline constexpr std::optional<FileProperty> kGuardProperty = std::nullopt;

// Every instruction begins at a multiple of this.
inline constexpr std::uint64_t kInsnAlignment = 1;

// Below every program's end of the address space.
inline constexpr std::uint64_t kHighestAddress = 0x7fff'ffff'0000;
// How far from an instruction its copy may be, so that relocated operands and jumps within the module still reach
// (±2 GiB).
inline constexpr std::uint64_t kCopyReach = 0x6000'0000;

}  // namespace probed::arch::x86_64
