// The relocator's proof: every instruction, run where it stands and run as a copy elsewhere from the same state, must
// leave the same state, memory and control, or raise the same signal with the same account of it; and every stop inside
// the copy must be explained by its CopyPoints.
//
// PROBED_TEST_SEED repeats a run, PROBED_TEST_CASES sets its length (a million is a good long run), PROBED_TEST_TRACE
// prints each case before it runs.
#include "tests/arch/differential/differential.hpp"

#include <doctest/doctest.h>

#include <iomanip>
#include <sstream>
#include <string>

#include "tests/arch/differential/options.hpp"

namespace probed::test {
namespace {

constexpr std::uint64_t kDefaultCases = 30'000;

std::string family_table(const Tally& tally) {
  std::ostringstream out;
  const auto names = family_names();
  out << "  " << std::left << std::setw(24) << "family" << std::right << std::setw(10) << "cases" << std::setw(11)
      << "mnemonics" << std::setw(10) << "faulted" << std::setw(12) << "undefined"
      << " (always so)\n";
  for (std::size_t i = 0; i < names.size(); ++i) {
    const FamilyTally& f = tally.families[i];
    out << "  " << std::left << std::setw(24) << names[i] << std::right << std::setw(10) << f.cases << std::setw(11)
        << f.executed.size() << std::setw(10) << f.faults << std::setw(12) << f.undefined;
    for (const ZydisMnemonic m : f.seen)
      if (!f.executed.contains(m)) out << " " << ZydisMnemonicGetString(m);
    out << "\n";
  }
  return out.str();
}

// What differs and doesn't when it is done again from the same state is the machine's doing: a copy's code is the same
// every time. Of a real processor it has been seen once in some two million cases: an `xor` of memory, where it stands.
void check_unsteady(const Tally& tally) {
  if (tally.unsteady > 0) MESSAGE(tally.unsteady << " cases differed once and not again, last " << tally.last_unsteady);
  if (Sandbox::processor_is_real()) {
    CHECK(tally.unsteady <= 1);
  } else {
    MESSAGE("no FSGSBASE here, a sign of a hypervisor that now and then changes what instructions do");
    CHECK(tally.unsteady * 1000 <= tally.cases);
  }
}

void run_differential(std::uint64_t base, std::uint64_t far_base) {
  stay_on_this_cpu();
  const std::uint64_t seed = chosen_seed();
  Differential differential(base, far_base, seed);
  differential.run(from_environment("PROBED_TEST_CASES", kDefaultCases) / 2);
  const Tally& t = differential.tally();
  for (const std::string& mismatch : t.mismatches) FAIL_CHECK(mismatch);
  MESSAGE("seed " << seed << ": " << t.cases << " cases, " << t.copies << " copies run, " << t.stepped << " stepped, "
                  << t.points << " stopped inside, " << t.undone << " undone and repeated, " << t.emulated
                  << " emulated, " << t.too_far << " out of reach, " << t.below_sp
                  << " calls through the word below rsp left out\n"
                  << family_table(t));
  check_unsteady(t);
  // A harness that had gone blind would see faults only, or nothing.
  std::uint64_t faults = 0;
  for (const FamilyTally& f : t.families) {
    faults += f.faults;
    CHECK(f.faults < f.cases);
  }
  CHECK(faults * 4 < t.cases);
  CHECK(t.copies > t.cases);
  CHECK(t.stepped > t.cases);
  CHECK(t.points > t.cases);
}

}  // namespace

// Neither collides with AddressSanitizer's shadow (0x7fff8000 to 0x10007fff7fff) or its heap (0x600000000000 on).
TEST_CASE("a relocated copy does what the original does, below 4 GiB") {
  run_differential(0x3000'0000, 0x2345'6789'0000);
}

TEST_CASE("a relocated copy does what the original does, at a high address") {
  run_differential(0x1234'5678'0000, 0x2345'6789'0000);
}

TEST_CASE("a copy of every form of every instruction that this processor executes does what the original does") {
  stay_on_this_cpu();
  const std::uint64_t seed = chosen_seed();
  Differential differential(0x3000'0000, 0x2345'6789'0000, seed);
  std::vector<std::string> undrawn;
  const std::size_t count = differential.sweep(undrawn);
  const Tally& t = differential.tally();
  for (const std::string& mismatch : t.mismatches) FAIL_CHECK(mismatch);
  std::string names;
  for (const std::string& name : undrawn) names += " " + name;
  MESSAGE("seed " << seed << ": " << count << " forms, " << t.copies << " copies run, " << undrawn.size()
                  << " forms of which no case could be made:" << names << "\n"
                  << family_table(t));
  check_unsteady(t);
  CHECK(count > 3000);
  CHECK(undrawn.size() * 50 < count);
}

}  // namespace probed::test
