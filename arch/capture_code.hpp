// Generated code that evaluates a probe's filter and stores its arguments into a record: the part of it that doesn't
// depend on the architecture. Internal to arch/; used by the detour.cpp of each folder, which owns the frame. Pure.
//
// CaptureCode<Self, Machine> knows what is done in which order; Self, arch/*/detour_capture.hpp, knows the
// instructions. The loads follow FetchProgram::run (daemon/events/fetch_run.cpp) and the comparisons Filter::matches
// (daemon/lang/filter_run.cpp): both tiers must say the same.
//
// Machine has the types Assembler, Reg and Mem, and these registers:
//   kValue   scratch, and where a value is that has been computed
//   kRecord  the record, behind the reservation; scratch before it
//   kArray   the address of an array's elements; probes with arrays have saved it
//   kStack   the stack pointer, from which the frame is counted
//
// Self has, besides what is declared here as its part (they are called by these names):
//   Value load_register(std::uint64_t offset)     of Registers, as the program sees it at the probe's place
//   Value load_thread_pointer()
//   Value load_vector(unsigned number)            the low 64 bits
//   void require(op, value), require_room(op, value)  go to no_value() unless value is as the op says
//   void add(op, value), cut(op, value)           value becomes the result
//   Mem address(value, offset, size)              for an access of `size` bytes; may use kValue
//   void address_into(Reg, value, offset)
//   Reg in_register(value)                        kValue unless it is in a register already
//   Reg integer(store, value)                     cut to the type, or to a bitfield in it, and extended to 64 bits
//   void bitfield(store)                          the same for kValue, which has been loaded and extended
//   void set_bits(Mem byte, std::uint8_t bits)    may use kValue
//   void clear(Mem word)
//   void go(Label), void go_when(bool holds, const CapturePredicate&, Label)  by the last comparison
//   void go_if_bit(Mem byte, unsigned bit, Label) may use kValue
//   void compare_register(predicate, Reg, size)
//   void begin_strings(fixed_size)                the copies begin that far into the record
//   void copy_string(Mem length, Label is_absent) of the string at kValue
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "arch/detour.hpp"
#include "proto/base/check.hpp"

namespace probed::arch {

// How many values in memory a filter may compare: each has a word of the frame and a bit in a byte.
inline constexpr std::size_t kMaxCompared = 8;

// The items a filter compares which have to be fetched from memory, in the order of their words.
struct ComparedItems {
  std::array<std::uint16_t, kMaxCompared> items{};
  std::size_t count = 0;
  bool overflow = false;

  std::optional<std::size_t> find(std::uint16_t item) const;
};
ComparedItems compared_items(const CapturePlan& plan);

// Where the probe is: at an exit the pc is taken to be what the return address says, and the stack pointer to have left
// that behind where calls put it on the stack.
enum class CapturePlace : std::uint8_t { plain, exit, tail_call };

constexpr bool is_bitfield(const CaptureOp& store) { return store.left != 0 || store.right != 0; }

// One probe's part of a detour.
template <class Self, class Machine>
class CaptureCode {
 public:
  using Assembler = typename Machine::Assembler;
  using Label = typename Assembler::Label;
  using Reg = typename Machine::Reg;
  using Mem = typename Machine::Mem;

  // Falls through when the filter accepts; goes to `reject` otherwise.
  void filter(Label reject);
  // Stores every item into the record. With strings, the end of the last one's copy is where the copies' routine has
  // left it.
  void items();
  // The code for what could not be read; jumps back into the above.
  void cold();

  DetourRefusal refusal() const { return refusal_; }

 protected:
  // A value that has not been computed yet: a register's, the stack pointer plus something, or a constant.
  struct Value {
    enum class Kind : std::uint8_t { reg, stack, constant };
    Kind kind = Kind::constant;
    Reg reg = Machine::kValue;
    std::uint64_t number = 0;
  };

  // stack_pointer: its offset in Registers. compared: where in the frame a filter has u8 fetched bits, u8 absent bits,
  // padding, then a word for each value that was fetched.
  CaptureCode(Assembler& a, const CapturePlan& plan, std::vector<DetourFixup>& fixups, CapturePlace place,
              std::size_t stack_pointer, std::int32_t compared)
      : a_(a),
        plan_(plan),
        fixups_(fixups),
        place_(place),
        stack_pointer_(stack_pointer),
        compared_at_(compared),
        compared_(compared_items(plan)) {
    if (compared_.overflow) refusal_ = DetourRefusal::filter_size;
  }

  static constexpr Value computed() { return {Value::Kind::reg, Machine::kValue, 0}; }
  // Where a step leads behind which there is no value.
  Label no_value() {
    if (!no_value_) no_value_ = a_.label();
    return *no_value_;
  }
  // The instruction that follows reads the program's memory.
  void may_fault() { faults_.push_back(a_.size()); }
  void refuse(DetourRefusal why) { refusal_ = why; }

  Assembler& a_;
  const CapturePlan& plan_;
  std::vector<DetourFixup>& fixups_;
  const CapturePlace place_;
  bool recording_ = false;  // kRecord is the record

 private:
  // What to do when the loads of one item fault.
  struct Cold {
    std::uint32_t first_fault = 0, faults = 0;  // in faults_
    std::optional<Label> entry, no_value;       // reached by jumps, too
    Mem byte;                                   // where the absence bit is
    std::uint8_t bit = 0;
    Label resume;
  };

  Self& self() { return static_cast<Self&>(*this); }

  std::span<const CaptureOp> ops_of(std::uint16_t item) const;
  bool lacks_return_value(std::uint16_t item) const;
  Value load(std::span<const CaptureOp> ops);
  void step(const CaptureOp& op, Value& value);
  Value load_kept(const CaptureOp& op);
  Reg loaded_integer(const CaptureOp& store, Mem from);
  Reg fetch_integer(std::uint16_t item);

  void item(std::uint16_t index);
  void integer_item(const CaptureItem& item, std::uint16_t index);
  void compared_item(const CaptureItem& item, std::uint16_t index, std::size_t word);
  void integer_array(const CaptureItem& item, const CaptureOp& store, const Value& value);
  void string_item(const CaptureItem& item, const CaptureOp& store, const Value& value);
  void string_array(const CaptureItem& item, const CaptureOp& store, const Value& value);
  void string_at(std::int32_t slot, std::uint16_t bit);

  void predicate(const CapturePredicate& p, std::uint32_t index);
  void compare(const CapturePredicate& p);
  void branch(const CapturePredicate& p, std::uint32_t index);
  Label target(std::uint32_t index);
  void fetch_compared(std::uint16_t item, std::size_t word, bool is_first);
  Mem fetched_bits() const { return Machine::kStack + compared_at_; }
  Mem absent_bits() const { return Machine::kStack + (compared_at_ + 1); }
  Mem compared_word(std::size_t word) const {
    return Machine::kStack + (compared_at_ + 8 + 8 * static_cast<std::int32_t>(word));
  }

  void expect_faults(Mem byte, std::uint8_t bit, Label resume, std::optional<Label> entry = {});
  void absent(std::uint16_t bit, Label resume, std::optional<Label> entry = {});

  const std::size_t stack_pointer_;
  const std::int32_t compared_at_;
  const ComparedItems compared_;
  DetourRefusal refusal_ = DetourRefusal::none;
  std::vector<std::uint32_t> faults_;
  std::uint32_t settled_faults_ = 0;  // how many of faults_ belong to an entry of cold_
  std::vector<Cold> cold_;
  std::vector<Label> targets_;
  Label accept_, reject_;
  std::optional<Label> no_value_;  // until somebody has taken note
};

// ---- values ----

template <class Self, class Machine>
std::span<const CaptureOp> CaptureCode<Self, Machine>::ops_of(std::uint16_t item) const {
  const std::span<const CaptureOp> ops(plan_.ops);
  const std::size_t first = plan_.layout.items[item].first_op;
  std::size_t last = first;
  while (!ops[last].is_store()) ++last;
  return ops.subspan(first, last - first + 1);
}

template <class Self, class Machine>
bool CaptureCode<Self, Machine>::lacks_return_value(std::uint16_t item) const {
  return place_ == CapturePlace::tail_call &&
         std::ranges::find(ops_of(item), CaptureOp::Code::load_return_value, &CaptureOp::code) != ops_of(item).end();
}

// A word of the call; when it couldn't be read there, nothing is read by it here.
template <class Self, class Machine>
auto CaptureCode<Self, Machine>::load_kept(const CaptureOp& op) -> Value {
  PROBED_CHECK(recording_, "what was kept is in the record");
  if (op.size != 0) self().go_if_bit(Machine::kRecord + op.count / 8, op.count % 8, no_value());
  a_.load(Machine::kValue, Machine::kRecord + static_cast<std::int32_t>(op.operand));
  return computed();
}

template <class Self, class Machine>
void CaptureCode<Self, Machine>::step(const CaptureOp& op, Value& value) {
  using Code = CaptureOp::Code;
  switch (op.code) {
    case Code::load_register:
    case Code::load_return_value: value = self().load_register(op.operand); return;
    case Code::load_stack_pointer: value = self().load_register(stack_pointer_); return;
    case Code::load_kept: value = load_kept(op); return;
    case Code::load_immediate: value = {Value::Kind::constant, Machine::kValue, op.operand}; return;
    case Code::load_thread_pointer: value = self().load_thread_pointer(); return;
    case Code::load_vector: value = self().load_vector(static_cast<unsigned>(op.operand)); return;
    case Code::add:
      if (value.kind == Value::Kind::reg) return self().add(op, value);
      value.number += op.operand;
      return;
    case Code::cut: return self().cut(op, value);
    case Code::require: return self().require(op, value);
    case Code::keep_begin: return a_.mov(Machine::kArray, self().in_register(value));
    case Code::require_room: return self().require_room(op, value);
    default: break;
  }
  const Mem from = self().address(value, op.operand, op.size);
  may_fault();
  a_.load(Machine::kValue, from, op.size, op.is_signed);
  value = computed();
}

// Everything up to the store.
template <class Self, class Machine>
auto CaptureCode<Self, Machine>::load(std::span<const CaptureOp> ops) -> Value {
  Value value;
  for (const CaptureOp& op : ops.first(ops.size() - 1)) step(op, value);
  return value;
}

template <class Self, class Machine>
auto CaptureCode<Self, Machine>::loaded_integer(const CaptureOp& store, Mem from) -> Reg {
  may_fault();
  a_.load(Machine::kValue, from, store.size, store.is_signed);
  if (is_bitfield(store)) self().bitfield(store);
  return Machine::kValue;
}

// A whole item that is one integer. Returns where it is.
template <class Self, class Machine>
auto CaptureCode<Self, Machine>::fetch_integer(std::uint16_t item) -> Reg {
  const auto ops = ops_of(item);
  const CaptureOp& store = ops.back();
  const Value value = load(ops);
  if (store.code == CaptureOp::Code::store_value) return self().integer(store, value);
  return loaded_integer(store, self().address(value, store.operand, store.size));
}

// ---- faults ----

// All faults noted since the last call go to code that sets the bit and goes on at `resume`.
template <class Self, class Machine>
void CaptureCode<Self, Machine>::expect_faults(Mem byte, std::uint8_t bit, Label resume, std::optional<Label> entry) {
  const auto noted = static_cast<std::uint32_t>(faults_.size());
  cold_.push_back({settled_faults_, noted - settled_faults_, entry, std::exchange(no_value_, {}), byte, bit, resume});
  settled_faults_ = noted;
}

template <class Self, class Machine>
void CaptureCode<Self, Machine>::absent(std::uint16_t bit, Label resume, std::optional<Label> entry) {
  expect_faults(Machine::kRecord + (channel::kRecordAbsent + bit / 8), static_cast<std::uint8_t>(1u << bit % 8), resume,
                entry);
}

template <class Self, class Machine>
void CaptureCode<Self, Machine>::cold() {
  for (const Cold& c : cold_) {
    if (c.faults == 0 && !c.entry && !c.no_value) continue;
    if (c.entry) a_.bind(*c.entry);
    if (c.no_value) a_.bind(*c.no_value);
    for (std::uint32_t i = 0; i < c.faults; ++i) fixups_.push_back({faults_[c.first_fault + i], a_.size()});
    self().set_bits(c.byte, c.bit);
    self().go(c.resume);
  }
}

// ---- items ----

template <class Self, class Machine>
void CaptureCode<Self, Machine>::items() {
  recording_ = true;
  if (plan_.layout.has_strings) self().begin_strings(plan_.layout.fixed_size);
  for (std::size_t i = 0; i < plan_.layout.items.size(); ++i) item(static_cast<std::uint16_t>(i));
}

template <class Self, class Machine>
void CaptureCode<Self, Machine>::item(std::uint16_t index) {
  using Code = CaptureOp::Code;
  const CaptureItem& item = plan_.layout.items[index];
  if (lacks_return_value(index)) return;  // whoever reads the record knows
  if (const auto word = compared_.find(index)) return compared_item(item, index, *word);
  const auto ops = ops_of(index);
  const CaptureOp& store = ops.back();
  switch (store.code) {
    case Code::store_memory_array: return integer_array(item, store, load(ops));
    case Code::store_string: return string_item(item, store, load(ops));
    case Code::store_string_array: return string_array(item, store, load(ops));
    default: return integer_item(item, index);
  }
}

template <class Self, class Machine>
void CaptureCode<Self, Machine>::integer_item(const CaptureItem& item, std::uint16_t index) {
  a_.store(Machine::kRecord + item.offset, fetch_integer(index));
  if (!item.can_be_absent) return;
  const Label resume = a_.label();
  a_.bind(resume);
  absent(item.absent_bit, resume);
}

// What the filter has looked at is recorded, not what memory holds a moment later.
template <class Self, class Machine>
void CaptureCode<Self, Machine>::compared_item(const CaptureItem& item, std::uint16_t index, std::size_t word) {
  const Label is_absent = a_.label(), resume = a_.label();
  fetch_compared(index, word, false);
  self().go_if_bit(absent_bits(), static_cast<unsigned>(word), is_absent);
  a_.load(Machine::kValue, compared_word(word));
  a_.store(Machine::kRecord + item.offset, Machine::kValue);
  a_.bind(resume);
  absent(item.absent_bit, resume, is_absent);
}

template <class Self, class Machine>
void CaptureCode<Self, Machine>::integer_array(const CaptureItem& item, const CaptureOp& store, const Value& value) {
  const Label end = a_.label();
  self().address_into(Machine::kArray, value, store.operand);
  absent(item.absent_bit, end);
  for (unsigned i = 0; i < item.count; ++i) {
    const Label next = a_.label();
    const Reg element = loaded_integer(store, Machine::kArray + static_cast<std::int32_t>(i * store.size));
    a_.store(Machine::kRecord + (item.offset + 8 * static_cast<std::int32_t>(i)), element);
    a_.bind(next);
    absent(static_cast<std::uint16_t>(item.absent_bit + 1 + i), next);
  }
  a_.bind(end);
}

// kValue: the string's address. What faulted on the way to it ends here, too.
template <class Self, class Machine>
void CaptureCode<Self, Machine>::string_at(std::int32_t slot, std::uint16_t bit) {
  const Label is_absent = a_.label(), resume = a_.label();
  self().copy_string(Machine::kRecord + slot, is_absent);
  a_.bind(resume);
  absent(bit, resume, is_absent);
}

template <class Self, class Machine>
void CaptureCode<Self, Machine>::string_item(const CaptureItem& item, const CaptureOp& store, const Value& value) {
  self().address_into(Machine::kValue, value, store.operand);
  string_at(item.offset, item.absent_bit);
}

template <class Self, class Machine>
void CaptureCode<Self, Machine>::string_array(const CaptureItem& item, const CaptureOp& store, const Value& value) {
  const Label end = a_.label();
  self().address_into(Machine::kArray, value, store.operand);
  absent(item.absent_bit, end);
  for (unsigned i = 0; i < item.count; ++i) {
    may_fault();
    a_.load(Machine::kValue, Machine::kArray + 8 * static_cast<std::int32_t>(i));
    string_at(item.offset + 8 * static_cast<std::int32_t>(i), static_cast<std::uint16_t>(item.absent_bit + 1 + i));
  }
  a_.bind(end);
}

// ---- filters ----

template <class Self, class Machine>
void CaptureCode<Self, Machine>::filter(Label reject) {
  if (plan_.filter.empty()) return;
  accept_ = a_.label();
  reject_ = reject;
  for (std::size_t i = 0; i < plan_.filter.size(); ++i) targets_.push_back(a_.label());
  if (compared_.count > 0) self().clear(fetched_bits());
  for (std::uint32_t i = 0; i < plan_.filter.size() && !a_.full(); ++i) predicate(plan_.filter[i], i);
  a_.bind(accept_);
}

template <class Self, class Machine>
auto CaptureCode<Self, Machine>::target(std::uint32_t index) -> Label {
  if (index == kCaptureAccept) return accept_;
  if (index == kCaptureReject) return reject_;
  PROBED_CHECK(index < targets_.size(), "a filter's exits lead to its comparisons");
  return targets_[index];
}

template <class Self, class Machine>
void CaptureCode<Self, Machine>::predicate(const CapturePredicate& p, std::uint32_t index) {
  a_.bind(targets_[index]);
  if (lacks_return_value(p.item)) return self().go(target(p.on_false));
  if (const auto word = compared_.find(p.item)) {
    fetch_compared(p.item, *word, index == 0);
    self().go_if_bit(absent_bits(), static_cast<unsigned>(*word), target(p.on_false));
    a_.load(Machine::kValue, compared_word(*word));
    self().compare_register(p, Machine::kValue, 8);
  } else {
    compare(p);
  }
  branch(p, index);
}

// Fetches the item into its word of the frame, once.
template <class Self, class Machine>
void CaptureCode<Self, Machine>::fetch_compared(std::uint16_t item, std::size_t word, bool is_first) {
  const Label have = a_.label(), fetched = a_.label();
  const auto bit = static_cast<std::uint8_t>(1u << word);
  if (!is_first) self().go_if_bit(fetched_bits(), static_cast<unsigned>(word), have);
  a_.store(compared_word(word), fetch_integer(item));
  a_.bind(fetched);
  self().set_bits(fetched_bits(), bit);
  a_.bind(have);
  expect_faults(absent_bits(), bit, fetched);
}

template <class Self, class Machine>
void CaptureCode<Self, Machine>::compare(const CapturePredicate& p) {
  const auto ops = ops_of(p.item);
  const CaptureOp& store = ops.back();
  const Value value = load(ops);
  if (store.size == 4 && !is_bitfield(store)) return self().compare_register(p, self().in_register(value), 4);
  self().compare_register(p, self().integer(store, value), 8);
}

template <class Self, class Machine>
void CaptureCode<Self, Machine>::branch(const CapturePredicate& p, std::uint32_t index) {
  const std::uint32_t next = index + 1 == plan_.filter.size() ? kCaptureAccept : index + 1;
  if (p.on_true == next) return self().go_when(false, p, target(p.on_false));
  self().go_when(true, p, target(p.on_true));
  if (p.on_false != next) self().go(target(p.on_false));
}

}  // namespace probed::arch
