// Tables of code: each rule for what may be replaced, and each reason why not.
#include "arch/x86_64/region.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "arch/x86_64/detour.hpp"
#include "tests/arch/hex.hpp"

using namespace probed;
using namespace probed::arch;
using x86_64::analyse_code;
using x86_64::detour_jump;
using x86_64::plan_pun;
using x86_64::plan_region;
using x86_64::pun_range;

namespace {

constexpr std::uint64_t kText = 0x1000, kData = 0x2000;

// A file with one segment of text, at kText, and one of data, at kData. Offsets count from kText.
struct Code {
  std::string_view text;               // hexadecimal
  std::vector<CodeRange> functions{};  // offsets; none: all of the text is one function
  std::vector<std::uint64_t> entries{};
  std::string_view data{};
  bool absolute = false;
};

CodeFlow analysed(const Code& code) {
  const auto text = test::from_hex(code.text), data = test::from_hex(code.data);
  const CodeSegment texts[] = {{kText, text}}, datas[] = {{kData, data}};
  auto functions = code.functions;
  if (functions.empty()) functions.push_back({0, text.size()});
  for (CodeRange& range : functions) range = {kText + range.begin, kText + range.end};
  auto entries = code.entries;
  for (std::uint64_t& entry : entries) entry += kText;
  return analyse_code({texts, datas, functions, entries, code.absolute});
}

RegionResult planned(const CodeFlow& flow, std::uint64_t offset, bool islands = false,
                     std::vector<CodeRange> taken = {}) {
  for (CodeRange& range : taken) range = {kText + range.begin, kText + range.end};
  return plan_region(flow, {kText + offset, taken, islands});
}

struct NearRow {
  std::string_view rule;
  Code code;
  std::uint64_t site;
  RegionRefusal refusal;
  unsigned length = 0, count = 0;  // of the region
};

using enum RegionRefusal;

const NearRow kNearRows[] = {
    {"one instruction of five bytes or more", {"48c7c001000000 c3"}, 0, none, 7, 1},
    {"as many whole instructions as five bytes need", {"55 4889e5 31c0 c3"}, 0, none, 6, 3},
    {"an endbr64 behind the entry moves along", {"90 f30f1efa 55 31c0 c3"}, 1, none, 5, 2},
    {"behind the endbr64 of the entry a pointer may lead", {"f30f1efa 55 31c0 c3"}, 0, branch_target},
    {"a branch to the site is welcome", {"55 4889e5 31c0 ebf8"}, 0, none, 6, 3},
    {"a branch to the region's end is welcome", {"55 4889e5 31c0 ebfe"}, 0, none, 6, 3},
    {"a branch leads into an instruction, so that boundaries are in doubt",
     {"55 e800000000 eb00 ebfb"},
     0,
     indirect_jumps},
    {"a branch of the function leads into the interior", {"55 4889e5 31c0 ebf9"}, 0, branch_target},
    {"a conditional branch of the function leads into the interior", {"55 4889e5 31c0 74f9 c3"}, 0, branch_target},
    {"a long branch of the function leads into the interior", {"55 4889e5 31c0 e9f6ffffff"}, 0, branch_target},
    {"a loop of the function leads into the interior", {"55 4889e5 31c0 e2f9 c3"}, 0, branch_target},
    {"a call of the function leads into the interior", {"55 4889e5 31c0 e8f6ffffff c3"}, 0, branch_target},
    {"a branch of another function leads into the interior",
     {"55 4889e5 31c0 c3 ebf8", {{0, 7}, {7, 9}}},
     0,
     branch_target},
    {"a branch of code outside of all functions leads into the interior",
     {"55 4889e5 31c0 c3 ebf8", {{0, 7}}},
     0,
     branch_target},
    // movabs' first two bytes; then lea 0x1001(%rip), %rax; ret
    {"data swallow an instruction outside of all functions that takes the interior's address",
     {"55 4889e5 31c0 c3 48b8 488d05f1ffffff c3", {{0, 7}}, {9}},
     0,
     branch_target},
    {"the same bytes, but nothing leads behind the data",
     {"55 4889e5 31c0 c3 48b8 488d05f1ffffff c3", {{0, 7}}},
     0,
     none,
     6,
     3},
    {"data swallow a branch outside of all functions that leads into the interior",
     {"55 4889e5 31c0 c3 48b8 ebf6 909090909090", {{0, 7}}},
     0,
     branch_target},
    {"data like a branch that leads into the middle of an instruction",
     {"55 4889e5 31c0 c3 48b8 ebf7 909090909090", {{0, 7}}},
     0,
     none,
     6,
     3},
    {"a landing pad or a symbol is in the interior", {"55 4889e5 31c0 c3", {}, {1}}, 0, branch_target},
    {"a landing pad at the site", {"55 4889e5 31c0 c3", {}, {0}}, 0, none, 6, 3},
    {"the address of the interior is taken", {"55 4889e5 31c0 488d05f4ffffff c3"}, 0, branch_target},
    {"bytes of the interior are read as data", {"55 4889e5 31c0 8b05f5ffffff c3"}, 0, branch_target},
    {"bytes of the interior are read as data by a vector instruction",
     {"55 4889e5 31c0 c5fa6f05f3ffffff c3"},
     0,
     branch_target},
    {"a branch skips a lock prefix", {"7401 f00fb10b 90 c3"}, 2, branch_target},
    {"a call is the last instruction", {"55 e800000000 c3"}, 0, none, 6, 2},
    {"an indirect call is the last instruction", {"554889fb ffd0 c3"}, 0, none, 6, 3},
    {"a call is not the last instruction", {"ffd0 4889c7 c3"}, 0, call},
    {"a call in the middle", {"50 ffd0 4889c7 c3"}, 0, call},
    {"a conditional branch in the middle, over the region's last instruction", {"85ff 7401 c3 c3 c3"}, 0, none, 5, 3},
    {"a conditional branch in the middle, which falls through", {"85ff 7405 31c0 c3 90 c3"}, 0, none, 6, 3},
    {"a system call", {"0f05 4889c7 c3"}, 0, system_call},
    {"a system call behind the site", {"31c0 0f05 c3"}, 0, system_call},
    {"the old system call", {"cd80 4889c7 c3"}, 0, system_call},
    {"a repeated string instruction", {"f3a4 4889c7 c3"}, 0, repeats},
    {"a repeated string instruction behind the site", {"31c0 f348ab c3"}, 0, repeats},
    {"arrays are read with pop", {"4889fc 58 59 5a c3"}, 3, stack_pointer},
    {"arrays are read with pop, and the stack comes back", {"4889e0 4889fc 59 5a 90 90 4889c4 c3"}, 6, stack_pointer},
    {"but its callers have a stack", {"4889e0 4889fc 59 5a 4889c4 c3"}, 0, none, 6, 2},
    {"the stack pointer is loaded", {"488b6708 4889c7 5b 5d c3"}, 4, stack_pointer},
    {"the stack pointer is loaded from what is on the stack", {"488b642408 4889c7 5b 5d c3"}, 5, none, 5, 3},
    {"the stack pointer is a number", {"bc00100000 4889c7 5b 5d c3"}, 5, stack_pointer},
    {"the stack pointer is exchanged", {"4894 4889c7 5b 5d c3"}, 2, stack_pointer},
    {"the stack pointer is popped", {"5c 4889c7 5b 5d c3"}, 1, stack_pointer},
    {"the stack pointer comes from a vector register", {"66480f7ec4 4889c7 5b 5d c3"}, 5, stack_pointer},
    {"half of the stack pointer is moved", {"83ec10 4889c7 5b 5d c3"}, 3, stack_pointer},
    {"the stack pointer is masked", {"4883e4f0 4889c7 5b 5d c3"}, 4, none, 5, 3},
    {"the stack pointer is put back from the frame's", {"4889c7 5b 5d 488d65f0 c3"}, 0, none, 5, 3},
    {"the stack pointer is put back from where it was kept", {"4889e3 4889c7 5b 5d 4889dc c3"}, 3, none, 5, 3},
    {"the stack is aligned as compilers do",
     {"4c8d542408 4883e4e0 41ff72f8 55 4889e5 90 5d 498d62f8 c3"},
     13,
     none,
     5,
     3},
    {"a part of a function that arrays are read with pop in",
     {"4889fc 58 eb01 c3 4889c7 59 5a c3", {{0, 6}, {6, 13}}},
     7,
     stack_pointer},
    {"pushf", {"9c 4889c7 90 c3"}, 0, trap_flag},
    {"popf behind the site", {"4889c7 9d 90 c3"}, 0, trap_flag},
    {"a transaction", {"c7f800000000 c3"}, 0, transaction},
    {"a privileged instruction", {"31c0 f4 90 90 c3"}, 0, instruction},
    {"a breakpoint", {"cc 31c0 31c0 c3"}, 0, instruction},
    {"a return, and padding behind the function", {"c3 90909090 31c0c3", {{0, 1}, {5, 8}}}, 0, none, 1, 1},
    {"a return, and padding of long nops", {"c3 0f1f4000 31c0c3", {{0, 1}, {5, 8}}}, 0, none, 1, 1},
    {"a return, and padding of int3", {"c3 cccccccc 31c0c3", {{0, 1}, {5, 8}}}, 0, none, 1, 1},
    {"a return, and padding inside the function", {"c3 0f1f4000 31c0c3", {}, {5}}, 0, none, 1, 1},
    {"a return, and what nothing leads to", {"c3 0f1f4000 31c0c3"}, 0, function_end},
    {"what nothing leads to", {"c3 0f1f4000 48c7c001000000 c3"}, 5, no_instruction},
    {"what is read", {"488b0500000000 4889c74889c74889c7 c3"}, 7, no_instruction},
    {"a jump, and padding inside the function", {"eb03 0f1f00 31c0c3"}, 0, none, 2, 1},
    {"padding that a branch leads to is none", {"c3 90909090 31c0 ebf8"}, 0, branch_target},
    {"padding behind a place that a branch leads to is none", {"c3 90909090 31c0 ebfa"}, 0, branch_target},
    {"nops behind a call may be where it returns to",
     {"31c0 c3 e8f8ffffff 9090909090 c3", {{0, 3}, {3, 8}, {13, 14}}},
     2,
     branch_target},
    {"the next function follows", {"c3 31c0 31c0 c3", {{0, 1}, {1, 6}}}, 0, branch_target},
    {"the text ends", {"31c0 c3"}, 0, function_end},
    {"code that isn't reached follows and is no padding", {"c3 31c0 31c0 c3"}, 0, function_end},
    {"no function", {"31c0 31c0 c3 31c0 31c0 c3", {{0, 5}}}, 5, no_function},
    {"the middle of an instruction", {"48c7c001000000 c3"}, 2, no_instruction},
    {"behind bytes that can't be decoded", {"31c0 06 31c0 31c0 31c0 c3"}, 3, no_instruction},
    {"outside of the text", {"31c0 c3"}, 0x500, no_function},
};

}  // namespace

TEST_CASE("K11: a near jump replaces whole instructions that nothing leads into") {
  for (const NearRow& row : kNearRows) {
    CAPTURE(row.rule);
    const CodeFlow flow = analysed(row.code);
    const RegionResult result = planned(flow, row.site);
    CHECK(describe(result.refusal).name == describe(row.refusal).name);
    if (!result || row.refusal != none) continue;
    CHECK(result.plan.form == JumpForm::near);
    CHECK(result.plan.site() == kText + row.site);
    CHECK(unsigned{result.plan.region.length} == row.length);
    CHECK(unsigned{result.plan.region.count} == row.count);
  }
}

TEST_CASE("K11: the instruction that can't be moved says why") {
  CHECK(planned(analysed({"31c0 f4 90 90 c3"}), 0).instruction == Refusal::privileged);
  CHECK(planned(analysed({"cc 31c0 31c0 c3"}), 0).instruction == Refusal::breakpoint);
}

// ---- indirect jumps -------------------------------------------------------------------------------------------------

namespace {

struct LeapRow {
  std::string_view rule;
  Code code;
  bool understood;
  std::vector<std::uint64_t> entered{}, not_entered{};  // offsets
};

// lea table(%rip), %rdx; movslq (%rdx,%rdi,4), %rax; add %rdx, %rax; jmp *%rax; mov $1, %eax; ret; mov $2, %eax; ret
constexpr std::string_view kSwitch = "488d15f90f0000 486304ba 4801d0 ffe0 b801000000 c3 b802000000 c3";
// The same with a notrack prefix, and the registers of the addition swapped.
constexpr std::string_view kNoTrack = "488d15f90f0000 486304ba 4801c2 3effe2 b801000000 c3 b802000000 c3";
// Distances from 0x2000 to 0x1010 and 0x1016, and something that is none.
constexpr std::string_view kTable = "10f0ffff 16f0ffff 00000000";

const LeapRow kLeapRows[] = {
    {"a table of distances", {kSwitch, {}, {}, kTable}, true, {0x10, 0x16}, {7, 0xb, 0xe, 0x15}},
    {"a table of distances and a notrack jump", {kNoTrack, {}, {}, "11f0ffff 17f0ffff"}, true, {0x11, 0x17}, {0x16}},
    {"a table ends where the next begins",
     {"488d15f90f0000 486304ba 4801d0 ffe0 488d0df1 0f0000 c3", {}, {}, "10f0ffff 10f0ffff 16f0ffff"},
     true,
     {0x10},
     {0x17}},
    {"a table that can't be read ends at once", {kSwitch}, true, {}, {0x10, 0x16}},
    {"a pointer in memory", {"31c0 ff6010"}, true},
    {"a pointer in a register that was an argument", {"4889f8 31f6 ffe0"}, true},
    {"a pointer that was loaded before a branch", {"488b07 85f6 7401 90 ffe0"}, true},
    {"a pointer that a call returned", {"e8fbffffff ffe0"}, true},
    {"a pointer chosen from two", {"488b07 480f4447 08 ffe0"}, true},
    {"a table of pointers", {"488b04f7 ffe0"}, true},
    {"a pointer that was kept on the stack", {"488945f8 31c0 488b45f8 ffe0"}, true},
    {"a pointer that was kept on the stack, and the jump reads it there", {"48894424 08 31c0 ff642408"}, true},
    {"a sum that was kept on the stack", {"4801d0 488945f8 31c0 488b45f8 ffe0"}, false},
    {"a sum that was kept on the stack, and the jump reads it there", {"4801d0 4889442408 31c0 ff642408"}, false},
    {"a sum that was kept at another place", {"4801d0 488945f8 31c0 488b45f0 ffe0"}, true},
    {"a pointer on the stack that was changed there", {"488945f8 480145f8 488b45f8 ffe0"}, false},
    // lea 0xc(%rip), which is behind the jump; mov (%rdi), %rax; jmp *%rax
    {"the address of a label, which differences of labels may be added to",
     {"488d1505000000 488b07 ffe0 90 c3"},
     false},
    {"the address of the function itself", {"488d15f9ffffff 488b07 ffe0 90 c3"}, true},
    {"the address of a label, and no jump", {"488d1501000000 c3 90 c3"}, true},
    {"a return to what was pushed", {"50 c3"}, false},
    {"a return to what was pushed from memory", {"ff3424 c3"}, false},
    {"a return to what was put in the return address's place", {"48890424 c3"}, false},
    {"a return to what was added to the return address", {"4883042404 c3"}, false},
    {"a return behind a read of its address", {"488b0424 c3"}, true},
    {"a jump to a retpoline", {"31c0 eb00 48890424 c3", {{0, 4}, {4, 9}}}, false},
    {"a jump to another function", {"31c0 eb00 48890425 00000000 c3", {{0, 4}, {4, 13}}}, true},
    // 0x1001 - 0x2000, 0x1004 - 0x2004: `1: mov %rsp, %rbp; 2: xor %eax, %eax`
    {"a table of instructions and where to go on when they fault",
     {"55 4889e5 31c0 c3", {}, {}, "01f0ffff 00f0ffff"},
     true,
     {1, 4}},
    {"a number like a distance, and one that is none",
     {"55 4889e5 31c0 c3", {}, {}, "01f0ffff 02000000"},
     true,
     {},
     {1}},
    {"numbers like distances, but not to an instruction",
     {"55 4889e5 31c0 c3", {}, {}, "01f0ffff fff0ffff"},
     true,
     {},
     {1, 3}},
    // unrolled: xor; xor; xor; ret | lea unrolled(%rip), %rdx; lea (%rdx,%rdi,4), %rdx; jmp *%rdx
    {"a distance is added to this function's address by another",
     {"31c0 31c0 31c0 c3 488d15f2ffffff 488d14ba ffe2", {{0, 7}, {7, 20}}},
     false},
    {"a distance is added to the address of this function's end by another",
     {"31c0 31c0 31c0 c3 90 488d15f8ffffff 488d14ba ffe2", {{0, 7}, {8, 21}}},
     false},
    {"another function takes its address, and loads the one that it jumps to",
     {"31c0 31c0 31c0 c3 488d15f2ffffff 488b07 ffe0", {{0, 7}, {7, 19}}},
     true},
    {"a distance is added to the address of a procedure linkage table",
     {"ff3502000000 ff2504000000 488d15edffffff 488d14ba ffe2", {{0, 12}, {12, 25}}},
     true},
    {"a table of distances from somewhere else",
     {"488d15f90f0000 488d35f2ffffff 486304ba 4801f0 ffe0", {}, {}, kTable},
     false},
    {"a table's address that was changed meanwhile",
     {"488d15f90f0000 486304ba 4883c208 4801d0 ffe0", {}, {}, kTable},
     false},
    {"base and index times size", {"488d05f9ffffff 488d04f8 ffe0"}, false, {0, 0xb}, {}},
    {"a sum of two pointers", {"4801f8 ffe0"}, false},
    {"a distance that isn't from a table", {"488d05f9ffffff 486bff10 4801f8 ffe0"}, false},
    {"a computed value from behind a branch", {"480507000000 eb00 ffe0"}, false},
    {"a computed call", {"480507000000 ffd0 c3"}, false},
    {"a branch of other code leads between load and jump", {"488b07 9090 ffe0 ebfa", {{0, 7}, {7, 9}}}, false},
    {"a branch leads into an instruction", {"eb01 b890909090 c3"}, false},
    {"a table of pointers at a fixed address",
     {"ff24fd00200000 b801000000 c3", {}, {}, "0710000000000000", true},
     true,
     {7},
     {0xc}},
    {"an address of code as a constant", {"b806100000 c3 90 c3", {}, {}, {}, true}, true, {6}, {7}},
    {"constants aren't addresses in a file that is loaded anywhere", {"b806100000 c3 90 c3"}, true, {}, {6}},
};

}  // namespace

TEST_CASE("K11: an indirect jump is understood when its addresses come from known places") {
  for (const LeapRow& row : kLeapRows) {
    CAPTURE(row.rule);
    const CodeFlow flow = analysed(row.code);
    REQUIRE(!flow.functions().empty());
    CHECK(flow.functions().front().understood == row.understood);
    for (const std::uint64_t at : row.entered) CHECK(flow.may_be_entered(kText + at));
    for (const std::uint64_t at : row.not_entered) CHECK_FALSE(flow.may_be_entered(kText + at));
  }
}

TEST_CASE("K11: what is not known of a function is not known of its other part") {
  // add $7, %rax; test; je cold; jmp *%rax | cold: xor; jmp back to the jump | another function
  const CodeFlow flow = analysed({"480507000000 85c0 7402 ffe0 31c9 ebfa 31c0 c3", {{0, 12}, {12, 16}, {16, 19}}});
  REQUIRE(flow.functions().size() == 3);
  CHECK_FALSE(flow.functions()[0].understood);
  CHECK_FALSE(flow.functions()[1].understood);
  CHECK(flow.functions()[2].understood);
}

TEST_CASE("K11: where an indirect jump may lead anywhere, only single instructions are replaced") {
  // lea; mov $1, %eax; xor; xor; xor; computed jump
  const CodeFlow flow = analysed({"b801000000 31c0 31c0 31c0 488d04f8 ffe0 0f1f440000"});
  CHECK(planned(flow, 0).plan.region.count == 1);
  CHECK(planned(flow, 5).refusal == RegionRefusal::indirect_jumps);
  CHECK(planned(flow, 5, true).refusal == RegionRefusal::no_island);  // its padding may be led to as well
}

// ---- neighbours, islands --------------------------------------------------------------------------------------------

TEST_CASE("K11: bytes that another probe has are left alone") {
  const CodeFlow flow = analysed({"55 4889e5 31c0 c3"});
  CHECK(planned(flow, 0, false, {{1, 2}}).refusal == RegionRefusal::neighbour);
  CHECK(planned(flow, 0, false, {{4, 5}}).refusal == RegionRefusal::neighbour);
  CHECK(planned(flow, 0, false, {{6, 7}}));
  const auto plan = planned(flow, 0).plan;
  CHECK(plan.hinders(kText + 4));
  CHECK_FALSE(plan.hinders(kText + 5));
}

TEST_CASE("K11: a short jump leads to an island in padding") {
  // call *%rax; mov; ret; 5 bytes of padding
  const CodeFlow flow = analysed({"ffd0 4889c7 c3 0f1f440000"});
  CHECK(planned(flow, 0).refusal == RegionRefusal::call);
  const auto result = planned(flow, 0, true);
  REQUIRE(result);
  const RegionPlan& plan = result.plan;
  CHECK(plan.form == JumpForm::island);
  CHECK(plan.island == kText + 6);
  CHECK(unsigned{plan.region.length} == 2);
  CHECK(plan.written()[0].begin == kText + 6);
  CHECK(plan.written()[0].end == kText + 11);
  CHECK(plan.written()[1].end == kText + 2);
  CHECK(plan.interior().empty());
  CHECK(x86_64::short_jump(plan.site(), plan.island) == std::array<std::uint8_t, 2>{0xeb, 4});
  CHECK(planned(flow, 0, true, {{8, 9}}).refusal == RegionRefusal::no_island);
}

TEST_CASE("K11: an island may lie 127 bytes ahead and 128 back, and no farther") {
  for (const auto& [gap, found] : {std::pair{120u, true}, {125u, true}, {126u, false}}) {
    CAPTURE(gap);
    // call *%rax; as many bytes of stc; ret; padding
    std::string ahead = "ffd090";
    for (unsigned i = 0; i < gap; ++i) ahead += "f9";
    ahead += "c30f1f440000";
    const auto result = planned(analysed({ahead}), 0, true);
    CHECK(bool(result) == found);
    if (result) CHECK(x86_64::short_jump(result.plan.site(), result.plan.island)[1] == gap + 2);
  }
  for (const auto& [gap, found] : {std::pair{121u, true}, {122u, false}}) {
    CAPTURE(gap);
    std::string back = "c30f1f440000";
    for (unsigned i = 0; i < gap; ++i) back += "f9";
    const std::uint64_t site = 6 + gap;
    back += "ffd090c3";
    const auto result = planned(analysed({back, {}, {6}}), site, true);
    CHECK(bool(result) == found);
    if (result) CHECK(x86_64::short_jump(result.plan.site(), result.plan.island)[1] == 256 - (gap + 7));
  }
}

struct PunRow {
  std::string_view rule;
  Code code;
  std::uint64_t site;
  RegionRefusal refusal;
  unsigned length = 0;
};

const PunRow kPunRows[] = {
    {"a return in front of a place that a branch leads to", {"7401 c3 b801020304 c3"}, 2, none, 1},
    {"an instruction of two bytes in front of such a place", {"7402 31c0 b801020304 c3"}, 2, none, 2},
    {"one of four bytes, behind which the text goes on", {"f30f1efa c3 90"}, 0, none, 4},
    {"a function of which not all is understood", {"7402 ffe0 31c0 31c0 31c0 c3"}, 4, none, 2},
    {"a call", {"ffd0 4889c7 c3"}, 0, none, 2},
    {"an instruction that is long enough by itself", {"48c7c001000000 c3"}, 0, no_island},
    {"a branch skips a prefix of it", {"7401 f00fb10b 90 c3"}, 2, branch_target},
    {"the text ends", {"31c0 c3"}, 2, function_end},
    {"a system call", {"0f05 4889c7 c3"}, 0, system_call},
    {"a repeated string instruction", {"f3a4 4889c7 c3"}, 0, repeats},
    {"pushf", {"9c 4889c7 90 c3"}, 0, trap_flag},
    {"a privileged instruction", {"f4 31c0 90 90 c3"}, 0, instruction},
    {"the middle of an instruction", {"48c7c001000000 c3 90909090"}, 2, no_instruction},
    {"outside of the text", {"31c0 c3"}, 0x500, no_function},
};

TEST_CASE("K11: a punned jump writes no byte of another instruction") {
  for (const PunRow& row : kPunRows) {
    CAPTURE(row.rule);
    const CodeFlow flow = analysed(row.code);
    const RegionResult result = plan_pun(flow, {kText + row.site});
    CHECK(result.refusal == row.refusal);
    if (!result) continue;
    CHECK(result.plan.form == JumpForm::punned);
    CHECK(result.plan.region.length == row.length);
    CHECK(result.plan.region.count == 1);
    CHECK(result.plan.written()[0].begin == result.plan.written()[0].end);
    CHECK(result.plan.written()[1].begin == kText + row.site);
    CHECK(result.plan.written()[1].end == kText + row.site + row.length);
    CHECK(result.plan.borrowed().begin == kText + row.site + row.length);
    CHECK(result.plan.borrowed().end == kText + row.site + kNearJumpSize);
    CHECK(result.plan.interior().empty());
    for (std::uint64_t at = 0; at < 8; ++at) CHECK(result.plan.hinders(kText + row.site + at) == (at < kNearJumpSize));
  }
  // Another probe may have neither the bytes that are written nor those that are read.
  const CodeFlow flow = analysed({"7401 c3 b801020304 c3"});
  for (std::uint64_t at = 0; at < 8; ++at) {
    const CodeRange taken[] = {{kText + at, kText + at + 1}};
    const bool in_the_way = at >= 2 && at < 2 + kNearJumpSize;
    CHECK(plan_pun(flow, {kText + 2, taken}).refusal == (in_the_way ? neighbour : none));
  }
}

TEST_CASE("K11: wherever a punned jump may lead, it ends with the bytes that are there") {
  for (std::uint64_t seed = 1; seed < 5000; ++seed) {
    std::array<std::uint8_t, kNearJumpSize> bytes{};
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::uint8_t>(seed * 0x9e3779b97f4a7c15u >> (8 * i + 9));
    const std::uint64_t site = 0x7f1234567000 + seed;
    for (std::size_t length = 1; length < bytes.size(); ++length) {
      const PunRange range = pun_range(site, bytes, length);
      CHECK(range.count == std::uint64_t{1} << 8 * (length - 1));
      for (const std::uint64_t to : {range.lowest, range.lowest + range.count / 2, range.lowest + range.count - 1}) {
        const auto jump = detour_jump(site, to);
        CHECK(jump[0] == 0xe9);
        CHECK(std::ranges::equal(std::span(jump).subspan(length), std::span(bytes).subspan(length)));
      }
    }
  }
}

TEST_CASE("K11: what is written for a jump lies in one page") {
  // A near jump; an island.
  const std::string_view codes[] = {"48c7c001000000 c3", "ffd0 4889c7 c3 0f1f440000"};
  const std::uint64_t lengths[] = {8, 6}, page = 4096;
  for (std::size_t i = 0; i < std::size(codes); ++i) {
    CAPTURE(codes[i]);
    for (std::uint64_t offset = page - 32; offset <= page; ++offset) {
      CAPTURE(offset);
      std::string text;
      for (std::uint64_t at = 0; at < offset; ++at) text += "f9";
      text += codes[i];
      const CodeFlow flow = analysed({text, {{offset, offset + lengths[i]}}});
      const RegionResult result = planned(flow, offset, true);
      const bool far = offset + 16 <= page || offset == page;
      CHECK((result || !far));
      if (offset + 1 == page) CHECK(result.refusal == RegionRefusal::page_end);
      if (!result) continue;
      std::vector<std::uint64_t> pages;
      for (const CodeRange& range : result.plan.written())
        if (range.end != range.begin)
          for (const std::uint64_t at : {range.begin, range.end - 1}) pages.push_back(at / page);
      CHECK(std::ranges::count(pages, pages.front()) == std::ssize(pages));
    }
  }
  const std::string stc(2 * (page - 1), 'f');
  const CodeFlow flow = analysed({stc + "31c0 b801020304 c3", {{page - 1, page + 7}}, {page + 1}});
  CHECK(plan_pun(flow, {kText + page - 1}).refusal == RegionRefusal::page_end);
  CHECK(plan_pun(analysed({stc + "f9 c3 b801020304 c3", {{page, page + 7}}, {page + 1}}), {kText + page}));
}

TEST_CASE("K11: a plan says where no thread may stand while it is written") {
  const auto plan = planned(analysed({"55 4889e5 31c0 c3"}), 0).plan;
  CHECK(plan.interior() == std::vector<std::uint64_t>{kText + 1, kText + 4});
}

TEST_CASE("K11: every refusal has a name and a sentence of its own") {
  std::vector<std::string_view> names;
  for (const RegionRefusalRow& row : region_refusals()) {
    CHECK(&describe(row.refusal) == &row);
    CHECK(!row.sentence.ends_with('.'));
    names.push_back(row.name);
  }
  std::ranges::sort(names);
  CHECK(std::ranges::adjacent_find(names) == names.end());
}
