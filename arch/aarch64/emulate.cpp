// Branches and addresses computed from registers (Arm ARM, C6.2).
#include "arch/aarch64/emulate.hpp"

#include "arch/aarch64/forms.hpp"
#include "arch/aarch64/machine.hpp"
#include "arch/aarch64/operands.hpp"
#include "arch/aarch64/word.hpp"
#include "proto/base/check.hpp"

namespace probed::arch::aarch64 {
namespace {

constexpr std::uint64_t kNegative = 1u << 31, kZero = 1u << 30, kCarry = 1u << 29, kOverflow = 1u << 28;

// PSTATE.BTYPE: how the last instruction branched. Where pages are guarded, an indirect branch may only arrive at what
// accepts its kind; any other instruction clears it, or the next one would be refused.
constexpr std::uint64_t kBranchType = 3u << 10, kBranchTypeJump = 1u << 10, kBranchTypeCall = 2u << 10;

std::uint64_t read_register(const Registers& regs, unsigned number) {
  return number == kZeroRegister ? 0 : regs.x[number];
}

void write_register(Registers& regs, unsigned number, std::uint64_t value) {
  if (number != kZeroRegister) regs.x[number] = value;
}

// Three bits pick the predicate, the lowest negates it; but both of the last pair are `always` (Arm ARM, C1.2.4).
bool holds(unsigned condition, std::uint64_t pstate) {
  const bool negative = (pstate & kNegative) != 0, zero = (pstate & kZero) != 0, carry = (pstate & kCarry) != 0;
  const bool overflow = (pstate & kOverflow) != 0;
  const bool predicates[8] = {
      zero,                           // eq
      carry,                          // cs
      negative,                       // mi
      overflow,                       // vs
      carry && !zero,                 // hi
      negative == overflow,           // ge
      negative == overflow && !zero,  // gt
      true,                           // al
  };
  const bool negated = (condition & 1) != 0 && condition != 0xf;
  return predicates[condition >> 1] != negated;
}

// cbz, cbnz: bit 24 asks for not zero. tbz, tbnz: likewise; the bit's number is in two parts.
bool compare_taken(std::uint32_t word, const Registers& regs) {
  const std::uint64_t value = read_register(regs, field(word, 0, 5));
  const bool is_zero = (field(word, 31, 1) != 0 ? value : static_cast<std::uint32_t>(value)) == 0;
  return is_zero != (field(word, 24, 1) != 0);
}

bool test_taken(std::uint32_t word, const Registers& regs) {
  const unsigned bit = field(word, 31, 1) << 5 | field(word, 19, 5);
  return (read_register(regs, field(word, 0, 5)) >> bit & 1) == field(word, 24, 1);
}

bool taken(Form form, std::uint32_t word, const Registers& regs) {
  switch (form) {
    case Form::branch_condition: return holds(field(word, 0, 4), regs.pstate);
    case Form::branch_compare: return compare_taken(word, regs);
    case Form::branch_test: return test_taken(word, regs);
    default: return true;
  }
}

// As from a page that isn't guarded: that may arrive at most.
std::uint64_t branch_type(Form form) {
  if (form == Form::branch_register) return kBranchTypeJump;
  return form == Form::branch_link_register ? kBranchTypeCall : 0;
}

}  // namespace

bool emulate(std::span<const std::uint8_t> insn_bytes, const Insn& insn, Registers& regs) {
  if (!insn.emulable) return false;
  const std::uint32_t word = load_word(insn_bytes);
  const Form form = form_of(word).form;
  const std::uint64_t pc = regs.program_counter, next = pc + kInsnSize;
  regs.pstate = (regs.pstate & ~kBranchType) | branch_type(form);
  regs.program_counter = next;
  switch (form) {
    case Form::adr: write_register(regs, field(word, 0, 5), adr_address(word, pc)); break;
    case Form::adrp: write_register(regs, field(word, 0, 5), adrp_address(word, pc)); break;
    case Form::branch_register:
    case Form::branch_link_register:
    case Form::ret: regs.program_counter = without_tag(read_register(regs, branch_register(word))); break;
    case Form::branch:
    case Form::branch_link:
    case Form::branch_condition:
    case Form::branch_compare:
    case Form::branch_test:
      PROBED_CHECK(insn.target.has_value(), "a direct branch has a target");
      if (taken(form, word, regs)) regs.program_counter = *insn.target;
      break;
    default: break;  // does nothing
  }
  // Last: the register that a call goes to may be x30.
  if (form == Form::branch_link || form == Form::branch_link_register) regs.x[kLinkRegister] = next;
  return true;
}

}  // namespace probed::arch::aarch64
