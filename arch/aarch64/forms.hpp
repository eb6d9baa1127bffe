// Which kind of instruction a word is: one table of bit patterns, by which everything else here decides. It names what
// depends on where it stands, what changes control flow and what can't be moved; every other word is `plain`. Internal
// to arch/aarch64 and its tests. Constant data; any thread.
//
// A word that isn't in the table is taken for plain only where the architecture has so far put nothing that depends on
// the pc: the whole group "branches, exception generating and system instructions" (Arm ARM, C4.1) is listed, and what
// isn't allocated in it is refused.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "arch/common.hpp"

namespace probed::arch::aarch64 {

enum class Form : std::uint8_t {
  plain,  // the same wherever it stands
  nop,
  landing_pad,  // bti: does nothing but accept indirect branches
  udf,          // always faults: nothing follows
  adr,
  adrp,
  load_literal,
  load_signed_literal,  // ldrsw
  load_vector_literal,
  prefetch_literal,
  branch,                     // b
  branch_link,                // bl
  branch_condition,           // b.cond
  branch_consistent,          // bc.cond: the same, but faults on processors that don't have it
  branch_compare,             // cbz, cbnz
  branch_test,                // tbz, tbnz
  branch_register,            // br
  branch_link_register,       // blr
  branch_authenticated,       // braa, ...
  branch_link_authenticated,  // blraa, ...
  ret,
  ret_authenticated,  // retaa, retab
  system_call,        // svc
  exclusive_load,     // ldxr, ...
  exclusive_store,    // stxr, ...
  exclusive_clear,    // clrex
  prefix,             // movprfx, pacm: change what the instruction behind them does
  refused,            // whatever else can't carry a probe
};

struct FormRow {
  std::uint32_t mask, value;
  Form form;
  Flow flow = Flow::next;
  Refusal refusal = Refusal::none;
  std::string_view what;  // the instructions
};

// All rows. When several match a word, the first counts; the last matches every word.
std::span<const FormRow> forms();
const FormRow& form_of(std::uint32_t word);

}  // namespace probed::arch::aarch64
