#include "daemon/tracer/text/landing.hpp"

#include <signal.h>

#include <algorithm>
#include <bit>

#include "daemon/tracer/places/xol.hpp"
#include "proto/base/check.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;

constexpr std::uint64_t kSaRestorer = 0x04000000;  // the kernel's own (asm/signal.h); C libraries hide it
constexpr std::uint64_t kSmallest = 128 - arch::kLandingOverrun;

}  // namespace

// On the alternate stack where there is one, as a Go program's threads need. Nothing is blocked meanwhile, and it may
// be run into again: the handler keeps nothing anywhere.
Action Landing::action() const {
  Action action;
  action.handler = page_.value + code_.handler;
  action.flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | kSaRestorer;
  action.restorer = page_.value + code_.restorer;
  return action;
}

bool Landing::is_left(TargetMemory& memory, const Action& action) {
  const RemoteAddr page{action.handler / kPageSize * kPageSize};
  if (action.restorer / kPageSize != page.value / kPageSize) return false;  // a C library's is in the library
  const arch::LandingCode left = native::build_landing(page.value);
  if (left.code.empty() || action.handler != page.value + left.handler) return false;
  std::vector<std::uint8_t> now(left.code.size());
  return memory.read(page, std::as_writable_bytes(std::span(now))) && now == left.code;
}

bool Landing::write_code(TargetMemory& memory, RemoteAddr page) {
  code_ = native::build_landing(page.value);
  if (code_.code.empty() || !memory.write_at_once(page, std::as_bytes(std::span(code_.code)))) return false;
  page_ = page;
  return true;
}

std::uint64_t Landing::table_size(std::size_t more) const {
  const std::uint64_t capacity = std::bit_ceil(std::max<std::uint64_t>(kSmallest, 2 * (used_ + more)));
  return (capacity + arch::kLandingOverrun) * sizeof(arch::LandingEntry);
}

bool Landing::move_table(TargetMemory& memory, RemoteAddr table, std::uint64_t size) {
  const std::vector<arch::LandingEntry> before = std::move(entries_);
  entries_.assign(size / sizeof(arch::LandingEntry), {});
  used_ = 0;
  for (const arch::LandingEntry& entry : before)
    if (entry.trapped != 0) stage({entry.trapped}, {entry.landing});
  const arch::LandingData data{table.value, capacity() - 1};
  table_ = table;
  return flush(memory) && memory.write_at_once(page_ + arch::kLandingData, std::as_bytes(std::span(&data, 1)));
}

arch::LandingEntry* Landing::find(std::uint64_t trapped) {
  if (lost_ || entries_.empty()) return nullptr;
  // The last one stays zero: every search ends.
  for (std::size_t i = arch::landing_hash(trapped, capacity()); i + 1 < entries_.size(); ++i)
    if (entries_[i].trapped == trapped || entries_[i].trapped == 0) return &entries_[i];
  return nullptr;
}

bool Landing::covers(RemoteAddr breakpoint) const {
  const arch::LandingEntry* entry = const_cast<Landing*>(this)->find(breakpoint.value);
  return entry && entry->trapped == breakpoint.value && entry->landing != breakpoint.value;
}

void Landing::touch(const arch::LandingEntry* entry) {
  const auto index = static_cast<std::size_t>(entry - entries_.data());
  first_ = first_ == last_ ? index : std::min(first_, index);
  last_ = std::max(last_, index + 1);
}

void Landing::stage(RemoteAddr breakpoint, RemoteAddr landing) {
  arch::LandingEntry* entry = find(breakpoint.value);
  if (!entry || entry->landing == landing.value) return;
  if (entry->trapped == 0) ++used_;
  *entry = {breakpoint.value, landing.value};
  touch(entry);
}

bool Landing::flush(TargetMemory& memory) {
  PROBED_CHECK(!memory.gathers(), "what leads somewhere is written when that is there");
  if (first_ == last_) return true;
  const auto dirty = std::span(entries_).subspan(first_, last_ - first_);
  const bool written = memory.write_at_once(table_ + first_ * sizeof(arch::LandingEntry), std::as_bytes(dirty));
  first_ = last_ = 0;
  return written;
}

bool Landing::set(TargetMemory& memory, RemoteAddr breakpoint, RemoteAddr landing) {
  stage(breakpoint, landing);
  return memory.gathers() || flush(memory);
}

}  // namespace probed::tracer
