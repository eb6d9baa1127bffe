#include "daemon/tracer/places/detours.hpp"

#include <algorithm>
#include <utility>

#include "proto/base/check.hpp"

namespace probed::tracer {
namespace {

namespace ch = arch::channel;

constexpr std::uint64_t kPunSize = arch::kNearJumpSize;

std::optional<RemoteAddr> resume_of(const std::vector<arch::DetourFixup>& fixups, std::uint64_t offset,
                                    RemoteAddr base) {
  const auto it = std::ranges::lower_bound(fixups, offset, {}, &arch::DetourFixup::fault);
  if (it == fixups.end() || it->fault != offset) return std::nullopt;
  return base + it->resume;
}

bool overlaps(const Patch& patch, RemoteAddr a) { return a >= patch.at && a < patch.at + patch.size; }

}  // namespace

bool Jump::hinders(RemoteAddr site) const {
  return region.contains(site.value) || overlaps(head, site) || (island && overlaps(*island, site)) ||
         (borrowed && overlaps(*borrowed, site));
}

// ---- lines ----------------------------------------------------------------------------------------------------------

std::optional<DetourSpace::Tap> DetourSpace::tap_of(ProbeId id) const {
  const auto it = taps_.find(number(id));
  return it == taps_.end() ? std::nullopt : std::optional(it->second);
}

std::optional<std::uint32_t> DetourSpace::add_tap(std::size_t line, ProgramPtr program) {
  Line& l = lines_[line];
  const std::uint32_t capacity = l.feed->channel->layout().probes;
  std::uint32_t index = 0;
  if (!l.free.empty()) {
    index = l.free.back();
    l.free.pop_back();
  } else if (l.taps.size() < capacity) {
    index = static_cast<std::uint32_t>(l.taps.size());
    l.taps.emplace_back();
  } else {
    return std::nullopt;
  }
  const bool added = taps_.try_emplace(number(program->id), Tap{line, index}).second;
  PROBED_CHECK(added, "a program records at one place");
  l.taps[index] = std::move(program);
  return index;
}

void DetourSpace::drop_tap(ProbeId id) {
  const auto it = taps_.find(number(id));
  if (it == taps_.end()) return;
  Line& line = lines_[it->second.line];
  const std::uint32_t index = it->second.index;
  line.feed->channel->set_mode(index, ch::kDisabled);
  line.taps[index].reset();
  line.leaving.push_back({index, rounds_begun_});
  taps_.erase(it);
}

void DetourSpace::free_index(std::size_t line, std::uint32_t index) { lines_[line].free.push_back(index); }

void DetourSpace::refresh_mode(const ProbeProgram& program, bool armed) {
  const auto tap = tap_of(recorder_of(program));
  if (!tap) return;
  const ProbeProgram& recorder = *lines_[tap->line].taps[tap->index];
  ch::ProbeFlags mode = ch::kDisabled;
  if (armed && recorder.enabled) {
    const bool record =
        recorder.streaming.load(std::memory_order_relaxed) || !recorded_by(recorder).filter_in_daemon.empty();
    mode = record ? ch::kRecord : ch::kCountOnly;
  }
  lines_[tap->line].feed->channel->set_mode(tap->index, mode);
}

std::optional<CallTrap> DetourSpace::call_trap(RemoteAddr pc) const {
  const auto area = std::ranges::find(areas_, pc.value, [](const CodeArea& a) { return a.runtime.call_trap; });
  if (area == areas_.end() || area->runtime.call_trap == 0) return std::nullopt;
  return CallTrap{area->line, RemoteAddr{area->runtime.call_done}};
}

// ---- code -----------------------------------------------------------------------------------------------------------

bool DetourSpace::in_code(RemoteAddr pc) const {
  return std::ranges::any_of(areas_, [&](const CodeArea& area) { return area.contains(pc); });
}

std::optional<DetourPlace> DetourSpace::find(RemoteAddr pc) const {
  const auto area = std::ranges::find_if(areas_, [&](const CodeArea& a) { return a.contains(pc); });
  if (area == areas_.end()) return std::nullopt;
  DetourPlace place;
  if (pc < area->base + area->runtime_size) {
    place.base = area->base;
    place.capture = true;
    place.resume = resume_of(area->fixups, pc.value - area->base.value, area->base);
    return place;
  }
  auto it = detours_.upper_bound(pc.value);
  if (it == detours_.begin()) return std::nullopt;
  --it;
  const std::uint64_t offset = pc.value - it->first;
  if (offset >= it->second.size) return std::nullopt;
  const arch::Detour& facts = it->second.facts;
  place.base = RemoteAddr{it->first};
  place.detour = &it->second;
  place.point = facts.at(offset);
  place.capture = offset != 0 && (offset < facts.tail_begin || offset >= facts.tail_end);
  place.resume = resume_of(facts.fixups, offset, place.base);
  return place;
}

PlacedDetour& DetourSpace::place(RemoteAddr address, PlacedDetour detour) {
  const auto [it, added] = detours_.emplace(address.value, std::move(detour));
  PROBED_CHECK(added, "one detour at a place");
  return it->second;
}

void DetourSpace::retire(RemoteAddr detour) {
  const auto it = detours_.find(detour.value);
  PROBED_CHECK(it != detours_.end() && it->second.retired == 0, "a detour is retired once");
  it->second.retired = rounds_begun_ + 1;
  ++retired_;
}

// ---- puns -----------------------------------------------------------------------------------------------------------

std::optional<RemoteAddr> DetourSpace::room_for_pun(const arch::PunRange& range) const {
  return room_for_pun(range, false);
}

bool DetourSpace::awaits_pun(const arch::PunRange& range) const { return room_for_pun(range, true).has_value(); }

// `later`: as if nobody were in what is retired any more.
std::optional<RemoteAddr> DetourSpace::room_for_pun(const arch::PunRange& range, bool later) const {
  const auto in_the_way = [&](const auto& used) {
    if (!later || used.second != kPunSize) return true;
    const auto jump = detours_.find(used.first);
    return jump == detours_.end() || jump->second.retired == 0;
  };
  for (const CodeArea& area : areas_) {
    if (area.line != CodeArea::kNoLine) continue;
    const std::uint64_t end = std::min(range.lowest + range.count, area.base.value + area.size - kPunSize + 1);
    for (std::uint64_t at = std::max(range.lowest, area.base.value); at < end;) {
      // Down from the last thing that begins before the end of what would be.
      std::uint64_t behind = at;
      for (auto used = area.puns.lower_bound(at + kPunSize); behind == at && used != area.puns.begin();) {
        --used;
        const std::uint64_t its_end = used->first + used->second;
        if (its_end <= at) break;
        if (in_the_way(*used)) behind = its_end;
      }
      if (behind == at) return RemoteAddr{at};
      at = behind;
    }
  }
  return std::nullopt;
}

void DetourSpace::place_pun(RemoteAddr pun, PlacedDetour jump) {
  const auto area = std::ranges::find_if(areas_, [&](const CodeArea& a) { return a.contains(pun); });
  PROBED_CHECK(area != areas_.end() && area->line == CodeArea::kNoLine, "a pun is in an area for puns");
  area->puns.emplace(pun.value, kPunSize);
  place(pun, std::move(jump));
}

std::size_t DetourSpace::pun_areas() const {
  return static_cast<std::size_t>(std::ranges::count(areas_, CodeArea::kNoLine, &CodeArea::line));
}

// ---- rounds ---------------------------------------------------------------------------------------------------------

bool DetourSpace::leaving() const {
  return std::ranges::any_of(lines_, [](const Line& line) { return !line.leaving.empty(); });
}

std::vector<std::pair<std::size_t, std::uint32_t>> DetourSpace::round_done(std::uint64_t number) {
  for (auto it = detours_.begin(); retired_ > 0 && it != detours_.end();) {
    // Retired while this round was under way: `retired` is higher.
    if (it->second.retired == 0 || it->second.retired > number) {
      ++it;
      continue;
    }
    for (CodeArea& area : areas_) {
      if (!area.contains({it->first})) continue;
      if (area.line == CodeArea::kNoLine)
        area.puns.erase(it->first);
      else
        area.free.emplace(it->second.room, RemoteAddr{it->first});
    }
    it = detours_.erase(it);
    --retired_;
  }
  // Where no detour is left, there are no rooms of certain sizes either.
  for (CodeArea& area : areas_) {
    const auto next = detours_.lower_bound(area.base.value);
    if (area.line == CodeArea::kNoLine || area.free.empty()) continue;
    if (next != detours_.end() && next->first < area.base.value + area.size) continue;
    area.free.clear();
    area.used = area.runtime_size;
  }
  std::vector<std::pair<std::size_t, std::uint32_t>> unused;
  for (std::size_t i = 0; i < lines_.size(); ++i)
    std::erase_if(lines_[i].leaving, [&](const Line::Leaving& l) {
      if (l.round >= number) return false;
      unused.emplace_back(i, l.index);
      return true;
    });
  return unused;
}

// ---- islands --------------------------------------------------------------------------------------------------------

void DetourSpace::add_island(const Patch& patch, RemoteAddr site) {
  const bool added = islands_.try_emplace(patch.at.value, Island{patch, site, 0}).second;
  PROBED_CHECK(added, "one island at a place");
}

void DetourSpace::retire_island(RemoteAddr island) {
  const auto it = islands_.find(island.value);
  PROBED_CHECK(it != islands_.end() && it->second.retired == 0, "an island is retired once");
  it->second.retired = rounds_begun_ + 1;
  ++retired_;
}

std::optional<RemoteAddr> DetourSpace::site_of_island(RemoteAddr pc) const {
  const auto it = islands_.find(pc.value);
  return it == islands_.end() ? std::nullopt : std::optional(it->second.site);
}

std::vector<Patch> DetourSpace::islands_to_restore(std::uint64_t round, const std::set<RemoteAddr>& occupied) {
  std::vector<Patch> unused;
  std::erase_if(islands_, [&](const auto& entry) {
    const Island& island = entry.second;
    if (island.retired == 0 || island.retired > round || occupied.contains(island.patch.at)) return false;
    unused.push_back(island.patch);
    --retired_;
    return true;
  });
  return unused;
}

}  // namespace probed::tracer
