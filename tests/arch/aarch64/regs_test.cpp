// Names of aarch64 registers, the calling convention, and the breakpoint.
#include "arch/aarch64/regs.hpp"

#include <doctest/doctest.h>

#include "arch/aarch64/trap.hpp"
#include "arch/aarch64/word.hpp"

namespace probed::arch::aarch64 {
TEST_CASE("aarch64 registers are found by the kernel's names") {
  CHECK(register_offset("x0") == 0u);
  CHECK(register_offset("x9") == 72u);
  CHECK(register_offset("x30") == 240u);
  CHECK(register_offset("lr") == 240u);
  CHECK(register_offset("sp") == 248u);
  CHECK(register_offset("pc") == 256u);
  CHECK(register_offset("pstate") == 264u);
  for (const char* name : {"", "x", "x31", "x00", "x01", "x100", "w0", "ax", "X0", "x-1"})
    CHECK_MESSAGE(!register_offset(name).has_value(), name);
  CHECK(register_names().size() == 34);
  for (const auto name : register_names()) CHECK_MESSAGE(register_offset(name).has_value(), name);
}

TEST_CASE("aarch64 arguments are in x0 to x7, then from sp on") {
  CHECK_FALSE(argument_place(1).memory);
  CHECK(argument_place(1).offset == 0);
  CHECK(argument_place(8).offset == 56);
  CHECK_FALSE(argument_place(8).memory);
  CHECK(argument_place(9).memory);
  CHECK(argument_place(9).offset == 0);
  CHECK(argument_place(10).offset == 8);
}

TEST_CASE("an aarch64 breakpoint trap is reported at the brk itself") {
  CHECK(breakpoint_address(0x400000) == 0x400000);
  CHECK(is_breakpoint(kBreakpoint));
  CHECK(is_breakpoint(word_bytes(0xd4200000 | 0xf000 << 5)));  // brk #0xf000
  CHECK_FALSE(is_breakpoint(word_bytes(0xd4000001)));          // svc #0
  CHECK_FALSE(is_breakpoint(std::span(kBreakpoint).first(3)));
}

}  // namespace probed::arch::aarch64
