// The decision for one site. Pure.
#include "arch/aarch64/region.hpp"

#include <algorithm>

#include "arch/aarch64/context.hpp"
#include "arch/aarch64/decode.hpp"
#include "arch/aarch64/forms.hpp"
#include "arch/aarch64/word.hpp"
#include "proto/base/check.hpp"

namespace probed::arch::aarch64 {
namespace {

// paciasp, pacibsp: accept indirect calls in guarded pages.
bool signs_at_entry(std::uint32_t word) {
  constexpr std::uint32_t kPaciasp = 0xd503233f, kPacibsp = 0xd503237f;
  return word == kPaciasp || word == kPacibsp;
}

// Exclusive loads and stores, and what else has the highest bits of one; movprfx, likewise.
bool may_make_a_sequence(std::uint32_t word) {
  return (word & 0x3e000000) == 0x08000000 || (word & 0xff000000) == 0x04000000;
}

// By the part of a function that refusal_in_context() looks at for an instruction. What loads read is known already not
// to be one, and few functions have anything else.
Refusal refusal_of_surroundings(const CodeFlow& flow, const CodeRange& function, std::uint64_t site) {
  const std::uint64_t begin = site - std::min(site - function.begin, std::uint64_t{kContextReach});
  const std::uint64_t end = site + std::min(function.end - site, std::uint64_t{kContextReach} + kInsnSize);
  const auto bytes = flow.bytes(begin, end - begin);
  bool plain = true;
  for (std::size_t at = 0; plain && at < bytes.size(); at += kInsnSize)
    plain = !may_make_a_sequence(load_word(bytes.subspan(at)));
  return plain ? Refusal::none : refusal_in_context(bytes, site - begin);
}

class Planner {
 public:
  Planner(const CodeFlow& flow, const FunctionFacts& function, const RegionRequest& request)
      : flow_(flow), function_(function), request_(request) {
    result_.plan.region.address = request.site;
    result_.plan.near_size = kInsnSize;
  }

  RegionResult plan() {
    if (!append()) return result_;
    const std::uint32_t first = word_at(request_.site);
    if (flow_.is_guarded() && signs_at_entry(first)) refuse(RegionRefusal::landing_pad);
    if (flow_.is_guarded() && form_of(first).form == Form::landing_pad) keep_pad();
    if (result_ && is_taken()) result_.refusal = RegionRefusal::neighbour;
    return result_;
  }

 private:
  bool refuse(RegionRefusal why) {
    result_.refusal = why;
    return false;
  }

  std::uint32_t word_at(std::uint64_t address) const { return load_word(flow_.bytes(address, kInsnSize)); }

  // One more instruction.
  bool append() {
    Displaced& region = result_.plan.region;
    const std::uint64_t at = region.end();
    if (at + kInsnSize > function_.range.end) return refuse(RegionRefusal::function_end);
    if (!function_.decoded || !flow_.is_instruction(at)) return refuse(RegionRefusal::no_instruction);
    const Insn insn = decode(flow_.bytes(at, kInsnSize), at);
    result_.instruction = insn.refusal;
    if (insn.refusal == Refusal::none) result_.instruction = refusal_of_surroundings(flow_, function_.range, at);
    if (result_.instruction != Refusal::none) return refuse(RegionRefusal::instruction);
    if (insn.may_block) return refuse(RegionRefusal::system_call);
    region.insns[region.count++] = insn;
    region.length += kInsnSize;
    return true;
  }

  void keep_pad() {
    const std::uint64_t behind = result_.plan.region.end();
    if (!append()) return;
    result_.plan.pad_size = kInsnSize;
    result_.plan.near_size = 2 * kInsnSize;
    if (flow_.may_be_entered(behind))
      refuse(function_.understood ? RegionRefusal::branch_target : RegionRefusal::indirect_jumps);
  }

  bool is_taken() const {
    const CodeRange written = result_.plan.written()[1];
    return std::ranges::any_of(request_.taken, [&](const CodeRange& other) { return other.overlaps(written); });
  }

  const CodeFlow& flow_;
  const FunctionFacts& function_;
  const RegionRequest& request_;
  RegionResult result_;
};

}  // namespace

RegionResult plan_region(const CodeFlow& flow, const RegionRequest& request) {
  const FunctionFacts* const function = flow.function_at(request.site);
  if (function == nullptr) return {RegionRefusal::no_function, Refusal::none, {}};
  if (!flow.is_instruction(request.site)) return {RegionRefusal::no_instruction, Refusal::none, {}};
  // Whoever calls a function has a stack.
  if (!function->keeps_stack && request.site != function->range.begin)
    return {RegionRefusal::stack_pointer, Refusal::none, {}};
  return Planner(flow, *function, request).plan();
}

RegionResult plan_pun(const CodeFlow&, const RegionRequest&) { return {RegionRefusal::no_island, Refusal::none, {}}; }

PunRange pun_range(std::uint64_t, std::span<const std::uint8_t>, std::size_t) {
  PROBED_CHECK(false, "no jump is a punned one");
}

std::array<std::uint8_t, kShortJumpSize> short_jump(std::uint64_t, std::uint64_t) {
  PROBED_CHECK(false, "no jump is a short one");
}

}  // namespace probed::arch::aarch64
