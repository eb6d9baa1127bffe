// What detours and the routines of detour_runtime.cpp agree upon. Internal to arch/x86_64.
#pragma once

#include <cstddef>

namespace probed::arch::x86_64 {

// What the routines use of the stack, their return addresses included: detours touch that much in advance.
inline constexpr std::size_t kRuntimeStack = 40;            // begin on the shared lane, enter, leave
inline constexpr std::size_t kRuntimeStackForStrings = 64;  // copy_string

// In what `enter` gets in rdx, from this bit on: the words from the call to the next one.
inline constexpr std::uint8_t kEnterWords = 32 + 21;

}  // namespace probed::arch::x86_64
