// Where functions are left: code as words, what stands there beside it.
#include "arch/aarch64/exits.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "arch/aarch64/region.hpp"
#include "arch/aarch64/word.hpp"

namespace probed::arch::aarch64 {
namespace {

constexpr std::uint64_t kText = 0x1000;
constexpr std::uint32_t kRet = 0xd65f03c0, kPush = 0xa9be7bfd, kPop = 0xa8c27bfd;  // stp, ldp x29, x30, 32 bytes
constexpr std::uint32_t kPushLink = 0xf81f0ffe, kPopLink = 0xf84107fe;             // str, ldr x30, 16 bytes

// Functions of 0x40 bytes each, from kText on, filled up with udf.
struct Code {
  explicit Code(const std::vector<std::vector<std::uint32_t>>& functions) {
    for (const auto& words : functions) {
      ranges.push_back({kText + bytes.size(), kText + bytes.size() + words.size() * kInsnSize});
      const std::size_t end = bytes.size() + 0x40;
      for (const std::uint32_t word : words) std::ranges::copy(word_bytes(word), std::back_inserter(bytes));
      bytes.resize(end);
    }
    const CodeSegment text{kText, bytes};
    CodeSource source;
    source.text = {&text, 1};
    source.functions = ranges;
    flow = analyse_code(source);
  }
  ExitPlan plan(std::uint64_t entry = kText) const {
    return plan_exits(flow, entry, [this](std::uint64_t a) { return named.contains(a); });
  }
  std::vector<std::uint8_t> bytes;
  std::vector<CodeRange> ranges;
  std::set<std::uint64_t> named{kText};
  CodeFlow flow;
};

std::string shown(const ExitPlan& plan) {
  std::string text;
  for (const Exit& exit : plan.exits)
    text += std::string(text.empty() ? "" : " ") + "rjbl"[static_cast<int>(exit.kind)] +
            std::to_string(exit.address - kText);
  return text;
}

TEST_CASE("every return is an exit, signed or not, a return that is never reached is none") {
  // cbz w0, +8; retaa; mov w0, 0; ret; ret
  const ExitPlan plan = Code({{0x34000040, 0xd65f0bff, 0x52800000, kRet, kRet}}).plan();
  CHECK(plan.refusal == ExitRefusal::none);
  CHECK(shown(plan) == "r4 r12");
  CHECK_FALSE(plan.loops_to_entry);
}

TEST_CASE("a jump to a function is an exit, with a condition or without") {
  Code code({{0x35000200, 0x1400000f}, {kRet}});  // cbnz w0, 0x1040; b 0x1040
  code.named.insert(kText + 0x40);
  CHECK(shown(code.plan()) == "b0 j4");
}

TEST_CASE("a jump with something on the stack leads to a part of the same function") {
  const ExitPlan plan = Code({{kPush, 0x1400000f}, {kPop, kRet}}).plan();  // b 0x1040
  CHECK(shown(plan) == "r68");
  CHECK(plan.body.size() == 2);
}

TEST_CASE("a jump through a register that was kept on the stack is a tail call when the stack is as it was found") {
  CHECK(shown(Code({{kPush, 0xf9400fe1, kPop, 0xd61f0020}}).plan()) == "l12");  // ldr x1, [sp, 24]; ...; br x1
}

TEST_CASE("a branch to the return address in its own register is a return") {
  CHECK(shown(Code({{kPushLink, kPopLink, 0xd61f03c0}}).plan()) == "r8");
}

TEST_CASE("a branch to the return address in another register, or to one of another stack's, is refused") {
  const ExitPlan moved = Code({{0xaa1e03e2, 0xd61f0040}}).plan();  // mov x2, x30; br x2
  CHECK(moved.refusal == ExitRefusal::odd_return);
  CHECK(moved.where == kText + 4);
  const ExitPlan loaded = Code({{kPushLink, 0xf84107e8, 0xd61f0100}}).plan();  // ldr x8, [sp], 16; br x8
  CHECK(loaded.refusal == ExitRefusal::odd_return);
  // mov x2, sp; mov sp, x2; ldr x8, [sp], 16; br x8
  const ExitPlan switched = Code({{kPushLink, 0x910003e2, 0x9100005f, 0xf84107e8, 0xd61f0100}}).plan();
  CHECK(switched.refusal == ExitRefusal::odd_return);
}

TEST_CASE("a function that runs on into what is behind it is refused") {
  CHECK(Code({{0x34000040, kRet, 0xd503201f}}).plan().refusal == ExitRefusal::runs_on);  // cbz w0, +8; ret; nop
  // Not where it ends in a call that isn't expected to come back, or in a trap.
  CHECK(shown(Code({{0x34000040, kRet, kPush, 0x9400000d}}).plan()) == "r4");
  CHECK(shown(Code({{0x34000040, kRet, 0xd4207d00}}).plan()) == "r4");
}

TEST_CASE("a loop that begins at the entry is noted") {
  const ExitPlan plan = Code({{0xb4000060, 0xd1000400, 0x17fffffe, kRet}}).plan();  // cbz x0, +12; sub; b -8; ret
  CHECK(shown(plan) == "r12");
  CHECK(plan.loops_to_entry);
}

TEST_CASE("a function that never returns has no exit") {
  CHECK(Code({{0xd503201f, 0x14000000}}).plan().refusal == ExitRefusal::no_exit);
}

}  // namespace
}  // namespace probed::arch::aarch64
