// Code that must not carry a probe, recognised by its bytes. Pure.
#pragma once

#include <cstdint>

namespace probed::arch::aarch64 {

// The signal return trampoline, `mov x8, #139; svc #0`: unwinders know a signal frame by these bytes.
inline constexpr std::uint8_t kSignalReturn[] = {0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4};

// In front of the abort handler of every restartable sequence: RSEQ_SIG of the C library and of librseq, `brk #0x45e0`.
inline constexpr std::uint8_t kRestartableSignature[] = {0x00, 0xbc, 0x28, 0xd4};

}  // namespace probed::arch::aarch64
