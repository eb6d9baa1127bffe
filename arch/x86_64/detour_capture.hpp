// Generated code that evaluates a probe's filter and stores its arguments into a record: its instructions.
// arch/capture_code.hpp has what is done in which order. Internal to arch/x86_64; used by detour.cpp, which owns the
// frame. Pure.
//
// Registers while it runs: rdx is scratch. Behind the reservation rcx is the record and rax its tag; before it they are
// scratch, too. With strings, rdi is left behind the last one's copy. Registers that the frame saved are read from the
// stack, the others are still the program's.
#pragma once

#include <array>
#include <vector>

#include "arch/capture_code.hpp"
#include "arch/x86_64/assembler.hpp"

namespace probed::arch::x86_64 {

// Where the frame keeps what, in bytes from rsp as it stands in the capture part.
struct DetourFrame {
  std::int32_t size = 0;                 // up to the program's rsp
  std::array<std::int16_t, 16> saved{};  // slot of a register; kNotSaved: the register holds the program's value
  std::int16_t flags = kNotSaved;        // all of rflags, if an argument wants them
  std::int16_t lane = kNotSaved;         // for strings
  std::int16_t compared = kNotSaved;     // for filters: see CaptureCode

  static constexpr std::int16_t kNotSaved = -1;
  bool is_saved(Reg r) const { return saved[static_cast<std::size_t>(r)] != kNotSaved; }
  std::int16_t slot(Reg r) const { return saved[static_cast<std::size_t>(r)]; }
};

struct CaptureMachine {
  using Assembler = x86_64::Assembler;
  using Reg = x86_64::Reg;
  using Mem = x86_64::Mem;
  static constexpr Reg kValue = Reg::rdx, kRecord = Reg::rcx, kArray = Reg::rsi, kStack = Reg::rsp;
};

class CaptureWriter : public CaptureCode<CaptureWriter, CaptureMachine> {
 public:
  CaptureWriter(Assembler& a, const DetourFrame& frame, const CapturePlan& plan, std::uint64_t site,
                const DetourRuntime& runtime, std::vector<DetourFixup>& fixups, CapturePlace place);

 private:
  friend class CaptureCode<CaptureWriter, CaptureMachine>;

  Value load_register(std::uint64_t offset);
  Value load_thread_pointer();
  Value load_vector(unsigned number);
  void require(const CaptureOp& op, const Value& value);
  void require_room(const CaptureOp& op, const Value& value);
  void add(const CaptureOp& op, Value& value);
  void cut(const CaptureOp& op, Value& value);
  Mem address(const Value& value, std::uint64_t offset, unsigned size = 8);
  void address_into(Reg to, const Value& value, std::uint64_t offset) { a_.lea(to, address(value, offset)); }
  Reg in_register(const Value& value);
  Reg integer(const CaptureOp& store, const Value& value);
  void bitfield(const CaptureOp& store);
  void set_bits(Mem byte, std::uint8_t bits) { a_.alu_mem_imm(Alu::bit_or, byte, bits, 1); }
  void clear(Mem word) { a_.store_imm(word, 0); }
  void go(Label to) { a_.jmp(to); }
  void go_when(bool holds, const CapturePredicate& p, Label to);
  void go_if_bit(Mem byte, unsigned bit, Label to);
  void compare_register(const CapturePredicate& p, Reg value, unsigned size);
  void begin_strings(std::uint32_t fixed_size) { a_.lea(Reg::rdi, Reg::rcx + static_cast<std::int32_t>(fixed_size)); }
  void copy_string(Mem length, Label is_absent);

  const DetourFrame& frame_;
  const std::uint64_t site_;
  const DetourRuntime& runtime_;
};

}  // namespace probed::arch::x86_64
