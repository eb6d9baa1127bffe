// What is run on a NativeCpu, and how two runs are compared: instructions of all kinds, registers and memory at random.
// PROBED_SEED=N repeats a run; PROBED_CASES=N changes how many cases each test makes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/arch/aarch64/native_cpu.hpp"

namespace probed::test {

inline constexpr std::uint64_t kOriginal = kTextMiddle;  // where an instruction stands
inline constexpr std::uint64_t kSeenState = 0xf2000c00;  // of pstate: NZCV, TCO, BTYPE
inline constexpr std::uint64_t kBranchType = 0xc00, kBranchTypeJump = 0x400;

std::uint64_t number_from(const char* variable, std::uint64_t otherwise);
std::uint64_t random_value();
std::uint64_t below(std::uint64_t limit);
std::uint32_t random_word();
unsigned case_count();

// Registers with addresses of data, small numbers and anything; sp in the middle of the data; pc: kOriginal.
CpuState random_state();
const std::vector<std::uint8_t>& random_data();

struct CpuTrial {
  CpuOutcome outcome;
  std::vector<std::uint8_t> data;
};
// From the same data each time.
CpuTrial run(const CpuState& in, const std::vector<std::uint8_t>& data);
// Empty: none, but for the 16 bytes below sp: nobody may keep anything there, where copies of literal loads keep x0.
std::string differences(const CpuTrial& a, const CpuTrial& b);

// Whether the instruction, at kOriginal, can be run and compared.
bool may_run(std::uint32_t word);
// One that depends on where it stands, changes control flow or is otherwise singled out; one of this program's
// libraries.
std::uint32_t word_of_any_form();
std::uint32_t word_of_real_code();

}  // namespace probed::test
