#include "daemon/tracer/text/edits.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "proto/base/check.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;

}  // namespace

bool holds(const TargetMemory& memory, RemoteAddr at, std::span<const std::uint8_t> bytes) {
  std::array<std::uint8_t, 64> now{};
  PROBED_CHECK(bytes.size() <= now.size(), "regions are short");
  const auto room = std::span(now).first(bytes.size());
  return memory.read_some(at, std::as_writable_bytes(room)) == bytes.size() && std::ranges::equal(room, bytes);
}

bool holds_original(const TargetMemory& memory, const SitePlan& plan) {
  return holds(memory, plan.address, plan.code());
}

bool stands(const TargetMemory& memory, const Patch& patch) { return holds(memory, patch.at, after(patch)); }

Patch trap_patch(const SitePlan& plan) {
  Patch trap{plan.address, static_cast<std::uint8_t>(native::kBreakpointSize), {}, {}};
  std::copy_n(plan.bytes.begin(), native::kBreakpointSize, trap.before.begin());
  std::ranges::copy(native::kBreakpoint, trap.after.begin());
  return trap;
}

// ---- breakpoints ----------------------------------------------------------------------------------------------------

bool put_trap(TargetMemory& memory, RemoteAddr at) {
  return memory.write(at, std::as_bytes(std::span<const std::uint8_t>(native::kBreakpoint)));
}

bool take_out_trap(TargetMemory& memory, const SitePlan& plan, const Layout& layout) {
  if (!layout.holds(plan) && !is_copy(memory, layout, {&plan, {}, {}})) return false;
  if (!holds_breakpoint(memory, plan)) return false;
  return memory.write(plan.address, std::as_bytes(plan.code()).first(native::kBreakpointSize));
}

// ---- jumps ----------------------------------------------------------------------------------------------------------

bool put_jump_tail(TargetMemory& memory, const Patch& jump) {
  return memory.write(jump.at + kHeadSize, std::as_bytes(tail_of(after(jump))));
}

bool put_jump_head(TargetMemory& memory, const Patch& jump) {
  return memory.write(jump.at, std::as_bytes(head_of(after(jump))));
}

bool put_back_tail(TargetMemory& memory, const Patch& jump) {
  return memory.write(jump.at + kHeadSize, std::as_bytes(tail_of(before(jump))));
}

bool take_out_jump(TargetMemory& memory, const Patch& jump, bool whole, bool sure) {
  std::array<std::uint8_t, Patch::kMaxSize> bytes{};
  const auto now = std::span(bytes).first(jump.size);
  if (memory.read_some(jump.at, std::as_writable_bytes(now)) != now.size()) return false;
  const auto written = after(jump);
  const bool head = whole && std::ranges::equal(head_of(now), head_of(written));
  const bool tail = std::ranges::equal(tail_of(now), tail_of(written));
  // A jump whose distance the program has written over leads nowhere: nobody may run into it any more.
  if (head && (tail || sure)) put_trap(memory, jump.at);
  if (!tail || (!head && !native::is_breakpoint(now))) return false;
  put_back_tail(memory, jump);
  return true;
}

bool settle_jump(TargetMemory& memory, const Patch& jump, bool running) {
  std::array<std::uint8_t, Patch::kMaxSize> now{};
  const auto bytes = std::span(now).first(jump.size);
  if (memory.read_some(jump.at, std::as_writable_bytes(bytes)) != bytes.size()) return false;
  if (!settle(bytes, jump, running)) return false;
  if (!running) return memory.write(jump.at, std::as_bytes(bytes));
  const bool trapped = put_trap(memory, jump.at);
  return memory.write(jump.at + kHeadSize, std::as_bytes(tail_of(bytes))) && trapped;
}

// ---- islands --------------------------------------------------------------------------------------------------------

bool put_island(TargetMemory& memory, const Patch& island) {
  return memory.write(island.at, std::as_bytes(after(island)));
}

void take_out_island(TargetMemory& memory, const Patch& island) {
  if (stands(memory, island)) memory.write(island.at, std::as_bytes(before(island)));
}

// ---- strays and copies ----------------------------------------------------------------------------------------------

bool take_out_stray(TargetMemory& memory, const Stray& stray) {
  if (stray.head && holds(memory, stray.head->at + kHeadSize, tail_of(after(*stray.head)))) {
    put_trap(memory, stray.head->at);
    put_back_tail(memory, *stray.head);
  }
  if (stray.island) take_out_island(memory, *stray.island);
  return memory.write(stray.plan.address, std::as_bytes(head_of(stray.plan.code())));
}

void wash(TargetMemory& copy, std::span<const Stain> stains) {
  constexpr std::uint64_t kStretch = 64 * kPageSize;
  std::vector<std::uint8_t> text;
  for (std::size_t i = 0; i < stains.size();) {
    const RemoteAddr start = stains[i].patch.at;
    std::size_t end = i;
    while (end < stains.size() && stains[end].patch.at < start + kStretch &&
           (end == i || stains[end].patch.at < stains[end - 1].patch.at + kPageSize))
      ++end;
    text.resize(stains[end - 1].patch.at.value - start.value + Patch::kMaxSize);
    const std::size_t got = copy.read_some(start, std::as_writable_bytes(std::span(text)));
    std::size_t changed_from = text.size(), changed_to = 0;
    const auto flush = [&] {
      const std::span<const std::uint8_t> all(text);
      if (changed_from < changed_to)
        copy.write(start + changed_from, std::as_bytes(all).subspan(changed_from, changed_to - changed_from));
      changed_from = text.size();
      changed_to = 0;
    };
    for (; i < end; ++i) {
      const Patch& patch = stains[i].patch;
      const std::size_t at = patch.at.value - start.value;
      if (at + patch.size > got) continue;
      if (at > changed_to + kPageSize) flush();
      if (!settle(std::span(text).subspan(at, patch.size), patch, stains[i].keep_trap)) continue;
      changed_from = std::min(changed_from, at);
      changed_to = std::max(changed_to, at + patch.size);
    }
    flush();
  }
}

}  // namespace probed::tracer
