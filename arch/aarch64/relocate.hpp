// One instruction's relocated copy: executed elsewhere, it does what the original does where it stands, then control is
// where the original would have sent it. Any thread; pure.
//
// What every copy keeps: registers, flags and everything on the stack are those of the original, before and after each
// of the copy's instructions, but for what a CopyPoint says. No register is free here in the middle of a function, and
// a branch reaches 128 MiB; so a copy lies within that of its original, or there is none. What remains that a program
// could see:
//   - a literal load from more than 1 MiB away whose literal can't be read faults with the literal's address in its
//     register; for vector registers and xzr in x0, of which a copy is in the 16 bytes below sp (AAPCS64, 6.4.5.1, lets
//     nobody keep anything there);
//   - a blraa and its kin whose pointer fails authentication, on processors that fault for that (FEAT_FPAC), does so
//     with the return address in x30 already;
//   - br and its kin come from a page that isn't guarded, so that they may land on every kind of `bti`.
//
// Copies of calls keep no shadow stack (FEAT_GCS): the caller checks that the process has none.
#pragma once

#include <cstdint>
#include <span>

#include "arch/common.hpp"

namespace probed::arch::aarch64 {

// insn_bytes: the original's, at least 4. insn: decode()'s answer for them at `original`. copy_address: where
// Copy::code[0] will be, a multiple of 4. Refusals: insn.refusal if it has one; out_of_range when a branch doesn't
// reach from there; unsupported for a call through x30, which would have to be read and written at once (emulate()
// can).
RelocateResult relocate(std::span<const std::uint8_t> insn_bytes, const Insn& insn, std::uint64_t original,
                        std::uint64_t copy_address);

// The most bytes a copy of it takes.
constexpr std::size_t copy_room(const Insn& insn) {
  constexpr std::size_t kWithJumpBack = 8;
  return insn.flow == Flow::next && !insn.pc_relative ? kWithJumpBack : kMaxCopySize;
}

}  // namespace probed::arch::aarch64
