// Byte tables for aarch64: instructions as the assembler writes them, what they are, and how they are moved.
// tests/arm64/check-rows asks an assembler whether each word is what stands beside it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "arch/common.hpp"

namespace probed::test {

enum RowFacts : unsigned { kEmulable = 1, kPcRelative = 2 };

// One instruction. What it refers to is counted from itself (`.`), so that it is the same word everywhere.
struct InsnRow {
  std::string_view assembly;
  std::uint32_t word;
  arch::Flow flow = arch::Flow::next;
  arch::Refusal refusal = arch::Refusal::none;
  unsigned facts = 0;         // RowFacts
  std::int64_t distance = 0;  // of a direct branch's target; 0: it is none
};
std::span<const InsnRow> insn_rows();

struct CopyLine {
  std::string_view assembly;
  std::uint32_t word;
};
// What a copy's instruction boundary means. `original` counts from the original.
struct PointRow {
  std::uint8_t offset;
  arch::CopyPoint::Meaning meaning;
  std::int64_t original;
  std::int8_t undo_sp = 0;
};
// An instruction at kOriginal and its copy at kOriginal + distance.
inline constexpr std::uint64_t kOriginal = 0x4000'0000;
struct CopyRow {
  CopyLine original;
  std::int64_t distance;
  std::vector<CopyLine> copy;
  std::vector<PointRow> points;
};
std::span<const CopyRow> copy_rows();

}  // namespace probed::test
