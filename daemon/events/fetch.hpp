// Fetch programs: the arguments of a probe, compiled once, run at every hit without allocating.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "arch/arch.hpp"
#include "daemon/base/types.hpp"
#include "daemon/elf/usdt.hpp"
#include "daemon/lang/definition.hpp"
#include "daemon/values/common_fields.hpp"
#include "proto/base/result.hpp"

namespace probed::events {

// Reads the stopped thread's memory.
class MemoryReader {
 public:
  virtual ~MemoryReader() = default;
  // All or nothing. False: some byte is not readable.
  virtual bool read(RemoteAddr from, std::span<std::byte> to) = 0;
  // A NUL-terminated string of at most to.size() bytes, without the NUL; -1: its first byte is unreadable, or it runs
  // into unreadable memory before its end.
  virtual std::ptrdiff_t read_string(RemoteAddr from, std::span<std::byte> to) = 0;
  // The low 64 bits of a floating-point register of the thread that has stopped.
  virtual bool read_vector(std::int32_t, unsigned, std::uint64_t&) { return false; }
  // What its own data is counted from, where Registers don't say (native::kThreadPointerSet).
  virtual bool read_thread_pointer(std::int32_t, std::uint64_t&) { return false; }
};

// What compiling needs from the target.
struct CompileContext {
  std::function<Result<RemoteAddr>(std::string_view symbol)> resolve_data;  // for @SYM
  bool at_function_entry = true;                                            // $argN is refused elsewhere
  bool is_return = false;                                                   // $retval is refused elsewhere
  // Of a return probe: takes what $argN and $entry(ARG) inside of other arguments mean, to be kept at the entry.
  std::vector<lang::FetchExprPtr>* entry_words = nullptr;
  // The probe's address minus its offset in its module's file, for @+OFFS (as the kernel's translate_user_vaddr).
  // Absent: @+OFFS is unsupported.
  std::optional<std::uint64_t> file_bias;
  const elf::UsdtSite* usdt = nullptr;        // the place is a static probe: $argN are its arguments
  std::optional<std::uint64_t> address = {};  // of the probe; of a return of its function's entry
  bool no_place = false;  // the definition is only checked: the code isn't loaded yet, and with it what $args means
};

// One step of a compiled fetch program. The program works on one 64-bit value; every argument is a load, any number of
// dereferences, and one store, which ends it; texts that have a length load that first. A dereference that can't be
// read ends the argument with a null. Flat and without pointers, so that another back end (detour code) can be made
// from the same ops.
struct FetchOp {
  enum class Code : std::uint8_t {
    load_register,        // value = the register at byte `operand` of Registers
    load_stack_pointer,   // value = sp
    load_immediate,       // value = operand
    load_return_value,    // value = what the function returns; a tail call ends the argument with a null
    load_entry_word,      // value = the operand-th of values::CommonFields::entry_words; one that couldn't be read is a
                          // null
    load_duration,        // value = values::CommonFields::duration
    load_vector,          // value = the low 64 bits of floating-point register `operand`
    load_thread_pointer,  // value = what the thread's own data is counted from
    unavailable,          // there is none: the argument is null
    dereference,          // value = the `size` bytes at value + operand, extended to 64 bits
    cut,                  // value = `size` bytes of it, from bit `right` on, extended to 64 bits
    add,                  // value += operand
    add_register,         // value += the register at byte `operand` of Registers, shifted to the left by `left`
    require,              // ends the argument with a null unless value is `operand`; a load follows
    keep_begin,           // keeps value for require_room; a load follows
    require_room,         // as require: unless value - what was kept, signed, is `operand` or more
    keep_length,          // keeps value as the length of the text that store_counted stores; value stays
    store_value,          // stores value, cut to `size` bytes
    store_memory,         // stores `size` bytes from value + operand
    store_memory_array,   // `count` of them, one behind the other
    store_string,         // stores the string at value + operand; `count`: in that many bytes at most, 0: no limit
    store_counted,        // stores the text at value + operand, of the length that was kept
    store_string_array,   // `count` strings whose addresses lie from value + operand on
    store_comm,
    store_text,  // stores texts()[operand]
  };
  Code code = Code::load_immediate;
  std::uint8_t size = 8;             // 1, 2, 4 or 8 bytes
  bool is_signed = false;            // sign-extend to 64 bits, else zero-extend
  std::uint8_t left = 0, right = 0;  // a bitfield: shift left, then right, within `size` bytes; 0, 0: none
  std::uint16_t count = 0;
  std::uint64_t operand = 0;
};

class FetchProgram {
 public:
  // Errors: bad_definition with column; no_such_symbol; unsupported.
  static Result<FetchProgram> compile(std::span<const lang::FetchArg> args, const CompileContext& context);

  // Fetches every argument. Returns the bytes written to out (see record.hpp); arguments that don't fit are null.
  // out.size() must be at least args().size() bytes.
  std::size_t run(const arch::native::Registers& regs, MemoryReader& memory, const values::CommonFields& common,
                  std::span<std::byte> out) const;

  // Names and types, in order: what encoders and filters need.
  std::span<const lang::FetchArg> args() const { return args_; }
  bool needs_comm() const;  // $comm is read exactly, not from the cache

  // The compiled form: the ops of all arguments in order, each argument's ending in a store.
  std::span<const FetchOp> ops() const { return ops_; }
  std::span<const std::string> texts() const { return texts_; }

 private:
  friend class FetchCompiler;

  std::vector<lang::FetchArg> args_;
  std::vector<FetchOp> ops_;
  std::vector<std::string> texts_;
};

}  // namespace probed::events
