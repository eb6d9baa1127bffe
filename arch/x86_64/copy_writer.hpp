// Assembles a Copy: code front to back, then the 8-byte words its far jumps and calls refer to. Internal to
// arch/x86_64. One owner, no sharing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>

#include "arch/common.hpp"

namespace probed::arch::x86_64 {

// The displacement that leads from the end of an instruction to `to`; nullopt: more than ±2 GiB.
std::optional<std::int32_t> displacement(std::uint64_t end, std::uint64_t to);

class CopyWriter {
 public:
  explicit CopyWriter(std::uint64_t copy_address) : base_(copy_address) {}

  std::uint64_t here() const { return base_ + copy_.size; }
  void bytes(std::span<const std::uint8_t> data);
  void bytes(std::initializer_list<std::uint8_t> data) { bytes(std::span(data.begin(), data.size())); }
  void dword(std::uint32_t value);
  void qword(std::uint64_t value);

  // Describes the boundary at the current offset.
  void point(const CopyPoint& point);
  void before(std::uint64_t original) { point({.meaning = CopyPoint::Meaning::before, .original_pc = original}); }
  void after(std::uint64_t original_pc) { point({.meaning = CopyPoint::Meaning::after, .original_pc = original_pc}); }

  // `opcode` with a rip-relative operand that is a word in the copy's data holding `value`.
  void with_word(std::initializer_list<std::uint8_t> opcode, std::uint64_t value);
  // One instruction: jmp rel32 where that reaches, else a jump through a word of data.
  void jump(std::uint64_t target);
  // How long that instruction would be, were it emitted at `offset`.
  std::size_t jump_size(std::size_t offset, std::uint64_t target) const;
  std::size_t size() const { return copy_.size; }

  // Lays down the data words, aligned in the target so that they never straddle a cache line. Once, at the end.
  Copy finish();

 private:
  struct Word {
    std::uint8_t displacement_at;  // offset of the disp32, which ends its instruction
    std::uint64_t value;
  };

  std::uint64_t base_;
  Copy copy_{};
  std::array<Word, 3> words_{};
  std::size_t word_count_ = 0;
};

}  // namespace probed::arch::x86_64
