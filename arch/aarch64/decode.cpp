// Instruction facts from the table of forms.
#include "arch/aarch64/decode.hpp"

#include <optional>

#include "arch/aarch64/forms.hpp"
#include "arch/aarch64/word.hpp"

namespace probed::arch::aarch64 {
namespace {

// Where a direct branch leads, from itself.
std::optional<std::uint64_t> branch_distance(Form form, std::uint32_t word) {
  switch (form) {
    case Form::branch:
    case Form::branch_link: return distance_field(word, 0, 26);
    case Form::branch_condition:
    case Form::branch_consistent:
    case Form::branch_compare: return distance_field(word, 5, 19);
    case Form::branch_test: return distance_field(word, 5, 14);
    default: return std::nullopt;
  }
}

bool refers_to_pc(Form form) { return form >= Form::adr && form <= Form::prefetch_literal; }

// What registers alone tell. A prefetch is a hint (Arm ARM, C6.2.247): not to follow it is one way to execute it.
bool is_emulable(Form form) {
  switch (form) {
    case Form::nop:
    case Form::landing_pad:
    case Form::adr:
    case Form::adrp:
    case Form::prefetch_literal:
    case Form::branch:
    case Form::branch_link:
    case Form::branch_condition:
    case Form::branch_compare:
    case Form::branch_test:
    case Form::branch_register:
    case Form::branch_link_register:
    case Form::ret: return true;
    default: return false;
  }
}

}  // namespace

Insn decode(std::span<const std::uint8_t> bytes, std::uint64_t address) {
  Insn result;
  result.refusal = Refusal::undecodable;
  if (bytes.size() < kInsnSize || address % kInsnSize != 0) return result;
  const std::uint32_t word = load_word(bytes);
  const FormRow& row = form_of(word);
  result.length = kInsnSize;
  result.flow = row.flow;
  result.refusal = row.refusal;
  result.pc_relative = refers_to_pc(row.form);
  result.may_block = row.flow == Flow::syscall;
  result.emulable = is_emulable(row.form);
  if (const auto distance = branch_distance(row.form, word)) result.target = address + *distance;
  return result;
}

}  // namespace probed::arch::aarch64
