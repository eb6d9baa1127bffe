// What the landing's test needs to know of the processor; the same names in each architecture's folder.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "arch/arch.hpp"

namespace probed::arch {

inline constexpr int kTrapCode = 0x80;  // SI_KERNEL

using Code = std::vector<std::uint8_t>;

// Returns 42: its first instruction, and what follows. A copy of the first goes on behind it.
inline const Code kFirst{0xb8, 42, 0, 0, 0}, kRest{0xc3};
inline Code jump(std::uint64_t from, std::uint64_t to) {
  const auto distance = static_cast<std::int32_t>(to - (from + 5));
  Code code{0xe9, 0, 0, 0, 0};
  std::memcpy(code.data() + 1, &distance, sizeof distance);
  return code;
}

#define BREAKPOINT_OF_ITS_OWN "int3"
#define STEP_OF_ITS_OWN "pushfq; orq $0x100, (%%rsp); popfq; nop"

// struct ucontext, of which the landing reads some.
struct Context {
  std::uint64_t words[64] = {};
  std::uint64_t& pc() { return words[21]; }
  // A tracer has dealt with the thread.
  void deal_with(std::uint64_t) { words[22] = 1 << 16; }  // the resume flag
};

// What no register of a program's has by chance; outside of any call.
inline void fill(native::Registers& r) {
  std::uint64_t value = 1;
  for (auto* reg : {&r.rax, &r.rbx, &r.rcx, &r.rdx, &r.rsi, &r.rdi, &r.rbp, &r.r8, &r.r9, &r.r10, &r.r11, &r.r12,
                    &r.r13, &r.r14, &r.r15})
    *reg = 0x0101010101010101 * value++;
  r.eflags |= 0x8d5;  // all flags of arithmetic
  r.orig_rax = ~std::uint64_t{0};
}

}  // namespace probed::arch
