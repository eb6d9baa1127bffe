// Generated code that evaluates a probe's filter and stores its arguments into a record. Internal to arch/aarch64; used
// by detour.cpp, which owns the frame. Pure. Registers are those of detour_frame.hpp;.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "arch/aarch64/assembler.hpp"
#include "arch/aarch64/detour_frame.hpp"
#include "arch/detour.hpp"

namespace probed::arch::aarch64 {

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

// Where the probe is: at an exit the pc is taken to be what the return address says.
enum class CapturePlace : std::uint8_t { plain, exit, tail_call };

// One probe's part of a detour.
class CaptureWriter {
 public:
  using Label = Assembler::Label;

  CaptureWriter(Assembler& a, const DetourFrame& frame, const CapturePlan& plan, std::uint64_t site,
                const DetourRuntime& runtime, std::vector<DetourFixup>& fixups, CapturePlace place);

  // Falls through when the filter accepts; goes to `reject` otherwise.
  void filter(Label reject);
  // Stores every item into the record. With strings, kEnd is left behind the last.
  void items();
  // The code for what could not be read; jumps back into the above.
  void cold();

  DetourRefusal refusal() const { return refusal_; }

 private:
  // A value that has not been computed yet: a register's, sp plus something, or a constant.
  struct Value {
    enum class Kind : std::uint8_t { reg, stack, constant };
    Kind kind = Kind::constant;
    Reg reg = kValue;
    std::uint64_t number = 0;
  };
  // What to do when the loads of one item fault.
  struct Cold {
    std::uint32_t first_fault = 0, faults = 0;  // in faults_
    std::optional<Label> entry, no_value;       // reached by branches, too
    Mem byte;                                   // where the absence bit is
    std::uint8_t bit = 0;
    Label resume;
  };

  std::span<const CaptureOp> ops_of(std::uint16_t item) const;
  Value load_register(std::uint64_t offset);
  Value load_thread_pointer();
  Value load_kept(const CaptureOp& op);
  Label no_value();
  void require(const CaptureOp& op, const Value& value);
  void require_room(const CaptureOp& op, const Value& value);
  bool lacks_return_value(std::uint16_t item) const;
  Value load(std::span<const CaptureOp> ops);
  void step(const CaptureOp& op, Value& value);
  void cut(const CaptureOp& op, Value& value);
  void add(const CaptureOp& op, Value& value);
  Value load_vector(unsigned number);
  Mem address(const Value& value, std::uint64_t offset, unsigned size);
  void address_into(Reg to, const Value& value, std::uint64_t offset);
  Reg in_register(const Value& value);
  void may_fault();
  Reg integer(const CaptureOp& store, const Value& value);
  Reg loaded_integer(const CaptureOp& store, Mem from);

  void item(std::uint16_t index);
  void integer_item(const CaptureItem& item, std::span<const CaptureOp> ops);
  void compared_item(const CaptureItem& item, std::uint16_t index, std::size_t word);
  void integer_array(const CaptureItem& item, const CaptureOp& store, const Value& value);
  void string_item(const CaptureItem& item, const CaptureOp& store, const Value& value);
  void string_array(const CaptureItem& item, const CaptureOp& store, const Value& value);
  void string_at(std::int32_t slot, std::uint16_t bit);

  void predicate(const CapturePredicate& p, std::uint32_t index);
  void compare(const CapturePredicate& p);
  void compare_register(const CapturePredicate& p, Reg value, unsigned size);
  void branch(const CapturePredicate& p, std::uint32_t index);
  Label target(std::uint32_t index);
  void fetch_compared(std::uint16_t item, std::size_t word, bool is_first);
  void go_if_absent(std::size_t word, Label to);
  Mem compared_word(std::size_t word) const;
  void set_bit(Mem byte, std::uint8_t bit, Reg scratch);

  void expect_faults(Mem byte, std::uint8_t bit, Label resume, std::optional<Label> entry = {});
  void absent(std::uint16_t bit, Label resume, std::optional<Label> entry = {});
  static Mem absent_byte(std::uint16_t bit) { return kRecord + (channel::kRecordAbsent + bit / 8); }

  Assembler& a_;
  const DetourFrame& frame_;
  const CapturePlan& plan_;
  std::uint64_t site_;
  const DetourRuntime& runtime_;
  const CapturePlace place_;
  std::vector<DetourFixup>& fixups_;
  ComparedItems compared_;
  DetourRefusal refusal_ = DetourRefusal::none;
  std::vector<std::uint32_t> faults_;
  std::uint32_t settled_faults_ = 0;  // how many of faults_ belong to an entry of cold_
  std::vector<Cold> cold_;
  std::vector<Label> targets_;
  Label accept_, reject_;
  bool recording_ = false;  // kRecord is the record
  // Where a step leads behind which there is no value, until somebody has taken note.
  std::optional<Label> no_value_;
};

}  // namespace probed::arch::aarch64
