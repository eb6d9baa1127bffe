// Encodings, SDM volume 2. Pure.
#include "arch/x86_64/assembler.hpp"

#include <cstring>

#include "proto/base/check.hpp"

namespace probed::arch::x86_64 {
namespace {

constexpr std::uint32_t kUnbound = 0xffff'ffff;
constexpr bool fits8(std::int64_t value) { return value == static_cast<std::int8_t>(value); }
constexpr bool fits32(std::int64_t value) { return value == static_cast<std::int32_t>(value); }

}  // namespace

bool Assembler::reaches(std::uint64_t address) const {
  constexpr std::int64_t kReach = 0x7fff'0000;
  const auto distance = static_cast<std::int64_t>(address - here());
  return distance < kReach && distance > -kReach;
}

void Assembler::bytes(std::span<const std::uint8_t> data) {
  if (room_.size() - size_ < data.size()) {
    full_ = true;
    return;
  }
  for (std::size_t i = 0; i < data.size(); ++i) room_[size_ + i] = data[i];
  size_ += data.size();
}

void Assembler::number(std::uint64_t value, unsigned size) {
  if (room_.size() - size_ < size) {
    full_ = true;
    return;
  }
  for (unsigned i = 0; i < size; ++i) room_[size_++] = static_cast<std::uint8_t>(value >> (8 * i));
}

void Assembler::align_data(unsigned alignment) {
  while (here() % alignment != 0 && !full_) bytes({0xcc});
}

// ---- labels ----

Assembler::Label Assembler::label() {
  labels_.push_back(kUnbound);
  return {static_cast<std::uint16_t>(labels_.size() - 1)};
}

void Assembler::bind(Label label) {
  labels_[label.id] = size();
  for (const Reference& reference : references_)
    if (reference.label == label.id) patch(reference, size());
}

void Assembler::patch(const Reference& reference, std::uint32_t target) {
  if (full_) return;
  const std::int64_t distance = std::int64_t{target} - (std::int64_t{reference.at} + reference.size);
  if (reference.size == 1 && !fits8(distance)) stretched_ = true;
  for (unsigned i = 0; i < reference.size; ++i)
    room_[reference.at + i] = static_cast<std::uint8_t>(distance >> (8 * i));
}

void Assembler::refer(Label label, std::uint8_t size) {
  PROBED_CHECK(label.id < labels_.size(), "only labels of this code are referred to");
  const Reference reference{this->size(), label.id, size};
  number(0, size);
  if (labels_[label.id] != kUnbound) return patch(reference, labels_[label.id]);
  references_.push_back(reference);
}

void Assembler::jmp(Label to) {
  if (!short_) return jmp_near(to);
  bytes({0xeb});
  refer(to, 1);
}

void Assembler::jcc(Cond cond, Label to) {
  if (!short_) return jcc_near(cond, to);
  bytes({static_cast<std::uint8_t>(0x70 | static_cast<std::uint8_t>(cond))});
  refer(to, 1);
}

void Assembler::jmp_near(Label to) {
  bytes({0xe9});
  refer(to, 4);
}

void Assembler::jcc_near(Cond cond, Label to) {
  bytes({0x0f, static_cast<std::uint8_t>(0x80 | static_cast<std::uint8_t>(cond))});
  refer(to, 4);
}

void Assembler::jmp(std::uint64_t address) {
  bytes({0xe9});
  number(address - (here() + 4), 4);
}

void Assembler::call(std::uint64_t address) {
  bytes({0xe8});
  number(address - (here() + 4), 4);
}

// ---- forms ----

void Assembler::modrm(std::uint8_t reg, Mem mem, unsigned imm_bytes) {
  const auto field = static_cast<std::uint8_t>((reg & 7) << 3);
  if (mem.is_absolute) {
    bytes({static_cast<std::uint8_t>(field | 5)});
    number(mem.address - (here() + 4 + imm_bytes), 4);
    return;
  }
  const auto base = static_cast<std::uint8_t>(number_of(mem.base) & 7);
  // rbp and r13 without displacement mean something else; rsp and r12 need a SIB byte.
  const std::uint8_t mod = mem.disp == 0 && base != 5 ? 0x00 : fits8(mem.disp) ? 0x40 : 0x80;
  bytes({static_cast<std::uint8_t>(mod | field | base)});
  if (base == 4) bytes({0x24});
  if (mod != 0) number(static_cast<std::uint64_t>(std::int64_t{mem.disp}), mod == 0x40 ? 1 : 4);
}

void Assembler::form(std::initializer_list<std::uint8_t> opcode, std::uint8_t reg, Mem mem, bool wide,
                     unsigned imm_bytes, std::uint8_t prefix, bool force_rex) {
  if (prefix != 0) bytes({prefix});
  const std::uint8_t high_base = mem.is_absolute ? 0 : number_of(mem.base) >> 3;
  const auto rex = static_cast<std::uint8_t>(0x40 | (wide ? 8 : 0) | (reg >> 3) << 2 | high_base);
  if (rex != 0x40 || force_rex) bytes({rex});
  bytes(opcode);
  modrm(reg, mem, imm_bytes);
}

void Assembler::form(std::initializer_list<std::uint8_t> opcode, std::uint8_t reg, Reg rm, bool wide, bool force_rex) {
  const auto low = number_of(rm);
  const auto rex = static_cast<std::uint8_t>(0x40 | (wide ? 8 : 0) | (reg >> 3) << 2 | low >> 3);
  if (rex != 0x40 || force_rex) bytes({rex});
  bytes(opcode);
  bytes({static_cast<std::uint8_t>(0xc0 | (reg & 7) << 3 | (low & 7))});
}

// ---- moves ----

void Assembler::push(Reg r) {
  if (number_of(r) >= 8) bytes({0x41});
  bytes({static_cast<std::uint8_t>(0x50 | (number_of(r) & 7))});
}

void Assembler::pop(Reg r) {
  if (number_of(r) >= 8) bytes({0x41});
  bytes({static_cast<std::uint8_t>(0x58 | (number_of(r) & 7))});
}

void Assembler::mov(Reg to, Reg from) { form({0x89}, number_of(from), to, true); }

void Assembler::mov_imm(Reg to, std::uint64_t value) {
  const auto opcode = static_cast<std::uint8_t>(0xb8 | (number_of(to) & 7));
  const std::uint8_t high = number_of(to) >> 3;
  if (value <= 0xffff'ffff) {
    if (high != 0) bytes({0x41});
    bytes({opcode});
    return number(value, 4);
  }
  if (fits32(static_cast<std::int64_t>(value))) {
    form({0xc7}, 0, to, true);
    return number(value, 4);
  }
  bytes({static_cast<std::uint8_t>(0x48 | high), opcode});
  number(value, 8);
}

void Assembler::load(Reg to, Mem from, unsigned size, bool is_signed) {
  const auto reg = number_of(to);
  switch (size) {
    case 1: return is_signed ? form({0x0f, 0xbe}, reg, from, true) : form({0x0f, 0xb6}, reg, from, false);
    case 2: return is_signed ? form({0x0f, 0xbf}, reg, from, true) : form({0x0f, 0xb7}, reg, from, false);
    case 4: return is_signed ? form({0x63}, reg, from, true) : form({0x8b}, reg, from, false);
    default: return form({0x8b}, reg, from, true);
  }
}

void Assembler::extend(Reg to, Reg from, unsigned size, bool is_signed) {
  const auto reg = number_of(to);
  switch (size) {  // a REX makes 4 to 7 sil and so on, not ah and so on
    case 1: return form({0x0f, static_cast<std::uint8_t>(is_signed ? 0xbe : 0xb6)}, reg, from, is_signed, true);
    case 2: return form({0x0f, static_cast<std::uint8_t>(is_signed ? 0xbf : 0xb7)}, reg, from, is_signed);
    case 4: return is_signed ? form({0x63}, reg, from, true) : form({0x8b}, reg, from, false);
    default: return form({0x8b}, reg, from, true);
  }
}

void Assembler::store(Mem to, Reg from, unsigned size) {
  form({0x89}, number_of(from), to, size == 8, 0, size == 2 ? 0x66 : 0);
}

void Assembler::store_imm(Mem to, std::int32_t value) {
  form({0xc7}, 0, to, true, 4);
  number(static_cast<std::uint64_t>(std::int64_t{value}), 4);
}

// ---- arithmetic ----

void Assembler::alu(Alu op, Reg to, std::int32_t imm, unsigned size) {
  const auto digit = static_cast<std::uint8_t>(op);
  form({static_cast<std::uint8_t>(fits8(imm) ? 0x83 : 0x81)}, digit, to, size == 8);
  number(static_cast<std::uint64_t>(std::int64_t{imm}), fits8(imm) ? 1 : 4);
}

void Assembler::alu(Alu op, Reg to, Reg from, unsigned size) {
  form({static_cast<std::uint8_t>(static_cast<unsigned>(op) << 3 | 1)}, number_of(from), to, size == 8);
}

void Assembler::alu(Alu op, Reg to, Mem from, unsigned size) {
  form({static_cast<std::uint8_t>(static_cast<unsigned>(op) << 3 | 3)}, number_of(to), from, size == 8);
}

void Assembler::alu_mem_imm(Alu op, Mem to, std::int32_t imm, unsigned size) {
  const auto digit = static_cast<std::uint8_t>(op);
  const bool narrow = size == 1 || fits8(imm);
  const std::uint8_t opcode = size == 1 ? 0x80 : narrow ? 0x83 : 0x81;
  form({opcode}, digit, to, size == 8, narrow ? 1 : 4);
  number(static_cast<std::uint64_t>(std::int64_t{imm}), narrow ? 1 : 4);
}

void Assembler::test(Reg a, Reg b, unsigned size) { form({0x85}, number_of(b), a, size == 8); }

void Assembler::test_imm(Reg a, std::int32_t imm, unsigned size) {
  form({0xf7}, 0, a, size == 8);
  number(static_cast<std::uint64_t>(std::int64_t{imm}), 4);
}

void Assembler::test_mem_imm(Mem a, std::int32_t imm, unsigned size) {
  form({0xf7}, 0, a, size == 8, 4);
  number(static_cast<std::uint64_t>(std::int64_t{imm}), 4);
}

void Assembler::shift(Shift op, Reg to, std::uint8_t by, unsigned size) {
  form({0xc1}, static_cast<std::uint8_t>(op), to, size == 8);
  number(by, 1);
}

void Assembler::inc(Mem to, bool locked) { form({0xff}, 0, to, true, 0, locked ? 0xf0 : 0); }

void Assembler::cmpxchg(Mem to, Reg from, bool locked) {
  form({0x0f, 0xb1}, number_of(from), to, true, 0, locked ? 0xf0 : 0);
}

void Assembler::imul(Reg to, Reg from, std::uint32_t by) {
  form({0x69}, number_of(to), from, false);
  number(by, 4);
}

}  // namespace probed::arch::x86_64
