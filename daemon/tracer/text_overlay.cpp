#include "daemon/tracer/text_overlay.hpp"

#include <algorithm>

#include "arch/arch.hpp"

namespace probed::tracer {

bool settle(std::span<std::uint8_t> bytes, const Patch& patch, bool keep_trap) {
  const std::uint8_t trap = arch::native::kBreakpoint[0], first = bytes[0];
  const auto tail = bytes.subspan(1);
  const bool whole_tail = std::ranges::equal(tail, after(patch).subspan(1));
  const bool old_tail = std::ranges::equal(tail, before(patch).subspan(1));
  const bool head = first == patch.after[0] || first == patch.before[0] || first == trap;
  if (!head || (!whole_tail && !old_tail)) return false;
  const bool trapped = first == trap || first == patch.after[0];
  const std::uint8_t wanted = keep_trap && trapped ? trap : patch.before[0];
  if (first == wanted && old_tail) return false;
  std::ranges::copy(before(patch), bytes.begin());
  bytes[0] = wanted;
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
