#include "daemon/tracer/kernel/may_not_trace.hpp"

#include <doctest/doctest.h>

namespace probed::tracer {
namespace {

bool names(const std::string& hint, std::string_view what) { return hint.find(what) != std::string::npos; }

TEST_CASE("what to do where the kernel forbids tracing is said of what this machine has") {
  const std::string without_yama = hint_may_not_trace(false, 0);
  CHECK(names(without_yama, "as root"));
  CHECK(!names(without_yama, "yama"));
  CHECK(names(hint_may_not_trace(false, 1), "trace -- CMD"));
  CHECK(names(hint_may_not_trace(false, 2), "ptrace_scope is 2: only root"));
  for (const bool capable : {false, true}) {
    CHECK(names(hint_may_not_trace(capable, 3), "ptrace_scope is 3: nobody"));
    CHECK(!names(hint_may_not_trace(capable, 3), "as root"));
  }
  // Who is root already isn't told to be.
  for (const int yama : {0, 1, 2}) CHECK(!names(hint_may_not_trace(true, yama), "as root"));
}

}  // namespace
}  // namespace probed::tracer
