// See checks.hpp.
#include "tests/coverage/checks.hpp"

#include <algorithm>

#include "daemon/tracer/places/xol.hpp"

namespace probed::coverage {
namespace {

namespace native = arch::native;
using arch::Insn;
using arch::Refusal;

// Where a file that is linked to 0 is imagined to be loaded.
constexpr std::uint64_t kBias = 0x7f00'0000'0000;

// Copies lie at most kSlotReach away; what reaches its operand from both ends of that reaches it from everywhere
// between.
Refusal relocation_refusal(std::span<const std::uint8_t> bytes, const Insn& insn, std::uint64_t address) {
  if (insn.refusal != Refusal::none) return insn.refusal;
  for (const std::uint64_t copy : {address - tracer::kSlotReach, address + tracer::kSlotReach}) {
    const Refusal refusal = native::relocate(bytes, insn, address, copy).refusal;
    if (refusal != Refusal::none) return refusal;
  }
  return Refusal::none;
}

bool is_refused(const Instruction& i) { return i.refusal != Refusal::none; }
bool is_emulated(const Instruction& i) { return !is_refused(i) && i.insn.emulable; }
bool is_boosted(const Instruction& i) { return !is_refused(i) && !i.insn.emulable; }
// Every copy ends in a jump back, so no instruction needs a step to get out of its copy.
bool is_stepped_only(const Instruction&) { return false; }
// As the engine asks: what may block, is interruptible or shows the trap flag is never stepped.
bool can_be_stepped(const Instruction& i) {
  return !is_refused(i) && !i.insn.may_block && !i.insn.repeats && !i.insn.sees_trap_flag;
}

// A return probe: the entry and every exit carry a probe. What never returns (compilers' .cold parts, mostly, which are
// functions of their own to the unwind table) needs none.
bool gets_return_probe(const FunctionCode& f) {
  if (f.function.exits.refusal == arch::ExitRefusal::no_exit) return true;
  const bool entry = !f.instructions.empty() && !is_refused(f.instructions.front());
  return entry && f.function.exits && f.exit_refusal == Refusal::none;
}

bool gets_jump(const Instruction& i) { return !is_refused(i) && i.jump == arch::RegionRefusal::none; }

// All places of a return probe, each as if it were the only probe. Those that never return aren't among them.
bool gets_jumps_for_returns(const FunctionCode& f) {
  return f.function.exits && !f.instructions.empty() && gets_jump(f.instructions.front()) && f.exits_get_jumps;
}

bool gets_near_jump(const Instruction& i) { return gets_jump(i) && i.form == arch::JumpForm::near; }
bool gets_island(const Instruction& i) { return gets_jump(i) && i.form == arch::JumpForm::island; }

constexpr InstructionCheck kInstructionChecks[] = {
    {"boosted", is_boosted},       {"emulated", is_emulated}, {"stepped", is_stepped_only}, {"refused", is_refused},
    {"steppable", can_be_stepped}, {"optimised", gets_jump},  {"near", gets_near_jump},     {"island", gets_island},
};

constexpr FunctionCheck kFunctionChecks[] = {
    {"entry", [](const FunctionCode& f) { return !f.instructions.empty() && !is_refused(f.instructions.front()); }},
    {"optimised", [](const FunctionCode& f) { return !f.instructions.empty() && gets_jump(f.instructions.front()); }},
    {"everywhere", [](const FunctionCode& f) { return std::ranges::none_of(f.instructions, is_refused); }},
    {"returns", gets_return_probe},
    {"by jumps", gets_jumps_for_returns},
};

}  // namespace

std::span<const InstructionCheck> instruction_checks() { return kInstructionChecks; }

std::span<const FunctionCheck> function_checks() { return kFunctionChecks; }

FunctionCode analyse(const File& file, const Function& function) {
  FunctionCode code{function, {}, 0};
  std::span<const std::uint8_t> rest = function.bytes;
  while (!rest.empty()) {
    Instruction one;
    one.address = kBias + function.address + (function.bytes.size() - rest.size());
    one.insn = native::decode(rest, one.address);
    one.bytes = rest.first(std::max<std::size_t>(one.insn.length, 1));
    one.refusal = relocation_refusal(one.bytes, one.insn, one.address);
    const auto plan = native::plan_region(*file.flow, {.site = one.address - kBias});
    one.jump = plan.refusal;
    one.form = plan.plan.form;
    code.instructions.push_back(one);
    const bool is_exit = std::ranges::find(function.exits.exits, one.address - kBias, &arch::Exit::address) !=
                         function.exits.exits.end();
    if (is_exit && one.refusal != Refusal::none) code.exit_refusal = one.refusal;
    if (is_exit && !gets_jump(one)) code.exits_get_jumps = false;
    rest = rest.subspan(one.bytes.size());
    if (one.insn.length != 0) continue;
    code.unknown = rest.size();
    break;
  }
  return code;
}

}  // namespace probed::coverage
