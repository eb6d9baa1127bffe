// How a value, or a place in memory, is found from a thread's registers: what debug information says of a variable,
// reduced to steps that a fetch program can do. Values only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace probed::values {

// One step; all of them work on one 64-bit number.
struct PlaceStep {
  enum class Code : std::uint8_t {
    load_register,        // the register at byte `operand` of Registers
    load_vector,          // the low 64 bits of vector register `operand`
    load_thread_pointer,  // what the thread's own data is counted from
    load_entry_register,  // of a result: the register at byte `operand` as it was at the function's entry
    load_immediate,       // `operand`
    add,                  // adds `operand`
    add_register,         // adds the register at byte `operand` of Registers, shifted to the left by `right` bits
    dereference,          // the 8 bytes, or `size`, at the number + operand, zero-extended
    cut,                  // `size` bytes of it from bit `right` on, extended to 64 bits
  };
  Code code = Code::load_immediate;
  std::uint8_t size = 8;
  std::uint8_t right = 0;
  std::uint64_t operand = 0;
  bool is_signed = false;  // cut: how it is extended

  bool operator==(const PlaceStep&) const = default;
};

struct Guard;

// What is behind the steps, plus offset: the value itself, or the address of where it is.
struct Placement {
  std::vector<PlaceStep> steps;
  std::uint64_t offset = 0;
  bool in_memory = false;
  std::string absent;  // set: there is none at this place in the code, and why
  // Of what is only there at times, as an optional value or a vector's element: what says so; null: it always is.
  std::shared_ptr<const Guard> guard = nullptr;
  std::string doubt = {};  // set: why what is there may not be the value yet
};

// There is a value when the `size` bytes at a place are this number. The place may have a guard itself.
struct Guard {
  Placement place;
  std::uint8_t size = 1;
  std::uint64_t value = 0;
  // Set: there is a value when the number at `place` is larger than the 8 bytes here by `value` or more; the difference
  // is signed.
  std::shared_ptr<const Placement> begin = nullptr;
};

}  // namespace probed::values
