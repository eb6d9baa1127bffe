// Code that must not carry a probe, recognised by its bytes. Pure.
#pragma once

#include <cstdint>

namespace probed::arch::x86_64 {

// The signal return trampoline, `mov $15,%rax; syscall`: unwinders (libgcc's MD_FALLBACK_FRAME_STATE_FOR, gdb) know a
// signal frame by exactly these bytes at its return address.
inline constexpr std::uint8_t kSignalReturn[] = {0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05};

// In front of the abort handler of every restartable sequence: RSEQ_SIG of the C library and of librseq, as the operand
// of a ud1.
inline constexpr std::uint8_t kRestartableSignature[] = {0x53, 0x30, 0x05, 0x53};

}  // namespace probed::arch::x86_64
