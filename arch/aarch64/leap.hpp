// Where indirect jumps lead. Internal to arch/aarch64. Pure; any thread.
//
// Compilers take the address of code in a few ways, all of which the analysis of a file sees: adr, adrp with add, a
// relocation in data, and tables of distances from a label, which are found through the jump that uses them. A jump to
// such an address needs no further understanding. What has to be excluded is an address that is computed otherwise, as
// hand-written code enters unrolled loops.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace probed::arch::aarch64 {

// A table of distances: entry i leads to base + (entry << shift).
struct JumpTable {
  std::uint64_t address = 0, base = 0;
  std::uint8_t entry_size = 1, shift = 0;
  bool is_signed = false;
  std::optional<std::uint64_t> count{};  // entries; nullopt: nothing says
};

// A function, walked through once.
class FunctionWalk {
 public:
  // How control gets to an address, besides by the function's own branches.
  enum class Entry : std::uint8_t {
    none,
    leap,     // by one of the function's indirect jumps
    foreign,  // by a branch of other code
  };

  // bytes: all of the function's. entry_at: for an address in the function.
  FunctionWalk(std::span<const std::uint8_t> bytes, std::uint64_t address,
               std::function<Entry(std::uint64_t)> entry_at);

  // Whether every indirect jump's address is loaded, passed in, a label, or found by a table; and no call's is computed
  // right before it.
  bool understands_leaps() const;
  // The table by which the indirect jump `offset` bytes into the function finds its target; nullopt: it does otherwise.
  std::optional<JumpTable> table_of(std::uint64_t offset) const;

 private:
  struct Need;

  std::uint32_t word(std::uint32_t step) const;
  std::uint64_t address_of(std::uint32_t step) const;
  // The last instruction in front of `step`, on the straight way to it, that writes the register. nullopt: none does
  // nearby.
  std::optional<std::uint32_t> writer(std::uint32_t step, unsigned reg) const;
  // What adr, or adrp with add, has put into the register before `step`.
  std::optional<std::uint64_t> label_in(std::uint32_t step, unsigned reg) const;
  std::optional<JumpTable> table_added_at(std::uint32_t step) const;
  std::optional<JumpTable> distance_in(std::uint32_t step, unsigned reg) const;
  std::optional<std::uint64_t> limit_of(std::uint32_t step, unsigned index) const;
  bool understands(std::uint32_t leap) const;
  bool is_computed(std::uint32_t step, unsigned reg) const;
  // nullopt: not all are known.
  std::optional<std::vector<std::uint32_t>> predecessors(std::uint32_t step) const;

  std::span<const std::uint8_t> bytes_;
  std::uint64_t address_;
  std::function<Entry(std::uint64_t)> entry_at_;
  struct Edge {
    std::uint32_t to, from;  // indices of instructions
  };
  std::vector<Edge> edges_;  // of branches within the function, by `to`
  std::vector<std::uint32_t> leaps_, calls_;
};

}  // namespace probed::arch::aarch64
