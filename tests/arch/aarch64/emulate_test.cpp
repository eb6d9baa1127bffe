// Emulated aarch64 instructions. native_test.cpp compares them with what the processor does.
#include "arch/aarch64/emulate.hpp"

#include <doctest/doctest.h>

#include "arch/aarch64/decode.hpp"
#include "arch/aarch64/word.hpp"
#include "tests/arch/aarch64/rows.hpp"

namespace probed::arch::aarch64 {
namespace {

using test::kOriginal;

Registers some_registers() {
  Registers regs{};
  for (unsigned i = 0; i < regs.x.size(); ++i) regs.x[i] = 0x1000 + i;
  regs.stack_pointer = 0x7000;
  regs.program_counter = kOriginal;
  return regs;
}

Registers after(std::uint32_t word, Registers regs) {
  const auto bytes = word_bytes(word);
  REQUIRE(emulate(bytes, decode(bytes, regs.program_counter), regs));
  return regs;
}

std::int64_t distance_after(std::uint32_t word, const Registers& regs) {
  return static_cast<std::int64_t>(after(word, regs).program_counter - kOriginal);
}

constexpr std::uint64_t kN = 1u << 31, kZ = 1u << 30, kC = 1u << 29, kV = 1u << 28;

}  // namespace

TEST_CASE("aarch64 instructions that aren't emulable leave the registers alone") {
  for (const test::InsnRow& row : test::insn_rows()) {
    CAPTURE(row.assembly);
    Registers regs = some_registers();
    const auto bytes = word_bytes(row.word);
    CHECK(emulate(bytes, decode(bytes, kOriginal), regs) == ((row.facts & test::kEmulable) != 0));
    if ((row.facts & test::kEmulable) == 0) CHECK(regs == some_registers());
  }
}

TEST_CASE("every aarch64 condition holds where it should") {
  struct Row {
    unsigned condition;
    bool (*holds)(bool n, bool z, bool c, bool v);
  };
  const Row rows[] = {
      {0, [](bool, bool z, bool, bool) { return z; }},                  // eq
      {1, [](bool, bool z, bool, bool) { return !z; }},                 // ne
      {2, [](bool, bool, bool c, bool) { return c; }},                  // cs
      {3, [](bool, bool, bool c, bool) { return !c; }},                 // cc
      {4, [](bool n, bool, bool, bool) { return n; }},                  // mi
      {5, [](bool n, bool, bool, bool) { return !n; }},                 // pl
      {6, [](bool, bool, bool, bool v) { return v; }},                  // vs
      {7, [](bool, bool, bool, bool v) { return !v; }},                 // vc
      {8, [](bool, bool z, bool c, bool) { return c && !z; }},          // hi
      {9, [](bool, bool z, bool c, bool) { return !c || z; }},          // ls
      {10, [](bool n, bool, bool, bool v) { return n == v; }},          // ge
      {11, [](bool n, bool, bool, bool v) { return n != v; }},          // lt
      {12, [](bool n, bool z, bool, bool v) { return !z && n == v; }},  // gt
      {13, [](bool n, bool z, bool, bool v) { return z || n != v; }},   // le
      {14, [](bool, bool, bool, bool) { return true; }},                // al
      {15, [](bool, bool, bool, bool) { return true; }},                // nv: always, too
  };
  for (const Row& row : rows)
    for (unsigned flags = 0; flags < 16; ++flags) {
      CAPTURE(row.condition);
      CAPTURE(flags);
      Registers regs = some_registers();
      regs.pstate = std::uint64_t{flags} << 28;
      const bool expected =
          row.holds((regs.pstate & kN) != 0, (regs.pstate & kZ) != 0, (regs.pstate & kC) != 0, (regs.pstate & kV) != 0);
      CHECK(distance_after(0x54000040 | row.condition, regs) == (expected ? 8 : 4));  // b.cond . + 8
    }
}

TEST_CASE("aarch64 compare and test branches look at the register's width and bit") {
  Registers regs = some_registers();
  regs.x[0] = 1ULL << 33;
  CHECK(distance_after(0xb4ffffe0, regs) == 4);     // cbz x0, . - 4
  CHECK(distance_after(0x34ffffe0, regs) == -4);    // cbz w0, . - 4
  CHECK(distance_after(0x35000040, regs) == 4);     // cbnz w0, . + 8
  CHECK(distance_after(0xb5000040, regs) == 8);     // cbnz x0, . + 8
  CHECK(distance_after(0x3400005f, regs) == 8);     // cbz wzr, . + 8
  CHECK(distance_after(0xb708ffe0, regs) == 8188);  // tbnz x0, #33, . + 8188
  CHECK(distance_after(0x3708ffe0, regs) == 4);     // tbnz w0, #1, . + 8188
  CHECK(distance_after(0x36000040, regs) == 8);     // tbz w0, #0, . + 8
}

TEST_CASE("aarch64 branches through registers go there, and calls set x30") {
  const Registers regs = some_registers();
  CHECK(after(0xd61f0020, regs).pc() == 0x1001);  // br x1
  CHECK(after(0xd61f0020, regs).x[30] == regs.x[30]);
  CHECK(after(0xd65f03c0, regs).pc() == regs.x[30]);  // ret
  CHECK(after(0xd63f0020, regs).pc() == 0x1001);      // blr x1
  CHECK(after(0xd63f0020, regs).x[30] == kOriginal + 4);
  CHECK(after(0xd63f03c0, regs).pc() == regs.x[30]);  // blr x30
  CHECK(after(0xd63f03c0, regs).x[30] == kOriginal + 4);
  CHECK(after(0xd61f03e0, regs).pc() == 0);               // br xzr
  CHECK(after(0x97fffff0, regs).pc() == kOriginal - 64);  // bl . - 64
  CHECK(after(0x97fffff0, regs).x[30] == kOriginal + 4);
}

TEST_CASE("an aarch64 branch to a tagged pointer goes where the pointer points without its tag") {
  Registers regs = some_registers();
  regs.x[1] = 0xab00'7fff'1234'5678;
  CHECK(after(0xd61f0020, regs).pc() == 0x7fff'1234'5678);  // br x1
  CHECK(after(0xd63f0020, regs).pc() == 0x7fff'1234'5678);  // blr x1
  CHECK(after(0xd65f0020, regs).pc() == 0x7fff'1234'5678);  // ret x1
  regs.x[1] = 0xab80'0000'0000'0000;
  CHECK(after(0xd61f0020, regs).pc() == regs.x[1]);
}

TEST_CASE("aarch64 addresses are counted from the instruction") {
  Registers regs = some_registers();
  CHECK(after(0x707fffe1, regs).x[1] == kOriginal + 1048575);  // adr x1, . + 1048575
  CHECK(after(0x10800002, regs).x[2] == kOriginal - 1048576);  // adr x2, . - 1048576
  regs.program_counter += 0x24;
  CHECK(after(0xb0000003, regs).x[3] == kOriginal + 4096);   // adrp x3, . + 4096
  CHECK(after(0xd0fffff1, regs).x[17] == kOriginal - 8192);  // adrp x17, . - 8192
  Registers nothing = regs;
  nothing.program_counter += 4;
  CHECK(after(0x3000001f, regs) == nothing);  // adr xzr, . + 1
  CHECK(after(0xd8000040, regs) == nothing);  // prfm pldl1keep, . + 8
  CHECK(after(0xd503201f, regs) == nothing);  // nop
}

// At a function's first instruction it still says how the function was called; behind it, where the page is guarded,
// anything but a landing pad would be refused with SIGILL.
TEST_CASE("an emulated aarch64 instruction clears the branch type as an executed one does") {
  constexpr std::uint64_t kCall = 2u << 10, kJump = 1u << 10;
  Registers regs = some_registers();
  regs.pstate = kCall | kZ;
  CHECK(after(0xd503245f, regs).pstate == kZ);            // bti c
  CHECK(after(0x90000000, regs).pstate == kZ);            // adrp x0, .
  CHECK(after(0x14000001, regs).pstate == kZ);            // b . + 4
  CHECK(after(0xd65f03c0, regs).pstate == kZ);            // ret
  CHECK(after(0xd61f0020, regs).pstate == (kZ | kJump));  // br x1
  CHECK(after(0xd63f0020, regs).pstate == (kZ | kCall));  // blr x1
}

}  // namespace probed::arch::aarch64
