// Layout of captured records, and the sentences behind refusals. Pure; any thread.
#include "arch/detour.hpp"

#include <algorithm>

namespace probed::arch {
namespace {

constexpr std::size_t kWord = 8;
constexpr std::size_t round_up(std::size_t size) { return (size + kWord - 1) / kWord * kWord; }

// Whether an item may be absent for such a step. Behind keep_begin comes require_room.
bool can_fail(CaptureOp::Code code) {
  using Code = CaptureOp::Code;
  return code == Code::dereference || code == Code::load_kept || code == Code::require || code == Code::require_room;
}

// One argument: its ops and its share of the record.
CaptureItem make_item(std::span<const CaptureOp> ops, std::size_t first, std::size_t& next) {
  CaptureItem item;
  item.first_op = static_cast<std::uint16_t>(first);
  next = first;
  for (; !ops[next].is_store(); ++next) item.can_be_absent = item.can_be_absent || can_fail(ops[next].code);
  const CaptureOp& store = ops[next++];
  item.is_string = store.is_string();
  item.is_array = store.is_array();
  item.count = item.is_array ? store.count : 1;
  item.can_be_absent = item.can_be_absent || store.code != CaptureOp::Code::store_value;
  return item;
}

std::size_t absent_bits(const CaptureItem& item) {
  if (!item.can_be_absent) return 0;
  return item.is_array ? 1u + item.count : 1u;
}

}  // namespace

CaptureLayoutResult lay_out(std::span<const CaptureOp> ops, std::size_t kept) {
  CaptureLayout layout;
  std::size_t bits = 0, slots = 0, strings = 0;
  for (std::size_t next = 0; next < ops.size();) {
    CaptureItem item = make_item(ops, next, next);
    item.absent_bit = static_cast<std::uint16_t>(bits);
    bits += absent_bits(item);
    slots += item.count;
    strings += item.is_string ? item.count : 0;
    layout.items.push_back(item);
  }
  const std::size_t bit_bytes = round_up(channel::kRecordAbsent + (bits + 7) / 8);
  // What is kept has one place whatever the items are.
  if (kept > 0 && bit_bytes > channel::kRecordFixed) return {DetourRefusal::call_size, {}};
  std::size_t offset = std::max<std::size_t>(channel::kRecordFixed, bit_bytes) + kept;
  const std::size_t fixed = offset + slots * kWord;
  const std::size_t largest = fixed + strings * kMaxCapturedString;
  if (largest > channel::kMaxRecord) return {DetourRefusal::record_size, {}};
  for (CaptureItem& item : layout.items) {
    item.offset = static_cast<std::uint16_t>(offset);
    offset += item.count * kWord;
  }
  layout.fixed_size = static_cast<std::uint16_t>(fixed);
  layout.max_size = static_cast<std::uint16_t>(largest);
  layout.has_strings = strings > 0;
  return {DetourRefusal::none, std::move(layout)};
}

std::string_view describe(DetourRefusal refusal) {
  switch (refusal) {
    case DetourRefusal::none: return "the probe can be optimised";
    case DetourRefusal::relocation: return "an instruction that the jump would replace cannot be moved";
    case DetourRefusal::inner_transfer:
      return "an instruction that the jump would replace, and which is not the last of them, calls or enters the "
             "kernel";
    case DetourRefusal::record_size: return "the arguments take more room than one record has (8184 bytes)";
    case DetourRefusal::register_operand: return "an argument reads a register that generated code cannot read";
    case DetourRefusal::far_offset: return "an argument has an offset of more than 2 GiB";
    case DetourRefusal::filter_size: return "the filter compares more than 8 values that lie in memory";
    case DetourRefusal::code_size: return "the code for the arguments and the filter would be longer than 8192 bytes";
    case DetourRefusal::call_size: return "the arguments of the entry and the return together take too much room";
    case DetourRefusal::processor: return "the processor lacks an instruction that generated code needs";
    case DetourRefusal::unsupported: return "probes cannot be optimised yet on this architecture";
  }
  return "unknown refusal";
}

const CopyPoint* Detour::at(std::uint64_t offset) const {
  const auto row = std::ranges::lower_bound(points, offset, {}, &DetourPoint::offset);
  return row != points.end() && row->offset == offset ? &row->point : nullptr;
}

void Detour::clear() {
  code.clear();
  points.clear();
  fixups.clear();
  tail_begin = tail_end = 0;
  saves = {};
}

}  // namespace probed::arch
