// Whether an indirect jump can only lead to places that are known. Internal to arch/x86_64. Pure.
//
// Compilers take the address of code in a few ways, all of which the analysis of a file sees: lea with a label, a
// relocation in data, a table of distances that is itself addressed with lea. A jump to such an address needs no
// further understanding. What has to be excluded is an address that is computed: base plus index times size, as
// hand-written code enters unrolled loops.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "arch/x86_64/scan.hpp"

namespace probed::arch::x86_64 {

// A function, walked through once.
class FunctionWalk {
 public:
  // bytes: all of the function's. is_target: whether something that isn't one of its own branches leads to an address.
  FunctionWalk(std::span<const std::uint8_t> bytes, std::uint64_t address);

  // Whether every indirect jump's address is loaded, passed in, a label, or a label plus a distance from a table.
  bool understands_leaps() const;

 private:
  struct Step {
    std::uint32_t offset;
    ScanKind kind;
  };
  struct Edge {
    std::uint32_t to, from;  // indices of steps
  };
  struct Need;

  std::uint32_t index_of(std::uint64_t offset) const;  // ~0: none begins there
  std::vector<std::uint32_t> predecessors(std::uint32_t step) const;
  bool understands(std::uint32_t leap) const;
  bool adds_distance(std::uint32_t step) const;

  std::span<const std::uint8_t> bytes_;
  std::uint64_t address_;
  std::vector<Step> steps_;
  std::vector<Edge> edges_;  // of branches within the function, by `to`
  std::vector<std::uint32_t> leaps_;
};

}  // namespace probed::arch::x86_64
