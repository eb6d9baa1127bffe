#include "daemon/tracer/places/xol.hpp"

#include <sys/resource.h>

#include <algorithm>

#include "daemon/tracer/text/layout.hpp"
#include "proto/base/check.hpp"

namespace probed::tracer {
namespace {

constexpr std::uint64_t kLowestAddress = 0x10000;  // vm.mmap_min_addr's default
using arch::native::kHighestAddress;
constexpr std::uint64_t kGuard = 0x10000;  // distance kept from neighbouring mappings

std::uint64_t distance(RemoteAddr a, RemoteAddr b) { return a > b ? a.value - b.value : b.value - a.value; }

bool in_area(const XolAreas::Area& area, RemoteAddr a) { return a >= area.base && a < area.base + area.size; }

bool in_reach(RemoteAddr start, std::uint64_t size, RemoteAddr near) {
  return distance(start, near) < kSlotReach && distance(start + size, near) < kSlotReach;
}

bool grows_up(const symbols::Mapping& m) { return m.path == "[heap]"; }
bool grows_down(const symbols::Mapping& m) { return m.path == "[stack]"; }

}  // namespace

void XolAreas::add_area(RemoteAddr base, std::uint64_t size, const std::optional<Mark>& mark) {
  areas_.push_back({base, size, 0, false, Access::code, mark});
  if (!mark) return;
  PROBED_CHECK(mark->offset == 0, "the mark of an area with slots is in front of them");
  constexpr std::uint64_t kUnits = Mark::kSize / kSlotUnit;
  Area& area = areas_.back();
  area.used = Mark::kSize;
  for (std::uint64_t i = 0; i < kUnits; ++i) area.units.push_back({static_cast<std::uint8_t>(i), kUnits});
}

const XolAreas::Area* XolAreas::area_of(RemoteAddr a) const {
  const auto area = std::ranges::find_if(areas_, [a](const Area& each) { return in_area(each, a); });
  return area == areas_.end() ? nullptr : &*area;
}

void XolAreas::forget_area(RemoteAddr a) {
  const auto area = std::ranges::find_if(areas_, [a](const Area& each) { return in_area(each, a); });
  if (area == areas_.end()) return;
  std::erase_if(slots_, [&](const auto& slot) { return in_area(*area, RemoteAddr{slot.first}); });
  areas_.erase(area);
}

std::optional<RemoteAddr> XolAreas::allocate(RemoteAddr near, std::uint64_t size) {
  PROBED_CHECK(size > 0 && size <= kSlotSize && size % kSlotUnit == 0, "a slot has whole units");
  const std::uint64_t units = size / kSlotUnit;
  for (Area& area : areas_) {
    if (!in_reach(area.base, area.size, near)) continue;
    // A larger one that is unused is not split: it would never be whole again.
    if (std::vector<RemoteAddr>& unused = area.free[units]; !unused.empty()) {
      const RemoteAddr slot = unused.back();
      unused.pop_back();
      return slot;
    }
    if (area.used + size > area.size) continue;
    const RemoteAddr slot = area.base + area.used;
    for (std::uint64_t i = 0; i < units; ++i)
      area.units.push_back({static_cast<std::uint8_t>(i), static_cast<std::uint8_t>(units)});
    area.used += size;
    return slot;
  }
  return std::nullopt;
}

void XolAreas::release(RemoteAddr slot) {
  slots_.erase(slot.value);
  for (Area& area : areas_)
    if (in_area(area, slot)) area.free[area.units[(slot.value - area.base.value) / kSlotUnit].of].push_back(slot);
}

void XolAreas::retire(RemoteAddr slot) {
  const auto it = slots_.find(slot.value);
  if (it == slots_.end()) return;
  it->second.retired = true;
  if (it->second.threads == 0) release(slot);
}

Slot* XolAreas::find(RemoteAddr pc, RemoteAddr& base) {
  for (const Area& area : areas_) {
    if (!in_area(area, pc)) continue;
    const std::uint64_t unit = (pc.value - area.base.value) / kSlotUnit;
    if (unit >= area.units.size()) return nullptr;
    base = area.base + (unit - area.units[unit].behind) * kSlotUnit;
    const auto it = slots_.find(base.value);
    return it == slots_.end() ? nullptr : &it->second;
  }
  return nullptr;
}

void XolAreas::enter(RemoteAddr slot) {
  const auto it = slots_.find(slot.value);
  PROBED_CHECK(it != slots_.end(), "a thread is only sent to a published slot");
  ++it->second.threads;
}

void XolAreas::leave(RemoteAddr slot) {
  const auto it = slots_.find(slot.value);
  if (it == slots_.end()) return;
  PROBED_CHECK(it->second.threads > 0, "a thread leaves a slot it entered");
  if (--it->second.threads == 0 && it->second.retired) release(slot);
}

void XolAreas::forget_threads() {
  std::vector<RemoteAddr> empty;
  for (auto& [address, slot] : slots_) {
    slot.threads = 0;
    if (slot.retired) empty.push_back({address});
  }
  for (const RemoteAddr slot : empty) release(slot);
}

bool is_mapped(const XolAreas::Area& area, const Layout& layout) {
  if (!layout.known()) return true;
  for (RemoteAddr at = area.base; at < area.base + area.size;) {
    const symbols::Mapping* mapping = layout.at(at);
    if (!mapping || mapping->shared != area.shared || (mapping->inode != 0) != area.shared) return false;
    if (mapping->executable != (area.access == XolAreas::Access::code)) return false;
    if (mapping->writable != (area.access == XolAreas::Access::data)) return false;
    at = mapping->end;
  }
  return true;
}

// The kernel leaves the stack 128 MiB or more (mm/util.c, mmap_base), and threads' stacks may fill whatever is below
// the libraries: then the only room is above them.
std::uint64_t stack_room(pid_t pid) {
  constexpr std::uint64_t kLeast = 64 << 20;
  if (kSlotReach > kGrowth) return kGrowth;
  rlimit limit{};
  if (prlimit(pid, RLIMIT_STACK, nullptr, &limit) != 0) return kGrowth;
  return std::clamp<std::uint64_t>(limit.rlim_cur, kLeast, kGrowth);
}

std::optional<RemoteAddr> choose_hole(std::span<const symbols::Mapping> maps, RemoteAddr near, std::uint64_t size,
                                      unsigned attempt, std::uint64_t stack_room) {
  std::vector<RemoteAddr> candidates;
  RemoteAddr gap_start{kLowestAddress};
  bool below_grows = false;
  const auto consider = [&](RemoteAddr gap_end, bool above_grows) {
    const std::uint64_t bottom = gap_start.value + (below_grows ? kGrowth : kGuard);
    const std::uint64_t top = gap_end.value - std::min(gap_end.value, above_grows ? stack_room : kGuard);
    if (top < size || top - size < bottom) return;
    // From the top of a gap below `near`, from the bottom of one above: as near as can be.
    const std::uint64_t at = gap_end <= near ? top - size : bottom + kPageSize - 1;
    const RemoteAddr start{at / kPageSize * kPageSize};
    if (in_reach(start, size, near)) candidates.push_back(start);
  };
  for (const symbols::Mapping& m : maps) {
    if (m.start.value >= kHighestAddress) break;
    if (m.start > gap_start) consider(m.start, grows_down(m));
    gap_start = std::max(gap_start, m.end);
    below_grows = grows_up(m);
  }
  consider(RemoteAddr{kHighestAddress}, false);
  const auto cost = [&](RemoteAddr a) { return distance(a, near) + (a > near ? kSlotReach : 0); };
  std::sort(candidates.begin(), candidates.end(), [&](RemoteAddr a, RemoteAddr b) { return cost(a) < cost(b); });
  if (attempt >= candidates.size()) return std::nullopt;
  return candidates[attempt];
}

bool is_hole(std::span<const symbols::Mapping> maps, RemoteAddr start, std::uint64_t size) {
  // A stack in the middle may grow, too, and wants 1 MiB of nothing below it (mm/mmap.c, stack_guard_gap). The heap may
  // not have begun yet; it grows from the program's end into a gap that is larger than any other.
  constexpr std::uint64_t kClear = 2 << 20, kLargeGap = 1ULL << 40, kHeap = 64ULL << 30;
  const RemoteAddr end = start + size;
  if (start.value < kLowestAddress + kClear || end < start || end.value > kHighestAddress - kClear) return false;
  const auto next =
      std::ranges::partition_point(maps, [&](const auto& m) { return m.end.value <= start.value - kClear; });
  if (next != maps.end() && next->start.value < end.value + kClear) return false;
  if (next != maps.end() && grows_down(*next)) return false;  // as far as its limit lets it
  const std::uint64_t below = next == maps.begin() ? 0 : std::prev(next)->end.value;
  const std::uint64_t above = next == maps.end() ? kHighestAddress : std::min(kHighestAddress, next->start.value);
  return below == 0 || above - below < kLargeGap || start.value - below >= kHeap;
}

}  // namespace probed::tracer
