// What the routines of detour_runtime.cpp use of the stack, their return addresses included: detours touch that much in
// advance. Internal to arch/x86_64.
#pragma once

#include <cstddef>

namespace probed::arch::x86_64 {

inline constexpr std::size_t kRuntimeStack = 40;            // begin on the shared lane
inline constexpr std::size_t kRuntimeStackForStrings = 64;  // copy_string

}  // namespace probed::arch::x86_64
