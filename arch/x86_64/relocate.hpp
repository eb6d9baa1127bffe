// One instruction's relocated copy: executed elsewhere, it does what the original does where it stands, then control is
// where the original would have sent it. Any thread; pure.
//
// What every copy keeps: registers, flags, the red zone and everything on the stack are those of the original, before
// and after each of the copy's instructions, but for what a CopyPoint says. No return address into the copy is ever on
// the stack. Three things remain that a program could see, all of them accepted by the kernel's uprobes too:
//   - an x87 instruction leaves its own address as the last FPU instruction pointer (fnstenv, fxsave);
//   - a call is push + jmp, so its return does not match the processor's return-stack predictor. For the same reason
//     calls must not be relocated in a thread with a user shadow stack (x86_Thread_features: shstk in
//     /proc/PID/status): the caller checks that;
//   - an indirect call has already overwritten the word below sp when reading its target faults; if that operand
//   (through
//     another register than rsp) overlaps the word below sp, it reads the return address. `call [rsp-8]` and its
//     neighbours are refused.
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
// operand cannot reach from copy_address (jumps always can); unsupported for a call through or from below rsp.
RelocateResult relocate(std::span<const std::uint8_t> insn_bytes, const Insn& insn, std::uint64_t original,
                        std::uint64_t copy_address);

}  // namespace probed::arch::x86_64
