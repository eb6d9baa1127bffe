// What a function does with sp. Internal to arch/aarch64. Pure; any thread.
#pragma once

#include <cstdint>
#include <span>

namespace probed::arch::aarch64 {

// Whether the instruction names sp as its result. What only moves it as the base of a load or store does not.
bool sets_stack_pointer(std::uint32_t word);

// Whether sp points into a stack throughout: it is only moved by some distance, or set from x29, or from a register
// that elsewhere in the function gets its value from sp, x29 or the stack. Not so where hand-written code switches
// stacks, or keeps something else there: below sp there may be anything. `bytes` are the function's.
bool keeps_stack(std::span<const std::uint8_t> bytes);

}  // namespace probed::arch::aarch64
