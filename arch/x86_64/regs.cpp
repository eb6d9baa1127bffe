// Register names and the System V calling convention. Constant data; any thread.
#include "arch/x86_64/regs.hpp"

#include <algorithm>
#include <iterator>
#include <span>

#include "proto/base/check.hpp"

namespace probed::arch::x86_64 {
namespace {

struct Name {
  std::string_view name;
  std::size_t offset;
};

// The kernel's names (arch/x86/kernel/ptrace.c, regoffset_table), which the probe language is defined by, then the
// assembler's for the same registers.
constexpr std::size_t kKernelNames = 21;  // as many as come first
constexpr Name kNames[] = {
    {"ax", offsetof(Registers, rax)},
    {"bx", offsetof(Registers, rbx)},
    {"cx", offsetof(Registers, rcx)},
    {"dx", offsetof(Registers, rdx)},
    {"si", offsetof(Registers, rsi)},
    {"di", offsetof(Registers, rdi)},
    {"bp", offsetof(Registers, rbp)},
    {"sp", offsetof(Registers, rsp)},
    {"ip", offsetof(Registers, rip)},
    {"flags", offsetof(Registers, eflags)},
    {"cs", offsetof(Registers, cs)},
    {"ss", offsetof(Registers, ss)},
    {"r8", offsetof(Registers, r8)},
    {"r9", offsetof(Registers, r9)},
    {"r10", offsetof(Registers, r10)},
    {"r11", offsetof(Registers, r11)},
    {"r12", offsetof(Registers, r12)},
    {"r13", offsetof(Registers, r13)},
    {"r14", offsetof(Registers, r14)},
    {"r15", offsetof(Registers, r15)},
    {"orig_ax", offsetof(Registers, orig_rax)},

    {"rax", offsetof(Registers, rax)},
    {"rbx", offsetof(Registers, rbx)},
    {"rcx", offsetof(Registers, rcx)},
    {"rdx", offsetof(Registers, rdx)},
    {"rsi", offsetof(Registers, rsi)},
    {"rdi", offsetof(Registers, rdi)},
    {"rbp", offsetof(Registers, rbp)},
    {"rsp", offsetof(Registers, rsp)},
    {"rip", offsetof(Registers, rip)},
    {"eflags", offsetof(Registers, eflags)},
    {"rflags", offsetof(Registers, eflags)},
    {"orig_rax", offsetof(Registers, orig_rax)},
};

// System V psABI 3.2.3: the integer argument registers in order.
constexpr std::size_t kArgumentRegisters[kRegisterArguments] = {offsetof(Registers, rdi), offsetof(Registers, rsi),
                                                                offsetof(Registers, rdx), offsetof(Registers, rcx),
                                                                offsetof(Registers, r8),  offsetof(Registers, r9)};

constexpr std::uint64_t kUserCode = 0x33;   // __USER_CS, asm/segment.h
constexpr std::uint64_t kInLocalTable = 4;  // a selector's table indicator: Intel SDM 3A 3.4.2

// As a guest of Xen without hardware virtualisation the kernel has others (FLAT_USER_CS64, xen/interface/xen-x86_64.h);
// we are 64-bit code, too.
std::uint64_t own_code_segment() {
  std::uint64_t selector = 0;
  __asm__("mov %%cs, %0" : "=r"(selector));
  return selector;
}

}  // namespace

bool executes_native_code(const Registers& r) {
  static const std::uint64_t own = own_code_segment();
  return r.cs == kUserCode || r.cs == own;
}

// The code segments that Linux itself has for programs all begin at 0.
bool pc_is_address(const Registers& r) { return (r.cs & kInLocalTable) == 0; }

std::optional<std::size_t> register_offset(std::string_view name) {
  const auto* row = std::ranges::find(kNames, name, &Name::name);
  if (row == std::end(kNames)) return std::nullopt;
  return row->offset;
}

std::vector<std::string_view> register_names() {
  std::vector<std::string_view> names;
  for (const Name& row : std::span(kNames).first(kKernelNames)) names.push_back(row.name);
  return names;
}

std::optional<std::size_t> dwarf_register(unsigned number) {
  constexpr std::size_t kByNumber[] = {offsetof(Registers, rax), offsetof(Registers, rdx), offsetof(Registers, rcx),
                                       offsetof(Registers, rbx), offsetof(Registers, rsi), offsetof(Registers, rdi),
                                       offsetof(Registers, rbp), offsetof(Registers, rsp), offsetof(Registers, r8),
                                       offsetof(Registers, r9),  offsetof(Registers, r10), offsetof(Registers, r11),
                                       offsetof(Registers, r12), offsetof(Registers, r13), offsetof(Registers, r14),
                                       offsetof(Registers, r15), offsetof(Registers, rip)};
  if (number >= std::size(kByNumber)) return std::nullopt;
  return kByNumber[number];
}

std::optional<unsigned> dwarf_vector_register(unsigned number) {
  constexpr unsigned kFirst = 17, kCount = 16;
  if (number < kFirst || number >= kFirst + kCount) return std::nullopt;
  return number - kFirst;
}

ArgumentPlace argument_place(unsigned number) {
  PROBED_CHECK(number >= 1, "arguments are counted from 1");
  if (number <= kRegisterArguments) return {.memory = false, .offset = kArgumentRegisters[number - 1]};
  // At entry the return address is at sp, the seventh argument in the word above it.
  return {.memory = true, .offset = std::size_t{kWordSize} * (number - kRegisterArguments)};
}

}  // namespace probed::arch::x86_64
