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
// Of a pair of words by which a variable's place is asked for, the second of which tells it: the variable's offset from
// the thread pointer, or the address of the module's number (glibc, sysdeps/aarch64/dl-machine.h, since 2.27; musl).
inline constexpr std::optional<std::uint32_t> kRelocationOfThreadDescriptor = R_AARCH64_TLSDESC;
inline constexpr std::uint32_t kRelocationsBySymbol[] = {R_AARCH64_JUMP_SLOT, R_AARCH64_GLOB_DAT, R_AARCH64_ABS64};
inline constexpr std::uint32_t kRelocationOfData = R_AARCH64_GLOB_DAT;

// Where the main program has its thread-local variables, `size` bytes with an alignment of 2^n, from the thread pointer
// on: behind the two words there (ELF Handling For Thread-Local Storage, variant I).
constexpr std::uint64_t main_thread_block(std::uint64_t, std::uint64_t alignment) {
  constexpr std::uint64_t kHead = 16;
  return (kHead + alignment - 1) / alignment * alignment;
}
// Where it has the address of the vector of all modules' blocks (glibc, sysdeps/aarch64/nptl/tls.h: tcbhead_t).
inline constexpr std::uint64_t kThreadVectorAt = 0;

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

// Linux has the processor ignore the highest byte of a program's pointers, also where they are branched to
// (TCR_EL1.TBI0 in arch/arm64/mm/proc.S; Arm ARM, AArch64.BranchAddr). Those of the other half of the address space are
// the kernel's.
constexpr std::uint64_t without_tag(std::uint64_t pointer) {
  constexpr std::uint64_t kTag = 0xffULL << 56, kUpperHalf = 1ULL << 55;
  return (pointer & kUpperHalf) != 0 ? pointer : pointer & ~kTag;
}

// A program makes the calls of one table only.
inline constexpr std::uint32_t kOtherCalls = 0;
inline constexpr std::array<std::uint16_t, 0> kOtherMadeAgain{};

}  // namespace probed::arch::aarch64
