// The notes of static probes, and what they say of arguments.
#include "daemon/symbols/usdt.hpp"

#include "support.hpp"

namespace probed::symbols::test {

TEST_CASE("an argument is a size with a sign and an operand") {
  const auto arguments = parse_usdt_arguments("-4@%edi 8@-16(%rbp)  1@$-1 8f@%xmm0 4f@8(%rsp) 3@%eax 4@(%nope) %rsi");
  REQUIRE(arguments.size() == 8);
  CHECK(arguments[0].size == 4);
  CHECK(arguments[0].is_signed);
  CHECK(arguments[0].why_not.empty());
  CHECK(arguments[1].size == 8);
  CHECK_FALSE(arguments[1].is_signed);
  CHECK(arguments[1].text == "8@-16(%rbp)");
  CHECK(arguments[2].size == 1);
  CHECK(contains(arguments[3].why_not, "vector register"));
  CHECK(arguments[4].is_float);
  CHECK(arguments[4].why_not.empty());
  CHECK(contains(arguments[5].why_not, "size"));
  CHECK(contains(arguments[6].why_not, "isn't understood"));
  CHECK(arguments[7].size == 8);
  CHECK(count_usdt_arguments("-4@%edi 8@-16(%rbp)") == 2);
  CHECK(count_usdt_arguments("4@[sp, 12] 8@x0") == 2);
  CHECK(count_usdt_arguments("") == 0);
  CHECK(count_usdt_arguments("  ") == 0);
}

}  // namespace probed::symbols::test
