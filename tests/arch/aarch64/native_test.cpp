// Differential execution: an instruction where it stands, its relocated copy and its emulation do the same. Runs on an
// arm64 kernel only. PROBED_SEED=N repeats a run; PROBED_CASES=N changes how many cases each test makes (2,500).
#include <doctest/doctest.h>
#include <link.h>
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
#include "tests/arch/aarch64/native_cpu.hpp"

namespace probed::arch::aarch64 {
namespace {

using test::CpuOutcome;
using test::CpuState;
using test::kDataBegin;
using test::kDataSize;
using test::kFarText;
using test::kTextMiddle;
using test::NativeCpu;

constexpr std::uint64_t kOriginal = kTextMiddle;
constexpr std::uint64_t kSeenState = 0xf0000c00;  // of pstate: NZCV, BTYPE
constexpr std::uint64_t kBranchType = 0xc00, kBranchTypeJump = 0x400;

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::strtoull(text, nullptr, 0) : otherwise;
}

std::mt19937_64& random_numbers() {
  static std::mt19937_64 engine = [] {
    const std::uint64_t seed = number_from("PROBED_SEED", std::random_device{}());
    std::printf("PROBED_SEED=%llu\n", static_cast<unsigned long long>(seed));
    return std::mt19937_64(seed);
  }();
  return engine;
}
std::uint64_t below(std::uint64_t limit) { return random_numbers()() % limit; }
std::uint32_t random_word() { return static_cast<std::uint32_t>(random_numbers()()); }
unsigned case_count() { return static_cast<unsigned>(number_from("PROBED_CASES", 2'500)); }

// ---- what runs ----

// Addresses of data, small numbers, and anything.
std::uint64_t random_value() {
  switch (below(4)) {
    case 0: return below(256);
    case 1: return random_numbers()();
    default: return kDataBegin + kDataSize / 4 + below(kDataSize / 2) / 16 * 16;
  }
}

CpuState random_state() {
  CpuState state;
  for (std::uint64_t& value : state.regs.x) value = random_value();
  state.regs.stack_pointer = kDataBegin + kDataSize / 2 + below(64) * 16;
  state.regs.program_counter = kOriginal;
  state.regs.pstate = below(16) << 28 | below(4) << 10;
  for (auto& vector : state.vectors) vector = {random_numbers()(), random_numbers()()};
  return state;
}

const std::vector<std::uint8_t>& random_data() {
  static const std::vector<std::uint8_t> data = [] {
    std::vector<std::uint8_t> bytes(kDataSize);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random_word());
    return bytes;
  }();
  return data;
}

struct Trial {
  CpuOutcome outcome;
  std::vector<std::uint8_t> data;
};

// From the same data each time.
Trial run(const CpuState& in, const std::vector<std::uint8_t>& data) {
  std::ranges::copy(data, NativeCpu::data().begin());
  Trial trial;
  trial.outcome = NativeCpu::run(in);
  trial.outcome.state.regs.pstate &= kSeenState;
  trial.data.assign(NativeCpu::data().begin(), NativeCpu::data().end());
  return trial;
}

std::string differences(const Trial& a, const Trial& b) {
  std::string out;
  const auto differ = [&out](const std::string& what, std::uint64_t x, std::uint64_t y) {
    char line[100];
    std::snprintf(line, sizeof line, "%s %llx, not %llx; ", what.c_str(), static_cast<unsigned long long>(y),
                  static_cast<unsigned long long>(x));
    if (x != y) out += line;
  };
  const CpuState &s = a.outcome.state, &t = b.outcome.state;
  for (unsigned i = 0; i < s.regs.x.size(); ++i) differ("x" + std::to_string(i), s.regs.x[i], t.regs.x[i]);
  differ("sp", s.regs.stack_pointer, t.regs.stack_pointer);
  differ("pc", s.regs.program_counter, t.regs.program_counter);
  differ("pstate", s.regs.pstate, t.regs.pstate);
  for (unsigned i = 0; i < s.vectors.size(); ++i)
    for (const unsigned half : {0, 1}) differ("v" + std::to_string(i), s.vectors[i][half], t.vectors[i][half]);
  differ("fpsr", s.fpsr, t.fpsr);
  differ("fpcr", s.fpcr, t.fpcr);
  differ("signal", a.outcome.signal, b.outcome.signal);
  differ("fault address", a.outcome.address, b.outcome.address);
  // Nobody may keep anything below sp, where copies of literal loads keep x0.
  const std::uint64_t below_sp = s.regs.stack_pointer - kDataBegin - 16;
  if (a.data == b.data) return out;
  for (std::size_t i = 0; i < a.data.size(); ++i)
    if (a.data[i] != b.data[i] && i - below_sp >= 16) differ("byte " + std::to_string(i), a.data[i], b.data[i]);
  return out;
}

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

  // Empty: they agree. Nullopt: there is no copy of this one.
  std::optional<std::string> compare() {
    const NativeCpu::Patch patch(kOriginal, word_bytes(word_));
    native_ = run(state_, data_);
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
    Trial emulated = native_;
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
    Trial moved = run(at_copy(), data_);
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
    Trial at = run(at_copy(), data_);
    if (at.outcome.signal != SIGTRAP || at.outcome.state.regs.program_counter != address_ + point.offset) return "";
    const std::string where = "point " + std::to_string(point.offset) + ": ";
    Trial expected = native_;
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
  Trial native_;
};

// Near enough for a literal, and not.
std::uint64_t random_copy_address() { return (below(2) == 0 ? kFarText : kOriginal + 0x8000) + below(64) * 4; }

// ---- which instructions ----

// What would not do the same twice (clocks, random numbers and tags, waiting), changes what this program itself needs
// (the thread pointer, the vector length) or has state that a signal frame doesn't show (SVE, SME).
bool is_repeatable(std::uint32_t word) {
  constexpr std::uint32_t kThreadPointer = 0xd53bd040, kFlags = 0xd51b4200;
  if ((word & 0x1e000000) == 0x04000000 || (word & 0x1e000000) == 0x00000000) return (word & 0xffff0000) == 0;
  if ((word & 0xffe0fc00) == 0x9ac01000) return false;  // irg
  if ((word & 0xff000000) != 0xd5000000) return true;
  if ((word & 0xfffff01f) == 0xd503201f) return (word & 0xfffffbff) != 0xd503205f;  // hints, but for wfe and wfi
  if ((word & 0xfffff000) == 0xd5033000) return true;                               // barriers, clrex
  return (word & ~0x1fu) == (kThreadPointer & ~0x1fu) || (word & ~0x1fu) == kFlags;
}

// A branch to itself may never end: about one random word in a million is one.
bool ends(std::uint32_t word) { return decode(word_bytes(word), kOriginal).target != kOriginal; }

bool may_run(std::uint32_t word) {
  const FormRow& form = form_of(word);
  return ends(word) && form.refusal == Refusal::none && form.form != Form::system_call && is_repeatable(word);
}

// The code of this program's libraries.
std::vector<std::uint32_t> real_code() {
  std::vector<std::uint32_t> code;
  const auto add = [](dl_phdr_info* object, std::size_t, void* to) {
    for (unsigned i = 0; i < object->dlpi_phnum; ++i) {
      const auto& segment = object->dlpi_phdr[i];
      if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
      const auto* const words = reinterpret_cast<const std::uint32_t*>(object->dlpi_addr + segment.p_vaddr);
      auto& all = *static_cast<std::vector<std::uint32_t>*>(to);
      all.insert(all.end(), words, words + segment.p_filesz / 4);
    }
    return 0;
  };
  dl_iterate_phdr(add, &code);
  return code;
}

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
  std::vector<FormRow> wanted;
  for (const FormRow& form : forms())
    if (form.refusal == Refusal::none && form.form != Form::plain) wanted.push_back(form);
  compare_many([&wanted] {
    const FormRow& form = wanted[below(wanted.size())];
    return form.value | (random_word() & ~form.mask);
  });
}

TEST_CASE("the instructions of real aarch64 code do the same where they are moved to") {
  const auto code = real_code();
  REQUIRE(code.size() > 100'000);
  compare_many([&code] { return code[below(code.size())]; });
}

TEST_CASE("random aarch64 words do the same where they are moved to, or fault the same") {
  compare_many([] { return random_word(); });
}

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
    const Trial native = run(state, data);
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
