// What the rig has to know of the processor that it runs on: one file for each architecture.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace probed::test {

std::uint64_t pc_of(const ucontext_t& interrupted);
void set_pc(ucontext_t& interrupted, std::uint64_t pc);
// The calling thread's.
std::uint64_t thread_pointer();

// A function, anywhere. Jumps may take `region` bytes at its begin, and at `exit`, where it returns.
struct Body {
  std::span<const std::uint8_t> code;
  std::size_t region = 0, exit = 0;
};
Body summing_function();  // returns the sum of its first two arguments
Body storing_function();  // stores the second one where the first one points

}  // namespace probed::test
