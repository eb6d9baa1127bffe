// The emulator without a processor: what it must not touch and must refuse. tests/arch/differential asks the processor.
#include "arch/x86_64/emulate.hpp"

#include <doctest/doctest.h>

#include <string>

#include "arch/x86_64/decode.hpp"
#include "tests/arch/hex.hpp"

namespace probed::arch::x86_64 {
namespace {

constexpr std::uint64_t kAddress = 0x401000;
constexpr std::uint64_t kZero = 0x40;

struct Row {
  std::string hex;
  std::uint64_t flags;
  std::uint64_t rcx;
  std::uint64_t pc_after;
  std::uint64_t rcx_after;
};

}  // namespace

TEST_CASE("emulation computes the next pc and counter") {
  const Row rows[] = {
      {"90", 0, 9, 0x401001, 9},                            // nop
      {"f3 0f 1e fa", 0, 9, 0x401004, 9},                   // endbr64
      {"eb fe", 0, 9, 0x401000, 9},                         // jmp to itself
      {"e9 fb ff ff ff", 0, 9, 0x401000, 9},                // the same, rel32
      {"eb 7f", 0, 9, 0x401081, 9},                         // jmp forward
      {"74 10", kZero, 9, 0x401012, 9},                     // je, taken
      {"74 10", 0, 9, 0x401002, 9},                         // je, not taken
      {"75 10", 0, 9, 0x401012, 9},                         // jne, taken
      {"0f 84 00 10 00 00", kZero, 9, 0x402006, 9},         // je rel32
      {"2e 74 0f", kZero, 9, 0x401012, 9},                  // je with a branch hint
      {"26 26 26 26 74 80", kZero, 9, 0x400f86, 9},         // short je, six bytes long
      {"0f 84 0f 84 00 00", kZero, 9, 0x409415, 9},         // rel32 whose displacement looks like an opcode
      {"e2 10", 0, 2, 0x401012, 1},                         // loop, taken
      {"e2 10", 0, 1, 0x401002, 0},                         // loop, counted down
      {"e2 10", 0, 0, 0x401012, ~0ULL},                     // loop from 0 wraps
      {"67 e2 10", 0, 0, 0x401013, 0xffffffff},             // ecx wraps, upper half cleared
      {"67 e2 10", 0, 0x500000001, 0x401003, 0},            // ecx counted down
      {"e1 10", 0, 2, 0x401002, 1},                         // loope, ZF clear
      {"e0 10", 0, 2, 0x401012, 1},                         // loopne, ZF clear
      {"e3 10", 0, 0, 0x401012, 0},                         // jrcxz, taken
      {"e3 10", 0, 0x100000000, 0x401002, 0x100000000},     // jrcxz looks at 64 bits
      {"67 e3 10", 0, 0x100000000, 0x401013, 0x100000000},  // jecxz at 32
  };
  for (const Row& row : rows) {
    CAPTURE(row.hex);
    const auto bytes = test::from_hex(row.hex);
    const Insn insn = decode(bytes, kAddress);
    Registers before{};
    before.rip = kAddress;
    before.rcx = row.rcx;
    before.eflags = row.flags;
    before.rsp = 0x7fff'0000;
    Registers expected = before;
    expected.rip = row.pc_after;
    expected.rcx = row.rcx_after;
    Registers regs = before;
    REQUIRE(emulate(bytes, insn, regs));
    CHECK(regs.rip == expected.rip);
    CHECK(regs == expected);
  }
}

TEST_CASE("what is not emulable is left alone") {
  for (const std::string hex : {"55", "c3", "e8 00 00 00 00", "ff e0", "0f 05", "f3 90", "41 90", "cc", "66 75 00"}) {
    CAPTURE(hex);
    const auto bytes = test::from_hex(hex);
    Registers regs{};
    regs.rip = kAddress;
    const Registers before = regs;
    CHECK_FALSE(emulate(bytes, decode(bytes, kAddress), regs));
    CHECK(regs == before);
  }
}

TEST_CASE("the stack pointer tells whether a one-byte instruction has been executed") {
  Registers before{};
  before.rip = kAddress;
  before.rsp = 0x7000;
  before.rbp = 0x7100;
  struct Executed {
    const char* hex;
    std::uint64_t rsp;
    std::uint64_t Registers::*loaded;  // null: nothing
  };
  const Executed executed[] = {{"53", 0x6ff8, nullptr},         {"5b", 0x7008, &Registers::rbx},
                               {"5d", 0x7008, &Registers::rbp}, {"c9", 0x7108, &Registers::rbp},
                               {"9c", 0x6ff8, nullptr},         {"9d", 0x7008, &Registers::eflags}};
  for (const Executed& e : executed) {
    CAPTURE(std::string(e.hex));
    const auto bytes = test::from_hex(e.hex);
    Registers now = before;
    now.rip = kAddress + 1;
    CHECK_FALSE(has_executed(bytes, before, now));  // in front of it once more
    now.rsp = e.rsp;
    if (e.loaded) now.*e.loaded = 0x1234;
    CHECK(has_executed(bytes, before, now));
    now.rsi = 1;  // as something else has, too
    CHECK_FALSE(has_executed(bytes, before, now));
  }
  for (const char* other : {"90", "5c", "f8", "99"}) CHECK_FALSE(has_executed(test::from_hex(other), before, before));
}

}  // namespace probed::arch::x86_64
