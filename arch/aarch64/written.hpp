// Which general registers an instruction writes. Internal to arch/aarch64. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>

namespace probed::arch::aarch64 {

// Whether it may write x<reg> (0 to 30), the whole of it or not, as its result or as a base that it moves. What calls
// change in their callees isn't theirs. Never false for an instruction that does.
bool may_write(std::uint32_t word, unsigned reg);
// Whether it loads all 64 bits of x<reg> from memory.
bool loads_word(std::uint32_t word, unsigned reg);

// A load or store of 64-bit registers at a base register plus a constant; the second of a pair is 8 bytes behind.
struct WordAccess {
  bool is_load = false;
  unsigned base = 0;  // 31: sp
  std::int64_t offset = 0;
  unsigned first = 0;
  std::optional<unsigned> second{};
};
// nullopt: another instruction, or one that moves its base.
std::optional<WordAccess> word_access(std::uint32_t word);

}  // namespace probed::arch::aarch64
