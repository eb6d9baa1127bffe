// The arguments of a return probe: some belong to the function's entry, the others to its exit.
//
// $argN and $entry(ARG) are read at the entry and kept, as typed as they are asked for. All others are read at the
// exit; where they refer to $argN or $entry(ARG) themselves (+0($arg2): what the function has written there) they get
// the word that was kept. Run on the tracer thread; no allocation.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "daemon/events/fetch.hpp"

namespace probed::events {

class ReturnFetch {
 public:
  // context: of the function's entry. Errors: FetchProgram::compile()'s.
  static Result<ReturnFetch> compile(std::span<const lang::FetchArg> args, CompileContext context);

  // What the entry reads: the arguments that belong there, then the words that the others need.
  const FetchProgram& entry() const { return entry_; }
  const FetchProgram& exit() const { return exit_; }
  // Names and types of those that belong to the entry, of all: what filters and encoders need.
  std::span<const lang::FetchArg> entry_args() const { return entry_.args().first(entry_.args().size() - words_); }
  std::span<const lang::FetchArg> args() const { return args_; }
  bool is_at_entry(std::size_t argument) const { return at_entry_[argument]; }
  bool needs_comm() const { return entry_.needs_comm() || exit_.needs_comm(); }

  // kept: what entry().run() wrote. Fetches the rest and writes all arguments in their order; returns the bytes
  // written. `scratch` is as large as `out`.
  std::size_t run_exit(const arch::native::Registers& regs, MemoryReader& memory, values::CommonFields common,
                       std::span<const std::byte> kept, std::span<std::byte> scratch, std::span<std::byte> out) const;
  // All arguments in their order, from what entry().run() wrote and what exit().run() did. Returns the bytes written.
  std::size_t merge(std::span<const std::byte> kept, std::span<const std::byte> at_exit,
                    std::span<std::byte> out) const;

 private:
  FetchProgram entry_, exit_;
  std::vector<lang::FetchArg> args_;
  std::vector<bool> at_entry_;  // of each of args_
  std::size_t words_ = 0;
};

}  // namespace probed::events
