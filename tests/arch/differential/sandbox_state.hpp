// The vector and x87 part of a signal frame. Internal to the sandbox; safe in signal handlers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tests/arch/differential/sandbox.hpp"

namespace probed::test {

// Larger than any frame's state but for AMX tiles, which no process has before it asks for them.
inline constexpr std::size_t kMaxFrameState = 4096;

// Bytes of an FPU area as the kernel laid it out in a signal frame.
std::size_t frame_state_size(const std::uint8_t* area);
void load_vectors(const Machine& machine, std::uint8_t* area);
void save_vectors(const std::uint8_t* area, Machine& machine);
// Whether frames carry AVX-512's components on this processor and kernel.
bool wide_state_in_frames();

}  // namespace probed::test
