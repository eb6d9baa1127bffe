// What a detour must leave alone: every register, flag, vector, byte of memory, the red zone and the stack, whatever
// the probe captures; and what the region's instructions do, which must be what they do in their place.
#include <doctest/doctest.h>

#include <csignal>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <vector>

#include "arch/x86_64/decode.hpp"
#include "tests/arch/detour/trial.hpp"
#include "tests/arch/differential/aim.hpp"
#include "tests/arch/differential/compare.hpp"
#include "tests/arch/differential/encode.hpp"
#include "tests/arch/differential/generator.hpp"
#include "tests/arch/differential/options.hpp"
#include "tests/arch/hex.hpp"

namespace probed::test {
namespace {

constexpr std::uint64_t kAlignmentCheck = 1u << 18;
constexpr std::uint8_t kNop5[] = {0x0f, 0x1f, 0x44, 0x00, 0x00};

std::uint64_t repetitions(std::uint64_t fallback) { return from_environment("PROBED_TEST_CASES", fallback); }

// What probes can be, and what happens on their way: recorded, rejected, counted, dropped, disabled, faulting.
struct Way {
  const char* name;
  Definition definition;
  arch::channel::ProbeFlags mode = arch::channel::kRecord;
};
const Way kWays[] = {
    {"no argument", {"", ""}},
    {"registers", {"a=%ax b=%cx:u8 c=%dx:s16 d=%sp e=%flags f=%ip g=%r15", ""}},
    {"stack", {"a=$stack0 b=$stack3:u16 c=$stack", ""}},
    {"memory that faults", {"a=+0(%r9) b=+8(+0(%r9)):s32", ""}},
    {"memory", {"a=+0(%di) b=+8(%di):b3@4/16", ""}},
    {"strings", {"s=+0(%di):string t=+0(%r9):string u=+16(%di):string", ""}},
    {"arrays", {"a=+0(%di):u16[5] b=+0(%r9):u32[3] c=+0(%di):string[2]", ""}},
    {"filter on a register", {"a=%ax b=%di:s32", "a > 0x8000000000000000 || b < 0"}},
    {"filter on memory", {"a=+0(%di):s8 b=+0(%r9) s=+0(%di):string", "a > 0 || b == 3"}},
    {"counted", {"a=%ax", ""}, arch::channel::kCountOnly},
    {"counted with a filter", {"a=%ax:s64", "a > 0"}, arch::channel::kCountOnly},
    {"disabled", {"a=%ax", ""}, arch::channel::kDisabled},
};

void expect_same(const std::string& what, const Outcome& native, const Outcome& got) {
  const std::string different = differences(native, got);
  if (different.empty()) return;
  CAPTURE(what);
  FAIL_CHECK(different);
}

void check_preserved(Trial& trial, const Way& way, Random& random) {
  const auto plan = Rig::plan(way.definition);
  trial.rig().enable(1, plan, way.mode);
  const arch::CapturedProbe probe{1, &plan.capture};
  REQUIRE(trial.prepare(kNop5, std::span(&probe, 1)));
  for (unsigned i = 0; i < 40; ++i) {
    Machine start = trial.random_state(random);
    start.regs.rdi = trial.data() + random.below(0x800);
    if (random.chance(30)) start.regs.rsp += random.below(8);
    Outcome native, got;
    trial.run_native(start, native);
    trial.run_detour(start, got);
    trial.forget_frame(start, native, got);
    expect_same(way.name, native, got);
    if (i % 8 == 7) trial.drain();
  }
  trial.drain();
}

TEST_CASE("a detour leaves registers, flags, vectors, the red zone and the stack as they were") {
  const std::uint64_t seed = chosen_seed();
  INFO("PROBED_TEST_SEED=", seed);
  Random random(seed);
  for (const bool far : {false, true}) {
    Trial trial({.far_channel = far});
    for (const bool owned : {true, false}) {
      trial.own_lane(owned);
      for (const Way& way : kWays) check_preserved(trial, way, random);
    }
    CHECK(trial.fixups() > 0);
    trial.own_lane(false);
  }
}

TEST_CASE("a detour without the newer instructions leaves everything as it was, too") {
  Random random(5);
  Trial trial({.features = {.flags_in_ah = true}});
  for (const bool owned : {true, false}) {
    trial.own_lane(owned);
    for (const Way& way : kWays) check_preserved(trial, way, random);
  }
}

TEST_CASE("a detour whose ring is full drops and leaves everything as it was") {
  Random random(6);
  Trial trial;
  const auto plan = Rig::plan({"a=%ax", ""});
  trial.rig().enable(2, plan);
  const arch::CapturedProbe probe{2, &plan.capture};
  REQUIRE(trial.prepare(kNop5, std::span(&probe, 1)));
  const std::uint64_t room = trial.rig().channel().layout().ring_size / plan.capture.layout.max_size;
  Outcome native, got;
  for (std::uint64_t i = 0; i < room + 10; ++i) {
    const Machine start = trial.random_state(random);
    trial.run_detour(start, got);
    if (i < room) continue;
    trial.run_native(start, native);
    trial.forget_frame(start, native, got);
    expect_same("full", native, got);
  }
  CHECK(trial.drain().size() == room);
  CHECK(trial.rig().channel().counts(2).dropped == 10);
  CHECK(trial.rig().channel().counts(2).hits() == room + 10);
}

TEST_CASE("a channel of zeros makes every detour do nothing, as a fork child that gets one needs") {
  Random random(7);
  Trial trial;
  for (const Way& way : kWays) {
    const auto plan = Rig::plan(way.definition);
    const arch::CapturedProbe probe{1, &plan.capture};
    REQUIRE(trial.prepare(kNop5, std::span(&probe, 1)));
    auto* const memory = trial.rig().target_view();
    const std::size_t size = trial.rig().channel().layout().size;
    const std::vector<std::byte> kept(memory, memory + size);
    std::fill(memory, memory + size, std::byte{0});
    const Machine start = trial.random_state(random);
    Outcome native, got;
    trial.run_native(start, native);
    trial.run_detour(start, got);
    trial.forget_frame(start, native, got);
    expect_same(way.name, native, got);
    CHECK(std::all_of(memory, memory + size, [](std::byte b) { return b == std::byte{0}; }));
    std::copy(kept.begin(), kept.end(), memory);
  }
}

TEST_CASE("a stack without room faults at the site's own pc, before anything has happened") {
  Random random(8);
  Trial trial;
  for (const Way& way : kWays) {
    const auto plan = Rig::plan(way.definition);
    trial.rig().enable(1, plan, way.mode);
    const arch::CapturedProbe probe{1, &plan.capture};
    REQUIRE(trial.prepare(kNop5, std::span(&probe, 1)));
    unsigned faulted = 0;
    for (std::uint64_t room = 0; room < 400; room += 8) {
      Machine start = trial.random_state(random);
      start.regs.rsp = trial.stack() + room;
      start.regs.rdi = trial.data();
      Outcome native, got;
      trial.run_native(start, native);
      trial.run_detour(start, got);
      if (got.signal == SIGSEGV) {
        ++faulted;
        CHECK(got.machine.regs.rip == trial.rig().last_address());
        REQUIRE(trial.translate(got));
        CHECK(got.machine.regs.rip == trial.site());
        native.machine.regs.rip = trial.site();
        CHECK(register_differences(native.machine.regs, got.machine.regs).empty());
        CHECK(native.machine.stack == got.machine.stack);
      } else {
        trial.forget_frame(start, native, got);
        expect_same(way.name, native, got);
      }
      trial.drain();
    }
    CHECK(faulted > 128 / 8);
    CHECK(faulted <= (128 + 200) / 8);
  }
}

// ---- regions ----

// Instructions of real prologues and of what follows them, with registers from a random draw. Pointers: rbp and rdi
// into the data page, rsp; these are only moved by what stays inside. Four of them don't read behind what was the red
// zone.
std::vector<std::uint8_t> random_instruction(Random& random) {
  const auto r = static_cast<std::uint8_t>(random.pick({0, 1, 2, 3, 6}));  // rax, rcx, rdx, rbx, rsi
  const auto q = static_cast<std::uint8_t>(random.pick({0, 1, 2, 3, 6}));
  const auto high = static_cast<std::uint8_t>(random.below(8));
  const auto rr = static_cast<std::uint8_t>(0xc0 | r << 3 | q);
  const auto disp = static_cast<std::uint8_t>(random.below(16) * 8);
  const auto any = random.byte();
  using Bytes = std::vector<std::uint8_t>;
  const Bytes pool[] = {
      {0xf3, 0x0f, 0x1e, 0xfa},                                                        // endbr64
      {0x55},                                                                          // push rbp
      {static_cast<std::uint8_t>(0x50 | r)},                                           // push r
      {0x41, static_cast<std::uint8_t>(0x50 | high)},                                  // push r8..r15
      {0x48, 0x83, 0xec, static_cast<std::uint8_t>(disp % 32)},                        // sub rsp, imm8
      {0x48, 0x8d, 0x64, 0x24, 0xe8},                                                  // lea rsp, [rsp-24]
      {0x48, 0x89, rr},                                                                // mov q, r
      {0x89, rr},                                                                      // mov q32, r32
      {0x31, rr},                                                                      // xor q32, r32
      {0x48, 0x01, rr},                                                                // add q, r
      {0x48, 0x85, rr},                                                                // test
      {0x48, 0x39, rr},                                                                // cmp
      {0x48, 0x19, rr},                                                                // sbb: reads carry
      {0x11, rr},                                                                      // adc
      {0x0f, 0x95, static_cast<std::uint8_t>(0xc0 | q % 4)},                           // setne
      {0x0f, 0x90, static_cast<std::uint8_t>(0xc0 | q % 4)},                           // seto
      {0x48, 0x0f, 0x4c, rr},                                                          // cmovl
      {0x48, 0x8b, static_cast<std::uint8_t>(0x47 | r << 3), disp},                    // mov r, [rdi+disp]
      {0x48, 0x89, static_cast<std::uint8_t>(0x45 | r << 3), disp},                    // mov [rbp+disp], r
      {0x48, 0x89, static_cast<std::uint8_t>(0x44 | r << 3), 0x24, 0xf0},              // mov [rsp-16], r: the red zone
      {0x48, 0x8b, static_cast<std::uint8_t>(0x44 | r << 3), 0x24, 0xf0},              // mov r, [rsp-16]
      {0x48, 0x8b, static_cast<std::uint8_t>(0x44 | r << 3), 0x24, disp},              // mov r, [rsp+disp]
      {0xf3, 0x0f, 0x6f, static_cast<std::uint8_t>(0x47 | high << 3), disp},           // movdqu xmm, [rdi+disp]
      {0x0f, 0x11, static_cast<std::uint8_t>(0x45 | high << 3), disp},                 // movups [rbp+disp], xmm
      {0x66, 0x0f, 0xef, static_cast<std::uint8_t>(0xc0 | high << 3 | q)},             // pxor
      {static_cast<std::uint8_t>(0xb8 | r), any, 1, 2, 3},                             // mov r32, imm32
      {0x48, 0x8d, static_cast<std::uint8_t>(0x05 | r << 3), any, 0, 0, 0},            // lea r, [rip+n]
      {0xf7, static_cast<std::uint8_t>(0xd8 | q)},                                     // neg
      {0xd1, static_cast<std::uint8_t>(0xe0 | q)},                                     // shl 1
      {0xfc},                                                                          // cld
      {0x64, 0x48, 0x8b, static_cast<std::uint8_t>(0x04 | r << 3), 0x25, 0, 0, 0, 0},  // mov r, fs:0
      {0x90},
      {0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00},
  };
  return random.pick(pool);
}

// Branches that may stand in the middle or at the end. They lead to the landing page, which is int3 throughout, or back
// into the code behind the region, which is, too.
std::vector<std::uint8_t> random_branch(Random& random, const Trial& trial, std::uint64_t at) {
  const auto cond = static_cast<std::uint8_t>(random.below(16));
  const std::uint64_t to = trial.sandbox_landing() + random.below(256);
  std::vector<std::uint8_t> code;
  if (random.chance(40)) {
    code = {static_cast<std::uint8_t>(random.pick({0x70 | cond, 0xe0, 0xe1, 0xe2, 0xe3})), 0x40};
    return code;
  }
  code = {0x0f, static_cast<std::uint8_t>(0x80 | cond)};
  const auto distance = static_cast<std::uint32_t>(to - (at + 6));
  for (unsigned i = 0; i < 4; ++i) code.push_back(static_cast<std::uint8_t>(distance >> 8 * i));
  return code;
}

TEST_CASE("regions of one to four instructions do in a detour what they do in their place") {
  const std::uint64_t seed = chosen_seed();
  INFO("PROBED_TEST_SEED=", seed);
  Random random(seed);
  Trial trial;
  const auto plan = Rig::plan({"a=%di b=$stack1", ""});
  trial.rig().enable(1, plan);
  const arch::CapturedProbe probe{1, &plan.capture};
  std::uint64_t hits = 0;
  for (std::uint64_t i = 0; i < repetitions(4000); ++i) {
    trial.own_lane(i % 64 < 48);
    std::vector<std::uint8_t> region;
    for (std::uint64_t n = 1 + random.below(4); n > 0; --n) {
      const auto one =
          random.chance(12) ? random_branch(random, trial, trial.site() + region.size()) : random_instruction(random);
      region.insert(region.end(), one.begin(), one.end());
    }
    Machine start = trial.random_state(random);
    start.regs.rdi = trial.data() + random.below(256) * 8;
    start.regs.rbp = trial.data() + random.below(256) * 8;
    REQUIRE(trial.prepare(region, std::span(&probe, 1)));
    Outcome native, got;
    trial.run_native(start, native);
    trial.run_detour(start, got);
    ++hits;
    trial.forget_frame(start, native, got);
    REQUIRE(trial.translate(got));
    expect_same(to_hex(region), native, got);
    if (i % 512 == 0) trial.drain();
  }
  trial.drain();
  CHECK(trial.rig().channel().counts(1).hits() == hits);
}

// Nobody may rely on what stands behind the red zone; but an instruction that reads it sees a detour's frame there.
// Then it must do what it does in its place with the frame's words there.
bool explained_by_frame(Trial& trial, const std::vector<std::uint8_t>& bytes, const arch::CapturedProbe& probe,
                        const Machine& start, const Outcome& got) {
  Outcome frame, native, same = got;
  if (!trial.prepare(kNop5, std::span(&probe, 1))) return false;
  trial.run_detour(start, frame);
  Machine other = start;
  for (std::uint64_t at = start.regs.rsp - trial.stack() - 128 - 200; at < start.regs.rsp - trial.stack() - 128; ++at)
    other.stack[at] = frame.machine.stack[at];
  if (!trial.prepare(bytes, std::span(&probe, 1))) return false;
  trial.run_native(other, native);
  trial.forget_frame(start, native, same);
  return differences(native, same).empty();
}

TEST_CASE("any single instruction does in a detour's tail what it does in its place") {
  const std::uint64_t seed = chosen_seed();
  INFO("PROBED_TEST_SEED=", seed);
  Trial trial;
  Generator generator(seed, Places(trial.sandbox()));
  const auto plan = Rig::plan({"a=%di b=%si", ""});
  trial.rig().enable(1, plan);
  const arch::CapturedProbe probe{1, &plan.capture};
  std::uint64_t ran = 0;
  for (std::uint64_t i = 0; i < repetitions(4000); ++i) {
    const Case& one = generator.next();
    const arch::Insn insn = arch::x86_64::decode(one.bytes, trial.site());
    if (insn.flow == arch::Flow::indirect_call && reads_below_sp(one.bytes, one.start, trial.site())) continue;
    // A detour pushes words: with alignment checks on, that needs an aligned stack.
    if ((one.start.regs.eflags & kAlignmentCheck) != 0 && one.start.regs.rsp % 8 != 0) continue;
    // An entry whose stack isn't there faults.
    if (one.start.regs.rsp < trial.stack() + 512 || one.start.regs.rsp > trial.stack() + kPage) continue;
    if (!trial.prepare(one.bytes, std::span(&probe, 1))) continue;
    Outcome native, got;
    trial.run_native(one.start, native);
    ++ran;
    trial.run_detour(one.start, got);
    // relocate.hpp: such a call has overwritten the word below sp by the time it faults.
    if (insn.flow == arch::Flow::indirect_call && (native.signal != SIGTRAP || got.signal != SIGTRAP)) continue;
    trial.forget_frame(one.start, native, got);
    REQUIRE(trial.translate(got));
    forget_volatile(one.bytes, native, got);
    if (!differences(native, got).empty() && explained_by_frame(trial, one.bytes, probe, one.start, got)) continue;
    expect_same(to_hex(one.bytes) + " " + disassemble(one.bytes, trial.site()), native, got);
    if (i % 256 == 0) trial.drain();
  }
  CHECK(ran > repetitions(4000) / 2);
}

TEST_CASE("every boundary of a tail is a known point, and stopping there looks like the original") {
  Trial trial;
  const auto plan = Rig::plan({"", ""});
  const arch::CapturedProbe probe{0, &plan.capture};
  // push rbp; mov rbp, rsp; push r15; sub rsp, 24
  const std::vector<std::uint8_t> region = {0x55, 0x48, 0x89, 0xe5, 0x41, 0x57, 0x48, 0x83, 0xec, 0x18};
  REQUIRE(trial.prepare(region, std::span(&probe, 1)));
  const arch::Detour& d = trial.detour();
  const std::uint64_t originals[] = {0, 0, 1, 4, 6, 10};
  REQUIRE(d.points.size() == std::size(originals));
  CHECK(d.points.front().offset == 0);
  CHECK(d.points[1].offset == d.tail_begin);
  for (std::size_t i = 0; i < d.points.size(); ++i) {
    CHECK(d.points[i].point.original_pc == trial.site() + originals[i]);
    CHECK(d.at(d.points[i].offset) == &d.points[i].point);
  }
  CHECK(d.at(d.tail_begin + 3) == nullptr);
  CHECK(d.tail_end - d.tail_begin == region.size() + 5);
}

TEST_CASE("a call or system call is the last instruction of a region or there is no detour") {
  Trial trial;
  const auto plan = Rig::plan({"", ""});
  const arch::CapturedProbe probe{0, &plan.capture};
  const std::vector<std::uint8_t> call_last = {0x90, 0xe8, 0, 0, 0, 0}, call_first = {0xff, 0xd0, 0x90, 0x90, 0x90};
  CHECK(trial.prepare(call_last, std::span(&probe, 1)));
  CHECK(trial.prepare(call_first, std::span(&probe, 1)).refusal == arch::DetourRefusal::inner_transfer);
  const std::vector<std::uint8_t> port = {0x90, 0xee, 0x90, 0x90, 0x90};
  const auto refused = trial.prepare(port, std::span(&probe, 1));
  CHECK(refused.refusal == arch::DetourRefusal::relocation);
  CHECK(refused.relocation == arch::Refusal::privileged);
}

}  // namespace
}  // namespace probed::test
