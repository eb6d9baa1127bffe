// See detour_capture.hpp.
#include "arch/x86_64/detour_capture.hpp"

#include <algorithm>

#include "arch/x86_64/regs.hpp"
#include "proto/base/check.hpp"

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

}  // namespace

CaptureWriter::CaptureWriter(Assembler& a, const DetourFrame& frame, const CapturePlan& plan, std::uint64_t site,
                             const DetourRuntime& runtime, std::vector<DetourFixup>& fixups, CapturePlace place)
    : CaptureCode(a, plan, fixups, place, offsetof(Registers, rsp), frame.compared),
      frame_(frame),
      site_(site),
      runtime_(runtime) {}

// ---- values ----

CaptureWriter::Value CaptureWriter::load_register(std::uint64_t offset) {
  using Kind = Value::Kind;
  const auto* row = std::ranges::find(kGeneral, offset, &RegisterPlace::offset);
  if (row != std::end(kGeneral)) {
    if (!frame_.is_saved(row->reg)) return {Kind::reg, row->reg, 0};
    a_.load(rdx, rsp + frame_.slot(row->reg));
    return computed();
  }
  switch (offset) {
    case offsetof(Registers, rsp): return {Kind::stack, rsp, place_ == CapturePlace::plain ? 0 : kReturnAddressSize};
    case offsetof(Registers, rip):
      if (place_ == CapturePlace::plain) return {Kind::constant, rdx, site_};
      if (!recording_) break;
      a_.load(rdx, rcx + channel::kRecordReturnAddress);
      return computed();
    // A thread that is in no system call has -1 there (arch/x86/entry).
    case offsetof(Registers, orig_rax): return {Kind::constant, rdx, ~0ull};
    case offsetof(Registers, cs): a_.bytes({0x8c, 0xca}); return computed();
    case offsetof(Registers, ss): a_.bytes({0x8c, 0xd2}); return computed();
    case offsetof(Registers, fs_base): return load_thread_pointer();
    case offsetof(Registers, eflags):
      PROBED_CHECK(frame_.flags != DetourFrame::kNotSaved, "the frame has what the arguments read");
      a_.load(rdx, rsp + frame_.flags);
      a_.alu(Alu::bit_and, rdx, static_cast<std::int32_t>(~kTrapFlag), 4);  // set when a tracer steps through here
      return computed();
    default: break;
  }
  refuse(DetourRefusal::register_operand);
  return {};
}

// rdfsbase rdx. The word at %fs:0, by which threads find their lanes, need not be there, nor say this.
CaptureWriter::Value CaptureWriter::load_thread_pointer() {
  if (!runtime_.features.base_registers) return refuse(DetourRefusal::register_operand), Value{};
  a_.bytes({0xf3, 0x48, 0x0f, 0xae, 0xc2});
  return computed();
}

// movq rdx, xmmN: the capture part leaves vector registers alone.
CaptureWriter::Value CaptureWriter::load_vector(unsigned number) {
  const auto rex = static_cast<std::uint8_t>(0x48 | (number >= 8 ? 4 : 0));
  a_.bytes({0x66, rex, 0x0f, 0x7e, static_cast<std::uint8_t>(0xc2 | (number & 7) << 3)});
  return computed();
}

void CaptureWriter::require(const CaptureOp& op, const Value& value) {
  if (!fits32(op.operand)) return refuse(DetourRefusal::far_offset);
  a_.alu(Alu::cmp, in_register(value), static_cast<std::int32_t>(op.operand));
  a_.jcc(Cond::not_equal, no_value());
}

void CaptureWriter::require_room(const CaptureOp& op, const Value& value) {
  if (!fits32(op.operand)) return refuse(DetourRefusal::far_offset);
  if (const Reg from = in_register(value); from != rdx) a_.mov(rdx, from);
  a_.alu(Alu::sub, rdx, rsi);
  a_.alu(Alu::cmp, rdx, static_cast<std::int32_t>(op.operand));
  a_.jcc(Cond::less, no_value());
}

void CaptureWriter::add(const CaptureOp& op, Value& value) {
  a_.lea(rdx, address(value, op.operand));
  value = computed();
}

void CaptureWriter::cut(const CaptureOp& op, Value& value) {
  Reg from = in_register(value);
  if (op.right != 0) {
    a_.lea(rdx, from + 0);
    a_.shift(Shift::right, rdx, op.right);
    from = rdx;
  }
  a_.extend(rdx, from, op.size, op.is_signed);
  value = computed();
}

Mem CaptureWriter::address(const Value& value, std::uint64_t offset, unsigned) {
  if (value.kind == Value::Kind::constant) {
    const std::uint64_t address = value.number + offset;
    if (a_.reaches(address)) return Mem::at(address);
    a_.mov_imm(rdx, address);
    return rdx + 0;
  }
  const bool on_stack = value.kind == Value::Kind::stack;
  const std::uint64_t disp = offset + (on_stack ? value.number + static_cast<std::uint64_t>(frame_.size) : 0);
  if (!fits32(disp)) {
    refuse(DetourRefusal::far_offset);
    return rdx + 0;
  }
  return (on_stack ? rsp : value.reg) + static_cast<std::int32_t>(disp);
}

Reg CaptureWriter::in_register(const Value& value) {
  switch (value.kind) {
    case Value::Kind::reg: return value.reg;
    case Value::Kind::stack: a_.lea(rdx, rsp + (frame_.size + static_cast<std::int32_t>(value.number))); break;
    case Value::Kind::constant: a_.mov_imm(rdx, value.number); break;
  }
  return rdx;
}

// Shifting up to the top bit and back is the kernel's fetch_apply_bitfield() within the container.
void CaptureWriter::bitfield(const CaptureOp& store) {
  const unsigned unused = 64u - store.size * 8u;
  a_.shift(Shift::left, rdx, static_cast<std::uint8_t>(unused + store.left));
  a_.shift(store.is_signed ? Shift::right_signed : Shift::right, rdx, static_cast<std::uint8_t>(unused + store.right));
}

// A value cut to the type and extended to 64 bits. Returns where it is.
Reg CaptureWriter::integer(const CaptureOp& store, const Value& value) {
  const Reg from = in_register(value);
  if (store.size == 8 && !is_bitfield(store)) return from;
  a_.extend(rdx, from, store.size, store.is_signed);
  if (is_bitfield(store)) bitfield(store);
  return rdx;
}

// ---- jumps and calls ----

void CaptureWriter::go_when(bool holds, const CapturePredicate& p, Label to) {
  const Cond cond = condition_of(p);
  a_.jcc(holds ? cond : inverse(cond), to);
}

void CaptureWriter::go_if_bit(Mem byte, unsigned bit, Label to) {
  a_.test_mem_byte(byte, static_cast<std::uint8_t>(1u << bit));
  a_.jcc(Cond::not_equal, to);
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

void CaptureWriter::copy_string(Mem length, Label is_absent) {
  a_.call(runtime_.copy_string);
  a_.store(length, rdx, 4);
  a_.jcc(Cond::below, is_absent);
}

}  // namespace probed::arch::x86_64
