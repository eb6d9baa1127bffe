// The parser and the fetch compiler give the kernel's verdicts, with the kernel's caret.
#include <doctest/doctest.h>

#include <array>
#include <string_view>

#include "tests/unit/lang/support.hpp"

namespace probed {
namespace {

constexpr int kAccepted = -1;

struct Verdict {
  std::string_view definition;
  int column;
};

constexpr Verdict kKernel[] = {
#include "kernel_verdicts.inc"
};

int our_column(std::string_view text) {
  auto parsed = lang::parse_definition(text);
  if (!parsed) return static_cast<int>(parsed.error().column.value_or(9999));
  events::CompileContext context;
  context.at_function_entry = false;  // an offset into a file: as uprobes see it
  context.is_return = parsed->kind == lang::Kind::return_probe;
  context.file_bias = 0x400000;
  auto program = events::FetchProgram::compile(parsed->args, context);
  if (!program) return static_cast<int>(program.error().column.value_or(9999));
  return kAccepted;
}

}  // namespace

TEST_CASE("what the kernel accepts is accepted, what it refuses is refused at the kernel's column") {
  for (const Verdict& row : kKernel) {
    CAPTURE(row.definition);
    CHECK(our_column(row.definition) == row.column);
  }
}

}  // namespace probed
