// Recognising brk.
#include "arch/aarch64/trap.hpp"

#include "arch/aarch64/word.hpp"

namespace probed::arch::aarch64 {

bool is_breakpoint(std::span<const std::uint8_t> bytes) {
  return bytes.size() >= kInsnSize && is_brk(load_word(bytes));
}

}  // namespace probed::arch::aarch64
