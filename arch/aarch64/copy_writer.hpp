// Assembles a Copy: instructions front to back, then the 8-byte words that they load. Internal to arch/aarch64. One
// owner, no sharing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "arch/common.hpp"

namespace probed::arch::aarch64 {

// The `b` that leads from one address to another; 0: more than ±128 MiB.
std::uint32_t branch_between(std::uint64_t from, std::uint64_t to);

class CopyWriter {
 public:
  explicit CopyWriter(std::uint64_t copy_address) : base_(copy_address) {}

  std::uint64_t here() const { return base_ + copy_.size; }
  void word(std::uint32_t insn);
  // ldr x<reg>, =value
  void load(unsigned reg, std::uint64_t value);
  void jump(std::uint64_t target);

  // Describes the boundary at the current offset.
  void point(const CopyPoint& point);
  void before(std::uint64_t original) { point({.meaning = CopyPoint::Meaning::before, .original_pc = original}); }
  void after(std::uint64_t original_pc) { point({.meaning = CopyPoint::Meaning::after, .original_pc = original_pc}); }

  // Whether some jump() didn't reach: the copy is none.
  bool out_of_reach() const { return out_of_reach_; }
  // Lays down the words, aligned in the target: an 8-byte load is then a single access. Once, at the end.
  Copy finish();

 private:
  struct Word {
    std::uint8_t load_at;  // offset of its ldr
    std::uint64_t value;
  };

  std::uint64_t base_;
  Copy copy_{};
  std::array<Word, 2> words_{};
  std::size_t word_count_ = 0;
  bool out_of_reach_ = false;
};

}  // namespace probed::arch::aarch64
