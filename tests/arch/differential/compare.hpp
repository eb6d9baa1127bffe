// Equality of two outcomes of one instruction, with a readable account of what differs.
#pragma once

#include <Zydis/Zydis.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/arch/differential/sandbox.hpp"

namespace probed::test {

// Empty: equal in registers, flags, vectors, memory, signal and what the signal says.
std::string differences(const Outcome& expected, const Outcome& got);

// Only the general registers and flags.
std::string register_differences(const arch::x86_64::Registers& expected, const arch::x86_64::Registers& got);

// Takes over from `expected` the registers in which the instruction (clocks, random numbers) leaves something else
// every time.
void forget_volatile(const std::vector<std::uint8_t>& bytes, const Outcome& expected, Outcome& got);

}  // namespace probed::test
