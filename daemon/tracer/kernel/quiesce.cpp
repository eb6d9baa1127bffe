#include "daemon/tracer/kernel/quiesce.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

#include "daemon/base/momentary.hpp"

namespace probed::tracer {
namespace {

constexpr std::uint64_t kMostStack = 8 << 20;
constexpr std::uint64_t kPiece = 64 << 10;

std::string_view read_task_file(pid_t tid, const char* name, std::span<char> room) {
  const Momentary fd(("/proc/" + std::to_string(tid) + "/" + name).c_str(), O_RDONLY);
  const ssize_t n = fd ? ::read(fd.get(), room.data(), room.size()) : 0;
  return {room.data(), n > 0 ? static_cast<std::size_t>(n) : 0};
}

// "run_delay wait_delay times", Documentation/scheduler/sched-stats.rst.
std::optional<std::uint64_t> times_scheduled(pid_t tid) {
  char room[128];
  const std::string_view text = read_task_file(tid, "schedstat", room);
  const std::size_t last = text.rfind(' ');
  std::uint64_t value = 0;
  if (last == text.npos) return std::nullopt;
  return std::from_chars(text.data() + last + 1, text.data() + text.size(), value).ec == std::errc()
             ? std::optional(value)
             : std::nullopt;
}

// The last word of a text, "0x...", cut off from it.
std::optional<std::uint64_t> take_last(std::string_view& text) {
  const std::size_t last = text.rfind(' ');
  if (last == text.npos || text.substr(last + 1, 2) != "0x") return std::nullopt;
  std::uint64_t value = 0;
  const std::string_view digits = text.substr(last + 3);
  if (std::from_chars(digits.data(), digits.data() + digits.size(), value, 16).ec != std::errc()) return std::nullopt;
  text = text.substr(0, last);
  return value;
}

// False: not all of it could be read.
bool scan_range(const Places& places, TargetMemory& memory, RemoteAddr from, RemoteAddr to,
                std::set<RemoteAddr>& sites) {
  std::vector<std::uint64_t> words(kPiece / sizeof(std::uint64_t));
  while (from < to) {
    const std::size_t size = static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, to.value - from.value));
    const std::size_t got = memory.read_some(from, std::as_writable_bytes(std::span(words)).first(size));
    places.find_in(std::span(words).first(got / sizeof(std::uint64_t)), sites);
    if (got < size) return false;
    from = from + size;
  }
  return true;
}

}  // namespace

Glance glance(pid_t tid) {
  Glance seen;
  const auto before = times_scheduled(tid);
  char room[256];
  std::string_view text = read_task_file(tid, "syscall", room);
  if (text.empty()) return seen;
  seen.kind = Glance::Kind::running;
  if (!before || text.starts_with("running")) return seen;
  if (text.ends_with('\n')) text.remove_suffix(1);
  const auto pc = take_last(text);
  const auto sp = take_last(text);
  if (!pc || !sp || times_scheduled(tid) != before) return seen;
  return {Glance::Kind::blocked, *pc, *sp, *before};
}

void Places::add(RemoteAddr place, RemoteAddr site) {
  lowest_ = std::min(lowest_, place.value);
  highest_ = std::max(highest_, place.value);
  sites_.emplace(place.value, site);
}

std::optional<RemoteAddr> Places::site_of(std::uint64_t address) const {
  const auto it = sites_.find(address);
  return it == sites_.end() ? std::nullopt : std::optional(it->second);
}

void Places::find_in(std::span<const std::uint64_t> words, std::set<RemoteAddr>& sites) const {
  const std::uint64_t span = highest_ - lowest_;
  for (const std::uint64_t word : words) {
    if (word - lowest_ > span) continue;
    if (const auto site = site_of(word)) sites.insert(*site);
  }
}

bool scan_stack(const Places& places, std::span<const symbols::Mapping> maps, TargetMemory& memory, std::uint64_t sp,
                std::uint64_t thread_pointer, bool main_thread, std::set<RemoteAddr>& sites) {
  if (places.empty()) return true;
  const auto holding = [&](std::uint64_t a) {
    return std::ranges::find_if(maps, [a](const symbols::Mapping& m) { return m.contains(RemoteAddr{a}); });
  };
  const auto here = holding(sp);
  const std::uint64_t aligned = sp / 8 * 8;
  if (here == maps.end()) return false;
  const RemoteAddr most{aligned + kMostStack};
  const bool whole =
      scan_range(places, memory, RemoteAddr{aligned}, std::min(here->end, most), sites) && here->end <= most;
  const auto own = main_thread ? std::ranges::find(maps, std::string_view("[stack]"), &symbols::Mapping::path)
                               : holding(thread_pointer);
  if (own == maps.end() || own == here) return whole;
  const RemoteAddr low{std::max(own->start.value, own->end.value - std::min(own->end.value, kMostStack))};
  return scan_range(places, memory, low, own->end, sites) && low == own->start && whole;
}

}  // namespace probed::tracer
