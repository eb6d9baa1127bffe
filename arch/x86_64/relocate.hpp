// One instruction's relocated copy: executed elsewhere, it does what the original does where it stands, then control is
// where the original would have sent it. Any thread; pure.
//
// What every copy keeps: registers, flags, the red zone and everything on the stack are those of the original, before
// and after each of the copy's instructions, but for what a CopyPoint says. No return address into the copy is ever on
// the stack. What remains that a program could see:
//   - an x87 instruction leaves its own address as the last FPU instruction pointer (fnstenv, fxsave);
//   - a call is push + jmp, so its return does not match the processor's return-stack predictor. For the same reason
//     calls must not be relocated in a thread with a user shadow stack (x86_Thread_features: shstk in
//     /proc/PID/status): the caller checks that;
//   - an indirect call to an address that isn't canonical faults after the word below sp was overwritten (with the
//     return address); and a call whose operand overlaps that word, through another register than rsp, jumps to the
//     return address. `call [rsp-8]` and its neighbours are refused;
//   - a popf that sets TF (a program that single-steps itself) traps one instruction early: behind the copy's jump
//   back.
//
// Around a system call: a syscall that restarts puts the thread back at offset 0 (`before`) with rcx = copy + 2. The
// `before` point of a syscall therefore carries link too: if rcx equals copy + 2 there, it has to be set to link.
#pragma once

#include <cstdint>
#include <span>

#include "arch/common.hpp"

namespace probed::arch::x86_64 {

// insn_bytes: the original's, at least insn.length of them. insn: decode()'s answer for them at `original`.
// copy_address: where Copy::code[0] will be. Refusals: insn.refusal if it has one; out_of_range when a PC-relative
// operand cannot reach from copy_address (jumps always can). refusals.hpp lists them all.
RelocateResult relocate(std::span<const std::uint8_t> insn_bytes, const Insn& insn, std::uint64_t original,
                        std::uint64_t copy_address);

// The most bytes a copy of it takes where jumps back reach (±2 GiB).
constexpr std::size_t copy_room(const Insn& insn) {
  constexpr std::size_t kJumpBack = 5;
  return insn.flow == Flow::next ? insn.length + kJumpBack : kMaxCopySize;
}

}  // namespace probed::arch::x86_64
