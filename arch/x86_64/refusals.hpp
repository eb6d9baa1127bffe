// Every instruction that can't carry a probe, and why: one table, by which decode() refuses and which documentation,
// tests and tests/coverage print. Constant data; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "arch/common.hpp"

namespace probed::arch::x86_64 {

struct Decoded;

// Who finds out that an instruction is of this kind.
enum class RefusedBy : std::uint8_t {
  matches,   // decode(): RefusedForm::matches says so
  decoder,   // decode(): Zydis takes it for no instruction
  distance,  // relocate(): depends on where the copy is to be
};

struct RefusedForm {
  std::string_view what;     // which encodings
  std::string_view example;  // one of them, as hexadecimal bytes
  Refusal refusal;
  std::string_view why;  // one sentence, no full stop
  RefusedBy by = RefusedBy::matches;
  bool (*matches)(const Decoded&) = nullptr;  // never null when by is `matches`
};

// All rows. When several match an instruction, the first counts.
std::span<const RefusedForm> refused_forms();

// The row that refuses a decoded instruction wherever its copy is put; null: none does.
const RefusedForm* find_refused(const Decoded& decoded);

}  // namespace probed::arch::x86_64
