#include "daemon/tracer/text/text_overlay.hpp"

#include <algorithm>

#include "arch/arch.hpp"
#include "daemon/base/alone.hpp"
#include "daemon/tracer/places/xol.hpp"

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

namespace {

// The part of a patch that lies in bytes read from `from` on: offsets in the patch, and where the bytes begin.
struct Visible {
  std::size_t begin = 0, end = 0;
  std::int64_t shift = 0;  // of an offset in the patch to one in the bytes
};

Visible visible(const Patch& patch, RemoteAddr from, std::size_t size) {
  const auto shift = static_cast<std::int64_t>(patch.at.value - from.value);
  const auto begin = std::clamp<std::int64_t>(-shift, 0, patch.size);
  const auto end = std::clamp<std::int64_t>(static_cast<std::int64_t>(size) - shift, begin, patch.size);
  return {static_cast<std::size_t>(begin), static_cast<std::size_t>(end), shift};
}

}  // namespace

TextOverlay::Reading::Reading(const TextOverlay& overlay) : overlay_(overlay) {
  const std::lock_guard lock(overlay_.mutex_);
  began_ = ++overlay_.clock_;
  overlay_.readers_.insert(began_);
}

TextOverlay::Reading::~Reading() {
  const std::lock_guard lock(overlay_.mutex_);
  overlay_.readers_.erase(overlay_.readers_.find(began_));
  overlay_.forget_removed();
}

void TextOverlay::Reading::undo(std::span<std::uint8_t> bytes, RemoteAddr from) const {
  const std::lock_guard lock(overlay_.mutex_);
  const RemoteAddr end = from + bytes.size();
  for (auto it = overlay_.first_reaching(from); it != overlay_.entries_.end() && it->first < end; ++it) {
    const auto& [patch, removed] = it->second;
    if (removed != 0 && removed < began_) continue;
    if (!overlay_.explains(bytes, from, patch, began_)) continue;
    const Visible part = visible(patch, from, bytes.size());
    for (std::size_t i = part.begin; i < part.end; ++i) {
      std::uint8_t& byte = bytes[static_cast<std::size_t>(static_cast<std::int64_t>(i) + part.shift)];
      if (byte == patch.after[i]) byte = patch.before[i];
    }
  }
}

void TextOverlay::add(const Patch& patch) {
  const auto lock = lock_unless_alone(mutex_);
  entries_.emplace(patch.at, Written{patch, 0});
}

void TextOverlay::remove(const Patch& patch) {
  const auto lock = lock_unless_alone(mutex_);
  const auto [first, last] = entries_.equal_range(patch.at);
  for (auto it = first; it != last; ++it) {
    Written& written = it->second;
    if (written.removed != 0 || !std::ranges::equal(after(written.patch), after(patch))) continue;
    if (readers_.empty()) return void(entries_.erase(it));
    written.removed = ++clock_;
    removed_.emplace(written.removed, patch.at);
    return;
  }
}

// What was removed before every reader that is left has begun.
void TextOverlay::forget_removed() const {
  while (!removed_.empty() && (readers_.empty() || removed_.begin()->first < *readers_.begin())) {
    const auto [when, at] = *removed_.begin();
    const auto [first, last] = entries_.equal_range(at);
    const auto it = std::find_if(first, last, [&](const auto& entry) { return entry.second.removed == when; });
    if (it != last) entries_.erase(it);
    removed_.erase(removed_.begin());
  }
}

std::size_t TextOverlay::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size() - removed_.size();
}

TextOverlay::Entries::const_iterator TextOverlay::first_reaching(RemoteAddr from) const {
  return entries_.upper_bound(from - std::min<std::uint64_t>(from.value, Patch::kMaxSize));
}

// Whether a byte that was read is the program's, or what some patch makes of it there.
bool TextOverlay::explains(RemoteAddr at, std::uint8_t byte, std::uint64_t began) const {
  for (auto it = first_reaching(at); it != entries_.end() && it->first <= at; ++it) {
    const auto& [patch, removed] = it->second;
    const std::uint64_t i = at.value - patch.at.value;
    if (i >= patch.size || (removed != 0 && removed < began)) continue;
    if (byte == patch.before[i] || byte == patch.after[i]) return true;
  }
  return false;
}

// A patch may be there in part only: it is being written, or others that overlap it have been written or taken out
// while the text was read.
bool TextOverlay::explains(std::span<const std::uint8_t> bytes, RemoteAddr from, const Patch& patch,
                           std::uint64_t began) const {
  const Visible part = visible(patch, from, bytes.size());
  for (std::size_t i = part.begin; i < part.end; ++i) {
    const std::uint8_t byte = bytes[static_cast<std::size_t>(static_cast<std::int64_t>(i) + part.shift)];
    if (byte != patch.before[i] && byte != patch.after[i] && !explains(patch.at + i, byte, began)) return false;
  }
  return true;
}

}  // namespace probed::tracer
