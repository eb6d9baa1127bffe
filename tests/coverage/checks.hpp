// What is counted: one row of a table for each question that is asked about every instruction, and one for each that is
// asked about every function. New questions (jump optimisation, return probes) are new rows.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "arch/arch.hpp"
#include "tests/coverage/functions.hpp"

namespace probed::coverage {

// One instruction, decoded, and what the relocator says to it.
struct Instruction {
  std::uint64_t address = 0;  // in an imagined process, see kBias
  std::span<const std::uint8_t> bytes;
  arch::Insn insn;
  arch::Refusal refusal = arch::Refusal::none;           // from the worst places that the daemon puts copies
  arch::RegionRefusal jump = arch::RegionRefusal::none;  // when it is the only probe
  arch::JumpForm form = arch::JumpForm::near;            // unless refused
};

// A function with all of its instructions. The last one may be undecodable, then the rest of the bytes is unknown.
struct FunctionCode {
  const Function& function;
  std::vector<Instruction> instructions;
  std::uint64_t unknown = 0;  // bytes behind an undecodable instruction
  // What of its exits can't carry a probe; those of its parts elsewhere aren't looked at.
  arch::Refusal exit_refusal = arch::Refusal::none;
  bool exits_get_jumps = true;  // those that were looked at
};

struct InstructionCheck {
  std::string_view title;  // of its column: the share of all instructions for which it holds
  bool (*holds)(const Instruction&);
};
std::span<const InstructionCheck> instruction_checks();

struct FunctionCheck {
  std::string_view title;  // of its column: the share of all functions for which it holds
  bool (*holds)(const FunctionCode&);
};
std::span<const FunctionCheck> function_checks();

// Decodes a function of the file from its start to its end, relocates every instruction and plans a jump for each.
FunctionCode analyse(const File& file, const Function& function);

}  // namespace probed::coverage
