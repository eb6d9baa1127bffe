// What a function does with rsp. Internal to arch/x86_64. Pure; any thread.
#pragma once

#include <cstdint>
#include <span>

#include "arch/x86_64/zydis.hpp"

namespace probed::arch::x86_64 {

// Whether the instruction names rsp, or a part of it, as something it writes. What only pushes, pops, calls or returns
// does not.
bool sets_stack_pointer(const Decoded& decoded);

// Whether rsp points into a stack throughout: it is only moved by some distance, or set from rbp, from what is kept on
// the stack, or from a register that elsewhere in the function gets its value from rsp or from the stack. Not so where
// hand-written code switches stacks, or reads arrays with pop: below rsp there may be anything. `bytes` are the
// function's; what cannot be decoded ends it.
bool keeps_stack(std::span<const std::uint8_t> bytes);

}  // namespace probed::arch::x86_64
