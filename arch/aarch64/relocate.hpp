// One instruction's relocated copy, aarch64. Not done yet: everything is refused. Any thread; pure.
//
// Seam for the port: an instruction that may not be separated from its neighbours (between ldxr and stxr) needs more
// than its own bytes to be recognised; Refusal::exclusive is the caller's to give after looking around it.
#pragma once

#include <cstdint>
#include <span>

#include "arch/common.hpp"

namespace probed::arch::aarch64 {

// Refusals: insn.refusal if it has one, else unsupported.
RelocateResult relocate(std::span<const std::uint8_t> insn_bytes, const Insn& insn, std::uint64_t original,
                        std::uint64_t copy_address);

// The most bytes a copy of it takes.
constexpr std::size_t copy_room(const Insn&) { return kMaxCopySize; }

}  // namespace probed::arch::aarch64
