// The aarch64 side of the seam, on any host.
#include <doctest/doctest.h>

#include <array>

#include "arch/aarch64/decode.hpp"
#include "arch/aarch64/emulate.hpp"
#include "arch/aarch64/regs.hpp"
#include "arch/aarch64/relocate.hpp"
#include "arch/aarch64/trap.hpp"

namespace probed::arch::aarch64 {
namespace {

std::array<std::uint8_t, 4> bytes_of(std::uint32_t word) {
  return {static_cast<std::uint8_t>(word), static_cast<std::uint8_t>(word >> 8), static_cast<std::uint8_t>(word >> 16),
          static_cast<std::uint8_t>(word >> 24)};
}

}  // namespace

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
  CHECK(is_breakpoint(bytes_of(0xd4200000 | 0xf000 << 5)));  // brk #0xf000
  CHECK_FALSE(is_breakpoint(bytes_of(0xd4000001)));          // svc #0
  CHECK_FALSE(is_breakpoint(std::span(kBreakpoint).first(3)));
}

TEST_CASE("aarch64 control flow is recognised") {
  struct Row {
    std::uint32_t word;
    Flow flow;
    std::uint64_t target;  // 0: none
    bool pc_relative;
  };
  const Row rows[] = {
      {0xd503201f, Flow::next, 0, false},              // nop
      {0xa9bf7bfd, Flow::next, 0, false},              // stp x29, x30, [sp, #-16]!
      {0x14000001, Flow::jump, 0x400004, false},       // b .+4
      {0x17ffffff, Flow::jump, 0x3ffffc, false},       // b .-4
      {0x94000010, Flow::call, 0x400040, false},       // bl .+0x40
      {0x54000040, Flow::cond_jump, 0x400008, false},  // b.eq .+8
      {0xb4ffffe0, Flow::cond_jump, 0x3ffffc, false},  // cbz x0, .-4
      {0x35000040, Flow::cond_jump, 0x400008, false},  // cbnz w0, .+8
      {0x36000040, Flow::cond_jump, 0x400008, false},  // tbz w0, #0, .+8
      {0xb7f80040, Flow::cond_jump, 0x400008, false},  // tbnz x0, #63, .+8
      {0xd61f0000, Flow::indirect_jump, 0, false},     // br x0
      {0xd71f0801, Flow::indirect_jump, 0, false},     // braa x0, x1
      {0xd63f0200, Flow::indirect_call, 0, false},     // blr x16
      {0xd63f081f, Flow::indirect_call, 0, false},     // blraaz x0
      {0xd65f03c0, Flow::ret, 0, false},               // ret
      {0xd65f0bff, Flow::ret, 0, false},               // retaa
      {0xd65f0fff, Flow::ret, 0, false},               // retab
      {0xd4000001, Flow::syscall, 0, false},           // svc #0
      {0x10000000, Flow::next, 0, true},               // adr x0, .
      {0x90000000, Flow::next, 0, true},               // adrp x0, .
      {0x58000040, Flow::next, 0, true},               // ldr x0, .+8
      {0x9c000040, Flow::next, 0, true},               // ldr q0, .+8
      {0xf9400000, Flow::next, 0, false},              // ldr x0, [x0]
  };
  for (const Row& row : rows) {
    CAPTURE(row.word);
    const Insn insn = decode(bytes_of(row.word), 0x400000);
    CHECK(insn.length == 4);
    CHECK(static_cast<int>(insn.flow) == static_cast<int>(row.flow));
    CHECK(insn.target.value_or(0) == row.target);
    CHECK(insn.pc_relative == row.pc_relative);
  }
}

TEST_CASE("aarch64 refuses honestly what it cannot do yet") {
  const auto nop = bytes_of(0xd503201f);
  const Insn insn = decode(nop, 0x400000);
  CHECK(insn.refusal == Refusal::unsupported);
  CHECK(relocate(nop, insn, 0x400000, 0x500000).refusal == Refusal::unsupported);
  Registers regs{};
  CHECK_FALSE(emulate(nop, insn, regs));
  CHECK(decode(kBreakpoint, 0x400000).refusal == Refusal::breakpoint);
  CHECK(decode(nop, 0x400002).refusal == Refusal::undecodable);
  CHECK(decode(std::span(nop).first(3), 0x400000).refusal == Refusal::undecodable);
}

}  // namespace probed::arch::aarch64
