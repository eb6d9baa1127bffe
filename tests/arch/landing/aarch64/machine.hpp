// What the landing's test needs to know of the processor; the same names in each architecture's folder.
#pragma once

#include <signal.h>

#include <cstdint>
#include <vector>

#include "arch/arch.hpp"

namespace probed::arch {

inline constexpr int kTrapCode = TRAP_BRKPT;

using Code = std::vector<std::uint8_t>;

inline Code code_of(std::uint32_t word) {
  Code code;
  for (unsigned i = 0; i < 4; ++i) code.push_back(static_cast<std::uint8_t>(word >> 8 * i));
  return code;
}

// Returns 42: its first instruction, and what follows. A copy of the first goes on behind it.
inline const Code kFirst = code_of(0xd2800540), kRest = code_of(0xd65f03c0);  // mov x0, 42; ret
inline Code jump(std::uint64_t from, std::uint64_t to) {
  return code_of(0x14000000 | (static_cast<std::uint32_t>(to - from) >> 2 & 0x3ffffff));
}

#define BREAKPOINT_OF_ITS_OWN "brk 1"

// struct ucontext, of which the landing reads some.
struct Context {
  std::uint64_t words[64] = {};
  std::uint64_t& pc() { return words[55]; }
  // A tracer has dealt with the thread: it has sent it elsewhere than its siginfo says.
  void deal_with(std::uint64_t elsewhere) { pc() = elsewhere; }
};

// What no register of a program's has by chance; outside of any call.
inline void fill(native::Registers& r) {
  std::uint64_t value = 1;
  for (std::uint64_t& reg : r.x) reg = 0x0101010101010101 * value++;
  r.pstate |= 0xf0000000;  // all flags
}

}  // namespace probed::arch
