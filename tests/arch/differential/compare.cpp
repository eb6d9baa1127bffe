// Tables of what is compared and of what can't be.
#include "tests/arch/differential/compare.hpp"

#include <algorithm>
#include <csignal>
#include <sstream>
#include <string_view>
#include <utility>

#include "arch/x86_64/zydis.hpp"

namespace probed::test {
namespace {

using arch::x86_64::Registers;

constexpr std::pair<const char*, std::uint64_t Registers::*> kRegisters[] = {
    {"rax", &Registers::rax},         {"rbx", &Registers::rbx},         {"rcx", &Registers::rcx},
    {"rdx", &Registers::rdx},         {"rsi", &Registers::rsi},         {"rdi", &Registers::rdi},
    {"rbp", &Registers::rbp},         {"rsp", &Registers::rsp},         {"r8", &Registers::r8},
    {"r9", &Registers::r9},           {"r10", &Registers::r10},         {"r11", &Registers::r11},
    {"r12", &Registers::r12},         {"r13", &Registers::r13},         {"r14", &Registers::r14},
    {"r15", &Registers::r15},         {"rip", &Registers::rip},         {"flags", &Registers::eflags},
    {"fs base", &Registers::fs_base}, {"gs base", &Registers::gs_base}, {"ds", &Registers::ds},
    {"es", &Registers::es},           {"fs", &Registers::fs},           {"gs", &Registers::gs}};

void note(std::ostream& out, std::string_view what, std::uint64_t expected, std::uint64_t got) {
  if (expected != got)
    out << "  " << what << ": expected " << std::hex << expected << ", got " << got << std::dec << "\n";
}

template <typename Bytes>
void note_bytes(std::ostream& out, std::string_view what, const Bytes& expected, const Bytes& got) {
  const auto [a, b] = std::ranges::mismatch(expected, got);
  if (a == expected.end()) return;
  out << "  " << what << " differs from byte " << a - expected.begin() << ": expected " << std::hex << unsigned{*a}
      << ", got " << unsigned{*b} << std::dec << "\n";
}

template <typename Rows>
void note_rows(std::ostream& out, std::string_view what, const Rows& expected, const Rows& got) {
  for (std::size_t i = 0; i < expected.size(); ++i)
    note_bytes(out, std::string(what) + std::to_string(i), expected[i], got[i]);
}

void note_fpu(std::ostream& out, const Machine& expected, const Machine& got) {
  note_rows(out, "x87 register ", expected.st, got.st);
  note(out, "x87 control", expected.fpu_control, got.fpu_control);
  note(out, "x87 status", expected.fpu_status, got.fpu_status);
  note(out, "x87 tags", expected.fpu_tags, got.fpu_tags);
  note(out, "mxcsr", expected.mxcsr, got.mxcsr);
}

// What a signal handler could tell apart. For traps of the harness only that they are traps.
void note_signal(std::ostream& out, const Outcome& expected, const Outcome& got) {
  note(out, "signal", static_cast<std::uint64_t>(expected.signal), static_cast<std::uint64_t>(got.signal));
  if (expected.signal == SIGTRAP || expected.signal != got.signal) return;
  note(out, "si_code", static_cast<std::uint64_t>(expected.code), static_cast<std::uint64_t>(got.code));
  note(out, "si_addr", expected.fault_address, got.fault_address);
  note(out, "trap number", expected.trap, got.trap);
  note(out, "error code", expected.error, got.error);
}

struct Volatile {
  ZydisMnemonic mnemonic;
  bool operand;   // the register operand
  bool counters;  // rax and rdx
};
constexpr Volatile kVolatile[] = {
    {ZYDIS_MNEMONIC_RDTSC, false, true}, {ZYDIS_MNEMONIC_RDTSCP, false, true}, {ZYDIS_MNEMONIC_RDPMC, false, true},
    {ZYDIS_MNEMONIC_RDPRU, false, true}, {ZYDIS_MNEMONIC_RDRAND, true, false}, {ZYDIS_MNEMONIC_RDSEED, true, false},
};

void forget_operand(const ZydisDecodedOperand& operand, const Registers& from, Registers& to) {
  constexpr std::uint64_t Registers::*kGeneral[16] = {
      &Registers::rax, &Registers::rcx, &Registers::rdx, &Registers::rbx, &Registers::rsp, &Registers::rbp,
      &Registers::rsi, &Registers::rdi, &Registers::r8,  &Registers::r9,  &Registers::r10, &Registers::r11,
      &Registers::r12, &Registers::r13, &Registers::r14, &Registers::r15};
  if (operand.type != ZYDIS_OPERAND_TYPE_REGISTER) return;
  const auto wide = ZydisRegisterGetLargestEnclosing(ZYDIS_MACHINE_MODE_LONG_64, operand.reg.value);
  if (wide < ZYDIS_REGISTER_RAX || wide > ZYDIS_REGISTER_R15) return;
  const auto member = kGeneral[wide - ZYDIS_REGISTER_RAX];
  to.*member = from.*member;
}

}  // namespace

std::string register_differences(const Registers& expected, const Registers& got) {
  std::ostringstream out;
  for (const auto& [name, member] : kRegisters) note(out, name, expected.*member, got.*member);
  return out.str();
}

std::string differences(const Outcome& expected, const Outcome& got) {
  const bool same_trap =
      expected.signal == SIGTRAP || (expected.code == got.code && expected.fault_address == got.fault_address &&
                                     expected.trap == got.trap && expected.error == got.error);
  if (expected.signal == got.signal && same_trap && expected.machine == got.machine) return {};
  std::ostringstream out;
  note_signal(out, expected, got);
  out << register_differences(expected.machine.regs, got.machine.regs);
  note_rows(out, "ymm", expected.machine.ymm, got.machine.ymm);
  note_fpu(out, expected.machine, got.machine);
  note_bytes(out, "opmask registers", expected.machine.wide.opmask, got.machine.wide.opmask);
  note_bytes(out, "upper halves of zmm registers", expected.machine.wide.zmm_high, got.machine.wide.zmm_high);
  note_bytes(out, "zmm16 to zmm31", expected.machine.wide.more_zmm, got.machine.wide.more_zmm);
  note_bytes(out, "data", expected.machine.data, got.machine.data);
  note_bytes(out, "stack", expected.machine.stack, got.machine.stack);
  return out.str();
}

void forget_volatile(const std::vector<std::uint8_t>& bytes, const Outcome& expected, Outcome& got) {
  arch::x86_64::Decoded decoded;
  if (!arch::x86_64::decode_with_zydis(bytes, decoded)) return;
  const auto row = std::ranges::find(kVolatile, decoded.insn.mnemonic, &Volatile::mnemonic);
  if (row == std::end(kVolatile)) return;
  const Registers& from = expected.machine.regs;
  Registers& to = got.machine.regs;
  if (row->operand) forget_operand(decoded.operands[0], from, to);
  if (!row->counters) return;
  to.rax = from.rax;
  to.rdx = from.rdx;
}

}  // namespace probed::test
