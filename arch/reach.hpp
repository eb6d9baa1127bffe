// Which bytes of a function are instructions: those that something leads to. Pure.
//
// A walk from a function's first byte to its last takes data for instructions, and may be out of step behind them. This
// one goes only where control can go.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "arch/region.hpp"

namespace probed::arch {

struct ReachStep {
  std::uint8_t length = 0;              // 0: no instruction
  bool goes_on = true;                  // control may come to what stands behind it
  std::optional<std::uint64_t> target;  // of a branch or a call
};

// Addresses are ascending, and in the function.
struct ReachRequest {
  CodeRange function;
  std::span<const std::uint64_t> seeds;    // what other code, or a table, leads to
  std::span<const std::uint64_t> entries;  // what symbols, relocations and exception tables name
  std::span<const std::uint64_t> labels;   // whose address some code takes: of data, for all one knows
  std::span<const CodeRange> data;         // what some code reads, calls or jumps through; any order
  std::function<ReachStep(std::uint64_t)> step_at;
};

// The begins of the instructions, ascending. An entry counts unless data, or a label that nothing leads to, are between
// it and the instruction in front of it: names stand in tables, too.
std::vector<std::uint64_t> reached_instructions(const ReachRequest& request);

// Sorted, each once.
void tidy(std::vector<std::uint64_t>& addresses);
std::span<const std::uint64_t> those_in(const std::vector<std::uint64_t>& sorted, const CodeRange& range);

// Sorted, and none overlaps another.
void merge(std::vector<CodeRange>& ranges);
// Of merged ranges those that have bytes in this one.
std::span<const CodeRange> overlapping(const std::vector<CodeRange>& merged, const CodeRange& range);

}  // namespace probed::arch
