// Filters and arguments as machine code. The loads follow FetchProgram::run (daemon/events/fetch_run.cpp) and the
// comparisons Filter::matches (daemon/lang/filter_run.cpp): both tiers must say the same.
#include "arch/aarch64/detour_capture.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "arch/aarch64/regs.hpp"
#include "daemon/base/check.hpp"

namespace probed::arch::aarch64 {
namespace {

using Op = CapturePredicate::Op;

struct Comparison {
  Op op;
  Cond when_unsigned, when_signed;
};
constexpr Comparison kComparisons[] = {
    {Op::eq, Cond::eq, Cond::eq},      {Op::ne, Cond::ne, Cond::ne}, {Op::lt, Cond::lo, Cond::lt},
    {Op::le, Cond::ls, Cond::le},      {Op::gt, Cond::hi, Cond::gt}, {Op::ge, Cond::hs, Cond::ge},
    {Op::any_bit, Cond::ne, Cond::ne},
};

Cond condition_of(const CapturePredicate& p) {
  const auto* row = std::ranges::find(kComparisons, p.op, &Comparison::op);
  return p.is_signed ? row->when_signed : row->when_unsigned;
}

bool is_bitfield(const CaptureOp& store) { return store.left != 0 || store.right != 0; }

}  // namespace

std::optional<std::size_t> ComparedItems::find(std::uint16_t item) const {
  const auto* end = items.begin() + count;
  const auto* at = std::find(items.begin(), end, item);
  if (at == end) return std::nullopt;
  return static_cast<std::size_t>(at - items.begin());
}

ComparedItems compared_items(const CapturePlan& plan) {
  ComparedItems compared;
  for (const CapturePredicate& p : plan.filter) {
    if (!plan.layout.items[p.item].can_be_absent || compared.find(p.item)) continue;
    if (compared.count == compared.items.size()) {
      compared.overflow = true;
      break;
    }
    compared.items[compared.count++] = p.item;
  }
  return compared;
}

CaptureWriter::CaptureWriter(Assembler& a, const DetourFrame& frame, const CapturePlan& plan, std::uint64_t site,
                             const DetourRuntime& runtime, std::vector<DetourFixup>& fixups, CapturePlace place)
    : a_(a),
      frame_(frame),
      plan_(plan),
      site_(site),
      runtime_(runtime),
      place_(place),
      fixups_(fixups),
      compared_(compared_items(plan)) {
  if (compared_.overflow) refusal_ = DetourRefusal::filter_size;
}

std::span<const CaptureOp> CaptureWriter::ops_of(std::uint16_t item) const {
  const std::span<const CaptureOp> ops(plan_.ops);
  const std::size_t first = plan_.layout.items[item].first_op;
  std::size_t last = first;
  while (!ops[last].is_store()) ++last;
  return ops.subspan(first, last - first + 1);
}

// ---- values ----

CaptureWriter::Value CaptureWriter::load_register(std::uint64_t offset) {
  using Kind = Value::Kind;
  constexpr std::uint64_t kGeneral = sizeof Registers::x;
  if (offset < kGeneral && offset % sizeof(std::uint64_t) == 0) {
    const auto number = static_cast<unsigned>(offset / sizeof(std::uint64_t));
    const auto slot = frame_.slot(number);
    if (!slot) return {Kind::reg, static_cast<Reg>(number), 0};
    a_.load(kValue, Reg::sp + *slot);
    return {Kind::reg, kValue, 0};
  }
  switch (offset) {
    case offsetof(Registers, stack_pointer): return {Kind::stack, Reg::sp, 0};
    case offsetof(Registers, program_counter):
      if (place_ == CapturePlace::plain) return {Kind::constant, kValue, site_};
      if (!recording_) break;
      a_.load(kValue, kRecord + channel::kRecordReturnAddress);
      return {Kind::reg, kValue, 0};
    default: break;  // pstate: not all of it can be read
  }
  refusal_ = DetourRefusal::register_operand;
  return {};
}

// A word of the call; when it couldn't be read there, nothing is read by it here.
CaptureWriter::Value CaptureWriter::load_kept(const CaptureOp& op) {
  PROBED_CHECK(recording_, "what was kept is in the record");
  if (op.size != 0) {
    a_.load(kValue, kRecord + op.count / 8, 1);
    a_.tbnz(kValue, op.count % 8, no_value());
  }
  a_.load(kValue, kRecord + static_cast<std::int64_t>(op.operand));
  return {Value::Kind::reg, kValue, 0};
}

CaptureWriter::Label CaptureWriter::no_value() {
  if (!no_value_) no_value_ = a_.label();
  return *no_value_;
}

void CaptureWriter::require(const CaptureOp& op, const Value& value) {
  a_.cmp(in_register(value), op.operand, 8, kScratch);
  a_.b(Cond::ne, no_value());
}

void CaptureWriter::require_room(const CaptureOp& op, const Value& value) {
  a_.sub(kValue, in_register(value), kArray);
  a_.cmp(kValue, op.operand, 8, kScratch);
  a_.b(Cond::lt, no_value());
}

bool CaptureWriter::lacks_return_value(std::uint16_t item) const {
  return place_ == CapturePlace::tail_call &&
         std::ranges::find(ops_of(item), CaptureOp::Code::load_return_value, &CaptureOp::code) != ops_of(item).end();
}

void CaptureWriter::step(const CaptureOp& op, Value& value) {
  using Code = CaptureOp::Code;
  switch (op.code) {
    case Code::load_register:
    case Code::load_return_value: value = load_register(op.operand); return;
    case Code::load_stack_pointer: value = load_register(offsetof(Registers, stack_pointer)); return;
    case Code::load_kept: value = load_kept(op); return;
    case Code::load_immediate: value = {Value::Kind::constant, kValue, op.operand}; return;
    case Code::load_thread_pointer: value = load_thread_pointer(); return;
    case Code::load_vector: value = load_vector(static_cast<unsigned>(op.operand)); return;
    case Code::add: return add(op, value);
    case Code::cut: return cut(op, value);
    case Code::require: return require(op, value);
    case Code::keep_begin: return a_.mov(kArray, in_register(value));
    case Code::require_room: return require_room(op, value);
    default: break;
  }
  const Mem from = address(value, op.operand, op.size);
  may_fault();
  a_.load(kValue, from, op.size, op.is_signed);
  value = {Value::Kind::reg, kValue, 0};
}

// mrs x, tpidr_el0
CaptureWriter::Value CaptureWriter::load_thread_pointer() {
  a_.word(0xd53bd040 | static_cast<unsigned>(kValue));
  return {Value::Kind::reg, kValue, 0};
}

// fmov x, d: the capture part leaves vector registers alone.
CaptureWriter::Value CaptureWriter::load_vector(unsigned number) {
  a_.word(0x9e660000 | number << 5 | static_cast<unsigned>(kValue));
  return {Value::Kind::reg, kValue, 0};
}

void CaptureWriter::add(const CaptureOp& op, Value& value) {
  if (value.kind != Value::Kind::reg) return void(value.number += op.operand);
  a_.add(kValue, value.reg, op.operand, kScratch);
  value = {Value::Kind::reg, kValue, 0};
}

void CaptureWriter::cut(const CaptureOp& op, Value& value) {
  const unsigned bits = std::min(8u * op.size, 64u - op.right);
  const bool is_signed = op.is_signed && bits == 8u * op.size;
  a_.extract(kValue, in_register(value), op.right, bits, is_signed);
  value = {Value::Kind::reg, kValue, 0};
}

// Everything up to the store.
CaptureWriter::Value CaptureWriter::load(std::span<const CaptureOp> ops) {
  Value value;
  for (const CaptureOp& op : ops.first(ops.size() - 1)) step(op, value);
  return value;
}

// For an access of this size.
Mem CaptureWriter::address(const Value& value, std::uint64_t offset, unsigned size) {
  const std::uint64_t number = value.number + offset;
  const auto disp = static_cast<std::int64_t>(
      value.kind == Value::Kind::stack ? number + static_cast<std::uint64_t>(frame_.size) : number);
  if (value.kind != Value::Kind::constant && Assembler::fits(disp, size)) return value.reg + disp;
  address_into(kValue, value, offset);
  return kValue + 0;
}

void CaptureWriter::address_into(Reg to, const Value& value, std::uint64_t offset) {
  const std::uint64_t number = value.number + offset;
  switch (value.kind) {
    case Value::Kind::reg: return a_.add(to, value.reg, number, kScratch);
    case Value::Kind::stack: return a_.add(to, Reg::sp, number + static_cast<std::uint64_t>(frame_.size), kScratch);
    case Value::Kind::constant: return a_.mov_imm(to, number);
  }
}

Reg CaptureWriter::in_register(const Value& value) {
  if (value.kind == Value::Kind::reg) return value.reg;
  address_into(kValue, value, 0);
  return kValue;
}

void CaptureWriter::may_fault() { faults_.push_back(a_.size()); }

// A value cut to the type, or to a bitfield in it, and extended to 64 bits. Returns where it is. Shifting up to the top
// bit and back, as the kernel's fetch_apply_bitfield() does within the container, is taking these bits.
Reg CaptureWriter::integer(const CaptureOp& store, const Value& value) {
  const Reg from = in_register(value);
  if (store.size == 8 && !is_bitfield(store)) return from;
  PROBED_CHECK(store.right >= store.left && store.right < 8 * store.size, "a bitfield lies in its container");
  a_.extract(kValue, from, store.right - store.left, 8u * store.size - store.right, store.is_signed);
  return kValue;
}

Reg CaptureWriter::loaded_integer(const CaptureOp& store, Mem from) {
  may_fault();
  a_.load(kValue, from, store.size, store.is_signed);
  return is_bitfield(store) ? integer(store, {Value::Kind::reg, kValue, 0}) : kValue;
}

// ---- faults ----

// All faults noted since the last call go to code that sets the bit and goes on at `resume`.
void CaptureWriter::expect_faults(Mem byte, std::uint8_t bit, Label resume, std::optional<Label> entry) {
  const auto noted = static_cast<std::uint32_t>(faults_.size());
  cold_.push_back({settled_faults_, noted - settled_faults_, entry, std::exchange(no_value_, {}), byte, bit, resume});
  settled_faults_ = noted;
}

void CaptureWriter::absent(std::uint16_t bit, Label resume, std::optional<Label> entry) {
  expect_faults(absent_byte(bit), static_cast<std::uint8_t>(1u << bit % 8), resume, entry);
}

void CaptureWriter::set_bit(Mem byte, std::uint8_t bit, Reg scratch) {
  a_.load(scratch, byte, 1);
  a_.bit_or(scratch, scratch, std::uint64_t{bit});
  a_.store(byte, scratch, 1);
}

void CaptureWriter::cold() {
  for (const Cold& c : cold_) {
    if (c.faults == 0 && !c.entry && !c.no_value) continue;
    if (c.entry) a_.bind(*c.entry);
    if (c.no_value) a_.bind(*c.no_value);
    for (std::uint32_t i = 0; i < c.faults; ++i) fixups_.push_back({faults_[c.first_fault + i], a_.size()});
    set_bit(c.byte, c.bit, kValue);
    a_.b(c.resume);
  }
}

// ---- items ----

void CaptureWriter::items() {
  recording_ = true;
  if (plan_.layout.has_strings) a_.add(kEnd, kRecord, plan_.layout.fixed_size, kScratch);
  for (std::size_t i = 0; i < plan_.layout.items.size(); ++i) item(static_cast<std::uint16_t>(i));
}

void CaptureWriter::item(std::uint16_t index) {
  using Code = CaptureOp::Code;
  const CaptureItem& item = plan_.layout.items[index];
  const auto ops = ops_of(index);
  const CaptureOp& store = ops.back();
  if (lacks_return_value(index)) return;  // whoever reads the record knows
  if (const auto word = compared_.find(index)) return compared_item(item, index, *word);
  switch (store.code) {
    case Code::store_memory_array: return integer_array(item, store, load(ops));
    case Code::store_string: return string_item(item, store, load(ops));
    case Code::store_string_array: return string_array(item, store, load(ops));
    default: return integer_item(item, ops);
  }
}

void CaptureWriter::integer_item(const CaptureItem& item, std::span<const CaptureOp> ops) {
  const CaptureOp& store = ops.back();
  const Value value = load(ops);
  const Reg from = store.code == CaptureOp::Code::store_value
                       ? integer(store, value)
                       : loaded_integer(store, address(value, store.operand, store.size));
  a_.store(kRecord + item.offset, from);
  if (!item.can_be_absent) return;
  const Label resume = a_.label();
  a_.bind(resume);
  absent(item.absent_bit, resume);
}

// What the filter has looked at is recorded, not what memory holds a moment later.
void CaptureWriter::compared_item(const CaptureItem& item, std::uint16_t index, std::size_t word) {
  const Label is_absent = a_.label(), resume = a_.label();
  fetch_compared(index, word, false);
  go_if_absent(word, is_absent);
  a_.load(kValue, compared_word(word));
  a_.store(kRecord + item.offset, kValue);
  a_.bind(resume);
  absent(item.absent_bit, resume, is_absent);
}

void CaptureWriter::integer_array(const CaptureItem& item, const CaptureOp& store, const Value& value) {
  const Label end = a_.label();
  address_into(kArray, value, store.operand);
  absent(item.absent_bit, end);
  for (unsigned i = 0; i < item.count; ++i) {
    const Label next = a_.label();
    const Reg element = loaded_integer(store, kArray + static_cast<std::int64_t>(i) * store.size);
    a_.store(kRecord + (item.offset + 8 * static_cast<std::int64_t>(i)), element);
    a_.bind(next);
    absent(static_cast<std::uint16_t>(item.absent_bit + 1 + i), next);
  }
  a_.bind(end);
}

// kValue: the string's address. What faulted on the way to it ends here, too.
void CaptureWriter::string_at(std::int32_t slot, std::uint16_t bit) {
  const Label is_absent = a_.label(), resume = a_.label();
  a_.bl(runtime_.copy_string);
  a_.store(kRecord + slot, kValue, 4);
  a_.cbnz(kScratch, is_absent);
  a_.bind(resume);
  absent(bit, resume, is_absent);
}

void CaptureWriter::string_item(const CaptureItem& item, const CaptureOp& store, const Value& value) {
  address_into(kValue, value, store.operand);
  string_at(item.offset, item.absent_bit);
}

void CaptureWriter::string_array(const CaptureItem& item, const CaptureOp& store, const Value& value) {
  const Label end = a_.label();
  address_into(kArray, value, store.operand);
  absent(item.absent_bit, end);
  for (unsigned i = 0; i < item.count; ++i) {
    may_fault();
    a_.load(kValue, kArray + 8 * static_cast<std::int64_t>(i));
    string_at(item.offset + 8 * static_cast<std::int32_t>(i), static_cast<std::uint16_t>(item.absent_bit + 1 + i));
  }
  a_.bind(end);
}

// ---- filters ----

Mem CaptureWriter::compared_word(std::size_t word) const {
  return Reg::sp + (frame_.compared + 8 + 8 * static_cast<std::int64_t>(word));
}

void CaptureWriter::go_if_absent(std::size_t word, Label to) {
  a_.load(kValue, Reg::sp + (frame_.compared + 1), 1);
  a_.tbnz(kValue, static_cast<unsigned>(word), to);
}

void CaptureWriter::filter(Label reject) {
  if (plan_.filter.empty()) return;
  accept_ = a_.label();
  reject_ = reject;
  for (std::size_t i = 0; i < plan_.filter.size(); ++i) targets_.push_back(a_.label());
  if (compared_.count > 0) a_.store(Reg::sp + frame_.compared, Reg::xzr);
  for (std::uint32_t i = 0; i < plan_.filter.size() && !a_.full(); ++i) predicate(plan_.filter[i], i);
  a_.bind(accept_);
}

CaptureWriter::Label CaptureWriter::target(std::uint32_t index) {
  if (index == kCaptureAccept) return accept_;
  if (index == kCaptureReject) return reject_;
  PROBED_CHECK(index < targets_.size(), "a filter's exits lead to its comparisons");
  return targets_[index];
}

void CaptureWriter::predicate(const CapturePredicate& p, std::uint32_t index) {
  a_.bind(targets_[index]);
  if (lacks_return_value(p.item)) return a_.b(target(p.on_false));
  if (const auto word = compared_.find(p.item)) {
    fetch_compared(p.item, *word, index == 0);
    go_if_absent(*word, target(p.on_false));
    a_.load(kValue, compared_word(*word));
    compare_register(p, kValue, 8);
  } else {
    compare(p);
  }
  branch(p, index);
}

// Fetches the item into its word of the frame, once.
void CaptureWriter::fetch_compared(std::uint16_t item, std::size_t word, bool is_first) {
  const Label have = a_.label(), fetched = a_.label();
  const auto bit = static_cast<std::uint8_t>(1u << word);
  if (!is_first) {
    a_.load(kValue, Reg::sp + frame_.compared, 1);
    a_.tbnz(kValue, static_cast<unsigned>(word), have);
  }
  const auto ops = ops_of(item);
  const CaptureOp& store = ops.back();
  const Value value = load(ops);
  const Reg from = store.code == CaptureOp::Code::store_value
                       ? integer(store, value)
                       : loaded_integer(store, address(value, store.operand, store.size));
  a_.store(compared_word(word), from);
  a_.bind(fetched);
  set_bit(Reg::sp + frame_.compared, bit, kValue);
  a_.bind(have);
  expect_faults(Reg::sp + (frame_.compared + 1), bit, fetched);
}

void CaptureWriter::compare(const CapturePredicate& p) {
  const auto ops = ops_of(p.item);
  const CaptureOp& store = ops.back();
  const Value value = load(ops);
  if (store.size == 4 && !is_bitfield(store)) return compare_register(p, in_register(value), 4);
  compare_register(p, integer(store, value), 8);
}

void CaptureWriter::compare_register(const CapturePredicate& p, Reg value, unsigned size) {
  p.op == Op::any_bit ? a_.test(value, p.value, size, kScratch) : a_.cmp(value, p.value, size, kScratch);
}

void CaptureWriter::branch(const CapturePredicate& p, std::uint32_t index) {
  const std::uint32_t next = index + 1 == plan_.filter.size() ? kCaptureAccept : index + 1;
  const Cond cond = condition_of(p);
  if (p.on_true == next) return a_.b(inverse(cond), target(p.on_false));
  a_.b(cond, target(p.on_true));
  if (p.on_false != next) a_.b(target(p.on_false));
}

}  // namespace probed::arch::aarch64
