// A function's exits, aarch64. Not done yet: everything is refused. Pure; any thread.
//
// Seam for the port: the return address is in x30 until the function saves it, so that an activation is known by sp at
// its entry and at its exits, not by where the return address is.
#pragma once

#include "arch/aarch64/regs.hpp"
#include "arch/exits.hpp"

namespace probed::arch::aarch64 {

// Refusals: unsupported, always.
ExitPlan plan_exits(const CodeFlow& flow, std::uint64_t entry, const NamedFunction& is_function);

inline std::uint64_t return_slot(const Registers& regs) { return regs.sp(); }
inline void step_out(Registers& regs, std::uint64_t return_address) { regs.set_pc(return_address); }

// Go's current goroutine (ABIInternal: x28) and where assembly finds it.
inline std::uint64_t goroutine(const Registers&) { return 0; }
inline constexpr std::int64_t kGoroutineFromThreadPointer = 0;

}  // namespace probed::arch::aarch64
