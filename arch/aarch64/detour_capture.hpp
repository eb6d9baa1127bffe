// Generated code that evaluates a probe's filter and stores its arguments into a record: its instructions.
// arch/capture_code.hpp has what is done in which order. Internal to arch/aarch64; used by detour.cpp, which owns the
// frame. Pure. Registers are those of detour_frame.hpp; with strings, kEnd is left behind the last one's copy.
#pragma once

#include <vector>

#include "arch/aarch64/assembler.hpp"
#include "arch/aarch64/detour_frame.hpp"
#include "arch/capture_code.hpp"

namespace probed::arch::aarch64 {

struct CaptureMachine {
  using Assembler = aarch64::Assembler;
  using Reg = aarch64::Reg;
  using Mem = aarch64::Mem;
  static constexpr Reg kValue = aarch64::kValue, kRecord = aarch64::kRecord, kArray = aarch64::kArray, kStack = Reg::sp;
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
  Mem address(const Value& value, std::uint64_t offset, unsigned size);
  void address_into(Reg to, const Value& value, std::uint64_t offset);
  Reg in_register(const Value& value);
  Reg integer(const CaptureOp& store, const Value& value);
  void bitfield(const CaptureOp& store) { integer(store, computed()); }
  void set_bits(Mem byte, std::uint8_t bits);
  void clear(Mem word) { a_.store(word, Reg::xzr); }
  void go(Label to) { a_.b(to); }
  void go_when(bool holds, const CapturePredicate& p, Label to);
  void go_if_bit(Mem byte, unsigned bit, Label to);
  void compare_register(const CapturePredicate& p, Reg value, unsigned size);
  void begin_strings(std::uint32_t fixed_size) { a_.add(kEnd, kRecord, fixed_size, kScratch); }
  void copy_string(Mem length, Label is_absent);

  const DetourFrame& frame_;
  const std::uint64_t site_;
  const DetourRuntime& runtime_;
};

}  // namespace probed::arch::aarch64
