// The registers' layout in memory, against the system's headers: for builds that run on x86-64.
#include <doctest/doctest.h>
#include <sys/user.h>

#include <cstddef>

#include "arch/x86_64/regs.hpp"

namespace probed::arch::x86_64 {

TEST_CASE("Registers has the layout of the kernel's user_regs_struct") {
  CHECK(sizeof(Registers) == sizeof(user_regs_struct));
  CHECK(offsetof(Registers, rax) == offsetof(user_regs_struct, rax));
  CHECK(offsetof(Registers, orig_rax) == offsetof(user_regs_struct, orig_rax));
  CHECK(offsetof(Registers, rip) == offsetof(user_regs_struct, rip));
  CHECK(offsetof(Registers, rsp) == offsetof(user_regs_struct, rsp));
  CHECK(offsetof(Registers, gs) == offsetof(user_regs_struct, gs));
}

}  // namespace probed::arch::x86_64
