// Chooses the processor's state for an instruction such that it does something: addresses point into the sandbox,
// branches land, divisions mostly divide. Refuses what would touch memory outside the sandbox.
#pragma once

#include <vector>

#include "arch/x86_64/zydis.hpp"
#include "tests/arch/differential/places.hpp"
#include "tests/arch/differential/random.hpp"
#include "tests/arch/differential/sandbox.hpp"

namespace probed::test {

inline constexpr std::uint64_t kAlwaysOne = 0x202;  // rflags: bit 1 and IF

// Fills `machine` for these bytes standing at places.original; machine.data and .stack are only changed where it
// matters. False: the state drawn is not safe; try again.
bool aim(const std::vector<std::uint8_t>& bytes, Random& random, const Places& places, Machine& machine);

// Whether an indirect call reads memory in the word below rsp: the one operand that a relocated call can't have.
bool reads_below_sp(const std::vector<std::uint8_t>& bytes, const Machine& start, std::uint64_t address);

}  // namespace probed::test
