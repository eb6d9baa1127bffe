// Tables of code: which instructions a jump may replace and why not, and what is known about functions.
#include "arch/aarch64/region.hpp"

#include <doctest/doctest.h>

#include <string_view>
#include <vector>

#include "arch/aarch64/word.hpp"

namespace probed::arch::aarch64 {
namespace {

using Words = std::vector<std::uint32_t>;
using enum RegionRefusal;

constexpr std::uint64_t kText = 0x10000, kData = 0x20000;

constexpr std::uint32_t kNop = 0xd503201f, kRet = 0xd65f03c0, kBtiC = 0xd503245f, kPaciasp = 0xd503233f,
                        kMove = 0xaa0103e0,                                          // mov x0, x1
    kCall = 0x94001000, kSystemCall = 0xd4000001,                                    // bl +16 KiB; svc #0
    kLoadExclusive = 0xc85f7c20, kStoreExclusive = 0xc8027c20, kAgain = 0x35ffffa2,  // cbnz w2, -12
    kLoad = 0xf9400021, kJumpTo1 = 0xd61f0020;                                       // ldr x1, [x1]; br x1

constexpr std::uint32_t branch(std::int32_t words) {
  return 0x14000000 | (static_cast<std::uint32_t>(words) & 0x3ffffff);
}

// A file with one segment of text, at kText, and one of data, at kData. Offsets count from kText.
struct Code {
  Words text;
  std::vector<CodeRange> functions{};  // offsets; none: all of the text is one function
  std::vector<std::uint64_t> entries{};
  std::vector<std::uint8_t> data{};
};

CodeFlow analysed(const Code& code, bool guarded = true) {
  std::vector<std::uint8_t> text;
  for (const std::uint32_t word : code.text)
    for (const std::uint8_t byte : word_bytes(word)) text.push_back(byte);
  const CodeSegment texts[] = {{kText, text}}, datas[] = {{kData, code.data}};
  auto functions = code.functions;
  if (functions.empty()) functions.push_back({0, text.size()});
  for (CodeRange& range : functions) range = {kText + range.begin, kText + range.end};
  auto entries = code.entries;
  for (std::uint64_t& entry : entries) entry += kText;
  return analyse_code({texts, datas, functions, entries, false, guarded});
}

RegionResult planned(const CodeFlow& flow, std::uint64_t offset, std::vector<CodeRange> taken = {}) {
  for (CodeRange& range : taken) range = {kText + range.begin, kText + range.end};
  return plan_region(flow, {kText + offset, taken});
}

struct Row {
  std::string_view rule;
  Code code;
  std::uint64_t site;
  RegionRefusal refusal;
  std::uint8_t pad = 0;  // bytes
};

const Row kRows[] = {
    {"an instruction", {{kMove, kRet}}, 0, none},
    {"the last one", {{kMove, kRet}}, 4, none},
    {"a branch leads to it", {{kMove, kNop, branch(-1)}}, 4, none},
    {"a branch leads behind it", {{kMove, kNop, branch(-1)}}, 0, none},
    {"a call", {{kCall, kRet}}, 0, none},
    {"a system call", {{kSystemCall, kRet}}, 0, system_call},
    {"a breakpoint of the program", {{0xd4200000, kRet}}, 0, instruction},
    {"an exclusive load", {{kLoadExclusive, kNop, kStoreExclusive, kAgain, kRet}}, 0, instruction},
    {"between an exclusive load and its store",
     {{kLoadExclusive, kNop, kStoreExclusive, kAgain, kRet}},
     4,
     instruction},
    {"behind an exclusive store", {{kLoadExclusive, kNop, kStoreExclusive, kAgain, kRet}}, 12, none},
    {"data that a load of the function reads", {{0x58000040, kRet, kNop, kNop}}, 8, no_instruction},
    {"what nothing leads to", {{branch(2), kMove, kRet}}, 4, no_instruction},
    {"what a symbol names, behind a jump", {{branch(2), kMove, kRet}, {}, {4}}, 4, none},
    {"code of no function", {{kMove, kRet, kMove, kRet}, {{0, 8}}}, 8, no_function},
    {"in a function with something that is no instruction", {{kMove, 0x00010000, kRet}}, 0, no_instruction},
    {"a landing pad stays", {{kBtiC, kMove, kRet}}, 0, none, 4},
    {"a landing pad that signs", {{kPaciasp, kMove, kRet}}, 0, landing_pad},
    {"behind a landing pad", {{kBtiC, kMove, kRet}}, 4, none},
    {"a landing pad, and a branch behind it", {{kBtiC, kMove, branch(-1)}}, 0, branch_target},
    {"a landing pad at the end", {{kMove, kBtiC}}, 4, function_end},
    {"a landing pad in front of a call", {{kBtiC, kCall, kRet}}, 0, none, 4},
    {"a landing pad in front of a system call", {{kBtiC, kSystemCall, kRet}}, 0, system_call},
    {"sp is set from anything", {{kMove, 0x9100001f, kRet}}, 4, stack_pointer},
    {"sp is set from anything behind the entry", {{kMove, 0x9100001f, kRet}}, 0, none},
    {"sp is set from what it was", {{0x910003e0, 0x9100001f, kRet}}, 4, none},
    {"sp is set from the frame pointer", {{kMove, 0x910003bf, kRet}}, 4, none},
    {"sp is set from what was kept on the stack", {{0xf94007e0, 0x9100001f, kRet}}, 4, none},
    {"sp is lowered by a register", {{kMove, 0xcb2063ff, kRet}}, 4, none},
    {"flags are set by a comparison with what looks like sp", {{kMove, 0xf100001f, kRet}}, 4, none},
};

}  // namespace

TEST_CASE("aarch64: a jump takes the place of one instruction, wherever that may run elsewhere") {
  for (const Row& row : kRows) {
    CAPTURE(row.rule);
    const CodeFlow flow = analysed(row.code);
    const RegionResult result = planned(flow, row.site);
    CHECK(result.refusal == row.refusal);
    if (!result) continue;
    const RegionPlan& plan = result.plan;
    CHECK(plan.form == JumpForm::near);
    CHECK(plan.pad_size == row.pad);
    CHECK(plan.region.length == 4 + row.pad);
    CHECK(plan.region.count == 1 + row.pad / 4);
    CHECK(plan.written()[1].begin == kText + row.site);
    CHECK(plan.written()[1].end == kText + row.site + 4 + row.pad);
    CHECK(plan.interior().size() == row.pad / 4);
  }
}

TEST_CASE("aarch64: what signs the return address is an instruction like others where nobody expects guarded pages") {
  const RegionResult result = planned(analysed({{kPaciasp, kMove, branch(-1)}}, false), 0);
  REQUIRE(result);
  CHECK(result.plan.pad_size == 0);
  CHECK(result.plan.region.length == 4);
}

// The file doesn't say so; the program may have its pages guarded all the same.
TEST_CASE("aarch64: where functions begin with landing pads they are kept") {
  const RegionResult result = planned(analysed({{kBtiC, kMove, kRet}}, false), 0);
  REQUIRE(result);
  CHECK(result.plan.pad_size == 4);
  const Code two{{kPaciasp, kMove, kRet, kBtiC, kMove, kRet}, {{0, 12}, {12, 24}}};
  CHECK(planned(analysed(two, false), 0).refusal == landing_pad);
}

TEST_CASE("aarch64: neighbours don't hinder each other, but for what follows a landing pad") {
  const CodeFlow flow = analysed({{kBtiC, kMove, kMove, kRet}});
  CHECK(planned(flow, 8, {{4, 8}, {12, 16}}));
  CHECK(planned(flow, 0, {{8, 9}}));
  CHECK(planned(flow, 0, {{4, 5}}).refusal == neighbour);
  CHECK(planned(flow, 4, {{0, 8}}).refusal == neighbour);
}

TEST_CASE("aarch64: which functions' indirect jumps are understood") {
  // adrp x1, kData; add x1, x1, #16; ldrb w1, [x1, w0, uxtw]; adr x2, +12; add x1, x2, w1, sxtb #2; br x1
  const Words table = {0x7100081f,  // cmp w0, #2
                       0x54000128,  // b.hi +36
                       0x90000081, 0x91004021, 0x38604821, 0x10000062, 0x8b218841, kJumpTo1,
                       kNop,  // 32: where the table counts from
                       kRet,       kMove,      kRet};
  std::vector<std::uint8_t> data(32, 1);
  data[16] = 0, data[17] = 2, data[18] = 3;
  const CodeFlow by_table = analysed({table, {}, {}, data});
  CHECK(by_table.function_at(kText)->understood);
  for (const std::uint64_t to : {32, 40, 44}) CHECK(by_table.may_be_entered(kText + to));
  CHECK_FALSE(by_table.may_be_entered(kText + 36 + 0x100));

  struct Leap {
    std::string_view what;
    Words text;
    bool understood;
  };
  const Leap leaps[] = {
      {"by what was loaded", {kLoad, kJumpTo1}, true},
      {"by an argument", {kNop, kJumpTo1}, true},
      {"by what a call has returned", {kCall, 0xaa0003e1, kJumpTo1}, true},
      {"by a sum", {0x8b000021, kJumpTo1}, false},
      {"by a sum on one of two ways", {kLoad, 0xb4000040, 0x8b000021, kJumpTo1}, false},
      {"by a label", {0x10000061, kJumpTo1, kNop, kRet}, false},  // to which others may be added
      {"by what was kept on the stack", {kLoad, 0xf90007e1, 0xf94007e1, kJumpTo1}, true},
      {"by a sum that was kept on the stack", {0x8b000021, 0xf90007e1, 0xf94007e1, kJumpTo1}, false},
      {"by one of two that were loaded", {kLoad, 0x9a820021, kJumpTo1}, true},
      {"by a table that nothing is known of", {0x38604821, 0x10000062, 0x8b218841, kJumpTo1, kNop}, false},
  };
  for (const Leap& leap : leaps) {
    CAPTURE(leap.what);
    CHECK(analysed({leap.text}).function_at(kText)->understood == leap.understood);
  }
}

TEST_CASE("aarch64: what leads to code, and what is called") {
  // bl to the second function; adrp and add to the third, in one of whose loads the last word is read
  const Code code{{0x94000003, 0x90000000, 0x91006000, kRet, kRet, kNop, 0x58000040, kRet, kNop, kNop},
                  {{0, 12}, {12, 20}, {24, 40}},
                  {4}};
  const CodeFlow flow = analysed(code);
  CHECK(flow.is_called(kText + 12));
  CHECK(flow.is_called(kText + 24));
  CHECK_FALSE(flow.is_called(kText));
  CHECK(flow.may_be_entered(kText + 4));
  CHECK_FALSE(flow.may_be_entered(kText + 8));
  CHECK(flow.is_instruction(kText + 28));
  CHECK_FALSE(flow.is_instruction(kText + 32));
  CHECK(flow.function_at(kText + 24)->decoded);
}

}  // namespace probed::arch::aarch64
