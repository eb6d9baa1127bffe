// Where a function is left: what a return probe is made of that writes nothing to the stack. The vocabulary; the
// analysis is <cpu>/exits.hpp. Pure; any thread. Addresses are those of a CodeFlow.
//
// A function's body is its own code and every part of it that stands elsewhere (what compilers call .cold). It is left
// by a return, and by a jump out of the body: a tail call, after which the return address belongs to the other
// function. Whether a conditional or an indirect jump leaves it is only known when it executes: jump_target() says.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "arch/operand.hpp"
#include "arch/region.hpp"

namespace probed::arch {

enum class ExitKind : std::uint8_t {
  ret,
  jump,    // a tail call, always
  branch,  // a tail call when the condition holds
  leap,    // an indirect jump: a tail call when it leads out of the body
};

struct Exit {
  std::uint64_t address = 0;
  ExitKind kind = ExitKind::ret;
  // Of a leap: where its target is to be found. A memory operand's is the word there.
  Operand target{};
  // Of a branch that looks at the flags alone: on x86-64 the low 4 bits of its opcode, on aarch64 its condition.
  std::optional<std::uint8_t> condition{};
};

// Why not all of a function's exits are known. One table says each's name and sentence: exit_refusals().
enum class ExitRefusal : std::uint8_t {
  none,
  no_function,     // neither a symbol nor the unwind table has it
  not_decoded,     // something in it is no instruction
  not_understood,  // an indirect jump to a computed address, or a branch into the middle of an instruction
  odd_jump,        // it jumps, with something of its own on the stack, to what isn't known to be code
  odd_return,      // it jumps with its return address taken off the stack, or to one from a stack that isn't known
  runs_on,         // it doesn't end, but goes on in what stands behind it
  no_exit,         // it never returns
  loops,           // a new call can't be told from the same one: loops_to_entry
  too_large,
  unsupported,  // not on this architecture yet
};
struct ExitRefusalRow {
  ExitRefusal refusal;
  std::string_view name;      // stable, for programs
  std::string_view sentence;  // no full stop
};
std::span<const ExitRefusalRow> exit_refusals();
const ExitRefusalRow& describe(ExitRefusal refusal);

struct ExitPlan {
  ExitRefusal refusal = ExitRefusal::none;
  std::uint64_t where = 0;      // what it was refused for; 0: the function as a whole
  std::vector<Exit> exits;      // ascending
  std::vector<CodeRange> body;  // ascending
  bool loops_to_entry = false;  // some jump of its own leads to its first instruction, as Go's checks of the stack do
  explicit operator bool() const { return refusal == ExitRefusal::none; }
};

// Whether a function that isn't a mere part of another one begins there, by its symbol's name.
using NamedFunction = std::function<bool(std::uint64_t)>;

}  // namespace probed::arch
