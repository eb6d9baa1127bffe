// See detour_capture.hpp.
#include "arch/aarch64/detour_capture.hpp"

#include <algorithm>

#include "arch/aarch64/regs.hpp"
#include "proto/base/check.hpp"

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

}  // namespace

CaptureWriter::CaptureWriter(Assembler& a, const DetourFrame& frame, const CapturePlan& plan, std::uint64_t site,
                             const DetourRuntime& runtime, std::vector<DetourFixup>& fixups, CapturePlace place)
    : CaptureCode(a, plan, fixups, place, offsetof(Registers, stack_pointer), frame.compared),
      frame_(frame),
      site_(site),
      runtime_(runtime) {}

// ---- values ----

CaptureWriter::Value CaptureWriter::load_register(std::uint64_t offset) {
  using Kind = Value::Kind;
  constexpr std::uint64_t kGeneral = sizeof Registers::x;
  if (offset < kGeneral && offset % sizeof(std::uint64_t) == 0) {
    const auto number = static_cast<unsigned>(offset / sizeof(std::uint64_t));
    const auto slot = frame_.slot(number);
    if (!slot) return {Kind::reg, static_cast<Reg>(number), 0};
    a_.load(kValue, Reg::sp + *slot);
    return computed();
  }
  switch (offset) {
    case offsetof(Registers, stack_pointer): return {Kind::stack, Reg::sp, 0};
    case offsetof(Registers, program_counter):
      if (place_ == CapturePlace::plain) return {Kind::constant, kValue, site_};
      if (!recording_) break;
      a_.load(kValue, kRecord + channel::kRecordReturnAddress);
      return computed();
    default: break;  // pstate: not all of it can be read
  }
  refuse(DetourRefusal::register_operand);
  return {};
}

// mrs x, tpidr_el0
CaptureWriter::Value CaptureWriter::load_thread_pointer() {
  a_.word(0xd53bd040 | static_cast<unsigned>(kValue));
  return computed();
}

// fmov x, d: the capture part leaves vector registers alone.
CaptureWriter::Value CaptureWriter::load_vector(unsigned number) {
  a_.word(0x9e660000 | number << 5 | static_cast<unsigned>(kValue));
  return computed();
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

void CaptureWriter::add(const CaptureOp& op, Value& value) {
  a_.add(kValue, value.reg, op.operand, kScratch);
  value = computed();
}

void CaptureWriter::cut(const CaptureOp& op, Value& value) {
  const unsigned bits = std::min(8u * op.size, 64u - op.right);
  const bool is_signed = op.is_signed && bits == 8u * op.size;
  a_.extract(kValue, in_register(value), op.right, bits, is_signed);
  value = computed();
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

// A value cut to the type, or to a bitfield in it, and extended to 64 bits. Returns where it is. Shifting up to the top
// bit and back, as the kernel's fetch_apply_bitfield() does within the container, is taking these bits.
Reg CaptureWriter::integer(const CaptureOp& store, const Value& value) {
  const Reg from = in_register(value);
  if (store.size == 8 && !is_bitfield(store)) return from;
  PROBED_CHECK(store.right >= store.left && store.right < 8 * store.size, "a bitfield lies in its container");
  a_.extract(kValue, from, store.right - store.left, 8u * store.size - store.right, store.is_signed);
  return kValue;
}

// ---- memory, branches and calls ----

void CaptureWriter::set_bits(Mem byte, std::uint8_t bits) {
  a_.load(kValue, byte, 1);
  a_.bit_or(kValue, kValue, std::uint64_t{bits});
  a_.store(byte, kValue, 1);
}

void CaptureWriter::go_when(bool holds, const CapturePredicate& p, Label to) {
  const Cond cond = condition_of(p);
  a_.b(holds ? cond : inverse(cond), to);
}

void CaptureWriter::go_if_bit(Mem byte, unsigned bit, Label to) {
  a_.load(kValue, byte, 1);
  a_.tbnz(kValue, bit, to);
}

void CaptureWriter::compare_register(const CapturePredicate& p, Reg value, unsigned size) {
  p.op == Op::any_bit ? a_.test(value, p.value, size, kScratch) : a_.cmp(value, p.value, size, kScratch);
}

void CaptureWriter::copy_string(Mem length, Label is_absent) {
  a_.bl(runtime_.copy_string);
  a_.store(length, kValue, 4);
  a_.cbnz(kScratch, is_absent);
}

}  // namespace probed::arch::aarch64
