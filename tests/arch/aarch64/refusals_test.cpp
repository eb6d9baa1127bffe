// The table of what can't carry a probe, against what refuses it.
#include "arch/aarch64/refusals.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "arch/aarch64/context.hpp"
#include "arch/aarch64/decode.hpp"
#include "arch/aarch64/forms.hpp"
#include "arch/aarch64/relocate.hpp"
#include "tests/arch/hex.hpp"

namespace probed::arch::aarch64 {
namespace {

constexpr std::uint64_t kOriginal = 0x401000, kCopy = 0x501000;

// By the first of them that says something.
Refusal refusal_of(const RefusedForm& form, RefusedBy& by) {
  const auto code = test::from_hex(form.example);
  const auto bytes = std::span(code).subspan(form.at);
  const Insn insn = decode(bytes, kOriginal + form.at);
  by = RefusedBy::decoder;
  if (insn.refusal != Refusal::none) return insn.refusal;
  by = RefusedBy::copy;
  const RelocateResult moved = relocate(bytes, insn, kOriginal + form.at, kCopy);
  if (moved.refusal != Refusal::none) return moved.refusal;
  by = RefusedBy::context;
  return refusal_in_context(code, form.at);
}

}  // namespace

TEST_CASE("every row of the aarch64 table refuses its example, for its reason") {
  std::set<std::string_view> described;
  for (const RefusedForm& form : refused_forms()) {
    CAPTURE(form.what);
    CHECK(described.insert(form.what).second);
    CHECK(form.why.size() > 20);
    RefusedBy by{};
    CHECK(describe(refusal_of(form, by)) == describe(form.refusal));
    CHECK(static_cast<int>(by) == static_cast<int>(form.by));
  }
}

TEST_CASE("every aarch64 form that is refused is in the table, by its name") {
  for (const FormRow& form : forms()) {
    if (form.refusal == Refusal::none) continue;
    CAPTURE(form.what);
    const std::string_view name = form.what.substr(0, form.what.find_first_of(", "));
    const auto tells = [&](const RefusedForm& row) {
      return row.by == RefusedBy::decoder && row.refusal == form.refusal && row.what.find(name) != row.what.npos;
    };
    CHECK(std::ranges::any_of(refused_forms(), tells));
  }
}

}  // namespace probed::arch::aarch64
