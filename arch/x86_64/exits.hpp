// A function's exits, x86-64. Pure; any thread.
#pragma once

#include <optional>
#include <span>

#include "arch/exits.hpp"
#include "arch/x86_64/regs.hpp"

namespace probed::arch::x86_64 {

// entry: the function's first instruction. Refusals: all but `unsupported`.
ExitPlan plan_exits(const CodeFlow& flow, std::uint64_t entry, const NamedFunction& is_function);

// At an exit's instruction: where the return address is. A jump that leaves a function finds the stack as the function
// found it.
inline std::uint64_t return_slot(const Registers& regs) { return regs.sp(); }
// The registers as the caller will see them: what a return probe's arguments are read from.
inline void step_out(Registers& regs, std::uint64_t return_address) {
  regs.set_pc(return_address);
  regs.set_sp(regs.sp() + kWordSize);
}

// Go's current goroutine: where compiled functions have it (ABIInternal), and, counted from the thread pointer, where
// assembly finds it (cmd/link, runtime·tlsg). Its structure begins with its stack's bounds, low and high.
inline std::uint64_t goroutine(const Registers& regs) { return regs.r14; }
inline constexpr std::int64_t kGoroutineFromThreadPointer = -8;

}  // namespace probed::arch::x86_64
