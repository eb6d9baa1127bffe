// Lookups in a CodeFlow, what a plan implies, and the sentences behind refusals. Pure; any thread.
#include "arch/region.hpp"

#include <algorithm>

#include "proto/base/check.hpp"

namespace probed::arch {
namespace {

constexpr RegionRefusalRow kRows[] = {
    {RegionRefusal::none, "none", "the instruction can be replaced by a jump"},
    {RegionRefusal::no_function, "no_function",
     "neither a symbol nor the unwind table says which function the instruction belongs to"},
    {RegionRefusal::no_instruction, "no_instruction",
     "it is not certain that an instruction begins there: something before it in its function cannot be decoded"},
    {RegionRefusal::indirect_jumps, "indirect_jumps",
     "not all that leads into the function is known: it has an indirect jump to a computed address, or a branch into "
     "the "
     "middle of an instruction"},
    {RegionRefusal::branch_target, "branch_target",
     "a branch, a jump table or an exception handler leads into the bytes that the jump would overwrite"},
    {RegionRefusal::function_end, "function_end", "the function ends before there is room for a jump"},
    {RegionRefusal::neighbour, "neighbour",
     "another probed place, maybe of the same return probe, is in the bytes that the jump would overwrite"},
    {RegionRefusal::call, "call",
     "the jump would overwrite a call that is not the last instruction, to which its callee returns"},
    {RegionRefusal::system_call, "system_call", "a thread may sleep in the system call for any time"},
    {RegionRefusal::repeats, "repeats", "a repeated string instruction can be interrupted in its middle"},
    {RegionRefusal::stack_pointer, "stack_pointer",
     "the function uses the stack pointer for something else than its stack, so that the detour has none"},
    {RegionRefusal::trap_flag, "trap_flag", "the instruction shows or changes the processor's trap flag"},
    {RegionRefusal::transaction, "transaction", "the instruction begins a transaction"},
    {RegionRefusal::instruction, "instruction", "an instruction that the jump would overwrite cannot be moved"},
    {RegionRefusal::no_island, "no_island",
     "there is room for a short jump only, and nothing within its reach can hold the long one"},
    {RegionRefusal::page_end, "page_end",
     "the jump would lie in two pages, of which the process may give back one (madvise) and keep half a jump"},
    {RegionRefusal::landing_pad, "landing_pad",
     "indirect branches have to arrive at this instruction, which signs the return address: there is no jump that they "
     "may arrive at"},
    {RegionRefusal::unsupported, "unsupported", "probes cannot be optimised yet on this architecture"},
};

void add_interior(const Displaced& code, std::uint64_t end, std::vector<std::uint64_t>& out) {
  std::uint64_t at = code.address;
  for (const Insn& insn : code.all()) {
    if (at != code.address && at < end) out.push_back(at);
    at += insn.length;
  }
}

}  // namespace

std::span<const RegionRefusalRow> region_refusals() { return kRows; }

const RegionRefusalRow& describe(RegionRefusal refusal) {
  const auto row = std::ranges::find(kRows, refusal, &RegionRefusalRow::refusal);
  PROBED_CHECK(row != std::end(kRows), "every refusal has a row");
  return *row;
}

const CodeFlow::Text* CodeFlow::text_at(std::uint64_t address) const {
  for (const Text& text : texts_)
    if (address >= text.address && address < text.end()) return &text;
  return nullptr;
}

unsigned CodeFlow::marks_at(std::uint64_t address) const {
  const Text* const text = text_at(address);
  if (text == nullptr) return 0;
  const std::uint64_t at = address - text->address;
  return text->marks[at / 2] >> (at % 2 * 4) & 0xfu;
}

const FunctionFacts* CodeFlow::function_at(std::uint64_t address) const {
  auto next = std::ranges::upper_bound(functions_, address, {}, [](const FunctionFacts& f) { return f.range.begin; });
  if (next == functions_.begin()) return nullptr;
  --next;
  return next->range.contains(address) ? &*next : nullptr;
}

bool CodeFlow::is_instruction(std::uint64_t address) const {
  return (marks_at(address) & CodeFlowBuilder::kStart) != 0;
}

bool CodeFlow::may_be_entered(std::uint64_t address) const {
  const unsigned marks = marks_at(address);
  if ((marks & CodeFlowBuilder::kTarget) != 0) return true;
  if ((marks & CodeFlowBuilder::kStart) == 0) return false;
  const FunctionFacts* const function = function_at(address);
  return function == nullptr || !function->understood;
}

bool CodeFlow::is_called(std::uint64_t address) const { return std::ranges::binary_search(called_, address); }

bool CodeFlow::is_padding(const CodeRange& range) const {
  for (std::uint64_t at = range.begin; at < range.end; ++at)
    if ((marks_at(at) & CodeFlowBuilder::kPadding) == 0 || may_be_entered(at)) return false;
  return true;
}

std::span<const std::uint8_t> CodeFlow::bytes(std::uint64_t address, std::size_t size) const {
  const Text* const text = text_at(address);
  if (text == nullptr) return {};
  const auto rest = std::span(text->bytes).subspan(address - text->address);
  return rest.first(std::min(rest.size(), size));
}

void CodeFlowBuilder::add_text(const CodeSegment& segment) {
  CodeFlow::Text text{segment.address, {segment.bytes.begin(), segment.bytes.end()}, {}};
  text.marks.resize((segment.bytes.size() + 1) / 2);
  flow_.texts_.push_back(std::move(text));
}

std::size_t CodeFlowBuilder::add_function(const FunctionFacts& facts) {
  PROBED_CHECK(flow_.functions_.empty() || flow_.functions_.back().range.end <= facts.range.begin,
               "functions ascend and don't overlap");
  flow_.functions_.push_back(facts);
  return flow_.functions_.size() - 1;
}

void CodeFlowBuilder::mark(std::uint64_t address, Mark mark) {
  for (CodeFlow::Text& text : flow_.texts_) {
    if (address < text.address || address >= text.end()) continue;
    const std::uint64_t at = address - text.address;
    text.marks[at / 2] = static_cast<std::uint8_t>(text.marks[at / 2] | unsigned{mark} << (at % 2 * 4));
  }
}

void CodeFlowBuilder::unmark(std::uint64_t address, Mark mark) {
  for (CodeFlow::Text& text : flow_.texts_) {
    if (address < text.address || address >= text.end()) continue;
    const std::uint64_t at = address - text.address;
    text.marks[at / 2] = static_cast<std::uint8_t>(text.marks[at / 2] & ~(unsigned{mark} << (at % 2 * 4)));
  }
}

void CodeFlowBuilder::set_called(std::vector<std::uint64_t> addresses) {
  std::ranges::sort(addresses);
  for (const FunctionFacts& function : flow_.functions_)
    if (std::ranges::binary_search(addresses, function.range.begin)) flow_.called_.push_back(function.range.begin);
}

std::array<CodeRange, 2> RegionPlan::written() const {
  std::array<CodeRange, 2> out{};
  if (form == JumpForm::island) out[0] = {island, island + kNearJumpSize};
  const std::size_t own = form == JumpForm::near     ? near_size
                          : form == JumpForm::punned ? region.length
                                                     : kShortJumpSize;
  out[1] = {site(), site() + own};
  return out;
}

CodeRange RegionPlan::borrowed() const {
  if (form != JumpForm::punned) return {};
  return {region.end(), site() + kNearJumpSize};
}

std::vector<std::uint64_t> RegionPlan::interior() const {
  std::vector<std::uint64_t> out;
  add_interior(region, written()[1].end, out);
  return out;
}

bool RegionPlan::hinders(std::uint64_t other) const {
  return borrowed().contains(other) ||
         std::ranges::any_of(written(), [other](const CodeRange& range) { return range.contains(other); });
}

}  // namespace probed::arch
