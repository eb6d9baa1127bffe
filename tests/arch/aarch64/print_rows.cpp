// Prints every row of the byte tables as "WORD ASSEMBLY", for tests/arm64/check-rows.
#include <cstdio>

#include "tests/arch/aarch64/rows.hpp"

namespace {

void print(std::uint32_t word, std::string_view assembly) {
  std::printf("%08x %.*s\n", word, static_cast<int>(assembly.size()), assembly.data());
}

}  // namespace

int main() {
  for (const probed::test::InsnRow& row : probed::test::insn_rows()) print(row.word, row.assembly);
  for (const probed::test::CopyRow& row : probed::test::copy_rows()) {
    print(row.original.word, row.original.assembly);
    for (const probed::test::CopyLine& line : row.copy) print(line.word, line.assembly);
  }
}
