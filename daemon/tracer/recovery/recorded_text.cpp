#include "daemon/tracer/recovery/recorded_text.hpp"

#include <algorithm>
#include <array>

#include "arch/arch.hpp"
#include "daemon/tracer/text/edits.hpp"
#include "daemon/tracer/text/text_pages.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;

SitePlan plan_of(const JournalRecord& record) {
  SitePlan plan;
  plan.address = {record.address};
  plan.insn.length = record.size;
  std::copy_n(record.before.begin(), plan.bytes.size(), plan.bytes.begin());
  plan.context = record.context;
  plan.backing = record.backing;
  return plan;
}

Patch patch_of(const JournalRecord& record) {
  Patch patch;
  patch.at = {record.address};
  patch.size = std::min<std::uint8_t>(record.size, Patch::kMaxSize);
  std::copy_n(record.before.begin(), patch.before.size(), patch.before.begin());
  std::copy_n(record.after.begin(), patch.after.size(), patch.after.begin());
  return patch;
}

}  // namespace

template <class F>
void RecordedText::for_each(JournalRecord::Kind kind, F f) {
  for (const JournalRecord& record : records_)
    if (record.kind == kind) f(record);
}

RecordedText::RecordedText(TargetMemory& memory, std::span<const JournalRecord> records)
    : memory_(memory), layout_(Layout::of(memory)), records_(records) {
  for_each(JournalRecord::Kind::breakpoint, [this](const JournalRecord& r) { breakpoints_.insert(r.address); });
}

void RecordedText::take_out_breakpoints() {
  for_each(JournalRecord::Kind::patch, [this](const JournalRecord& r) { take_out_jump(r, Jumps::begun); });
  for_each(JournalRecord::Kind::breakpoint, [this](const JournalRecord& r) { take_out_breakpoint(r); });
}

void RecordedText::take_out_jumps() {
  const auto take_out = [this](const JournalRecord& r) { take_out_jump(r, Jumps::standing); };
  layout_ = Layout::of(memory_);
  bool failed = true;
  if (layout_.known() && records_.size() >= TextPages::kLargeBatch) {
    TextPages pages(memory_, layout_.mappings());
    for_each(JournalRecord::Kind::patch, take_out);
    failed = pages.flush().has_value();
  }
  if (failed) for_each(JournalRecord::Kind::patch, take_out);
}

void RecordedText::take_out_running_jumps() {
  for_each(JournalRecord::Kind::patch, [this](const JournalRecord& r) { take_out_jump(r, Jumps::running); });
  for_each(JournalRecord::Kind::breakpoint, [this](const JournalRecord& r) { take_out_breakpoint(r); });
}

void RecordedText::put_back_islands(const std::set<std::uint64_t>& occupied) {
  for_each(JournalRecord::Kind::patch, [&](const JournalRecord& r) {
    if (is_island(r) && !occupied.contains(r.address)) take_out_island(memory_, patch_of(r));
  });
}

void RecordedText::lower_semaphores(const FoundJournal& journal) {
  for (std::size_t i = 0; i < records_.size(); ++i)
    if (records_[i].kind == JournalRecord::Kind::semaphore) lower_semaphore(journal, i);
}

bool RecordedText::holds_ours() const {
  return std::ranges::any_of(records_, [this](const JournalRecord& r) {
    if (r.kind == JournalRecord::Kind::patch) return stands(memory_, patch_of(r));
    return r.kind == JournalRecord::Kind::breakpoint && r.in_text && holds_breakpoint(memory_, plan_of(r));
  });
}

void RecordedText::take_out_jump(const JournalRecord& record, Jumps which) {
  if (is_island(record)) return;
  const SitePlan plan = plan_of(record);
  const Patch patch = patch_of(record);
  if (!layout_.holds(plan) && !(layout_.may_hold_copy(plan) && stands(memory_, patch))) return;
  std::array<std::uint8_t, Patch::kMaxSize> now{};
  const auto bytes = std::span(now).first(patch.size);
  if (memory_.read_some(patch.at, std::as_writable_bytes(bytes)) != bytes.size()) return;
  // Ours have been taken out first: one that stands there still is the program's.
  if (native::is_breakpoint(bytes) ? which == Jumps::standing : which == Jumps::begun) return;
  if (settle_jump(memory_, patch, which != Jumps::standing) && which == Jumps::standing)
    restored_.insert(record.address);
}

void RecordedText::take_out_breakpoint(const JournalRecord& record) {
  if (record.in_text && take_out_trap(memory_, plan_of(record), layout_)) restored_.insert(record.address);
}

void RecordedText::lower_semaphore(const FoundJournal& journal, std::size_t index) {
  JournalRecord record = records_[index];
  const RemoteAddr at{record.address};
  const symbols::Mapping* mapping = layout_.known() ? layout_.at(at) : nullptr;
  if (layout_.known() && (!mapping || !mapping->writable || mapping->shared || mapping->backing(at) != record.backing))
    return;
  std::uint16_t value = 0;
  const auto bytes = std::as_writable_bytes(std::span(&value, 1));
  if (memory_.read_some(at, bytes) != bytes.size()) return;
  const bool changed = record.changing != 0 && value == record.after_value;
  const std::uint16_t ours = changed ? record.after_count : record.count;
  value = static_cast<std::uint16_t>(value - std::min(value, ours));
  record.count = ours;
  record.after_count = 0;
  record.after_value = value;
  record.changing = 1;
  rewrite_record(journal, index, record);
  memory_.write(at, bytes);
}

}  // namespace probed::tracer
