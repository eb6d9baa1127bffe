// Guards drawn at random: what says whether an argument has a value, as of an optional one or of a vector's element.
#pragma once

#include <span>

#include "daemon/lang/definition.hpp"
#include "tests/arch/differential/random.hpp"

namespace probed::test {

// What guards look at: registers by the kernel's names. `pointers` can be followed, `nowhere` can't.
struct GuardRegisters {
  std::span<const char*const> numbers, pointers;
  const char* nowhere;
};

// Puts up to two guards in front of an argument that is a register, the stack pointer, or memory behind one of them.
void guard_at_random(lang::FetchArg& arg, const GuardRegisters& registers, Random& random);

}  // namespace probed::test
