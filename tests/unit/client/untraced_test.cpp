#include "client/probectl/untraced.hpp"

#include <doctest/doctest.h>

namespace probed::client {
namespace {

TEST_CASE("programs that ran without probes are counted and named, children that were let go are counted") {
  Untraced untraced;
  CHECK(untraced.text(false).empty());
  Untraced child;
  child.ran("cat", true);
  CHECK(child.text(false) ==
        "1 process ran another program (cat) and was not traced there (--follow-fork traces children)");
  CHECK(child.text(true) == "1 process ran another program (cat) and was not traced there");
  untraced.ran("cat");
  CHECK(untraced.text(false) == "1 process ran another program (cat) and was not traced there");
  untraced.ran("nice");
  untraced.ran("cat");
  CHECK(untraced.text(false) == "3 processes ran other programs (cat, nice) and were not traced there");
  untraced.let_go(7, 1);
  untraced.let_go(7, 2);  // told again, not more
  untraced.let_go(8, 1);
  CHECK(untraced.text(false) ==
        "3 processes ran other programs (cat, nice) and were not traced there; 3 children were not traced "
        "(--follow-fork traces children)");
  for (const char* name : {"a", "b", "d", "e"}) untraced.ran(name);
  CHECK(untraced.text(false).starts_with("7 processes ran other programs (a, b, cat, d, e, ...) and"));
}

TEST_CASE("one child is told of as one") {
  Untraced untraced;
  untraced.let_go(7, 1);
  CHECK(untraced.text(false) == "1 child was not traced (--follow-fork traces children)");
}

TEST_CASE("a bare address is told from every other location") {
  for (const char* text : {"0x401000", "p 0x401000", "p:n 0x401000 $arg1", "  r5:g/n\t0X401000", "0x401000%return"})
    CHECK_MESSAGE(names_address(text), text);
  for (const char* text :
       {"work", "p work", "libc:0x1000", "p:n libc:0x1000", "r work a=@0x401000", "p", "", "perf x", "FILE.c:3 a=0x5"})
    CHECK_MESSAGE(!names_address(text), text);
}

}  // namespace
}  // namespace probed::client
