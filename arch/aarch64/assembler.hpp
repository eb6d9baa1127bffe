// A small emitter of the instruction forms that detours are made of. Internal to arch/aarch64. One owner, no sharing.
//
// Words go to a fixed room; running out of it sticks in full() and is looked at once at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace probed::arch::aarch64 {

// The last one is sp as a base and where an address is computed, else zero (Arm ARM, C1.2.5).
enum class Reg : std::uint8_t {
  x0,
  x1,
  x2,
  x3,
  x4,
  x5,
  x6,
  x7,
  x8,
  x9,
  x10,
  x11,
  x12,
  x13,
  x14,
  x15,
  x16,
  x17,
  x18,
  x19,
  x20,
  x21,
  x22,
  x23,
  x24,
  x25,
  x26,
  x27,
  x28,
  x29,
  x30,
  sp,
  xzr = sp
};
enum class Cond : std::uint8_t { eq, ne, hs, lo, mi, pl, vs, vc, hi, ls, ge, lt, gt, le };
constexpr Cond inverse(Cond c) { return static_cast<Cond>(static_cast<std::uint8_t>(c) ^ 1); }

// The N, immr and imms fields of a logical instruction with a number; nullopt: there is none for it. Of 32 bits' ones
// the number is twice in its 64.
std::optional<std::uint32_t> logical_immediate(std::uint64_t value);

// base + displacement.
struct Mem {
  Reg base = Reg::sp;
  std::int64_t disp = 0;
};
constexpr Mem operator+(Reg base, std::int64_t disp) { return {base, disp}; }

class Assembler {
 public:
  struct Label {
    std::uint16_t id = 0xffff;
  };

  // address: where room[0] will be, a multiple of 8.
  Assembler(std::span<std::uint8_t> room, std::uint64_t address) : room_(room), address_(address) {}

  std::uint32_t size() const { return static_cast<std::uint32_t>(size_); }
  std::uint64_t here() const { return address_ + size_; }
  bool full() const { return full_; }

  void word(std::uint32_t insn);
  void bytes(std::span<const std::uint8_t> data);
  void qword(std::uint64_t value);
  void align(unsigned alignment);  // with brk

  // ---- branches ----
  Label label();
  void bind(Label label);
  void b(Label to);
  void b(Cond cond, Label to);
  void cbz(Reg r, Label to) { refer(0xb4000000 | n(r), to); }
  void cbnz(Reg r, Label to) { refer(0xb5000000 | n(r), to); }
  void tbz(Reg r, unsigned bit, Label to) { refer(0x36000000 | bit_field(bit) | n(r), to); }
  void tbnz(Reg r, unsigned bit, Label to) { refer(0x37000000 | bit_field(bit) | n(r), to); }
  void b(std::uint64_t address);
  void bl(std::uint64_t address);
  void ret() { word(0xd65f03c0); }

  // ---- moves ----
  void mov(Reg to, Reg from) { word(0xaa0003e0 | n(from) << 16 | n(to)); }
  void mov_imm(Reg to, std::uint64_t value);  // no flags
  // A word of the same code, in reach of it.
  void load_from(Reg to, std::uint64_t address);
  // Whether an access of this size can have this displacement.
  static bool fits(std::int64_t disp, unsigned size);
  // Extended to 64 bits. size: 1, 2, 4 or 8 bytes.
  void load(Reg to, Mem from, unsigned size = 8, bool is_signed = false);
  void store(Mem to, Reg from, unsigned size = 8);
  // A byte, at base + index.
  void load_byte(Reg to, Reg base, Reg index) { word(0x38606800 | n(index) << 16 | n(base) << 5 | n(to)); }
  // Behind it the base is `by` bytes further on.
  void load_and_move(Reg to, Reg base, std::int64_t by);
  void store_and_move(Reg base, std::int64_t by, Reg from, unsigned size);
  void load_pair(Reg a, Reg b, Mem from) { pair(0xa9400000, a, b, from); }
  void store_pair(Mem to, Reg a, Reg b) { pair(0xa9000000, a, b, to); }
  // The base moves first, down, or afterwards, up.
  void push_pair(Reg a, Reg b, std::int64_t bytes) { pair(0xa9800000, a, b, Reg::sp + -bytes); }
  void pop_pair(Reg a, Reg b, std::int64_t bytes) { pair(0xa8c00000, a, b, Reg::sp + bytes); }

  // ---- arithmetic, 64 bits; no flags where the name doesn't say so ----
  // to = from + value. Numbers that don't fit the instruction take a scratch register, which isn't `from`.
  void add(Reg to, Reg from, std::uint64_t value, Reg scratch);
  void add_small(Reg to, Reg from, unsigned value) { word(0x91000000 | value << 10 | n(from) << 5 | n(to)); }
  void add(Reg to, Reg a, Reg b, unsigned shift = 0) {
    word(0x8b000000 | n(b) << 16 | shift << 10 | n(a) << 5 | n(to));
  }
  void sub(Reg to, Reg a, Reg b, unsigned shift = 0) {
    word(0xcb000000 | n(b) << 16 | shift << 10 | n(a) << 5 | n(to));
  }
  void bit_xor(Reg to, Reg a, Reg b) { word(0xca000000 | n(b) << 16 | n(a) << 5 | n(to)); }
  void bit_or(Reg to, Reg a, Reg b) { word(0xaa000000 | n(b) << 16 | n(a) << 5 | n(to)); }
  // a and not b
  void bit_clear(Reg to, Reg a, Reg b) { word(0x8a200000 | n(b) << 16 | n(a) << 5 | n(to)); }
  // These numbers have logical_immediate()s.
  void bit_and(Reg to, Reg from, std::uint64_t value) { logical(0x92000000, to, from, value); }
  void bit_or(Reg to, Reg from, std::uint64_t value) { logical(0xb2000000, to, from, value); }
  void bit_and_flags(Reg to, Reg from, std::uint64_t value) { logical(0xf2000000, to, from, value); }
  // Of `count` bits from bit `from` on, extended.
  void extract(Reg to, Reg source, unsigned from, unsigned count, bool is_signed);
  void shift_left(Reg to, Reg from, unsigned by) {
    word(0xd3400000 | (64 - by) % 64 << 16 | (63 - by) << 10 | n(from) << 5 | n(to));
  }
  void shift_left(Reg to, Reg from, Reg by) { word(0x9ac02000 | n(by) << 16 | n(from) << 5 | n(to)); }
  void shift_right(Reg to, Reg from, unsigned by) { extract(to, from, by, 64 - by, false); }
  void mul_narrow(Reg to, Reg a, Reg b) { word(0x1b007c00 | n(b) << 16 | n(a) << 5 | n(to)); }  // 32 bits
  void reverse_bits(Reg to, Reg from) { word(0xdac00000 | n(from) << 5 | n(to)); }
  void count_zeros(Reg to, Reg from) { word(0xdac01000 | n(from) << 5 | n(to)); }  // leading
  void cmp(Reg a, Reg b, unsigned size = 8) { word((size == 8 ? 0xeb00001f : 0x6b00001f) | n(b) << 16 | n(a) << 5); }
  // Takes the scratch register when the number doesn't fit.
  void cmp(Reg a, std::uint64_t value, unsigned size, Reg scratch);
  void test(Reg a, std::uint64_t value, unsigned size, Reg scratch);

 private:
  struct Reference {
    std::uint32_t at;
    std::uint16_t label;
  };

  static constexpr std::uint32_t n(Reg r) { return static_cast<std::uint32_t>(r); }
  static constexpr std::uint32_t bit_field(unsigned bit) { return (bit & 31) << 19 | bit >> 5 << 31; }
  void logical(std::uint32_t opcode, Reg to, Reg from, std::uint64_t value);
  void access(std::uint32_t opcode, Mem mem, Reg reg, unsigned size);
  void pair(std::uint32_t opcode, Reg a, Reg b, Mem mem);
  void refer(std::uint32_t insn, Label to);
  void patch(std::uint32_t at, std::uint32_t target);

  std::span<std::uint8_t> room_;
  std::uint64_t address_;
  std::size_t size_ = 0;
  bool full_ = false;
  std::vector<std::uint32_t> labels_;  // offset, or kUnbound
  std::vector<Reference> references_;
};

}  // namespace probed::arch::aarch64
