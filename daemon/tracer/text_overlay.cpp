#include "daemon/tracer/text_overlay.hpp"

#include <algorithm>

#include "arch/arch.hpp"

namespace probed::tracer {

bool settle(std::span<std::uint8_t> bytes, const Patch& patch, bool keep_trap) {
  constexpr std::size_t kHead = arch::native::kBreakpointSize;
  const std::span<const std::uint8_t> trap(arch::native::kBreakpoint), written = after(patch), old = before(patch);
  if (std::ranges::equal(bytes, old)) return false;  // also when the program's own instruction is such a jump
  const auto begins_with = [&](std::span<const std::uint8_t> head) {
    return std::ranges::equal(bytes.first(kHead), head.first(kHead));
  };
  const bool whole_tail = std::ranges::equal(bytes.subspan(kHead), written.subspan(kHead));
  const bool old_tail = std::ranges::equal(bytes.subspan(kHead), old.subspan(kHead));
  const bool trapped = begins_with(trap) || begins_with(written);
  if ((!trapped && !begins_with(old)) || (!whole_tail && !old_tail)) return false;
  const auto wanted = keep_trap && trapped ? trap : old;
  if (begins_with(wanted) && old_tail) return false;  // a breakpoint that is to stay
  std::ranges::copy(old, bytes.begin());
  std::ranges::copy(wanted.first(kHead), bytes.begin());
  return true;
}

void TextOverlay::add(const Patch& patch) {
  const std::lock_guard lock(mutex_);
  patches_.insert_or_assign(patch.at, patch);
}

bool TextOverlay::empty() const {
  const std::lock_guard lock(mutex_);
  return patches_.empty();
}

void TextOverlay::undo(std::span<std::uint8_t> bytes, RemoteAddr from) const {
  const std::lock_guard lock(mutex_);
  for (auto it = patches_.lower_bound(from); it != patches_.end(); ++it) {
    const std::uint64_t at = it->first.value - from.value;
    if (at >= bytes.size()) return;
    const Patch& patch = it->second;
    if (at + patch.size <= bytes.size()) settle(bytes.subspan(at, patch.size), patch, true);
  }
}

}  // namespace probed::tracer
