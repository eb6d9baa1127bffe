// Filters and arguments as machine code. The loads follow FetchProgram::run (daemon/events/fetch_run.cpp) and the
// comparisons Filter::matches (daemon/lang/filter_run.cpp): both tiers must say the same.
#include "arch/x86_64/detour_capture.hpp"

#include <algorithm>
#include <utility>

#include "arch/x86_64/regs.hpp"
#include "daemon/base/check.hpp"

namespace probed::arch::x86_64 {
namespace {

using enum Reg;
using Op = CapturePredicate::Op;

constexpr std::uint32_t kTrapFlag = 0x100;
constexpr std::uint64_t kReturnAddressSize = 8;

struct RegisterPlace {
  std::size_t offset;
  Reg reg;
};
constexpr RegisterPlace kGeneral[] = {
    {offsetof(Registers, rax), rax}, {offsetof(Registers, rcx), rcx}, {offsetof(Registers, rdx), rdx},
    {offsetof(Registers, rbx), rbx}, {offsetof(Registers, rbp), rbp}, {offsetof(Registers, rsi), rsi},
    {offsetof(Registers, rdi), rdi}, {offsetof(Registers, r8), r8},   {offsetof(Registers, r9), r9},
    {offsetof(Registers, r10), r10}, {offsetof(Registers, r11), r11}, {offsetof(Registers, r12), r12},
    {offsetof(Registers, r13), r13}, {offsetof(Registers, r14), r14}, {offsetof(Registers, r15), r15},
};

struct Comparison {
  Op op;
  Cond when_unsigned, when_signed;
};
constexpr Comparison kComparisons[] = {
    {Op::eq, Cond::equal, Cond::equal},
    {Op::ne, Cond::not_equal, Cond::not_equal},
    {Op::lt, Cond::below, Cond::less},
    {Op::le, Cond::below_equal, Cond::less_equal},
    {Op::gt, Cond::above, Cond::greater},
    {Op::ge, Cond::above_equal, Cond::greater_equal},
    {Op::any_bit, Cond::not_equal, Cond::not_equal},
};

Cond condition_of(const CapturePredicate& p) {
  const auto* row = std::ranges::find(kComparisons, p.op, &Comparison::op);
  return p.is_signed ? row->when_signed : row->when_unsigned;
}

constexpr bool fits32(std::uint64_t value) {
  const auto wide = static_cast<std::int64_t>(value);
  return wide == static_cast<std::int32_t>(wide);
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
  const auto* row = std::ranges::find(kGeneral, offset, &RegisterPlace::offset);
  if (row != std::end(kGeneral)) {
    if (!frame_.is_saved(row->reg)) return {Kind::reg, row->reg, 0};
    a_.load(rdx, rsp + frame_.slot(row->reg));
    return {Kind::reg, rdx, 0};
  }
  switch (offset) {
    case offsetof(Registers, rsp): return {Kind::stack, rsp, place_ == CapturePlace::plain ? 0 : kReturnAddressSize};
    case offsetof(Registers, rip):
      if (place_ == CapturePlace::plain) return {Kind::constant, rdx, site_};
      if (!recording_) break;
      a_.load(rdx, rcx + channel::kRecordReturnAddress);
      return {Kind::reg, rdx, 0};
    // A thread that is in no system call has -1 there (arch/x86/entry).
    case offsetof(Registers, orig_rax): return {Kind::constant, rdx, ~0ull};
    case offsetof(Registers, cs): a_.bytes({0x8c, 0xca}); return {Kind::reg, rdx, 0};
    case offsetof(Registers, ss): a_.bytes({0x8c, 0xd2}); return {Kind::reg, rdx, 0};
    // mov rdx, fs:[0]: the word that holds its own address.
    case offsetof(Registers, fs_base): a_.bytes({0x64, 0x48, 0x8b, 0x14, 0x25, 0, 0, 0, 0}); return {Kind::reg, rdx, 0};
    case offsetof(Registers, eflags):
      PROBED_CHECK(frame_.flags != DetourFrame::kNotSaved, "the frame has what the arguments read");
      a_.load(rdx, rsp + frame_.flags);
      a_.alu(Alu::bit_and, rdx, static_cast<std::int32_t>(~kTrapFlag), 4);  // set when a tracer steps through here
      return {Kind::reg, rdx, 0};
    default: break;
  }
  refusal_ = DetourRefusal::register_operand;
  return {};
}

// A word of the call; when it couldn't be read there, nothing is read by it here.
CaptureWriter::Value CaptureWriter::load_kept(const CaptureOp& op) {
  PROBED_CHECK(recording_, "what was kept is in the record");
  if (op.size == 0) return a_.load(rdx, rcx + static_cast<std::int32_t>(op.operand)), Value{Value::Kind::reg, rdx, 0};
  a_.test_mem_byte(rcx + op.count / 8, static_cast<std::uint8_t>(1u << op.count % 8));
  a_.jcc(Cond::not_equal, no_value());
  a_.load(rdx, rcx + static_cast<std::int32_t>(op.operand));
  return {Value::Kind::reg, rdx, 0};
}

CaptureWriter::Label CaptureWriter::no_value() {
  if (!no_value_) no_value_ = a_.label();
  return *no_value_;
}

void CaptureWriter::require(const CaptureOp& op, const Value& value) {
  if (!fits32(op.operand)) return void(refusal_ = DetourRefusal::far_offset);
  a_.alu(Alu::cmp, in_register(value), static_cast<std::int32_t>(op.operand));
  a_.jcc(Cond::not_equal, no_value());
}

void CaptureWriter::require_room(const CaptureOp& op, const Value& value) {
  if (!fits32(op.operand)) return void(refusal_ = DetourRefusal::far_offset);
  if (const Reg from = in_register(value); from != rdx) a_.mov(rdx, from);
  a_.alu(Alu::sub, rdx, rsi);
  a_.alu(Alu::cmp, rdx, static_cast<std::int32_t>(op.operand));
  a_.jcc(Cond::less, no_value());
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
    case Code::load_stack_pointer: value = load_register(offsetof(Registers, rsp)); return;
    case Code::load_kept: value = load_kept(op); return;
    case Code::load_immediate: value = {Value::Kind::constant, rdx, op.operand}; return;
    case Code::load_thread_pointer: value = load_register(offsetof(Registers, fs_base)); return;
    case Code::load_vector: value = load_vector(static_cast<unsigned>(op.operand)); return;
    case Code::add: return add(op, value);
    case Code::cut: return cut(op, value);
    case Code::require: return require(op, value);
    case Code::keep_begin: return a_.mov(rsi, in_register(value));
    case Code::require_room: return require_room(op, value);
    default: break;
  }
  const Mem from = address(value, op.operand);
  may_fault();
  a_.load(rdx, from, op.size, op.is_signed);
  value = {Value::Kind::reg, rdx, 0};
}

// movq rdx, xmmN: the capture part leaves vector registers alone.
CaptureWriter::Value CaptureWriter::load_vector(unsigned number) {
  const auto rex = static_cast<std::uint8_t>(0x48 | (number >= 8 ? 4 : 0));
  a_.bytes({0x66, rex, 0x0f, 0x7e, static_cast<std::uint8_t>(0xc2 | (number & 7) << 3)});
  return {Value::Kind::reg, rdx, 0};
}

void CaptureWriter::add(const CaptureOp& op, Value& value) {
  if (value.kind != Value::Kind::reg) return void(value.number += op.operand);
  a_.lea(rdx, address(value, op.operand));
  value = {Value::Kind::reg, rdx, 0};
}

void CaptureWriter::cut(const CaptureOp& op, Value& value) {
  Reg from = in_register(value);
  if (op.right != 0) {
    a_.lea(rdx, from + 0);
    a_.shift(Shift::right, rdx, op.right);
    from = rdx;
  }
  a_.extend(rdx, from, op.size, op.is_signed);
  value = {Value::Kind::reg, rdx, 0};
}

// Everything up to the store.
CaptureWriter::Value CaptureWriter::load(std::span<const CaptureOp> ops) {
  Value value;
  for (const CaptureOp& op : ops.first(ops.size() - 1)) step(op, value);
  return value;
}

Mem CaptureWriter::address(const Value& value, std::uint64_t offset) {
  if (value.kind == Value::Kind::constant) {
    const std::uint64_t address = value.number + offset;
    if (a_.reaches(address)) return Mem::at(address);
    a_.mov_imm(rdx, address);
    return rdx + 0;
  }
  const bool on_stack = value.kind == Value::Kind::stack;
  const std::uint64_t disp = offset + (on_stack ? value.number + static_cast<std::uint64_t>(frame_.size) : 0);
  if (!fits32(disp)) {
    refusal_ = DetourRefusal::far_offset;
    return rdx + 0;
  }
  return (on_stack ? rsp : value.reg) + static_cast<std::int32_t>(disp);
}

Reg CaptureWriter::in_register(const Value& value, Reg scratch) {
  switch (value.kind) {
    case Value::Kind::reg: return value.reg;
    case Value::Kind::stack: a_.lea(scratch, rsp + (frame_.size + static_cast<std::int32_t>(value.number))); break;
    case Value::Kind::constant: a_.mov_imm(scratch, value.number); break;
  }
  return scratch;
}

void CaptureWriter::may_fault() { faults_.push_back(a_.size()); }

// Shifting up to the top bit and back is the kernel's fetch_apply_bitfield() within the container.
void CaptureWriter::bitfield(const CaptureOp& store) {
  if (!is_bitfield(store)) return;
  const unsigned unused = 64u - store.size * 8u;
  a_.shift(Shift::left, rdx, static_cast<std::uint8_t>(unused + store.left));
  a_.shift(store.is_signed ? Shift::right_signed : Shift::right, rdx, static_cast<std::uint8_t>(unused + store.right));
}

// A value cut to the type and extended to 64 bits. Returns where it is.
Reg CaptureWriter::integer(const CaptureOp& store, const Value& value) {
  const Reg from = in_register(value);
  if (store.size == 8 && !is_bitfield(store)) return from;
  a_.extend(rdx, from, store.size, store.is_signed);
  bitfield(store);
  return rdx;
}

Reg CaptureWriter::loaded_integer(const CaptureOp& store, Mem from) {
  may_fault();
  a_.load(rdx, from, store.size, store.is_signed);
  bitfield(store);
  return rdx;
}

// ---- faults ----

// All faults noted since the last call go to code that sets the bit and goes on at `resume`.
CaptureWriter::Cold& CaptureWriter::expect_faults(Mem byte, std::uint8_t bit, Label resume) {
  const auto noted = static_cast<std::uint32_t>(faults_.size());
  cold_.push_back({settled_faults_, noted - settled_faults_, {}, std::exchange(no_value_, {}), byte, bit, resume});
  settled_faults_ = noted;
  return cold_.back();
}

void CaptureWriter::absent(std::uint16_t bit, Label resume, std::optional<Label> entry) {
  expect_faults(absent_byte(bit), static_cast<std::uint8_t>(1u << bit % 8), resume).entry = entry;
}

void CaptureWriter::cold() {
  for (const Cold& c : cold_) {
    if (c.faults == 0 && !c.entry && !c.no_value) continue;
    if (c.entry) a_.bind(*c.entry);
    if (c.no_value) a_.bind(*c.no_value);
    for (std::uint32_t i = 0; i < c.faults; ++i) fixups_.push_back({faults_[c.first_fault + i], a_.size()});
    a_.alu_mem_imm(Alu::bit_or, c.byte, c.bit, 1);
    a_.jmp(c.resume);
  }
}

// ---- items ----

void CaptureWriter::items() {
  recording_ = true;
  if (plan_.layout.has_strings) a_.lea(rdi, rcx + plan_.layout.fixed_size);
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
  const Reg from = store.code == CaptureOp::Code::store_value ? integer(store, value)
                                                              : loaded_integer(store, address(value, store.operand));
  a_.store(rcx + item.offset, from);
  if (!item.can_be_absent) return;
  const Label resume = a_.label();
  a_.bind(resume);
  absent(item.absent_bit, resume);
}

// What the filter has looked at is recorded, not what memory holds a moment later.
void CaptureWriter::compared_item(const CaptureItem& item, std::uint16_t index, std::size_t word) {
  const Label is_absent = a_.label(), resume = a_.label();
  fetch_compared(index, word, false);
  a_.test_mem_byte(rsp + (frame_.compared + 1), static_cast<std::uint8_t>(1u << word));
  a_.jcc(Cond::not_equal, is_absent);
  a_.load(rdx, rsp + (frame_.compared + 8 + 8 * static_cast<std::int32_t>(word)));
  a_.store(rcx + item.offset, rdx);
  a_.bind(resume);
  absent(item.absent_bit, resume, is_absent);
}

// rsi keeps the address of the elements: probes with arrays have saved it.
void CaptureWriter::integer_array(const CaptureItem& item, const CaptureOp& store, const Value& value) {
  const Label end = a_.label();
  a_.lea(rsi, address(value, store.operand));
  absent(item.absent_bit, end);
  for (unsigned i = 0; i < item.count; ++i) {
    const Label next = a_.label();
    const Reg element = loaded_integer(store, rsi + static_cast<std::int32_t>(i * store.size));
    a_.store(rcx + (item.offset + 8 * static_cast<std::int32_t>(i)), element);
    a_.bind(next);
    absent(static_cast<std::uint16_t>(item.absent_bit + 1 + i), next);
  }
  a_.bind(end);
}

// rdx: the string's address. What faulted on the way to it ends here, too.
void CaptureWriter::string_at(std::int32_t slot, std::uint16_t bit) {
  const Label is_absent = a_.label(), resume = a_.label();
  a_.call(runtime_.copy_string);
  a_.store(rcx + slot, rdx, 4);
  a_.jcc(Cond::below, is_absent);
  a_.bind(resume);
  absent(bit, resume, is_absent);
}

void CaptureWriter::string_item(const CaptureItem& item, const CaptureOp& store, const Value& value) {
  a_.lea(rdx, address(value, store.operand));
  string_at(item.offset, item.absent_bit);
}

void CaptureWriter::string_array(const CaptureItem& item, const CaptureOp& store, const Value& value) {
  const Label end = a_.label();
  a_.lea(rsi, address(value, store.operand));
  absent(item.absent_bit, end);
  for (unsigned i = 0; i < item.count; ++i) {
    may_fault();
    a_.load(rdx, rsi + 8 * static_cast<std::int32_t>(i));
    string_at(item.offset + 8 * static_cast<std::int32_t>(i), static_cast<std::uint16_t>(item.absent_bit + 1 + i));
  }
  a_.bind(end);
}

// ---- filters ----

void CaptureWriter::filter(Label reject) {
  if (plan_.filter.empty()) return;
  accept_ = a_.label();
  reject_ = reject;
  for (std::size_t i = 0; i < plan_.filter.size(); ++i) targets_.push_back(a_.label());
  if (compared_.count > 0) a_.store_imm(rsp + frame_.compared, 0);
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
  if (lacks_return_value(p.item)) return a_.jmp(target(p.on_false));
  if (const auto word = compared_.find(p.item)) {
    fetch_compared(p.item, *word, index == 0);
    a_.test_mem_byte(rsp + (frame_.compared + 1), static_cast<std::uint8_t>(1u << *word));
    a_.jcc(Cond::not_equal, target(p.on_false));
    a_.load(rdx, rsp + (frame_.compared + 8 + 8 * static_cast<std::int32_t>(*word)));
    compare_register(p, rdx, 8);
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
    a_.test_mem_byte(rsp + frame_.compared, bit);
    a_.jcc(Cond::not_equal, have);
  }
  const auto ops = ops_of(item);
  const CaptureOp& store = ops.back();
  const Value value = load(ops);
  const Reg from = store.code == CaptureOp::Code::store_value ? integer(store, value)
                                                              : loaded_integer(store, address(value, store.operand));
  a_.store(rsp + (frame_.compared + 8 + 8 * static_cast<std::int32_t>(word)), from);
  a_.bind(fetched);
  a_.alu_mem_imm(Alu::bit_or, rsp + frame_.compared, bit, 1);
  a_.bind(have);
  expect_faults(rsp + (frame_.compared + 1), bit, fetched);
}

void CaptureWriter::compare(const CapturePredicate& p) {
  const auto ops = ops_of(p.item);
  const CaptureOp& store = ops.back();
  const Value value = load(ops);
  if (store.size == 4 && !is_bitfield(store)) return compare_register(p, in_register(value), 4);
  compare_register(p, integer(store, value), 8);
}

void CaptureWriter::compare_register(const CapturePredicate& p, Reg value, unsigned size) {
  const auto imm = static_cast<std::int32_t>(p.value);
  const bool is_test = p.op == Op::any_bit;
  if (size == 4 || fits32(p.value)) {
    is_test ? a_.test_imm(value, imm, size) : a_.alu(Alu::cmp, value, imm, size);
    return;
  }
  a_.mov_imm(rcx, p.value);
  is_test ? a_.test(value, rcx) : a_.alu(Alu::cmp, value, rcx);
}

void CaptureWriter::branch(const CapturePredicate& p, std::uint32_t index) {
  const std::uint32_t next = index + 1 == plan_.filter.size() ? kCaptureAccept : index + 1;
  const Cond cond = condition_of(p);
  if (p.on_true == next) return a_.jcc(inverse(cond), target(p.on_false));
  a_.jcc(cond, target(p.on_true));
  if (p.on_false != next) a_.jmp(target(p.on_false));
}

}  // namespace probed::arch::x86_64
