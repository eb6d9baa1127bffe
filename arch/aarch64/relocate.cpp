// How each kind of instruction is moved. One function per kind, picked by form.
#include "arch/aarch64/relocate.hpp"

#include "arch/aarch64/copy_writer.hpp"
#include "arch/aarch64/forms.hpp"
#include "arch/aarch64/operands.hpp"
#include "arch/aarch64/word.hpp"
#include "proto/base/check.hpp"

namespace probed::arch::aarch64 {
namespace {

// What every kind works with.
struct Source {
  std::uint32_t word;
  const Insn& insn;
  Form form;
  std::uint64_t original;

  std::uint64_t next() const { return original + kInsnSize; }
};

void go_on(const Source& source, CopyWriter& out) {
  out.after(source.next());
  out.jump(source.next());
}

void as_it_is(const Source& source, CopyWriter& out) {
  out.before(source.original);
  out.word(source.word);
  go_on(source, out);
}

// ret, br and their kin: nothing follows, control is gone.
void leave(const Source& source, CopyWriter& out) {
  out.before(source.original);
  out.word(source.word);
}

void nothing(const Source& source, CopyWriter& out) {
  out.before(source.original);
  out.jump(source.next());
}

void address(const Source& source, CopyWriter& out) {
  const bool page = source.form == Form::adrp;
  out.before(source.original);
  out.load(field(source.word, 0, 5),
           page ? adrp_address(source.word, source.original) : adr_address(source.word, source.original));
  go_on(source, out);
}

// ---- literals ----

CopyPoint undone_by(std::int8_t sp, const Source& source) {
  return {.meaning = CopyPoint::Meaning::middle, .undo_sp = sp, .original_pc = source.original};
}

// The same load through a base register; size as in the literal's `opc` field.
std::uint32_t load_through(const Source& source, unsigned base) {
  const unsigned size = field(source.word, 30, 2);
  const std::uint32_t registers = base << 5 | field(source.word, 0, 5);
  constexpr std::uint32_t kLoads[] = {0xb9400000, 0xf9400000, 0xb9800000};        // ldr w; ldr x; ldrsw x
  constexpr std::uint32_t kVectorLoads[] = {0xbd400000, 0xfd400000, 0x3dc00000};  // ldr s; d; q
  return (source.form == Form::load_vector_literal ? kVectorLoads : kLoads)[size] | registers;
}

// str x0, [sp, #-16]!; ldr x0, =address; load; ldr x0, [sp], #16
void load_through_scratch(const Source& source, std::uint64_t literal, CopyWriter& out) {
  constexpr std::uint32_t kPush = 0xf81f0fe0, kPop = 0xf84107e0;
  constexpr std::int8_t kPushed = 16;
  out.before(source.original);
  out.word(kPush);
  out.point(undone_by(kPushed, source));
  out.load(0, literal);
  out.point(undone_by(kPushed, source));
  out.word(load_through(source, 0));
  out.point(undone_by(kPushed, source));
  out.word(kPop);
  go_on(source, out);
}

// ldr x, =address; ldr x, [x]
void load_through_itself(const Source& source, std::uint64_t literal, CopyWriter& out) {
  const unsigned reg = field(source.word, 0, 5);
  out.before(source.original);
  out.load(reg, literal);
  out.point(undone_by(0, source));
  out.word(load_through(source, reg));
  go_on(source, out);
}

void literal(const Source& source, CopyWriter& out) {
  constexpr std::uint64_t kReach = 1ULL << 20;
  constexpr std::uint32_t kDistance = 0x7ffff << 5;
  const std::uint64_t at = literal_address(source.word, source.original), distance = at - out.here();
  if (distance + kReach < 2 * kReach) {
    out.before(source.original);
    out.word((source.word & ~kDistance) | (static_cast<std::uint32_t>(distance) / kInsnSize << 5 & kDistance));
    return go_on(source, out);
  }
  const bool general = source.form != Form::load_vector_literal && field(source.word, 0, 5) != kZeroRegister;
  return general ? load_through_itself(source, at, out) : load_through_scratch(source, at, out);
}

// ---- branches ----

void jump(const Source& source, CopyWriter& out) {
  out.before(source.original);
  out.jump(*source.insn.target);
}

// The branch over: none of these reaches as far as b.
//   b.cond taken; b next; taken: b target
void branch_over(const Source& source, CopyWriter& out) {
  const unsigned bits = source.form == Form::branch_test ? 14 : 19;
  const std::uint32_t distance = ((1u << bits) - 1) << 5;
  out.before(source.original);
  out.word((source.word & ~distance) | 2u << 5);
  go_on(source, out);
  out.after(*source.insn.target);
  out.jump(*source.insn.target);
}

// x30 is all that a call changes: behind its load the rest is a jump, which can't fault where it stands.
void call(const Source& source, CopyWriter& out) {
  out.before(source.original);
  out.load(kLinkRegister, source.next());
  out.after(*source.insn.target);
  out.jump(*source.insn.target);
}

// Whether a call through a register needs x30 after it has been written. The modifier of blraa is in the lowest bits;
// blr has zeros and blraaz ones there.
bool reads_link(const Source& source) {
  return branch_register(source.word) == kLinkRegister ||
         (source.form == Form::branch_link_authenticated && field(source.word, 0, 5) == kLinkRegister);
}

// The br that goes where a blr does differs in one bit, authenticated or not.
void call_register(const Source& source, CopyWriter& out) {
  constexpr std::uint32_t kLink = 1u << 21;
  out.before(source.original);
  out.load(kLinkRegister, source.next());
  out.point(undone_by(0, source));
  out.word(source.word & ~kLink);
}

Refusal write_copy(const Source& source, CopyWriter& out) {
  switch (source.form) {
    case Form::plain:
    case Form::nop:
    case Form::landing_pad:
    case Form::udf:
    case Form::system_call:
    case Form::exclusive_clear: as_it_is(source, out); break;
    case Form::adr:
    case Form::adrp: address(source, out); break;
    case Form::load_literal:
    case Form::load_signed_literal:
    case Form::load_vector_literal: literal(source, out); break;
    case Form::prefetch_literal: nothing(source, out); break;
    case Form::branch: jump(source, out); break;
    case Form::branch_link: call(source, out); break;
    case Form::branch_condition:
    case Form::branch_consistent:
    case Form::branch_compare:
    case Form::branch_test: branch_over(source, out); break;
    case Form::branch_register:
    case Form::branch_authenticated:
    case Form::ret:
    case Form::ret_authenticated: leave(source, out); break;
    case Form::branch_link_register:
    case Form::branch_link_authenticated:
      if (reads_link(source)) return Refusal::unsupported;
      call_register(source, out);
      break;
    case Form::exclusive_load:
    case Form::exclusive_store:
    case Form::prefix:
    case Form::refused: return Refusal::unsupported;
  }
  return out.out_of_reach() ? Refusal::out_of_range : Refusal::none;
}

}  // namespace

RelocateResult relocate(std::span<const std::uint8_t> insn_bytes, const Insn& insn, std::uint64_t original,
                        std::uint64_t copy_address) {
  RelocateResult result;
  result.refusal = insn.refusal;
  if (result.refusal != Refusal::none) return result;
  PROBED_CHECK(insn.length == kInsnSize && insn_bytes.size() >= kInsnSize && copy_address % kInsnSize == 0,
               "relocate is given a whole decoded instruction");
  const std::uint32_t word = load_word(insn_bytes);
  CopyWriter out(copy_address);
  result.refusal = write_copy({word, insn, form_of(word).form, original}, out);
  if (result.refusal == Refusal::none) result.copy = out.finish();
  return result;
}

}  // namespace probed::arch::aarch64
