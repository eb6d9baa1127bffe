// The emulator against the processor: every conditional branch under many flags and counters, run natively for the
// answer. And what no copy can hide.
#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <vector>

#include "arch/x86_64/decode.hpp"
#include "arch/x86_64/emulate.hpp"
#include "arch/x86_64/relocate.hpp"
#include "tests/arch/differential/compare.hpp"
#include "tests/arch/differential/sandbox.hpp"
#include "tests/arch/hex.hpp"

namespace probed::test {
namespace {

using arch::Insn;
using arch::x86_64::Registers;

constexpr std::uint64_t kFlags = 0xcd5;

// Same registers from emulate() as from the processor, for one instruction in one state.
void check_against_processor(Sandbox& sandbox, const std::vector<std::uint8_t>& bytes, std::uint64_t rcx,
                             std::uint64_t flags) {
  Machine start;
  start.regs.rip = sandbox.original();
  start.regs.rsp = sandbox.stack() + kPage / 2;
  start.regs.rcx = rcx;
  start.regs.eflags = flags | 0x202;  // bit 1 and IF are always set
  sandbox.write(sandbox.original(), bytes);
  Outcome expected;
  sandbox.run(start, expected);
  sandbox.erase(sandbox.original(), bytes.size());
  const Insn insn = arch::x86_64::decode(bytes, sandbox.original());
  Registers got = start.regs;
  INFO(to_hex(bytes) << ", rcx " << rcx << ", flags " << flags);
  REQUIRE(expected.signal == SIGTRAP);
  REQUIRE(insn.emulable);
  REQUIRE(arch::x86_64::emulate(bytes, insn, got));
  CHECK(register_differences(expected.machine.regs, got) == "");
}

}  // namespace

TEST_CASE("emulated jcc goes where the processor goes, for every condition and all flags") {
  Sandbox sandbox(0x3000'0000, 0x2345'6789'0000);
  for (unsigned condition = 0; condition < 16; ++condition) {
    const auto short_form = static_cast<std::uint8_t>(0x70 | condition);
    const auto near_form = static_cast<std::uint8_t>(0x80 | condition);
    // All combinations of the five flags that conditions read: CF PF ZF SF OF.
    for (unsigned bits = 0; bits < 32; ++bits) {
      const std::uint64_t flags = (bits & 1) | (bits & 2) << 1 | (bits & 4) << 4 | (bits & 8) << 4 | (bits & 16) << 7;
      check_against_processor(sandbox, {short_form, 0x40}, 0, flags);
      check_against_processor(sandbox, {short_form, 0xc0}, 0, flags | 0x10);
      check_against_processor(sandbox, {0x0f, near_form, 0x00, 0x01, 0x00, 0x00}, 0, flags | 0x400);
      check_against_processor(sandbox, {0x3e, 0x0f, near_form, 0x00, 0xff, 0xff, 0xff}, 0, flags);
    }
  }
}

TEST_CASE("emulated loops count and branch as the processor does, in both counter widths") {
  Sandbox sandbox(0x3000'0000, 0x2345'6789'0000);
  std::mt19937_64 random(42);
  std::vector<std::uint64_t> counters{0, 1, 2, 0xffffffff, 0x100000000, 0x100000001, 0x8000000000000000, ~0ULL};
  for (int i = 0; i < 24; ++i) counters.push_back(random());
  constexpr std::uint8_t kOpcodes[] = {0xe0, 0xe1, 0xe2, 0xe3};
  for (const std::uint8_t opcode : kOpcodes)
    for (const std::uint64_t rcx : counters)
      for (const std::uint64_t flags : {std::uint64_t{0}, std::uint64_t{0x40}, random() & kFlags}) {
        check_against_processor(sandbox, {opcode, 0x50}, rcx, flags);
        check_against_processor(sandbox, {opcode, 0xb0}, rcx, flags);
        check_against_processor(sandbox, {0x67, opcode, 0x50}, rcx, flags);
        check_against_processor(sandbox, {0x48, opcode, 0x50}, rcx, flags);
      }
}

// A known difference, which relocate.hpp names: should it ever go away, its words there must go too.
TEST_CASE("a popf that sets TF traps behind its copy's jump back instead of behind the next instruction") {
  Sandbox sandbox(0x3000'0000, 0x2345'6789'0000);
  const auto bytes = from_hex("9d");
  Machine start;
  start.regs.rsp = sandbox.stack() + kPage / 2;
  start.regs.eflags = 0x202;
  const std::uint64_t flags = start.regs.eflags | kTrapFlag;
  std::memcpy(start.stack.data() + kPage / 2, &flags, sizeof flags);
  const Insn insn = arch::x86_64::decode(bytes, sandbox.original());
  const arch::Copy copy = arch::x86_64::relocate(bytes, insn, sandbox.original(), sandbox.near_copy()).copy;
  Outcome original, copied;
  sandbox.write(sandbox.original(), bytes);
  start.regs.rip = sandbox.original();
  sandbox.run(start, original);
  sandbox.write(sandbox.near_copy(), std::span(copy.code).first(copy.size));
  start.regs.rip = sandbox.near_copy();
  sandbox.run(start, copied);
  constexpr std::uint64_t kDebug = 1, kBreakpoint = 3;
  CHECK(original.trap == kBreakpoint);  // the next instruction is one
  CHECK(copied.trap == kDebug);
  CHECK(register_differences(original.machine.regs, copied.machine.regs) == "");
}

TEST_CASE("emulated nops and jumps leave everything but the pc alone") {
  Sandbox sandbox(0x3000'0000, 0x2345'6789'0000);
  for (const char* text :
       {"90", "66 90", "48 90", "f2 90", "0f 1f 00", "0f 1f 44 00 00", "66 2e 0f 1f 84 00 00 00 00 00", "f3 0f 1e fa",
        "f3 0f 1e fb", "eb 40", "eb c0", "e9 00 01 00 00", "f2 e9 00 01 00 00", "66 48 eb 40"})
    check_against_processor(sandbox, from_hex(text), 7, kFlags);
}

}  // namespace probed::test
