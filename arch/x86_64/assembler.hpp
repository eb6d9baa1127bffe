// A small emitter of the instruction forms that detours are made of. Zydis' encoder would do, but takes a microsecond
// an instruction, and fifty thousand detours have a million of them. Internal to arch/x86_64. One owner, no sharing.
//
// Bytes go to a fixed room; running out of it, or a short jump that doesn't reach, sticks in full() and stretched() and
// is looked at once at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

namespace probed::arch::x86_64 {

enum class Reg : std::uint8_t { rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15 };
// The tttn field of conditional jumps.
enum class Cond : std::uint8_t {
  overflow,
  no_overflow,
  below,
  above_equal,
  equal,
  not_equal,
  below_equal,
  above,
  sign,
  no_sign,
  parity,
  no_parity,
  less,
  greater_equal,
  less_equal,
  greater
};
constexpr Cond inverse(Cond c) { return static_cast<Cond>(static_cast<std::uint8_t>(c) ^ 1); }
// The /digit of the arithmetic group.
enum class Alu : std::uint8_t { add = 0, bit_or = 1, bit_and = 4, sub = 5, bit_xor = 6, cmp = 7 };
enum class Shift : std::uint8_t { left = 4, right = 5, right_signed = 7 };

// A memory operand: base + displacement, or an address in reach of the code.
struct Mem {
  Reg base = Reg::rax;
  std::int32_t disp = 0;
  bool is_absolute = false;
  std::uint64_t address = 0;

  static Mem at(std::uint64_t address) { return {Reg::rax, 0, true, address}; }
};
constexpr Mem operator+(Reg base, std::int32_t disp) { return {base, disp, false, 0}; }

class Assembler {
 public:
  struct Label {
    std::uint16_t id = 0xffff;
  };

  // address: where room[0] will be. short_jumps: jumps to labels take 2 bytes instead of 5 or 6.
  Assembler(std::span<std::uint8_t> room, std::uint64_t address, bool short_jumps)
      : room_(room), address_(address), short_(short_jumps) {}

  std::uint32_t size() const { return static_cast<std::uint32_t>(size_); }
  std::uint64_t here() const { return address_ + size_; }
  bool full() const { return full_; }
  bool stretched() const { return stretched_; }
  // Whether an instruction here can refer to the address; a little room is kept for where in the code it will be.
  bool reaches(std::uint64_t address) const;

  void bytes(std::initializer_list<std::uint8_t> data) { bytes(std::span(data.begin(), data.size())); }
  void bytes(std::span<const std::uint8_t> data);
  void align_data(unsigned alignment);  // with int3
  void qword(std::uint64_t value) { number(value, 8); }

  // ---- labels ----
  Label label();
  void bind(Label label);
  void jmp(Label to);
  void jcc(Cond cond, Label to);
  // Always the long form: for what is far away in the same code.
  void jmp_near(Label to);
  void jcc_near(Cond cond, Label to);
  void jmp(std::uint64_t address);
  void call(std::uint64_t address);
  void ret() { bytes({0xc3}); }

  // ---- moves ----
  void push(Reg r);
  void pop(Reg r);
  void mov(Reg to, Reg from);
  void mov_imm(Reg to, std::uint64_t value);  // the shortest form; no flags
  // From memory or a register, extended to 64 bits. size: 1, 2, 4 or 8 bytes.
  void load(Reg to, Mem from, unsigned size = 8, bool is_signed = false);
  void extend(Reg to, Reg from, unsigned size, bool is_signed);
  void store(Mem to, Reg from, unsigned size = 8);
  void store_imm(Mem to, std::int32_t value);  // 8 bytes, sign-extended
  void lea(Reg to, Mem from) { form({0x8d}, number_of(to), from, true); }

  // ---- arithmetic; size: 4 or 8 where it is asked for ----
  void alu(Alu op, Reg to, std::int32_t imm, unsigned size = 8);
  void alu(Alu op, Reg to, Reg from, unsigned size = 8);
  void alu(Alu op, Reg to, Mem from, unsigned size = 8);
  void alu_mem_imm(Alu op, Mem to, std::int32_t imm, unsigned size = 8);  // size 1: imm is a byte
  void test(Reg a, Reg b, unsigned size = 8);
  void test_imm(Reg a, std::int32_t imm, unsigned size = 8);
  void test_mem_byte(Mem a, std::uint8_t imm) { form({0xf6}, 0, a, false, 1), number(imm, 1); }
  void test_mem_imm(Mem a, std::int32_t imm, unsigned size);
  void shift(Shift op, Reg to, std::uint8_t by, unsigned size = 8);
  void inc(Mem to, bool locked);
  void cmpxchg(Mem to, Reg from, bool locked);
  void imul(Reg to, Reg from, std::uint32_t by);  // 32 bits

 private:
  struct Reference {
    std::uint32_t at;
    std::uint16_t label;
    std::uint8_t size;
  };

  static std::uint8_t number_of(Reg r) { return static_cast<std::uint8_t>(r); }
  void number(std::uint64_t value, unsigned size);
  // opcode /reg with a memory operand. imm_bytes: how many follow, for rip-relative operands.
  void form(std::initializer_list<std::uint8_t> opcode, std::uint8_t reg, Mem mem, bool wide, unsigned imm_bytes = 0,
            std::uint8_t prefix = 0, bool force_rex = false);
  void form(std::initializer_list<std::uint8_t> opcode, std::uint8_t reg, Reg rm, bool wide, bool force_rex = false);
  void modrm(std::uint8_t reg, Mem mem, unsigned imm_bytes);
  void refer(Label label, std::uint8_t size);
  void patch(const Reference& reference, std::uint32_t target);

  std::span<std::uint8_t> room_;
  std::uint64_t address_;
  std::size_t size_ = 0;
  bool short_;
  bool full_ = false, stretched_ = false;
  std::vector<std::uint32_t> labels_;  // offset, or kUnbound
  std::vector<Reference> references_;
};

}  // namespace probed::arch::x86_64
