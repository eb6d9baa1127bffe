#include "daemon/tracer/kernel/call_pads.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "daemon/tracer/kernel/ptrace.hpp"
#include "daemon/tracer/kernel/quiesce.hpp"
#include "daemon/tracer/places/xol.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using arch::CallPadHead;
using native::kCallPadData;
using native::kCallPadSize;

constexpr std::uint64_t kPads = 2;         // in one place: one for who comes when a daemon has died on the other
constexpr std::uint64_t kMargin = 64;      // behind the last byte that isn't zero
constexpr std::size_t kLandingStart = 16;  // bytes that tell most pages from a landing's
static_assert(kCallPadData + sizeof(native::CallRecord) <= kCallPadSize);

using Bytes = std::array<std::uint8_t, kCallPadSize>;

bool all_zero(std::span<const std::uint8_t> bytes) {
  return std::ranges::all_of(bytes, [](std::uint8_t b) { return b == 0; });
}

CallPadHead head_of(const Bytes& bytes) {
  CallPadHead head;
  std::memcpy(&head, bytes.data() + kCallPadData, sizeof head);
  return head;
}

// The head, by which others find it, comes first.
bool write_pad(TargetMemory& memory, RemoteAddr at) {
  const auto code = native::build_call_pad(at.value);
  const CallPadHead head;
  return !code.empty() && memory.write_at_once(at + kCallPadData, std::as_bytes(std::span(&head, 1))) &&
         memory.write_at_once(at, std::as_bytes(std::span(code)));
}

bool has_code(const Bytes& bytes, RemoteAddr at) {
  const auto code = native::build_call_pad(at.value);
  return !code.empty() && std::equal(code.begin(), code.end(), bytes.begin());
}

// Who was to write it was killed in the middle.
bool has_head_alone(const Bytes& bytes) {
  return head_of(bytes).mark == CallPadHead::kMark && all_zero(std::span(bytes).first(kCallPadData));
}

bool holds_landing(TargetMemory& memory, RemoteAddr page) {
  const std::vector<std::uint8_t> code = native::build_landing(page.value).code;
  std::vector<std::uint8_t> now(code.size());
  const auto first = std::as_writable_bytes(std::span(now).first(kLandingStart));
  return memory.read(page, first) && std::equal(code.begin(), code.begin() + kLandingStart, now.begin()) &&
         memory.read(page, std::as_writable_bytes(std::span(now))) && now == code;
}

// The landings' pages (landing.hpp), any daemon's, of what is executable and no file's.
std::vector<symbols::Mapping> landings(TargetMemory& memory, std::span<const symbols::Mapping> maps) {
  std::vector<symbols::Mapping> pages;
  for (const symbols::Mapping& m : maps) {
    if (!m.executable || m.writable || m.shared || !m.path.empty()) continue;
    for (RemoteAddr page = m.start; page < m.end; page = page + kPageSize) {
      if (!holds_landing(memory, page)) continue;
      pages.push_back(m);
      pages.back().start = page;
      pages.back().end = page + kPageSize;
    }
  }
  return pages;
}

// Where pads may be, the best first.
std::vector<symbols::Mapping> places(TargetMemory& memory, pid_t pid) {
  if (!native::kHasLanding) return {};
  auto maps = symbols::read_maps(pid);
  if (!maps) return {};
  if (!native::kPadsInFiles) return landings(memory, *maps);
  std::erase_if(*maps, [](const symbols::Mapping& m) {
    return !m.executable || m.writable || m.shared || m.path.empty() || m.path == "[vsyscall]";
  });
  std::ranges::stable_sort(*maps, {}, [](const symbols::Mapping& m) { return m.path == "[vdso]" ? 0 : 1; });
  return *std::move(maps);
}

// The pad at the end of a mapping that nobody uses now; 0: none.
RemoteAddr pad_in(TargetMemory& memory, const symbols::Mapping& mapping) {
  if (mapping.size() < kPads * kCallPadSize + kMargin) return {};
  bool free_before = true;
  for (std::uint64_t n = 1; n <= kPads && free_before; ++n) {
    const RemoteAddr at = mapping.end - n * kCallPadSize;
    Bytes bytes{};
    if (!memory.read(at, std::as_writable_bytes(std::span(bytes)))) return {};
    if (const CallPadHead head = head_of(bytes); head.mark == CallPadHead::kMark) {
      const bool whole = head.busy == 0 && (has_code(bytes, at) || (has_head_alone(bytes) && write_pad(memory, at)));
      if (whole) return at;
      continue;
    }
    std::array<std::uint8_t, kMargin> margin{};
    free_before = memory.read(at - kMargin, std::as_writable_bytes(std::span(margin))) && all_zero(margin);
    if (free_before && all_zero(bytes) && write_pad(memory, at)) return at;
    if (!all_zero(bytes)) return {};
  }
  return {};
}

// Whether pads may be at its end, or are there.
bool has_room(TargetMemory& memory, const symbols::Mapping& mapping) {
  if (mapping.size() < kPads * kCallPadSize + kMargin) return false;
  std::array<std::uint8_t, kMargin> margin{};
  const RemoteAddr at = mapping.end - kPads * kCallPadSize - kMargin;
  return memory.read(at, std::as_writable_bytes(std::span(margin))) && all_zero(margin);
}

// f(pad, whether it is busy)
template <class F>
void for_each_pad_in(TargetMemory& memory, const symbols::Mapping& m, F f) {
  for (std::uint64_t n = 1; n <= kPads && m.size() >= n * kCallPadSize; ++n) {
    const CallPad pad{&memory, m.end - n * kCallPadSize, {}};
    CallPadHead head{0, 0};
    memory.read(pad.at + kCallPadData, std::as_writable_bytes(std::span(&head, 1)));
    if (head.mark == CallPadHead::kMark) f(pad, head.busy != 0);
  }
}
template <class F>
void for_each_pad(TargetMemory& memory, pid_t pid, F f) {
  for (const symbols::Mapping& m : places(memory, pid)) for_each_pad_in(memory, m, f);
}

template <class F>
void for_each_busy(TargetMemory& memory, pid_t pid, F f) {
  for_each_pad(memory, pid, [&](const CallPad& pad, bool busy) {
    if (busy) f(pad);
  });
}

}  // namespace

bool CallPad::begin(const native::Registers& regs, std::uint64_t mask, std::span<const std::byte> vectors) const {
  native::CallRecord record = native::call_record(regs, mask, vectors);
  record.head.busy = 1;
  return memory->write_at_once(at + kCallPadData, std::as_bytes(std::span(&record, 1)));
}

void CallPad::end() const {
  const CallPadHead head;
  memory->write_at_once(at + kCallPadData, std::as_bytes(std::span(&head, 1)));
}

CallPad find_call_pad(TargetMemory& memory, pid_t pid) {
  for (const symbols::Mapping& m : places(memory, pid))
    if (const RemoteAddr at = pad_in(memory, m)) return {&memory, at, {}};
  return {&memory, {}, {}};
}

std::set<RemoteAddr> call_pads(TargetMemory& memory, pid_t pid) {
  std::set<RemoteAddr> found;
  for (const symbols::Mapping& m : places(memory, pid)) {
    for_each_pad_in(memory, m, [&](const CallPad& pad, bool) { found.insert(pad.at); });
    // Nobody has needed another place then; those have not been touched, most of them.
    if (native::kPadsInFiles && has_room(memory, m)) break;
  }
  return found;
}

std::set<std::uint64_t> calls_to_come(TargetMemory& memory, pid_t pid) {
  std::set<std::uint64_t> found;
  for_each_busy(memory, pid, [&](const CallPad& pad) { found.insert(pad.at.value); });
  return found;
}

void free_call_pads(TargetMemory& memory, pid_t pid, const std::set<std::uint64_t>& occupied) {
  for_each_busy(memory, pid, [&](const CallPad& pad) {
    const auto first = occupied.lower_bound(pad.at.value);
    if (first == occupied.end() || *first >= pad.at.value + kCallPadSize) pad.end();
  });
}

// It was all zeros (pad_in).
void erase_call_pad(TargetMemory& memory, RemoteAddr pad, Erase which) {
  if (!native::kPadsInFiles || !pad) return;
  Bytes bytes{};
  if (!memory.read(pad, std::as_writable_bytes(std::span(bytes)))) return;
  const CallPadHead head = head_of(bytes);
  const bool is_ours = head.mark == CallPadHead::kMark && (has_code(bytes, pad) || has_head_alone(bytes));
  if (!is_ours || (which == Erase::free && head.busy != 0)) return;
  const Bytes zeros{};
  memory.write_at_once(pad, std::as_bytes(std::span(zeros)));
}

void erase_call_pads(TargetMemory& memory, pid_t pid) {
  for_each_pad(memory, pid, [&](const CallPad& pad, bool) { erase_call_pad(memory, pad.at, Erase::free); });
}

bool in_call_pad(RemoteAddr pad, RemoteAddr pc) { return pad && pc >= pad && pc < pad + kCallPadSize; }

std::set<RemoteAddr> pads_in_stack(TargetMemory& memory, std::span<const symbols::Mapping> maps,
                                   const std::set<RemoteAddr>& pads, pid_t pid, pid_t tid,
                                   const native::Registers& regs) {
  std::set<RemoteAddr> found;
  if (pads.empty()) return found;
  Places places;
  for (const RemoteAddr pad : pads)
    for (std::uint64_t i = 0; i < kCallPadData; ++i) places.add(pad + i, pad);
  const std::uint64_t pointer = ptrace::thread_pointer(tid, regs);
  return scan_stack(places, maps, memory, regs.sp(), pointer, tid == pid, found) ? found : pads;
}

}  // namespace probed::tracer
