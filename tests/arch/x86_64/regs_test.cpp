// Register names and the calling convention.
#include "arch/x86_64/regs.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>

namespace probed::arch::x86_64 {

TEST_CASE("registers are known by the kernel's names and by the assembler's") {
  struct Row {
    const char* kernel;
    const char* assembler;
    std::size_t offset;
  };
  const Row rows[] = {
      {"ax", "rax", offsetof(Registers, rax)},
      {"bx", "rbx", offsetof(Registers, rbx)},
      {"cx", "rcx", offsetof(Registers, rcx)},
      {"dx", "rdx", offsetof(Registers, rdx)},
      {"si", "rsi", offsetof(Registers, rsi)},
      {"di", "rdi", offsetof(Registers, rdi)},
      {"bp", "rbp", offsetof(Registers, rbp)},
      {"sp", "rsp", offsetof(Registers, rsp)},
      {"ip", "rip", offsetof(Registers, rip)},
      {"flags", "rflags", offsetof(Registers, eflags)},
      {"flags", "eflags", offsetof(Registers, eflags)},
      {"orig_ax", "orig_rax", offsetof(Registers, orig_rax)},
      {"cs", "cs", offsetof(Registers, cs)},
      {"ss", "ss", offsetof(Registers, ss)},
      {"r8", "r8", offsetof(Registers, r8)},
      {"r9", "r9", offsetof(Registers, r9)},
      {"r10", "r10", offsetof(Registers, r10)},
      {"r11", "r11", offsetof(Registers, r11)},
      {"r12", "r12", offsetof(Registers, r12)},
      {"r13", "r13", offsetof(Registers, r13)},
      {"r14", "r14", offsetof(Registers, r14)},
      {"r15", "r15", offsetof(Registers, r15)},
  };
  for (const Row& row : rows) {
    CHECK_MESSAGE(register_offset(row.kernel) == row.offset, row.kernel);
    CHECK_MESSAGE(register_offset(row.assembler) == row.offset, row.assembler);
  }
  // Each is named once to those who are told which there are.
  const auto names = register_names();
  for (const Row& row : rows) CHECK_MESSAGE(std::ranges::find(names, row.kernel) != names.end(), row.kernel);
  for (const auto name : names) CHECK(std::ranges::any_of(rows, [&](const Row& row) { return row.kernel == name; }));
}

TEST_CASE("names that are no registers are not found") {
  for (const char* name : {"", "x0", "r16", "AX", "eax", "rax ", "%rax", "al", "r8d"})
    CHECK_MESSAGE(!register_offset(name).has_value(), name);
}

TEST_CASE("arguments are where System V puts them at a function's entry") {
  const std::size_t registers[] = {offsetof(Registers, rdi), offsetof(Registers, rsi), offsetof(Registers, rdx),
                                   offsetof(Registers, rcx), offsetof(Registers, r8),  offsetof(Registers, r9)};
  for (unsigned n = 1; n <= 6; ++n) {
    CHECK_FALSE(argument_place(n).memory);
    CHECK(argument_place(n).offset == registers[n - 1]);
  }
  CHECK(argument_place(7).memory);
  CHECK(argument_place(7).offset == 8);  // [rsp] is the return address
  CHECK(argument_place(9).offset == 24);
}

TEST_CASE("the code segment tells the mode, and whether the pc is an address") {
  struct Row {
    std::uint64_t cs;
    bool native, address;
  };
  constexpr Row kRows[] = {{0x33, true, true}, {0x23, false, true}, {0x07, false, false}, {0x0f, false, false}};
  for (const Row& row : kRows) {
    Registers r{};
    r.cs = row.cs;
    CHECK_MESSAGE(executes_native_code(r) == row.native, row.cs);
    CHECK_MESSAGE(pc_is_address(r) == row.address, row.cs);
  }
}

TEST_CASE("a rewound system call is the same call again") {
  Registers r{};
  r.rip = 0x401002;
  r.rax = static_cast<std::uint64_t>(-4);
  r.orig_rax = 232;
  CHECK(in_syscall(r));
  rewind_syscall(r);
  CHECK(r.rip == 0x401000);
  CHECK(r.rax == 232);
}

}  // namespace probed::arch::x86_64
