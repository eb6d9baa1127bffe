// What a detour must leave alone: every register, flag, vector, byte of memory and the stack, whatever the probe
// captures; and what the region's instruction does, which must be what it does in its place.
#include <doctest/doctest.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "arch/aarch64/decode.hpp"
#include "arch/aarch64/word.hpp"
#include "tests/arch/detour/aarch64/trial.hpp"

namespace probed::test {
namespace {

constexpr std::uint32_t kNopInsn[] = {0xd503201f};
constexpr std::uint64_t kTagChecks = 0x2000000;

// What probes can be, and what happens on their way: recorded, rejected, counted, dropped, disabled, faulting.
struct Way {
  std::string name;
  Definition definition;
  arch::channel::ProbeFlags mode = arch::channel::kRecord;
};
const Way kWays[] = {
    {"no argument", {"", ""}},
    {"registers", {"a=%x0 b=%x9:u8 c=%x16:s16 d=%sp e=%x30 f=%pc g=%x28 h=%x10 i=%x17", ""}},
    {"stack", {"a=$stack0 b=$stack3:u16 c=$stack", ""}},
    {"memory that faults", {"a=+0(%x7) b=+8(+0(%x7)):s32", ""}},
    {"memory", {"a=+0(%x0) b=+8(%x0):b3@4/16", ""}},
    {"strings", {"s=+0(%x0):string t=+0(%x7):string u=+16(%x0):string", ""}},
    {"arrays", {"a=+0(%x0):u16[5] b=+0(%x7):u32[3] c=+0(%x0):string[2]", ""}},
    {"filter on a register", {"a=%x1 b=%x0:s32", "a > 0x8000000000000000 || b < 0"}},
    {"filter on memory", {"a=+0(%x0):s8 b=+0(%x7) s=+0(%x0):string", "a > 0 || b == 3"}},
    {"counted", {"a=%x1", ""}, arch::channel::kCountOnly},
    {"counted with a filter", {"a=%x1:s64", "a > 0"}, arch::channel::kCountOnly},
    {"disabled", {"a=%x1", ""}, arch::channel::kDisabled},
};

// Its stack is where no other register points to: a detour's frame is below, which isn't there when the instruction
// runs in its place.
CpuState start_state() {
  CpuState state = random_state();
  state.regs.stack_pointer = kDataBegin + 0x400 + below(16) * 16;
  state.regs.pstate &= ~kBranchType;  // as behind the jump
  state.regs.x[0] = kDataBegin + 0x1000 + below(kDataSize / 4);
  state.regs.x[7] = random_word() * 0x1'0000'0000'0101ull | 1ull << 60;
  if (below(2) == 0) state.regs.pstate |= kTagChecks;
  return state;
}

// Whether this processor has PSTATE.TCO, even if there are no tags to be checked.
bool has_tag_checks() {
  const NativeCpu cpu;
  const NativeCpu::Patch patch(kOriginal, arch::aarch64::word_bytes(0xd53b42e0));  // mrs x0, tco
  return NativeCpu::run(random_state()).signal == SIGTRAP;
}

void check_preserved(Trial& trial, const Way& way) {
  CAPTURE(way.name);
  const auto plan = Rig::plan(way.definition);
  trial.rig().enable(1, plan, way.mode);
  const arch::CapturedProbe probe{1, &plan.capture};
  REQUIRE(trial.prepare(kNopInsn, std::span(&probe, 1)));
  for (unsigned i = 0; i < 40; ++i) {
    const CpuState start = start_state();
    const CpuTrial native = trial.run_native(start, random_data());
    CpuTrial got = trial.run_detour(start, random_data());
    Trial::forget_frame(start, native, got);
    CHECK(differences(native, got) == "");
    CHECK(native.outcome.state.regs.pc() == kOriginal + 4);
    if (i % 8 == 7) trial.drain();
  }
  trial.drain();
}

}  // namespace

TEST_CASE("a detour leaves registers, flags, vectors and the stack as they were") {
  for (const bool far : {false, true}) {
    for (const bool tags : {false, true}) {
      arch::DetourFeatures features = arch::native::detour_features();
      features.memory_tags = tags;
      if (tags && !has_tag_checks()) continue;
      Trial trial({.far_channel = far, .features = features});
      for (const bool owned : {true, false}) {
        trial.own_lane(owned);
        for (const Way& way : kWays) check_preserved(trial, way);
      }
      CHECK(trial.fixups() > 0);
      trial.own_lane(false);
    }
  }
}

TEST_CASE("a detour whose ring is full drops and leaves everything as it was") {
  Trial trial;
  const auto plan = Rig::plan({"a=%x1", ""});
  trial.rig().enable(2, plan);
  const arch::CapturedProbe probe{2, &plan.capture};
  REQUIRE(trial.prepare(kNopInsn, std::span(&probe, 1)));
  const std::uint64_t room = trial.rig().channel().layout().ring_size / plan.capture.layout.max_size;
  for (std::uint64_t i = 0; i < room + 10; ++i) {
    const CpuState start = start_state();
    CpuTrial got = trial.run_detour(start, random_data());
    if (i < room) continue;
    const CpuTrial native = trial.run_native(start, random_data());
    Trial::forget_frame(start, native, got);
    CHECK(differences(native, got) == "");
  }
  CHECK(trial.drain().size() == room);
  CHECK(trial.rig().channel().counts(2).dropped == 10);
  CHECK(trial.rig().channel().counts(2).hits() == room + 10);
}

TEST_CASE("a channel of zeros makes every detour do nothing, as a fork child that gets one needs") {
  Trial trial;
  for (const Way& way : kWays) {
    const auto plan = Rig::plan(way.definition);
    const arch::CapturedProbe probe{1, &plan.capture};
    REQUIRE(trial.prepare(kNopInsn, std::span(&probe, 1)));
    auto* const memory = trial.rig().target_view();
    const std::size_t size = trial.rig().channel().layout().size;
    const std::vector<std::byte> kept(memory, memory + size);
    std::fill(memory, memory + size, std::byte{0});
    const CpuState start = start_state();
    const CpuTrial native = trial.run_native(start, random_data());
    CpuTrial got = trial.run_detour(start, random_data());
    Trial::forget_frame(start, native, got);
    CHECK(differences(native, got) == "");
    CHECK(std::all_of(memory, memory + size, [](std::byte b) { return b == std::byte{0}; }));
    std::copy(kept.begin(), kept.end(), memory);
  }
}

TEST_CASE("a stack without room faults at the site's own pc, before anything has happened") {
  Trial trial;
  for (const Way& way : kWays) {
    CAPTURE(way.name);
    const auto plan = Rig::plan(way.definition);
    trial.rig().enable(1, plan, way.mode);
    const arch::CapturedProbe probe{1, &plan.capture};
    REQUIRE(trial.prepare(kNopInsn, std::span(&probe, 1)));
    unsigned faulted = 0;
    for (std::uint64_t room = 0; room < 256; room += 16) {
      CpuState start = start_state();
      start.regs.stack_pointer = kDataBegin + room;
      start.regs.x[0] = kDataBegin + 0x800;
      CpuTrial native = trial.run_native(start, random_data());
      CpuTrial got = trial.run_detour(start, random_data());
      if (got.outcome.signal == SIGSEGV) {
        ++faulted;
        CHECK(got.outcome.state.regs.pc() == trial.rig().last_address());
        REQUIRE(trial.translate(got));
        native.outcome.state.regs.program_counter = kOriginal;
        native.outcome.signal = SIGSEGV;
        native.outcome.address = got.outcome.address;
      }
      Trial::forget_frame(start, native, got);
      CHECK(differences(native, got) == "");
      trial.drain();
    }
    CHECK(faulted >= 80 / 16);
    CHECK(faulted <= Trial::kDeepest / 16);
  }
}

// ---- regions ----

namespace {

// Nobody may rely on what stands below sp; but an instruction that reads it sees a detour's frame there. Then it must
// do what it does in its place with the frame's words there.
bool explained_by_frame(Trial& trial, const CpuState& start, CpuTrial got) {
  std::vector<std::uint8_t> data = random_data();
  const auto sp = static_cast<std::ptrdiff_t>(start.regs.stack_pointer - kDataBegin);
  std::copy(got.data.begin() + sp - Trial::kDeepest, got.data.begin() + sp, data.begin() + sp - Trial::kDeepest);
  const CpuTrial native = trial.run_native(start, data);
  Trial::forget_frame(start, native, got);
  return differences(native, got).empty();
}

// What an instruction does where it stands and in the tail of a detour.
void compare_in_tails(std::uint32_t (*next)()) {
  Trial trial;
  const auto plan = Rig::plan({"a=%x0 b=$stack1", ""});
  trial.rig().enable(1, plan);
  const arch::CapturedProbe probe{1, &plan.capture};
  std::uint64_t compared = 0, skipped = 0;
  while (compared < case_count()) {
    const std::uint32_t word[] = {next()};
    if (!may_run(word[0])) continue;
    trial.own_lane(compared % 64 < 48);
    const arch::DetourResult built = trial.prepare(word, std::span(&probe, 1));
    if (!built) {
      REQUIRE(built.refusal == arch::DetourRefusal::relocation);
      REQUIRE_MESSAGE(++skipped < 10 * case_count(), "there are instructions to compare");
      continue;
    }
    ++compared;
    const CpuState start = start_state();
    const CpuTrial native = trial.run_native(start, random_data());
    CpuTrial got = trial.run_detour(start, random_data());
    CAPTURE(word[0]);
    REQUIRE(trial.translate(got));
    const CpuTrial with_frame = got;
    Trial::forget_frame(start, native, got);
    // A moved blr is a br: it arrives as one, which every landing pad for calls accepts.
    const auto insn = arch::aarch64::decode(arch::aarch64::word_bytes(word[0]), kOriginal);
    if (insn.flow == arch::Flow::indirect_call && (native.outcome.state.regs.pstate & kBranchType) != 0) {
      CHECK((got.outcome.state.regs.pstate & kBranchType) == kBranchTypeJump);
      got.outcome.state.regs.pstate ^= kBranchType;
    }
    if (!differences(native, got).empty() && explained_by_frame(trial, start, with_frame)) continue;
    REQUIRE(differences(native, got) == "");
    if (compared % 256 == 0) trial.drain();
  }
  trial.drain();
  CHECK(trial.rig().channel().counts(1).hits() == compared);
  std::printf("%llu instructions compared in tails, %llu not moved\n", static_cast<unsigned long long>(compared),
              static_cast<unsigned long long>(skipped));
}

}  // namespace

TEST_CASE("every form of instruction does in a detour's tail what it does in its place") {
  compare_in_tails(word_of_any_form);
}

TEST_CASE("the instructions of real code do in a detour's tail what they do in their place") {
  compare_in_tails(word_of_real_code);
}

TEST_CASE("random words do in a detour's tail what they do in their place, or fault the same") {
  compare_in_tails(random_word);
}

TEST_CASE("every boundary of a tail is a known point, also where a landing pad is executed once more") {
  Trial trial;
  const auto plan = Rig::plan({"", ""});
  const arch::CapturedProbe probe{0, &plan.capture};
  const std::uint32_t region[] = {0xd503245f, 0xaa0103e0};  // bti c; mov x0, x1
  REQUIRE(trial.prepare(region, std::span(&probe, 1)));
  const arch::Detour& d = trial.detour();
  const std::uint64_t originals[] = {0, 0, 4, 8};
  REQUIRE(d.points.size() == std::size(originals));
  CHECK(d.points.front().offset == 0);
  CHECK(d.points[1].offset == d.tail_begin);
  for (std::size_t i = 0; i < d.points.size(); ++i) {
    CHECK(d.points[i].point.original_pc == kOriginal + originals[i]);
    CHECK(d.at(d.points[i].offset) == &d.points[i].point);
  }
  CHECK(d.tail_end - d.tail_begin == 12);
  const CpuState start = start_state();
  const CpuTrial native = trial.run_native(start, random_data());
  CpuTrial got = trial.run_detour(start, random_data());
  Trial::forget_frame(start, native, got);
  CHECK(differences(native, got) == "");
}

TEST_CASE("an instruction that can't be moved, or calls in front of another, gets no detour") {
  Trial trial;
  const auto plan = Rig::plan({"", ""});
  const arch::CapturedProbe probe{0, &plan.capture};
  const std::uint32_t exclusive[] = {0xc85f7c20}, call_first[] = {0xd63f0020, 0xd503201f};
  const auto refused = trial.prepare(exclusive, std::span(&probe, 1));
  CHECK(refused.refusal == arch::DetourRefusal::relocation);
  CHECK(refused.relocation == arch::Refusal::exclusive);
  CHECK(trial.prepare(call_first, std::span(&probe, 1)).refusal == arch::DetourRefusal::inner_transfer);
}

TEST_CASE("without atomic instructions there are no detours") {
  CHECK(arch::native::build_runtime(0x10000, {}, {}).refusal == arch::DetourRefusal::processor);
}

}  // namespace probed::test
