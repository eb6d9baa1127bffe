// See layout.hpp. Tracer thread.
//
// How code moves: mremap(2) takes the pages along, private copies and all, and leaves the distance to the start of a
// page as it is. A file's code keeps its device, inode and offset in /proc/PID/maps. For other memory nothing is kept
// that can be seen from outside, so the bytes have to tell.
#include "daemon/tracer/text/layout.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "daemon/tracer/places/xol.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using symbols::Mapping;

constexpr std::uint64_t kWindow = 64 * kPageSize;

bool is_trap(std::span<const std::uint8_t> at) {
  return at.size() >= native::kBreakpointSize &&
         std::ranges::equal(at.first(native::kBreakpointSize), native::kBreakpoint);
}

// In code of a file: its place there tells most. What follows the instruction may hold other jumps.
bool stray_at(const TargetMemory& memory, const Imprint& imprint, RemoteAddr at) {
  std::array<std::uint8_t, arch::kMaxInsnLength> now{};
  const std::size_t size = std::max<std::size_t>(imprint.plan->insn.length, imprint.head ? imprint.head->size : 0);
  const std::size_t got = memory.read_some(at, std::as_writable_bytes(std::span(now).first(size)));
  return looks_like(imprint, std::span(now).first(got));
}

std::optional<Patch> moved(const std::optional<Patch>& patch, std::uint64_t by) {
  std::optional<Patch> there = patch;
  if (there) there->at = there->at + by;
  return there;
}

// Whether nothing is left of the plan at its own place, neither the breakpoint nor what it hid.
bool lost(const TargetMemory& memory, const Layout& layout, const SitePlan& plan) {
  if (!layout.holds(plan)) return true;
  if (holds_breakpoint(memory, plan)) return false;
  std::array<std::uint8_t, arch::kMaxInsnLength> now{};
  const std::size_t got = memory.read_some(plan.address, std::as_writable_bytes(std::span(now)));
  return !std::ranges::equal(std::span(now).first(std::min<std::size_t>(got, plan.insn.length)), plan.code());
}

class Search {
 public:
  Search(const TargetMemory& memory, const std::function<bool(RemoteAddr)>& expected)
      : memory_(memory), expected_(expected) {}

  void in_files(const Layout& layout, std::vector<const Imprint*> imprints) {
    const auto file_of = [](const auto& x) { return std::tuple(x.dev_major, x.dev_minor, x.inode); };
    const auto key = [&](const Imprint* i) { return std::pair(file_of(i->plan->backing), i->plan->backing.offset); };
    std::ranges::sort(imprints, {}, key);
    for (const Mapping& m : layout.mappings()) {
      if (m.inode == 0 || m.shared) continue;
      const auto first = std::ranges::lower_bound(imprints, std::pair(file_of(m), m.file_offset), {}, key);
      for (auto i = first; i != imprints.end() && key(*i) < std::pair(file_of(m), m.file_offset + m.size()); ++i)
        look(**i, m.start + ((*i)->plan->backing.offset - m.file_offset));
    }
  }

  void in_anonymous(const Layout& layout, std::span<const Imprint* const> imprints) {
    ByPlace by_place;
    for (const Imprint* imprint : imprints) by_place.emplace(imprint->plan->address.value % kPageSize, imprint);
    std::vector<std::uint8_t> window(kWindow + arch::kMaxInsnLength);
    for (const Mapping& m : layout.mappings()) {
      if (m.inode != 0 || m.shared || !m.executable) continue;
      for (RemoteAddr at = m.start; at < m.end; at = at + kWindow) {
        const std::size_t got = memory_.read_some(at, std::as_writable_bytes(std::span(window)));
        look_through(at, std::span<const std::uint8_t>(window).first(got), by_place);
      }
    }
  }

  std::vector<Stray> take() { return std::move(found_); }

 private:
  using ByPlace = std::multimap<std::uint64_t, const Imprint*>;  // in a page

  void look_through(RemoteAddr start, std::span<const std::uint8_t> bytes, const ByPlace& by_place) {
    const std::size_t size = std::min<std::size_t>(bytes.size(), kWindow);
    for (std::size_t page = 0; page < size; page += kPageSize)
      for (const auto& [offset, imprint] : by_place)
        if (page + offset < size && looks_like(*imprint, bytes.subspan(page + offset)))
          note(*imprint, start + (page + offset));
  }

  void look(const Imprint& imprint, RemoteAddr at) {
    if (at != imprint.plan->address && !expected_(at) && stray_at(memory_, imprint, at)) note(imprint, at);
  }

  // What is at a plan's own place is nobody's stray: whoever takes breakpoints out looks there by himself.
  void note(const Imprint& imprint, RemoteAddr at) {
    const SitePlan& plan = *imprint.plan;
    if (at == plan.address || expected_(at)) return;
    const std::uint64_t by = at.value - plan.address.value;
    Stray stray{plan, plan.address, moved(imprint.head, by), moved(imprint.island, by)};
    stray.plan.address = at;
    found_.push_back(stray);
  }

  const TargetMemory& memory_;
  const std::function<bool(RemoteAddr)>& expected_;
  std::vector<Stray> found_;
};

}  // namespace

bool looks_like(const SitePlan& plan, std::span<const std::uint8_t> now) {
  constexpr std::size_t kTrap = native::kBreakpointSize;
  if (!is_trap(now)) return false;
  const std::size_t end = std::min<std::size_t>(plan.context, now.size()) / kTrap * kTrap;
  for (std::size_t i = kTrap; i < end;) {
    const bool trap = is_trap(now.subspan(i));
    if (!trap && now[i] != plan.bytes[i]) return false;
    i += trap ? kTrap : 1;
  }
  return true;
}

bool looks_like(const Imprint& imprint, std::span<const std::uint8_t> now) {
  std::array<std::uint8_t, arch::kMaxInsnLength> bytes{};
  const std::span<std::uint8_t> copy = std::span(bytes).first(std::min(now.size(), bytes.size()));
  std::ranges::copy(now.first(copy.size()), copy.begin());
  if (imprint.head && imprint.head->size <= copy.size()) settle(copy.first(imprint.head->size), *imprint.head, true);
  return looks_like(*imprint.plan, copy);
}

bool holds_breakpoint(const TargetMemory& memory, const SitePlan& plan) {
  constexpr std::size_t kSize = native::kBreakpointSize;
  std::array<std::uint8_t, arch::kMaxInsnLength> now{};
  const std::size_t looks_at = plan.backing.from_file() ? kSize : std::max<std::size_t>(plan.context, kSize);
  const std::size_t got = memory.read_some(plan.address, std::as_writable_bytes(std::span(now).first(looks_at)));
  if (!is_trap(std::span<const std::uint8_t>(now).first(got))) return false;
  bool same = got <= kSize;
  for (std::size_t i = kSize; i < got; ++i) same |= now[i] == plan.bytes[i];
  return same;
}

Layout Layout::of(const TargetMemory& memory) {
  Layout layout;
  layout.mappings_ = symbols::parse_maps(memory.maps_text());
  layout.known_ = !layout.mappings_.empty();
  return layout;
}

const Mapping* Layout::at(RemoteAddr address) const {
  const auto next = std::ranges::upper_bound(mappings_, address, {}, &Mapping::start);
  if (next == mappings_.begin() || !std::prev(next)->contains(address)) return nullptr;
  return &*std::prev(next);
}

bool Layout::holds(const SitePlan& plan) const {
  if (!known_) return true;
  const Mapping* mapping = at(plan.address);
  return mapping && !mapping->shared && mapping->backing(plan.address) == plan.backing;
}

bool Layout::may_hold_copy(const SitePlan& plan) const {
  if (!known_ || !plan.backing.from_file()) return false;
  const Mapping* mapping = at(plan.address);
  return mapping && !mapping->shared && mapping->inode == 0;
}

bool is_copy(const TargetMemory& memory, const Layout& layout, const Imprint& imprint) {
  const SitePlan& plan = *imprint.plan;
  if (!layout.may_hold_copy(plan)) return false;
  std::array<std::uint8_t, arch::kMaxInsnLength> bytes{};
  const std::size_t size = std::max<std::size_t>(plan.context, imprint.head ? imprint.head->size : plan.insn.length);
  const auto now = std::span(bytes).first(std::min(size, bytes.size()));
  if (memory.read_some(plan.address, std::as_writable_bytes(now)) != now.size()) return false;
  if (imprint.head && imprint.head->size <= now.size()) settle(now.first(imprint.head->size), *imprint.head, true);
  if (!is_trap(now)) return false;
  constexpr std::size_t kSize = native::kBreakpointSize;
  std::size_t same = 0;
  for (std::size_t i = kSize; i < now.size(); ++i) {
    same += now[i] == plan.bytes[i];
    if (i < plan.insn.length && now[i] != plan.bytes[i]) return false;
  }
  return 2 * same >= now.size() - kSize;
}

std::vector<Stray> find_strays(const TargetMemory& memory, const Layout& layout, std::span<const Imprint> imprints,
                               const std::function<bool(RemoteAddr)>& expected) {
  if (!layout.known()) return {};
  std::vector<const Imprint*> of_files, others;
  for (const Imprint& imprint : imprints) {
    if (imprint.plan->backing.from_file())
      of_files.push_back(&imprint);
    else if (lost(memory, layout, *imprint.plan))
      others.push_back(&imprint);
  }
  Search search(memory, expected);
  if (!of_files.empty()) search.in_files(layout, std::move(of_files));
  if (!others.empty()) search.in_anonymous(layout, others);
  return search.take();
}

}  // namespace probed::tracer
