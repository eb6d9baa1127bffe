#include "daemon/tracer/text_overlay.hpp"

#include <algorithm>

#include "arch/arch.hpp"
#include "daemon/tracer/xol.hpp"

namespace probed::tracer {

bool settle(std::span<std::uint8_t> bytes, const Patch& patch, bool keep_trap) {
  constexpr std::size_t kHead = arch::native::kBreakpointSize;
  const std::span<const std::uint8_t> trap(arch::native::kBreakpoint), written = after(patch), old = before(patch);
  if (std::ranges::equal(bytes, old)) return false;  // also when the program's own instruction is such a jump
  const auto begins_with = [&](std::span<const std::uint8_t> head) {
    return std::ranges::equal(bytes.first(kHead), head.first(kHead));
  };
  const auto is_there = [&](std::span<const std::uint8_t> whole, std::size_t from, std::size_t size) {
    return std::ranges::equal(bytes.subspan(from, size), whole.subspan(from, size));
  };
  const std::size_t size = bytes.size(), next_page = kPageSize - patch.at.value % kPageSize;
  const std::size_t middle = std::clamp(next_page, kHead, size);
  const auto is_either = [&](std::size_t from, std::size_t n) {
    return is_there(written, from, n) || is_there(old, from, n);
  };
  const bool old_tail = is_there(old, kHead, size - kHead);
  const bool trapped = begins_with(trap) || begins_with(written);
  if (!trapped && !begins_with(old)) return false;
  if (!is_either(kHead, middle - kHead) || !is_either(middle, size - middle)) return false;
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
