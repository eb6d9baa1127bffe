// A function's exits, aarch64. Pure; any thread.
//
// The return address is in x30 until the function saves it, so that a call is known by sp at its entry, which is where
// it is again at each exit, with x30 as it was. Nothing keeps two calls of one function from having the same sp but
// that the first, to call anything, has had to keep x30 on the stack.
#pragma once

#include "arch/aarch64/regs.hpp"
#include "arch/exits.hpp"

namespace probed::arch::aarch64 {

// entry: the function's first instruction. Refusals: all but `unsupported`.
ExitPlan plan_exits(const CodeFlow& flow, std::uint64_t entry, const NamedFunction& is_function);

inline std::uint64_t return_slot(const Registers& regs) { return regs.sp(); }
inline void step_out(Registers& regs, std::uint64_t return_address) { regs.set_pc(return_address); }

// Go's current goroutine: where compiled functions have it (ABIInternal), and, counted from the thread pointer, where
// assembly finds it (cmd/link, runtime·tls_g without cgo). Its structure begins with its stack's bounds, low and high.
inline std::uint64_t goroutine(const Registers& regs) { return regs.x[28]; }
inline constexpr std::int64_t kGoroutineFromThreadPointer = 16;

}  // namespace probed::arch::aarch64
