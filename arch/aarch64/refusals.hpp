// Every instruction that can't carry a probe, and why: what tests/coverage prints. decode() refuses by the table of
// forms (forms.hpp), refusal_in_context() by what surrounds an instruction; the test holds this table against both.
// Constant data; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "arch/common.hpp"

namespace probed::arch::aarch64 {

// Who finds out that an instruction is of this kind.
enum class RefusedBy : std::uint8_t {
  decoder,  // decode()
  copy,     // relocate(): for a copy it can't be
  context,  // refusal_in_context()
};

struct RefusedForm {
  std::string_view what;     // which instructions
  std::string_view example;  // one of them, as hexadecimal bytes; with its neighbours, where they are the reason
  Refusal refusal;
  std::string_view why;  // one sentence, no full stop
  RefusedBy by = RefusedBy::decoder;
  std::size_t at = 0;  // the refused instruction's offset in the example, bytes
};

// All rows.
std::span<const RefusedForm> refused_forms();

}  // namespace probed::arch::aarch64
