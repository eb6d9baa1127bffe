// Differential execution: an instruction where it stands, its relocated copy and its emulation do the same. Runs on an
// arm64 kernel only. PROBED_SEED=N repeats a run; PROBED_CASES=N changes how many cases each test makes (2,500).
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "arch/aarch64/decode.hpp"
#include "arch/aarch64/emulate.hpp"
#include "arch/aarch64/forms.hpp"
#include "arch/aarch64/relocate.hpp"
#include "arch/aarch64/trap.hpp"
#include "arch/aarch64/word.hpp"
#include "tests/arch/aarch64/native_cases.hpp"

namespace probed::arch::aarch64 {
namespace {

using namespace test;

// ---- one case ----

// A copy's outcome as the program sees it: the tracer moves a pc inside the copy.
std::optional<CpuOutcome> seen(CpuOutcome outcome, const Copy& copy, std::uint64_t address) {
  const std::uint64_t offset = outcome.state.regs.program_counter - address;
  if (offset >= copy.size) return outcome;
  const CopyPoint* const point = copy.at(offset);
  if (point == nullptr || point->meaning == CopyPoint::Meaning::middle) return std::nullopt;
  outcome.state.regs.program_counter = point->original_pc;
  return outcome;
}

class Case {
 public:
  Case(std::uint32_t word, std::uint64_t copy_address) : word_(word), address_(copy_address) {
    state_ = random_state();
    insn_ = decode(word_bytes(word), kOriginal);
  }

  CpuState& state() { return state_; }

  // Empty: they agree. Nullopt: there is no copy of this one, or it never ends where it stands.
  std::optional<std::string> compare() {
    const NativeCpu::Patch patch(kOriginal, word_bytes(word_));
    native_ = run(state_, data_);
    if (native_.outcome.signal == SIGALRM) return std::nullopt;
    std::string wrong = compare_emulation();
    const RelocateResult moved = relocate(word_bytes(word_), insn_, kOriginal, address_);
    if (moved.refusal != Refusal::none) return wrong.empty() && !insn_.emulable ? std::nullopt : std::optional(wrong);
    wrong += compare_copy(moved.copy);
    for (const CopyPoint& point : moved.copy.all_points()) wrong += compare_point(moved.copy, point);
    return wrong;
  }

 private:
  std::string compare_emulation() {
    if (!insn_.emulable) return "";
    CpuTrial emulated = native_;
    emulated.outcome.state.regs = state_.regs;
    emulate(word_bytes(word_), insn_, emulated.outcome.state.regs);
    const std::string wrong = differences(native_, emulated);
    return wrong.empty() ? "" : "emulated: " + wrong;
  }

  CpuState at_copy() const {
    CpuState state = state_;
    state.regs.program_counter = address_;
    return state;
  }

  std::string compare_copy(const Copy& copy) const {
    const NativeCpu::Patch patch(address_, std::span(copy.code).first(copy.size));
    CpuTrial moved = run(at_copy(), data_);
    const auto outcome = seen(moved.outcome, copy, address_);
    if (!outcome) return "copy: it ends in its middle";
    moved.outcome = *outcome;
    // A moved blr is a br: it arrives as one, which every landing pad for calls accepts.
    if (insn_.flow == Flow::indirect_call && native_.outcome.state.regs.pstate & kBranchType) {
      CHECK((moved.outcome.state.regs.pstate & kBranchType) == kBranchTypeJump);
      moved.outcome.state.regs.pstate ^= kBranchType;
    }
    const std::string wrong = differences(native_, moved);
    return wrong.empty() ? "" : "copy: " + wrong;
  }

  // Stopped there, the state is what the point says.
  std::string compare_point(const Copy& copy, const CopyPoint& point) const {
    Copy stopped = copy;
    std::ranges::copy(kBreakpoint, stopped.code.begin() + point.offset);
    const NativeCpu::Patch patch(address_, std::span(stopped.code).first(stopped.size));
    CpuTrial at = run(at_copy(), data_);
    if (at.outcome.signal != SIGTRAP || at.outcome.state.regs.program_counter != address_ + point.offset) return "";
    const std::string where = "point " + std::to_string(point.offset) + ": ";
    CpuTrial expected = native_;
    switch (point.meaning) {
      case CopyPoint::Meaning::before:
        expected = {{state_, SIGTRAP, 0}, data_};
        expected.outcome.state.regs.pstate &= kSeenState;
        break;
      case CopyPoint::Meaning::middle:
        return at.outcome.state.regs.stack_pointer + static_cast<std::uint64_t>(std::int64_t{point.undo_sp}) ==
                       state_.regs.stack_pointer
                   ? ""
                   : where + "undo_sp doesn't undo; ";
      case CopyPoint::Meaning::after: break;
    }
    at.outcome.state.regs.program_counter = point.original_pc;
    // Where the program goes may be mapped nowhere; that is the next instruction's fault.
    at.outcome.signal = expected.outcome.signal;
    at.outcome.address = expected.outcome.address;
    const std::string wrong = differences(expected, at);
    return wrong.empty() ? "" : where + wrong;
  }

  std::uint32_t word_;
  std::uint64_t address_;
  CpuState state_;
  const std::vector<std::uint8_t>& data_ = random_data();
  Insn insn_;
  CpuTrial native_;
};

// Near enough for a literal, and not.
std::uint64_t random_copy_address() { return (below(2) == 0 ? kFarText : kOriginal + 0x8000) + below(64) * 4; }

template <class Next>
void compare_many(const Next& next) {
  const NativeCpu cpu;
  unsigned compared = 0, skipped = 0;
  while (compared < case_count()) {
    const std::uint32_t word = next();
    if (!may_run(word)) continue;
    Case one(word, random_copy_address());
    const auto wrong = one.compare();
    if (!wrong) {
      REQUIRE_MESSAGE(++skipped < 10 * case_count(), "there are instructions to compare");
      continue;
    }
    ++compared;
    CAPTURE(word);
    REQUIRE_MESSAGE(wrong->empty(), *wrong);
  }
  std::printf("%u instructions compared, %u without a copy\n", compared, skipped);
}

}  // namespace

TEST_CASE("every form of aarch64 instruction does the same where it is moved to, and emulated") {
  compare_many(word_of_any_form);
}

TEST_CASE("the instructions of real aarch64 code do the same where they are moved to") {
  compare_many(word_of_real_code);
}

TEST_CASE("random aarch64 words do the same where they are moved to, or fault the same") { compare_many(random_word); }

TEST_CASE("an aarch64 system call does the same where it is moved to") {
  const NativeCpu cpu;
  for (const std::uint32_t word : {0xd4000001u, 0xd41fffe1u}) {  // svc #0; svc #65535
    Case one(word, kFarText);
    one.state().regs.x[8] = SYS_getppid;
    one.state().regs.pstate &= ~kBranchType;
    const auto wrong = one.compare();
    REQUIRE(wrong.has_value());
    CHECK_MESSAGE(wrong->empty(), *wrong);
  }
}

// Where indirect branches must arrive at landing pads, what follows a moved or emulated one still runs.
TEST_CASE("an aarch64 landing pad still is one when it is moved or emulated") {
  constexpr std::uint64_t kCall = 2u << 10;
  constexpr std::uint32_t kNopInsn = 0xd503201f;
  const NativeCpu cpu;
  REQUIRE(NativeCpu::guard_text());
  const std::vector<std::uint8_t> data(kDataSize);
  for (const std::uint32_t pad : {0xd503245fu, 0xd503233fu}) {  // bti c; paciasp
    CAPTURE(pad);
    const NativeCpu::Patch patch(kOriginal, word_bytes(pad)), behind(kOriginal + 4, word_bytes(kNopInsn));
    CpuState state = random_state();
    state.regs.pstate = kCall;
    const CpuTrial native = run(state, data);
    CHECK(native.outcome.signal == SIGTRAP);
    CHECK(native.outcome.state.regs.pc() == kOriginal + 8);
    const Insn insn = decode(word_bytes(pad), kOriginal);
    if (insn.emulable) {
      CpuState emulated = state;
      emulate(word_bytes(pad), insn, emulated.regs);
      CHECK(differences(native, run(emulated, data)) == "");
    }
    const RelocateResult moved = relocate(word_bytes(pad), insn, kOriginal, kFarText);
    REQUIRE(moved.refusal == Refusal::none);
    const NativeCpu::Patch copy(kFarText, std::span(moved.copy.code).first(moved.copy.size));
    CpuState in_copy = state;
    in_copy.regs.program_counter = kFarText;
    CHECK(differences(native, run(in_copy, data)) == "");
    // And the trap that takes its place is no fault.
    const NativeCpu::Patch trap(kOriginal, kBreakpoint);
    CHECK(run(state, data).outcome.signal == SIGTRAP);
  }
  // The test sees what it looks for: a nop isn't one.
  const NativeCpu::Patch no_pad(kOriginal, word_bytes(kNopInsn));
  CpuState state = random_state();
  state.regs.pstate = kCall;
  CHECK(run(state, data).outcome.signal == SIGILL);
}

}  // namespace probed::arch::aarch64
