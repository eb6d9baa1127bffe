// Runs one case natively, as a near and as a far copy, stepped and stopped at every boundary of the copy, and emulated
// where that is possible, and compares. One sandbox, one thread.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "arch/common.hpp"
#include "tests/arch/differential/generator.hpp"
#include "tests/arch/differential/sandbox.hpp"
#include "tests/arch/differential/translate.hpp"

namespace probed::test {

inline constexpr std::size_t kMostMismatches = 10;

struct FamilyTally {
  std::uint64_t cases = 0, faults = 0, undefined = 0;
  std::set<ZydisMnemonic> seen, executed;
};

struct Tally {
  std::uint64_t cases = 0, copies = 0, stepped = 0, points = 0, undone = 0, emulated = 0, too_far = 0, below_sp = 0;
  std::uint64_t unsteady = 0;  // cases that differed once and, from the same state, not again
  std::vector<FamilyTally> families;
  std::vector<std::string> mismatches;  // seed, case, what differs; at most kMostMismatches
  std::string last_unsteady;            // the same of the last unsteady case's first run
};

class Differential {
 public:
  // far_base: of the page for far copies, more than 2 GiB from base.
  Differential(std::uint64_t base, std::uint64_t far_base, std::uint64_t seed);

  // Random cases, until there are too many mismatches.
  void run(std::uint64_t cases);
  // One case of every form that is executed here. Returns how many forms there are; undrawn: those of which no case
  // could be made.
  std::size_t sweep(std::vector<std::string>& undrawn);

  const Tally& tally() const { return tally_; }

 private:
  void check(const Case& one);
  void compare_with_original();
  void run_original(const Machine& start, Outcome& outcome);
  void run_at(std::uint64_t pc, const Machine& start, Outcome& outcome);
  void count_outcome();
  void check_emulation();
  void check_copy(std::uint64_t address);
  void check_refusal(std::uint64_t address, arch::Refusal refusal);
  void check_steps(const Placed& placed);
  void check_points(const Placed& placed);
  void check_interrupted_repetition(const Placed& placed);
  void arrived_as_expected(const Placed& placed);
  void conclude(const std::string& how, const Placed& placed);
  void conclude_undone(const std::string& how, const Placed& placed);
  void conclude_translated(const std::string& how, bool pushed);
  void forget_pushed_word();
  std::string text() const;
  void mismatch(const std::string& how, const std::string& details);

  Sandbox sandbox_;
  Generator generator_;
  std::uint64_t seed_;
  bool trace_;
  std::uint64_t number_ = 0;
  const Case* case_ = nullptr;
  arch::Insn insn_;
  Machine start_, again_;
  Outcome expected_, got_;
  Tally tally_;
};

}  // namespace probed::test
