// Encodings: Arm ARM, C6.2, by instruction.
#include "arch/aarch64/assembler.hpp"

#include <algorithm>
#include <bit>

#include "arch/aarch64/copy_writer.hpp"
#include "arch/aarch64/forms.hpp"
#include "arch/aarch64/word.hpp"
#include "proto/base/check.hpp"

namespace probed::arch::aarch64 {
namespace {

constexpr std::uint32_t kUnbound = ~0u;
constexpr std::uint32_t kBreak = 0xd4200000;
constexpr std::uint64_t kSmallLimit = 1u << 12;  // of an addition's or comparison's number

constexpr unsigned log2_of(unsigned size) { return static_cast<unsigned>(std::countr_zero(size)); }

// Halfwords of a number that aren't `filler`.
unsigned halves_beside(std::uint64_t value, std::uint16_t filler) {
  unsigned count = 0;
  for (unsigned i = 0; i < 4; ++i) count += static_cast<std::uint16_t>(value >> 16 * i) != filler ? 1 : 0;
  return count;
}

}  // namespace

// A pattern of 2 to 64 bits over and over, in which a run of ones has been rotated (DecodeBitMasks in the Arm ARM's
// pseudocode).
std::optional<std::uint32_t> logical_immediate(std::uint64_t value) {
  if (value == 0 || value == ~0ull) return std::nullopt;
  unsigned size = 64;
  while (size > 2) {
    const unsigned half = size / 2;
    const std::uint64_t low = value & ((1ull << half) - 1);
    if ((value >> half & ((1ull << half) - 1)) != low) break;
    size = half;
  }
  const std::uint64_t mask = size == 64 ? ~0ull : (1ull << size) - 1;
  const std::uint64_t pattern = value & mask;
  const auto ones = static_cast<unsigned>(std::popcount(pattern));
  for (unsigned by = 0; by < size; ++by) {
    const std::uint64_t turned = by == 0 ? pattern : (pattern << by | pattern >> (size - by)) & mask;
    if (turned != (ones == 64 ? ~0ull : (1ull << ones) - 1)) continue;
    const std::uint32_t imms = (~(size * 2 - 1) & 0x3f) | (ones - 1);
    return (size == 64 ? 1u : 0u) << 22 | by << 16 | imms << 10;
  }
  return std::nullopt;
}

void Assembler::word(std::uint32_t insn) { bytes(word_bytes(insn)); }

void Assembler::bytes(std::span<const std::uint8_t> data) {
  if (data.size() > room_.size() - size_) {
    full_ = true;
    return;
  }
  std::ranges::copy(data, room_.begin() + static_cast<std::ptrdiff_t>(size_));
  size_ += data.size();
}

void Assembler::qword(std::uint64_t value) {
  word(static_cast<std::uint32_t>(value));
  word(static_cast<std::uint32_t>(value >> 32));
}

void Assembler::align(unsigned alignment) {
  while (here() % alignment != 0 && !full_) word(kBreak);
}

// ---- branches ----

Assembler::Label Assembler::label() {
  labels_.push_back(kUnbound);
  return {static_cast<std::uint16_t>(labels_.size() - 1)};
}

void Assembler::bind(Label label) {
  PROBED_CHECK(labels_[label.id] == kUnbound, "a label is at one place");
  labels_[label.id] = size();
  for (const Reference& r : references_)
    if (r.label == label.id) patch(r.at, size());
  std::erase_if(references_, [&](const Reference& r) { return r.label == label.id; });
}

// The distance's place depends on the kind of branch. Nothing here is further away than tbz reaches, 32 KiB.
void Assembler::patch(std::uint32_t at, std::uint32_t target) {
  const auto room = room_.subspan(at, kInsnSize);
  std::uint32_t insn = load_word(room);
  const auto distance = static_cast<std::uint32_t>(static_cast<std::int32_t>(target - at) / std::int32_t{kInsnSize});
  switch (form_of(insn).form) {
    case Form::branch: insn |= distance & 0x03ff'ffff; break;
    case Form::branch_test: insn |= (distance & 0x3fff) << 5; break;
    default: insn |= (distance & 0x7'ffff) << 5; break;
  }
  std::ranges::copy(word_bytes(insn), room.begin());
}

void Assembler::refer(std::uint32_t insn, Label to) {
  const std::uint32_t at = size();
  word(insn);
  if (full_) return;
  if (labels_[to.id] != kUnbound) return patch(at, labels_[to.id]);
  references_.push_back({at, to.id});
}

void Assembler::b(Label to) { refer(0x14000000, to); }
void Assembler::b(Cond cond, Label to) { refer(0x54000000 | static_cast<std::uint32_t>(cond), to); }

void Assembler::b(std::uint64_t address) {
  const std::uint32_t insn = branch_between(here(), address);
  PROBED_CHECK(insn != 0, "what belongs together is within a branch's reach");
  word(insn);
}

void Assembler::bl(std::uint64_t address) {
  const std::uint32_t insn = branch_between(here(), address);
  PROBED_CHECK(insn != 0, "the routines are within a branch's reach");
  word(insn | 1u << 31);
}

// ---- moves ----

void Assembler::mov_imm(Reg to, std::uint64_t value) {
  const bool inverted = halves_beside(value, 0xffff) < halves_beside(value, 0);
  const std::uint16_t filler = inverted ? 0xffff : 0;
  const unsigned halves = halves_beside(value, filler);
  if (const auto pattern = halves > 1 ? logical_immediate(value) : std::nullopt)
    return word(0xb2000000 | *pattern | n(Reg::xzr) << 5 | n(to));
  bool first = true;
  for (unsigned i = 0; i < 4; ++i) {
    const auto half = static_cast<std::uint16_t>(value >> 16 * i);
    if (half == filler && (halves > 0 || i > 0)) continue;
    const std::uint32_t opcode = !first ? 0xf2800000 : inverted ? 0x92800000 : 0xd2800000;  // movk; movn; movz
    const auto field = static_cast<std::uint16_t>(first && inverted ? ~half : half);
    word(opcode | i << 21 | std::uint32_t{field} << 5 | n(to));
    first = false;
  }
}

void Assembler::load_from(Reg to, std::uint64_t address) {
  const std::uint64_t distance = address - here();
  PROBED_CHECK(distance + (1u << 20) < 2u << 20 && distance % kInsnSize == 0, "constants are near the code");
  word(0x58000000 | field(static_cast<std::uint32_t>(distance), 2, 19) << 5 | n(to));
}

bool Assembler::fits(std::int64_t disp, unsigned size) {
  const bool scaled = disp >= 0 && disp % size == 0 && disp / size < 4096;
  return scaled || (disp >= -256 && disp <= 255);
}

// opcode: of the form with an unsigned distance, without its size.
void Assembler::access(std::uint32_t opcode, Mem mem, Reg reg, unsigned size) {
  PROBED_CHECK(fits(mem.disp, size), "an access reaches its operand");
  constexpr std::uint32_t kScaled = 1u << 24;
  const std::uint32_t insn = opcode | log2_of(size) << 30 | n(mem.base) << 5 | n(reg);
  if (mem.disp >= 0 && mem.disp % size == 0) return word(insn | static_cast<std::uint32_t>(mem.disp / size) << 10);
  word((insn & ~kScaled) | (static_cast<std::uint32_t>(mem.disp) & 0x1ff) << 12);
}

void Assembler::load(Reg to, Mem from, unsigned size, bool is_signed) {
  access(is_signed && size < 8 ? 0x39800000 : 0x39400000, from, to, size);
}

void Assembler::store(Mem to, Reg from, unsigned size) { access(0x39000000, to, from, size); }

void Assembler::load_and_move(Reg to, Reg base, std::int64_t by) {
  word(0xf8400400 | (static_cast<std::uint32_t>(by) & 0x1ff) << 12 | n(base) << 5 | n(to));
}

void Assembler::store_and_move(Reg base, std::int64_t by, Reg from, unsigned size) {
  word(0x38000400 | log2_of(size) << 30 | (static_cast<std::uint32_t>(by) & 0x1ff) << 12 | n(base) << 5 | n(from));
}

void Assembler::pair(std::uint32_t opcode, Reg a, Reg b, Mem mem) {
  PROBED_CHECK(mem.disp % 8 == 0 && mem.disp >= -512 && mem.disp <= 504, "a pair reaches its place");
  word(opcode | (static_cast<std::uint32_t>(mem.disp / 8) & 0x7f) << 15 | n(b) << 10 | n(mem.base) << 5 | n(a));
}

// ---- arithmetic ----

void Assembler::add(Reg to, Reg from, std::uint64_t value, Reg scratch) {
  if (value < kSmallLimit) return word(0x91000000 | static_cast<std::uint32_t>(value) << 10 | n(from) << 5 | n(to));
  if (-value < kSmallLimit) return word(0xd1000000 | static_cast<std::uint32_t>(-value) << 10 | n(from) << 5 | n(to));
  mov_imm(scratch, value);
  word(0x8b206000 | n(scratch) << 16 | n(from) << 5 | n(to));  // extended: sp may be an operand
}

void Assembler::logical(std::uint32_t opcode, Reg to, Reg from, std::uint64_t value) {
  const auto pattern = logical_immediate(value);
  PROBED_CHECK(pattern.has_value(), "the number is one that logical instructions have");
  word(opcode | *pattern | n(from) << 5 | n(to));
}

void Assembler::extract(Reg to, Reg source, unsigned from, unsigned count, bool is_signed) {
  PROBED_CHECK(count > 0 && from + count <= 64, "bits are within a register");
  word((is_signed ? 0x93400000 : 0xd3400000) | from << 16 | (from + count - 1) << 10 | n(source) << 5 | n(to));
}

void Assembler::cmp(Reg a, std::uint64_t value, unsigned size, Reg scratch) {
  const std::uint64_t negative = size == 8 ? -value : static_cast<std::uint32_t>(-value);
  const std::uint64_t wanted = size == 8 ? value : static_cast<std::uint32_t>(value);
  const std::uint32_t wide = size == 8 ? 1u << 31 : 0;
  if (wanted < kSmallLimit) return word(0x7100001f | wide | static_cast<std::uint32_t>(wanted) << 10 | n(a) << 5);
  // cmn: the same flags, but for numbers that are their own negatives.
  if (negative < kSmallLimit) return word(0x3100001f | wide | static_cast<std::uint32_t>(negative) << 10 | n(a) << 5);
  mov_imm(scratch, wanted);
  cmp(a, scratch, size);
}

void Assembler::test(Reg a, std::uint64_t value, unsigned size, Reg scratch) {
  mov_imm(scratch, value);
  word((size == 8 ? 0xea00001f : 0x6a00001f) | n(scratch) << 16 | n(a) << 5);
}

}  // namespace probed::arch::aarch64
