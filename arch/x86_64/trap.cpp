// Recognising breakpoints without a decoder: this also runs on bytes that may not be an instruction at all.
#include "arch/x86_64/trap.hpp"

#include <algorithm>
#include <iterator>

namespace probed::arch::x86_64 {
namespace {

// f0 is missing on purpose: a locked int3 is #UD.
bool is_prefix(std::uint8_t byte) {
  constexpr std::uint8_t kLegacy[] = {0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65, 0x66, 0x67, 0xf2, 0xf3};
  return (byte & 0xf0) == 0x40 || std::ranges::find(kLegacy, byte) != std::end(kLegacy);
}

}  // namespace

bool is_breakpoint(std::span<const std::uint8_t> bytes) {
  constexpr std::size_t kArchitecturalLimit = 15;
  bytes = bytes.first(std::min(bytes.size(), kArchitecturalLimit));
  while (!bytes.empty() && is_prefix(bytes.front())) bytes = bytes.subspan(1);
  if (bytes.empty()) return false;
  if (bytes[0] == 0xcc || bytes[0] == 0xf1) return true;
  return bytes.size() >= 2 && bytes[0] == 0xcd && bytes[1] == 3;
}

}  // namespace probed::arch::x86_64
