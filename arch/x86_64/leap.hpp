// Whether an indirect jump can only lead to places that are known. Internal to arch/x86_64. Pure.
//
// Compilers take the address of code in a few ways, all of which the analysis of a file sees: lea with a label, a
// relocation in data, a table of distances that is itself addressed with lea. A jump to such an address needs no
// further understanding. What has to be excluded is an address that is computed: base plus index times size, as
// hand-written code enters unrolled loops.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "arch/x86_64/scan.hpp"

namespace probed::arch::x86_64 {

// A function, walked through once.
class FunctionWalk {
 public:
  // How control gets to an address, besides by the function's own branches.
  enum class Entry : std::uint8_t {
    none,
    leap,     // by one of the function's indirect jumps
    foreign,  // by a branch of other code
  };

  // bytes: all of the function's, decodable. entry_at: for an address in the function.
  FunctionWalk(std::span<const std::uint8_t> bytes, std::uint64_t address,
               std::function<Entry(std::uint64_t)> entry_at);

  // Whether every indirect jump's and call's address is loaded, passed in, a label, or a label plus a distance from a
  // table. One that the function has kept on its stack is what it has put there.
  bool understands_leaps() const;
  // Whether the indirect jump `offset` bytes into the function is one by way of a table of distances, right before it.
  bool jumps_by_table(std::uint64_t offset) const;

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
  // Which ways to an instruction are followed back. A computed call is a rarity even in assembly, where it is computed
  // right before it, and calls are many: for them the straight way is enough.
  enum class Paths : std::uint8_t { all, straight };
  // nullopt: not all are known.
  std::optional<std::vector<std::uint32_t>> predecessors(std::uint32_t step, Paths paths) const;
  bool understands(std::uint32_t step, Paths paths) const;
  bool adds_distance(std::uint32_t step) const;
  // A place on the stack, as the function addresses it.
  struct Place {
    unsigned base;  // ZydisRegister: rsp or rbp
    std::int64_t offset;
    bool operator==(const Place&) const = default;
  };
  struct Store {
    Place place;
    std::uint32_t step;
    unsigned from;  // ZydisRegister; none: not a register's whole value
  };
  // All of the function's.
  const std::vector<Store>& stores() const;
  // The two are ZydisRegisters: before `step`, one holds a distance from the table that the other points to.
  bool comes_from_table(std::uint32_t step, unsigned distance, unsigned table) const;

  std::span<const std::uint8_t> bytes_;
  std::uint64_t address_;
  std::function<Entry(std::uint64_t)> entry_at_;
  std::vector<Step> steps_;
  std::vector<Edge> edges_;  // of branches within the function, by `to`
  std::vector<std::uint32_t> leaps_, calls_;
  mutable std::optional<std::vector<Store>> stores_;
};

}  // namespace probed::arch::x86_64
