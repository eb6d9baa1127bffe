// Breakpoint recognition.
#include "arch/x86_64/trap.hpp"

#include <doctest/doctest.h>

#include <string>

#include "tests/arch/hex.hpp"

namespace probed::arch::x86_64 {

TEST_CASE("a breakpoint trap is reported one byte behind its int3") {
  CHECK(breakpoint_address(0x401001) == 0x401000);
  CHECK(kBreakpointSize == 1);
  CHECK(kBreakpoint[0] == 0xcc);
}

TEST_CASE("breakpoints are recognised in every form, and nothing else is") {
  struct Row {
    std::string hex;
    bool breakpoint;
  };
  const Row rows[] = {
      {"cc", true},                                                // int3
      {"cc 90 90", true},                                          // int3, nop
      {"cd 03", true},                                             // int 3, the long form
      {"f1", true},                                                // int1
      {"66 cc", true},                                             // data16 int3
      {"48 cc", true},                                             // rex.W int3
      {"f3 2e 48 cc", true},                                       // rep cs rex.W int3
      {"f2 cd 03", true},                                          // repne int 3
      {"65 f1", true},                                             // gs int1
      {"cd 80", false},                                            // int 0x80
      {"cd", false},                                               // cut off
      {"66 66", false},                                            // prefixes only
      {"", false},                                                 // nothing
      {"f0 cc", false},                                            // lock int3 is #UD
      {"90 cc", false},                                            // nop, int3
      {"0f 0b", false},                                            // ud2
      {"b8 cc cc cc cc", false},                                   // mov eax, 0xcccccccc
      {"66 66 66 66 66 66 66 66 66 66 66 66 66 66 66 cc", false},  // longer than an instruction can be
  };
  for (const Row& row : rows) CHECK_MESSAGE(is_breakpoint(test::from_hex(row.hex)) == row.breakpoint, row.hex);
}

}  // namespace probed::arch::x86_64
