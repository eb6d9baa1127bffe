// See differential.hpp.
#include "tests/arch/differential/differential.hpp"

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>

#include "arch/x86_64/decode.hpp"
#include "arch/x86_64/emulate.hpp"
#include "arch/x86_64/relocate.hpp"
#include "tests/arch/differential/aim.hpp"
#include "tests/arch/differential/compare.hpp"
#include "tests/arch/differential/encode.hpp"
#include "tests/arch/hex.hpp"

namespace probed::test {

using arch::CopyPoint;
using arch::Flow;
using arch::Refusal;
using arch::x86_64::Registers;
using Meaning = CopyPoint::Meaning;

namespace {

// A single step is dear in a virtual machine: it reads and writes debug registers.
constexpr std::uint64_t kMostSteps = 24;
// What a hypervisor gets wrong depends on the moment at which it interrupts the case; what a copy does wrong doesn't.
constexpr unsigned kMostRepetitions = 5;

}  // namespace

Differential::Differential(std::uint64_t base, std::uint64_t far_base, std::uint64_t seed)
    : sandbox_(base, far_base),
      generator_(seed, Places(sandbox_)),
      seed_(seed),
      trace_(std::getenv("PROBED_TEST_TRACE") != nullptr) {
  tally_.families.resize(family_names().size());
}

void Differential::run(std::uint64_t cases) {
  for (number_ = 0; number_ < cases && tally_.mismatches.size() < kMostMismatches; ++number_) check(generator_.next());
}

std::size_t Differential::sweep(std::vector<std::string>& undrawn) {
  std::size_t count = 0;
  for (std::size_t family = 0; family < families().size(); ++family)
    for (const auto& mnemonic : families()[family].mnemonics)
      for (const Form* form : mnemonic) {
        if (tally_.mismatches.size() >= kMostMismatches) return count;
        ++count;
        ++number_;
        if (const Case* one = generator_.of_form(*form, family))
          check(*one);
        else
          undrawn.push_back(ZydisMnemonicGetString(form->mnemonic));
      }
  return count;
}

void Differential::check(const Case& one) {
  case_ = &one;
  if (trace_) std::cerr << number_ << ": " << to_hex(one.bytes) << "  " << text() << std::endl;
  ++tally_.cases;
  insn_ = arch::x86_64::decode(one.bytes, sandbox_.original());
  if (insn_.refusal != Refusal::none || insn_.length != one.bytes.size())
    return mismatch("decode", std::string("  refused: ") + std::string(arch::describe(insn_.refusal)) + "\n");
  if (insn_.flow == Flow::indirect_call && reads_below_sp(one.bytes, one.start, sandbox_.original())) {
    ++tally_.below_sp;
    return;
  }
  run_original(one.start, expected_);
  count_outcome();
  const std::size_t before = tally_.mismatches.size();
  compare_with_original();
  if (tally_.mismatches.size() == before) return;
  const std::string first = tally_.mismatches[before];
  for (unsigned i = 0; tally_.mismatches.size() > before && i < kMostRepetitions; ++i) {
    tally_.mismatches.resize(before);
    run_original(one.start, expected_);
    compare_with_original();
  }
  if (tally_.mismatches.size() > before) return;
  ++tally_.unsteady;
  tally_.last_unsteady = first;
}

void Differential::compare_with_original() {
  check_emulation();
  check_copy(sandbox_.near_copy() + 8 * (number_ % 7) + number_ % 3);
  check_copy(sandbox_.far_copy());
}

std::string Differential::text() const { return disassemble(case_->bytes, sandbox_.original()); }

// The instruction in its place, from a state whose pc doesn't matter.
void Differential::run_original(const Machine& start, Outcome& outcome) {
  sandbox_.write(sandbox_.original(), case_->bytes);
  run_at(sandbox_.original(), start, outcome);
  // As when a probe is armed: a copy that went back to the original would trap there.
  sandbox_.erase(sandbox_.original(), case_->bytes.size());
}

void Differential::run_at(std::uint64_t pc, const Machine& start, Outcome& outcome) {
  start_ = start;
  start_.regs.rip = pc;
  sandbox_.run(start_, outcome);
}

void Differential::count_outcome() {
  FamilyTally& family = tally_.families[case_->family];
  ++family.cases;
  family.seen.insert(case_->mnemonic);
  if (expected_.signal != SIGTRAP) ++family.faults;
  if (expected_.signal == SIGILL)
    ++family.undefined;
  else
    family.executed.insert(case_->mnemonic);
}

void Differential::check_emulation() {
  if (!insn_.emulable) return;
  ++tally_.emulated;
  Registers regs = case_->start.regs;
  regs.rip = sandbox_.original();
  if (!arch::x86_64::emulate(case_->bytes, insn_, regs)) return mismatch("emulated", "  refused\n");
  const std::string different = register_differences(expected_.machine.regs, regs);
  if (!different.empty()) mismatch("emulated", different);
}

void Differential::check_copy(std::uint64_t address) {
  const arch::RelocateResult result = arch::x86_64::relocate(case_->bytes, insn_, sandbox_.original(), address);
  if (result.refusal != Refusal::none) return check_refusal(address, result.refusal);
  ++tally_.copies;
  const Placed placed{result.copy, address, sandbox_.original()};
  sandbox_.write(address, std::span(result.copy.code).first(result.copy.size));
  run_at(address, case_->start, got_);
  conclude("copied", placed);
  check_steps(placed);
  check_points(placed);
  check_interrupted_repetition(placed);
  sandbox_.erase(address, result.copy.size);
}

// The only refusal that depends on the place.
void Differential::check_refusal(std::uint64_t address, Refusal refusal) {
  ++tally_.too_far;
  if (refusal != Refusal::out_of_range || !insn_.pc_relative || address != sandbox_.far_copy())
    mismatch("relocate", "  " + std::string(arch::describe(refusal)) + "\n");
}

// Steps to the first `after` point or out of the copy, as the engine does.
void Differential::check_steps(const Placed& placed) {
  const bool many = insn_.repeats && (case_->start.regs.rcx > kMostSteps);
  if (insn_.sees_trap_flag || many) return;
  ++tally_.stepped;
  start_ = case_->start;
  start_.regs.rip = placed.address;
  sandbox_.run_stepped(
      start_,
      [&placed](std::uint64_t pc) {
        if (!placed.contains(pc)) return true;
        const CopyPoint* point = placed.point_at(pc);
        return point == nullptr || point->meaning == Meaning::after;
      },
      got_);
  if (got_.stepped) arrived_as_expected(placed);
  conclude("stepped", placed);
}

// The harness stopped the copy, where the original ran on into its own trap or into a fetch that faults.
void Differential::arrived_as_expected(const Placed& placed) {
  const CopyPoint* point = placed.point_at(got_.machine.regs.rip);
  const std::uint64_t pc = point != nullptr ? point->original_pc : got_.machine.regs.rip;
  if (pc != expected_.machine.regs.rip) return;
  got_.signal = expected_.signal;
  got_.code = expected_.code;
  got_.fault_address = expected_.fault_address;
  got_.trap = expected_.trap;
  got_.error = expected_.error;
}

// Stops at every boundary inside the copy, by a breakpoint: what a thread there is taken for must be true.
void Differential::check_points(const Placed& placed) {
  for (const CopyPoint& point : placed.copy.all_points().subspan(1)) {
    const std::uint64_t at = placed.address + point.offset;
    constexpr std::uint8_t kBreakpoint[] = {0xcc};
    sandbox_.write(at, kBreakpoint);
    run_at(placed.address, case_->start, got_);
    sandbox_.write(at, std::span(placed.copy.code).subspan(point.offset, 1));
    if (got_.machine.regs.rip != at) continue;  // another branch, or a fault in front of it
    ++tally_.points;
    if (point.meaning == Meaning::after) {
      arrived_as_expected(placed);
      conclude("stopped behind it", placed);
    } else {
      conclude_undone("stopped in the middle", placed);
    }
  }
}

// A signal in the middle of a repetition: the original, resumed where the copy was left, must end the same way.
void Differential::check_interrupted_repetition(const Placed& placed) {
  if (!insn_.repeats || case_->start.regs.rcx < 2 || number_ % 4 != 0) return;
  start_ = case_->start;
  start_.regs.rip = placed.address;
  unsigned steps = 1 + static_cast<unsigned>(number_ / 4 % 3);
  sandbox_.run_stepped(
      start_, [&steps](std::uint64_t) { return --steps == 0; }, got_);
  if (got_.stepped && got_.machine.regs.rip == placed.address) conclude_undone("interrupted", placed);
}

// Undoes what is half done, then runs the original from there.
void Differential::conclude_undone(const std::string& how, const Placed& placed) {
  ++tally_.undone;
  const bool pushed = placed.point_at(got_.machine.regs.rip)->meaning == Meaning::middle;
  if (!translate(placed, got_)) return mismatch(how, "  no CopyPoint is there\n");
  again_ = got_.machine;
  run_original(again_, got_);
  conclude_translated(how, pushed);
}

void Differential::conclude(const std::string& how, const Placed& placed) {
  const CopyPoint* point = placed.point_at(got_.machine.regs.rip);
  const bool pushed = point != nullptr && point->meaning == Meaning::middle;
  if (!translate(placed, got_)) return mismatch(how, "  stopped where no CopyPoint is\n");
  conclude_translated(how, pushed);
}

void Differential::conclude_translated(const std::string& how, bool pushed) {
  forget_volatile(case_->bytes, expected_, got_);
  if (pushed && expected_.signal != SIGTRAP) forget_pushed_word();
  const std::string different = differences(expected_, got_);
  if (!different.empty()) mismatch(how, different);
}

// A call to an address that isn't canonical has pushed already; see relocate.hpp.
void Differential::forget_pushed_word() {
  const std::uint64_t offset = case_->start.regs.rsp - 8 - sandbox_.stack();
  if (offset > kPage - 8) return;
  std::memcpy(got_.machine.stack.data() + offset, expected_.machine.stack.data() + offset, 8);
}

void Differential::mismatch(const std::string& how, const std::string& details) {
  std::ostringstream out;
  out << "seed " << seed_ << ", case " << number_ << ", " << how << ": " << text() << "  [" << to_hex(case_->bytes)
      << "]\n"
      << details;
  tally_.mismatches.push_back(out.str());
}

}  // namespace probed::test
