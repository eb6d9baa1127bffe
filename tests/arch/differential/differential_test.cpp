// The relocator's proof: every instruction, run where it stands and run as a copy elsewhere from the same state, must
// leave the same state, memory and control, and every stop inside the copy must be explained by its CopyPoints.
//
// PROBED_TEST_SEED repeats a run, PROBED_TEST_CASES sets its length.
#include <doctest/doctest.h>
#include <sched.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "arch/x86_64/decode.hpp"
#include "arch/x86_64/emulate.hpp"
#include "arch/x86_64/relocate.hpp"
#include "tests/arch/differential/generator.hpp"
#include "tests/arch/differential/sandbox.hpp"
#include "tests/arch/hex.hpp"

namespace probed::test {
namespace {

using arch::Copy;
using arch::CopyPoint;
using arch::Flow;
using arch::Insn;
using arch::Refusal;
using arch::x86_64::Registers;

constexpr std::uint64_t kDefaultCases = 24'000;

std::uint64_t from_environment(const char* name, std::uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 0);
}

// cpuid and rdpid answer by CPU.
void stay_on_this_cpu() {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(sched_getcpu()), &set);
  sched_setaffinity(0, sizeof set, &set);
}

struct Tally {
  std::uint64_t cases = 0, copies = 0, stepped = 0, emulated = 0, refused = 0, faults = 0;
  unsigned mismatches = 0;
};

// One copy of the case's instruction and where it was put.
struct Placed {
  const Copy& copy;
  std::uint64_t address;

  bool contains(std::uint64_t pc) const { return pc >= address && pc < address + copy.size; }
};

void note(std::ostream& out, std::string_view what, std::uint64_t expected, std::uint64_t got) {
  if (expected != got)
    out << "  " << what << ": expected " << std::hex << expected << ", got " << got << std::dec << "\n";
}

template <typename Bytes>
void note_bytes(std::ostream& out, std::string_view what, const Bytes& expected, const Bytes& got) {
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (expected[i] != got[i]) {
      out << "  " << what << " differs from byte " << i << "\n";
      return;
    }
}

void compare_registers(std::ostream& out, const Registers& expected, const Registers& got) {
  const std::pair<const char*, std::uint64_t Registers::*> rows[] = {
      {"rax", &Registers::rax}, {"rbx", &Registers::rbx},     {"rcx", &Registers::rcx}, {"rdx", &Registers::rdx},
      {"rsi", &Registers::rsi}, {"rdi", &Registers::rdi},     {"rbp", &Registers::rbp}, {"rsp", &Registers::rsp},
      {"r8", &Registers::r8},   {"r9", &Registers::r9},       {"r10", &Registers::r10}, {"r11", &Registers::r11},
      {"r12", &Registers::r12}, {"r13", &Registers::r13},     {"r14", &Registers::r14}, {"r15", &Registers::r15},
      {"rip", &Registers::rip}, {"flags", &Registers::eflags}};
  for (const auto& [name, member] : rows) note(out, name, expected.*member, got.*member);
}

void compare(std::ostream& out, const Outcome& expected, const Outcome& got) {
  note(out, "signal", static_cast<std::uint64_t>(expected.signal), static_cast<std::uint64_t>(got.signal));
  compare_registers(out, expected.machine.regs, got.machine.regs);
  for (std::size_t i = 0; i < 16; ++i)
    note_bytes(out, "a vector register", expected.machine.ymm[i], got.machine.ymm[i]);
  for (std::size_t i = 0; i < 8; ++i) note_bytes(out, "an x87 register", expected.machine.st[i], got.machine.st[i]);
  note(out, "x87 control", expected.machine.fpu_control, got.machine.fpu_control);
  note(out, "x87 status", expected.machine.fpu_status, got.machine.fpu_status);
  note(out, "x87 tags", expected.machine.fpu_tags, got.machine.fpu_tags);
  note(out, "mxcsr", expected.machine.mxcsr, got.machine.mxcsr);
  note_bytes(out, "data", expected.machine.data, got.machine.data);
  note_bytes(out, "stack", expected.machine.stack, got.machine.stack);
  if (expected.signal == SIGSEGV || expected.signal == SIGBUS)
    note(out, "fault address", expected.fault_address, got.fault_address);
}

class Differential {
 public:
  Differential(std::uint64_t base, std::uint64_t seed)
      : sandbox_(base),
        generator_(seed, {sandbox_.original(), sandbox_.landing(), sandbox_.data(), sandbox_.stack()}),
        seed_(seed) {}

  void run(std::uint64_t cases) {
    for (number_ = 0; number_ < cases && tally_.mismatches < 10; ++number_) check(generator_.next());
  }

  const Tally& tally() const { return tally_; }

 private:
  void check(const Case& one) {
    ++tally_.cases;
    const std::uint64_t original = sandbox_.original();
    const Insn insn = arch::x86_64::decode(one.bytes, original);
    if (insn.refusal != Refusal::none || insn.length != one.bytes.size())
      return mismatch(one, "decode", std::string("  refused: ") + std::string(arch::describe(insn.refusal)) + "\n");
    if (insn.flow == Flow::indirect_call && reads_below_sp(one, original)) return;
    sandbox_.write(original, one.bytes);
    const Outcome expected = run_at(one, original);
    if (expected.signal != SIGTRAP) ++tally_.faults;
    // As when a probe is armed: a copy that went back to the original would trap there.
    sandbox_.erase(original, one.bytes.size());
    check_emulation(one, insn, expected);
    check_copy(one, insn, sandbox_.near_copy() + 8 * (number_ % 7) + number_ % 3, expected);
    check_copy(one, insn, sandbox_.far_copy(), expected);
  }

  Outcome run_at(const Case& one, std::uint64_t pc) {
    Machine start = one.start;
    start.regs.rip = pc;
    return sandbox_.run(start);
  }

  void check_emulation(const Case& one, const Insn& insn, const Outcome& expected) {
    if (!insn.emulable) return;
    ++tally_.emulated;
    Registers regs = one.start.regs;
    regs.rip = sandbox_.original();
    std::ostringstream out;
    if (!arch::x86_64::emulate(one.bytes, insn, regs)) out << "  refused\n";
    compare_registers(out, expected.machine.regs, regs);
    if (!out.str().empty()) mismatch(one, "emulated", out.str());
  }

  void check_copy(const Case& one, const Insn& insn, std::uint64_t address, const Outcome& expected) {
    const arch::RelocateResult result = arch::x86_64::relocate(one.bytes, insn, sandbox_.original(), address);
    if (result.refusal != Refusal::none) return check_refusal(one, insn, address, result.refusal);
    ++tally_.copies;
    const Placed placed{result.copy, address};
    sandbox_.write(address, std::span(result.copy.code).first(result.copy.size));
    conclude(one, "copied", placed, expected, run_at(one, address));
    if (!insn.sees_trap_flag) check_steps(one, placed, expected);
    sandbox_.erase(address, result.copy.size);
  }

  // Only what relocate.hpp says may be refused.
  void check_refusal(const Case& one, const Insn& insn, std::uint64_t address, Refusal refusal) {
    ++tally_.refused;
    const bool too_far = refusal == Refusal::out_of_range && insn.pc_relative && address == sandbox_.far_copy();
    const bool through_rsp = refusal == Refusal::unsupported && insn.flow == Flow::indirect_call &&
                             disassemble(one.bytes, 0).find("sp") != std::string::npos;
    if (!too_far && !through_rsp) mismatch(one, "relocate", std::string(arch::describe(refusal)) + "\n");
  }

  // Steps to the first `after` point or out of the copy: what a stopped thread there is taken for must be true.
  void check_steps(const Case& one, const Placed& placed, const Outcome& expected) {
    ++tally_.stepped;
    Machine start = one.start;
    start.regs.rip = placed.address;
    Outcome got = sandbox_.run_stepped(start, [&placed](std::uint64_t pc) {
      if (!placed.contains(pc)) return true;
      const CopyPoint* point = placed.copy.at(pc - placed.address);
      return point == nullptr || point->meaning == CopyPoint::Meaning::after;
    });
    // A step that arrives at a bad address ends before the fetch there faults.
    if (got.stepped && !placed.contains(got.machine.regs.rip)) {
      got.signal = expected.signal;
      got.fault_address = expected.fault_address;
    }
    conclude(one, "stepped", placed, expected, got);
  }

  // Puts an outcome in terms of the original, as the tracer would, and compares.
  void conclude(const Case& one, const std::string& how, const Placed& placed, Outcome expected, Outcome got) {
    std::ostringstream out;
    if (placed.contains(got.machine.regs.rip)) {
      const CopyPoint* point = placed.copy.at(got.machine.regs.rip - placed.address);
      if (point == nullptr) return mismatch(one, how, "  stopped where no CopyPoint is\n");
      if (point->meaning == CopyPoint::Meaning::middle) forget_pushed_word(got, expected);
      got.machine.regs.rsp += static_cast<std::uint64_t>(std::int64_t{point->undo_sp});
      got.machine.regs.rip = point->original_pc;
      if (point->fix_link) got.machine.regs.set_link(point->link);
    }
    compare(out, expected, got);
    if (!out.str().empty()) mismatch(one, how, out.str());
  }

  // A call whose target cannot be read has pushed already; see relocate.hpp.
  void forget_pushed_word(const Outcome& got, Outcome& expected) {
    const std::uint64_t offset = got.machine.regs.rsp - sandbox_.stack();
    if (offset > kPage - 8) return;
    std::memcpy(expected.machine.stack.data() + offset, got.machine.stack.data() + offset, 8);
  }

  void mismatch(const Case& one, const std::string& how, const std::string& details) {
    ++tally_.mismatches;
    FAIL_CHECK("seed " << seed_ << ", case " << number_ << ", " << how << ": "
                       << disassemble(one.bytes, sandbox_.original()) << "  [" << to_hex(one.bytes) << "]\n"
                       << details);
  }

  Sandbox sandbox_;
  Generator generator_;
  std::uint64_t seed_;
  std::uint64_t number_ = 0;
  Tally tally_;
};

void run_differential(std::uint64_t base) {
  stay_on_this_cpu();
  const std::uint64_t seed = from_environment("PROBED_TEST_SEED", std::random_device{}());
  Differential differential(base, seed);
  const std::uint64_t cases = from_environment("PROBED_TEST_CASES", kDefaultCases) / 2;
  differential.run(cases);
  const Tally& t = differential.tally();
  MESSAGE("seed " << seed << ": " << t.cases << " cases (" << template_count() << " templates), " << t.copies
                  << " copies run, " << t.stepped << " stepped, " << t.emulated << " emulated, " << t.refused
                  << " refused, " << t.faults << " faulted");
  // A harness that had gone blind would see faults only, or nothing.
  CHECK(t.faults * 3 < t.cases);
  CHECK(t.copies > t.cases);
  CHECK(t.stepped > t.cases);
}

}  // namespace

TEST_CASE("a relocated copy does what the original does, below 4 GiB") {
  run_differential(0x3000'0000);
}

TEST_CASE("a relocated copy does what the original does, at a high address") {
  run_differential(0x1234'5678'0000);
}

TEST_CASE("every template of the generator has an encoding that decode accepts") {
  Generator generator(1, {0x400800, 0x420000, 0x430000, 0x440000});
  for (std::size_t number = 0; number < template_count(); ++number) {
    std::vector<std::uint8_t> bytes;
    for (int attempt = 0; attempt < 400 && bytes.empty(); ++attempt) bytes = encode_template(number, generator);
    CHECK_MESSAGE(!bytes.empty(), template_name(number));
    const Insn insn = arch::x86_64::decode(bytes, 0x400800);
    CHECK_MESSAGE(insn.refusal == Refusal::none, template_name(number));
    CHECK_MESSAGE(insn.length == bytes.size(), template_name(number));
  }
}

}  // namespace probed::test
