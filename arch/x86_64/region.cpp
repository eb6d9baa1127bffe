// The decision for one site: gather whole instructions from it on, and find a place for what doesn't fit. Pure.
#include "arch/x86_64/region.hpp"

#include <algorithm>
#include <optional>

#include "arch/x86_64/decode.hpp"
#include "proto/base/check.hpp"

namespace probed::arch::x86_64 {
namespace {

constexpr std::uint64_t kShortBack = 128, kShortForth = 127;
constexpr std::uint64_t kPageSize = 4096;  // load biases are multiples of it

// Whether a page holds the bytes from `begin` up to `end`.
bool in_one_page(std::uint64_t begin, std::uint64_t end) { return begin / kPageSize == (end - 1) / kPageSize; }

// Whether these bytes are somebody else's already.
bool is_taken(std::span<const CodeRange> taken, const CodeRange& range) {
  return std::ranges::any_of(taken, [&range](const CodeRange& other) { return other.overlaps(range); });
}

bool comes_back(Flow flow) { return flow == Flow::call || flow == Flow::indirect_call; }
bool goes_on(Flow flow) { return flow != Flow::jump && flow != Flow::indirect_jump && flow != Flow::ret; }

// Why an instruction must not run in a detour, wherever it stands in the region.
RegionRefusal objection(const Insn& insn) {
  if (insn.refusal != Refusal::none) return RegionRefusal::instruction;
  if (insn.flow == Flow::syscall || insn.may_block) return RegionRefusal::system_call;
  if (insn.flow == Flow::transaction) return RegionRefusal::transaction;
  if (insn.repeats) return RegionRefusal::repeats;
  if (insn.sees_trap_flag) return RegionRefusal::trap_flag;
  return RegionRefusal::none;
}

struct Gathered {
  RegionRefusal refusal = RegionRefusal::none;
  Refusal instruction = Refusal::none;
  Displaced code;
};

// Gathers whole instructions until a jump of some size has room over them and the padding behind them.
class Gatherer {
 public:
  Gatherer(const CodeFlow& flow, std::span<const CodeRange> taken) : flow_(flow), taken_(taken) {}

  Gathered gather(std::uint64_t site, std::uint64_t size) const {
    const FunctionFacts* const function = flow_.function_at(site);
    if (function == nullptr) return {RegionRefusal::no_function, Refusal::none, {}};
    if (!flow_.is_instruction(site)) return {RegionRefusal::no_instruction, Refusal::none, {}};
    // Whoever calls a function has a stack.
    if (!function->keeps_stack && site != function->range.begin)
      return {RegionRefusal::stack_pointer, Refusal::none, {}};
    Gathered out;
    out.code.address = site;
    while (out.code.length < size) {
      if (append(*function, out)) break;
      if (out.refusal == RegionRefusal::none && out.code.length < size) out.refusal = inner(out.code);
      if (out.refusal != RegionRefusal::none) return out;
    }
    out.refusal = whole(*function, out.code, size);
    return out;
  }

 private:
  // One more instruction. True: nothing more can follow.
  bool append(const FunctionFacts& function, Gathered& out) const {
    Displaced& code = out.code;
    const std::uint64_t at = code.end();
    if (at >= function.range.end || !flow_.is_instruction(at)) return true;
    const Insn insn = decode(flow_.bytes(at, std::min<std::uint64_t>(function.range.end - at, kMaxInsnLength)), at);
    out.refusal = objection(insn);
    out.instruction = insn.refusal;
    if (out.refusal != RegionRefusal::none) return false;
    PROBED_CHECK(code.count < code.insns.size(), "a region has no more instructions than bytes");
    code.insns[code.count++] = insn;
    code.length = static_cast<std::uint8_t>(code.length + insn.length);
    return !goes_on(insn.flow);
  }

  // What the instruction gathered last must not be, as another follows.
  RegionRefusal inner(const Displaced& code) const {
    if (comes_back(code.insns[code.count - 1].flow)) return RegionRefusal::call;
    return RegionRefusal::none;
  }

  RegionRefusal whole(const FunctionFacts& function, const Displaced& code, std::uint64_t size) const {
    const std::uint64_t end = code.address + std::max<std::uint64_t>(size, code.length);
    if (is_taken(taken_, {code.address, end})) return RegionRefusal::neighbour;
    const std::uint64_t overwritten = code.address + size;
    for (std::uint64_t at = code.address + 1; at < overwritten; ++at)
      if (flow_.may_be_entered(at))
        return function.understood ? RegionRefusal::branch_target : RegionRefusal::indirect_jumps;
    if (code.end() < overwritten && !flow_.is_padding({code.end(), overwritten})) return RegionRefusal::function_end;
    return in_one_page(code.address, overwritten) ? RegionRefusal::none : RegionRefusal::page_end;
  }

  const CodeFlow& flow_;
  std::span<const CodeRange> taken_;
};

// Where the short jump of a site can lead.
class IslandFinder {
 public:
  IslandFinder(const CodeFlow& flow, std::span<const CodeRange> taken, const Displaced& region)
      : flow_(flow), taken_(taken), own_{region.address, std::max(region.end(), region.address + kShortJumpSize)} {}

  // The nearest, forward first: prefetchers and people read that way.
  std::optional<std::uint64_t> in_padding() const {
    return nearest([this](std::uint64_t at) { return is_free({at, at + kNearJumpSize}) && pads(at); });
  }

 private:
  bool is_free(const CodeRange& range) const {
    const std::uint64_t begin = std::min(own_.begin, range.begin);
    return !range.overlaps(own_) && !is_taken(taken_, range) &&
           in_one_page(begin, std::max(own_.begin + kShortJumpSize, range.end));
  }
  bool pads(std::uint64_t at) const { return flow_.is_padding({at, at + kNearJumpSize}); }

  template <class Accept>
  std::optional<std::uint64_t> nearest(const Accept& accept) const {
    const std::uint64_t from = own_.begin + kShortJumpSize;
    for (std::uint64_t distance = 0; distance <= kShortBack; ++distance) {
      if (distance <= kShortForth && accept(from + distance)) return from + distance;
      if (accept(from - distance)) return from - distance;
    }
    return std::nullopt;
  }

  const CodeFlow& flow_;
  std::span<const CodeRange> taken_;
  CodeRange own_;
};

}  // namespace

RegionResult plan_region(const CodeFlow& flow, const RegionRequest& request) {
  const Gatherer gatherer(flow, request.taken);
  const Gathered near = gatherer.gather(request.site, kNearJumpSize);
  RegionResult result{near.refusal, near.instruction, {}};
  result.plan.region = near.code;
  if (result || !request.may_use_island) return result;
  const Gathered small = gatherer.gather(request.site, kShortJumpSize);
  if (small.refusal != RegionRefusal::none) return {small.refusal, small.instruction, {}};
  result = {RegionRefusal::none, Refusal::none, {}};
  result.plan.region = small.code;
  const IslandFinder finder(flow, request.taken, small.code);
  if (const auto island = finder.in_padding()) {
    result.plan.form = JumpForm::island;
    result.plan.island = *island;
    return result;
  }
  return {RegionRefusal::no_island, Refusal::none, {}};
}

RegionResult plan_pun(const CodeFlow& flow, const RegionRequest& request) {
  const Gathered one = Gatherer(flow, request.taken).gather(request.site, 1);
  if (one.refusal != RegionRefusal::none) return {one.refusal, one.instruction, {}};
  if (flow.bytes(request.site, kNearJumpSize).size() < kNearJumpSize)
    return {RegionRefusal::function_end, Refusal::none, {}};
  if (one.code.length >= kNearJumpSize) return {RegionRefusal::no_island, Refusal::none, {}};
  if (is_taken(request.taken, {request.site, request.site + kNearJumpSize}))
    return {RegionRefusal::neighbour, Refusal::none, {}};
  // Behind a prefix that a branch skips, or what is read as data.
  for (std::uint64_t at = request.site + 1; at < one.code.end(); ++at)
    if (flow.may_be_entered(at)) return {RegionRefusal::branch_target, Refusal::none, {}};
  if (!in_one_page(request.site, one.code.end())) return {RegionRefusal::page_end, Refusal::none, {}};
  RegionResult result;
  result.plan.form = JumpForm::punned;
  result.plan.region = one.code;
  return result;
}

PunRange pun_range(std::uint64_t site, std::span<const std::uint8_t> bytes, std::size_t length) {
  PROBED_CHECK(bytes.size() == kNearJumpSize && length > 0 && length < kNearJumpSize, "a jump over one instruction");
  std::uint32_t distance = 0;
  for (std::size_t i = length; i < kNearJumpSize; ++i) distance |= std::uint32_t{bytes[i]} << (8 * (i - 1));
  const auto far = static_cast<std::uint64_t>(std::int64_t{static_cast<std::int32_t>(distance)});
  return {site + kNearJumpSize + far, std::uint64_t{1} << (8 * (length - 1))};
}

std::array<std::uint8_t, kShortJumpSize> short_jump(std::uint64_t site, std::uint64_t island) {
  const std::uint64_t distance = island - (site + kShortJumpSize);
  PROBED_CHECK(distance + kShortBack <= kShortBack + kShortForth, "an island is within reach of its short jump");
  return {0xeb, static_cast<std::uint8_t>(distance)};
}

}  // namespace probed::arch::x86_64
