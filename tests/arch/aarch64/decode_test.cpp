// Facts about aarch64 instructions.
#include "arch/aarch64/decode.hpp"

#include <doctest/doctest.h>

#include <array>

#include "arch/aarch64/forms.hpp"
#include "arch/aarch64/word.hpp"
#include "tests/arch/aarch64/rows.hpp"

namespace probed::arch::aarch64 {
namespace {

using test::insn_rows;
using test::InsnRow;
using test::kOriginal;

}  // namespace

TEST_CASE("aarch64 instructions are what the table says") {
  for (const InsnRow& row : insn_rows()) {
    CAPTURE(row.assembly);
    const Insn insn = decode(word_bytes(row.word), kOriginal);
    CHECK(insn.length == 4);
    CHECK(static_cast<int>(insn.flow) == static_cast<int>(row.flow));
    CHECK(describe(insn.refusal) == describe(row.refusal));
    CHECK(insn.pc_relative == ((row.facts & test::kPcRelative) != 0));
    CHECK(insn.emulable == ((row.facts & test::kEmulable) != 0));
    CHECK(insn.may_block == (row.flow == Flow::syscall));
    CHECK_FALSE(insn.repeats);
    CHECK_FALSE(insn.sees_trap_flag);
    const std::optional<std::uint64_t> target =
        row.distance != 0 ? std::optional(kOriginal + static_cast<std::uint64_t>(row.distance)) : std::nullopt;
    CHECK(insn.target == target);
  }
}

TEST_CASE("no aarch64 form is hidden behind another, and every form has a row in the byte table") {
  for (const FormRow& form : forms()) {
    CAPTURE(form.what);
    CHECK((form.value & ~form.mask) == 0);
    if (form.what == "sttxr, stltxr") continue;  // binutils 2.40 has no such; its load is there
    bool found = false;
    for (const InsnRow& row : insn_rows()) found = found || &form_of(row.word) == &form;
    CHECK(found);
  }
}

TEST_CASE("an aarch64 instruction is four aligned bytes") {
  const auto nop = word_bytes(0xd503201f);
  CHECK(decode(nop, 0x400002).length == 0);
  CHECK(describe(decode(nop, 0x400002).refusal) == describe(Refusal::undecodable));
  CHECK(decode(std::span(nop).first(3), 0x400000).length == 0);
  CHECK(describe(decode(std::span(nop).first(3), 0x400000).refusal) == describe(Refusal::undecodable));
}

// Whatever isn't listed must not depend on the pc: every word of the group that has the branches is listed or refused.
TEST_CASE("no aarch64 branch is taken for a plain instruction") {
  for (std::uint32_t high = 0; high < 1u << 16; ++high)
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x001fu, 0x03e0u, 0x0bffu, 0xfc1fu, 0xffffu}) {
      const std::uint32_t word = high << 16 | low;
      const FormRow& form = form_of(word);
      const bool is_branch_group = (word & 0x1c000000) == 0x14000000, is_system = (word & 0xff800000) == 0xd5000000;
      if (is_branch_group && !is_system) REQUIRE_MESSAGE(form.form != Form::plain, word);
    }
}

}  // namespace probed::arch::aarch64
