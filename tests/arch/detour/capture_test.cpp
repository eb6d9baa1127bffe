// What detours record and which hits they take, against the breakpoint tier's own code as the oracle: FetchProgram::run
// and Filter::matches on the same registers and memory must say the same, byte for byte.
#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "arch/x86_64/relocate.hpp"
#include "tests/arch/detour/own_memory.hpp"
#include "tests/arch/detour/random_filter.hpp"
#include "tests/arch/detour/random_guard.hpp"
#include "tests/arch/detour/trial.hpp"
#include "tests/arch/differential/options.hpp"

namespace probed::test {
namespace {

constexpr std::uint8_t kNop5[] = {0x0f, 0x1f, 0x44, 0x00, 0x00};
constexpr std::string_view kComm = "a comm";

struct Oracle {
  Packed packed;
  bool accepted = false;
};

Oracle ask(const Compiled& compiled, const Trial& trial, const Machine& start) {
  std::memcpy(reinterpret_cast<void*>(trial.data()), start.data.data(), kPage);
  std::memcpy(reinterpret_cast<void*>(trial.stack()), start.stack.data(), kPage);
  arch::x86_64::Registers regs = start.regs;
  regs.rip = trial.site();
  regs.orig_rax = ~0ull;
  regs.cs = 0x33;
  regs.ss = 0x2b;
  OwnMemory memory;
  const values::CommonFields common{::getpid(), 1, 0, kComm};
  Oracle oracle;
  oracle.packed.resize(events::kMaxArgumentBytes);
  oracle.packed.resize(compiled.program.run(regs, memory, common, oracle.packed));
  oracle.accepted = compiled.filter.matches(oracle.packed, common);
  return oracle;
}

Packed unpacked(const events::DetourPlan& plan, const Trial::Record& record) {
  Packed out(events::kMaxArgumentBytes);
  out.resize(events::unpack(plan, record.words, {.comm = kComm}, out));
  return out;
}

// A state whose rdi, rsi and r8 point at something: rdi at words and pointers, rsi at text that may run against the
// end of the page, r8 at a pointer to the text.
Machine pointing_state(const Trial& trial, Random& random) {
  Machine m = trial.random_state(random);
  const auto word = [&m](std::size_t at, std::uint64_t value) { std::memcpy(m.data.data() + at, &value, 8); };
  constexpr std::size_t kText = 0x400, kPointers = 0x300;
  for (std::size_t i = kText; i < Trial::kThreadPointer; ++i)
    m.data[i] = static_cast<std::uint8_t>(random.chance(4) ? 0 : 'a' + random.below(26));
  for (std::size_t i = Trial::kThreadPointer + 8; i < kPage; ++i)
    m.data[i] = static_cast<std::uint8_t>(random.chance(2) ? 0 : 'A' + random.below(26));
  const std::uint64_t text = trial.data() + kText + random.below(0xa00);
  m.regs.rdi = trial.data() + random.below(0x200);
  m.regs.rsi = random.chance(30) ? trial.data() + kPage - 1 - random.below(20) : text;
  m.regs.r8 = trial.data() + kPointers;
  for (unsigned i = 0; i < 8; ++i)
    word(kPointers + 8 * i, random.chance(25) ? random.word() : random.chance(20) ? 0 : text + random.below(64));
  if (random.chance(10)) m.regs.r8 = trial.data() + kPage - 20;
  if (random.chance(10)) m.regs.rdi = trial.data() + kPage - 20;
  return m;
}

class Agreement {
 public:
  explicit Agreement(RigOptions options = {}) : trial_(options) {}

  Trial& trial() { return trial_; }

  // The definition on some random states. Counts go up exactly.
  void check(const Definition& definition, Random& random, unsigned states) {
    CAPTURE(definition.arguments);
    CAPTURE(definition.filter);
    const Compiled compiled = Rig::compile(definition);
    REQUIRE(compiled.plan.filter_in_daemon.empty());
    const std::uint32_t index = static_cast<std::uint32_t>(random.below(256));
    trial_.rig().enable(index, compiled.plan);
    const arch::CapturedProbe probe{index, &compiled.plan.capture};
    REQUIRE(trial_.prepare(kNop5, std::span(&probe, 1)));
    std::uint64_t accepted = 0;
    for (unsigned i = 0; i < states; ++i) {
      const Machine start = pointing_state(trial_, random);
      accepted += check_one(compiled, start, index) ? 1 : 0;
    }
    const auto counts = trial_.rig().channel().counts(index);
    CHECK(counts.recorded == accepted);
    CHECK(counts.filtered == states - accepted);
    CHECK(counts.hits() == accepted);
    accepted_ += accepted;
    rejected_ += states - accepted;
  }

  std::uint64_t accepted() const { return accepted_; }
  std::uint64_t rejected() const { return rejected_; }

 private:
  bool check_one(const Compiled& compiled, const Machine& start, std::uint32_t index) {
    const Oracle oracle = ask(compiled, trial_, start);
    Outcome outcome;
    trial_.run_detour(start, outcome);
    CHECK(outcome.machine.regs.rip == trial_.site() + 5);
    const auto records = trial_.drain();
    CHECK(records.size() == (oracle.accepted ? 1u : 0u));
    if (records.size() != 1 || !oracle.accepted) return oracle.accepted;
    CHECK(records[0].probe == index);
    const Packed got = unpacked(compiled.plan, records[0]);
    CHECK(hex(got) == hex(oracle.packed));
    return true;
  }

  Trial trial_;
  std::uint64_t accepted_ = 0, rejected_ = 0;
};

// ---- what is written out ----

TEST_CASE("registers, immediates, the stack, texts and comm are recorded as the breakpoint tier records them") {
  Random random(1);
  Agreement agreement;
  for (const char* name : {"ax",  "bx",  "cx",  "dx",  "si",  "di", "bp",    "sp", "r8", "r9",     "r10",
                           "r11", "r12", "r13", "r14", "r15", "ip", "flags", "cs", "ss", "orig_ax"}) {
    const std::string reg = std::string("%") + name;
    agreement.check({"a=" + reg + " b=" + reg + ":u8 c=" + reg + ":s32 d=" + reg + ":b5@3/16", ""}, random, 3);
    // Registers that strings and arrays need for themselves.
    agreement.check({"s=+0(%si):string a=" + reg + " t=+0(%di):u8[2] b=" + reg + ":s16", ""}, random, 3);
  }
  agreement.check({"a=$stack b=$stack0 c=$stack1:s16 d=$stack20 e=$stack9:u8", ""}, random, 10);
  agreement.check({"a=\\1 b=\\-5:s64 c=\\0x123456789abcdef d=$comm e=\\\"text\" f=%di g=$comm", ""}, random, 5);
  agreement.check({"a=$arg1 b=$arg6 c=$arg7 d=$arg9:s8", ""}, random, 5);
}

TEST_CASE("every integer type is cut and extended from registers and from memory") {
  Random random(2);
  Agreement agreement;
  for (const char* type : {"u8",      "u16",      "u32",      "u64",      "s8",       "s16",     "s32",    "s64",
                           "x8",      "x16",      "x32",      "x64",      "char",     "symbol",  "b1@0/8", "b7@1/8",
                           "b9@5/16", "b31@1/32", "b32@0/32", "b63@1/64", "b1@63/64", "b64@0/64"}) {
    const std::string t = std::string(":") + type;
    agreement.check({"a=%ax" + t + " b=+3(%di)" + t + " c=$stack2" + t + " d=+0(%r9)" + t, ""}, random, 6);
  }
}

TEST_CASE("dereferences nest, and one that faults makes its argument null") {
  Random random(3);
  Agreement agreement;
  agreement.check({"a=+0(+0(%r8)):u16 b=+8(+8(%r8)) c=+0(+0(+0(%r8))) d=-8(%di):u32 e=+0(%r9)", ""}, random, 40);
  agreement.check({"a=+0($stack1) b=+4($stack):u8 c=+0(+0(%sp))", ""}, random, 20);
  CHECK(agreement.trial().fixups() > 20);
}

TEST_CASE("fixed addresses are read near and far, readable or not") {
  Random random(4);
  Agreement agreement;
  static const std::uint64_t far = 0x1122334455667788;
  const auto at = [](std::uint64_t address) {
    char text[32];
    std::snprintf(text, sizeof text, "@0x%llx", static_cast<unsigned long long>(address));
    return std::string(text);
  };
  const std::uint64_t near = agreement.trial().data() + 0x40;
  agreement.check({"a=" + at(near) + ":u32 b=+8(" + at(near) + ") c=" + at(reinterpret_cast<std::uint64_t>(&far)) +
                       " d=" + at(0x10) + " e=" + at(near) + ":string f=" + at(0x7fff'ffff'f000) + ":u8",
                   ""},
                  random, 10);
}

TEST_CASE("arrays are recorded element by element") {
  Random random(5);
  Agreement agreement;
  agreement.check({"a=+0(%di):u8[64] b=+0(%di):s16[7] c=+0(%r9):u32[3] d=+0(+0(%r8)):u64[2] e=$stack3", ""}, random,
                  30);
  agreement.check({"a=+0(%r8):string[4] b=+8(%r8):string[2] c=%di", ""}, random, 30);
  agreement.check({"a=+0(%di):b3@2/16[9]", ""}, random, 10);
}

TEST_CASE("strings are recorded up to their end, their limit, or not at all when they run into a hole") {
  Random random(6);
  Agreement agreement;
  agreement.check(
      {"s=+0(%si):string t=+0(+0(%r8)):string u=%di n=+0(%r9):string v=+1(%si):ustring w=+2(%si):string", ""}, random,
      200);
  CHECK(agreement.trial().fixups() > 20);
}

TEST_CASE(
    "a string of any length at any alignment is copied whole, cut at 512 bytes, and gives back what it doesn't need") {
  Trial trial;
  trial.own_lane(true);
  const auto plan = Rig::plan({"s=+0(%si):string", ""});
  trial.rig().enable(1, plan);
  const arch::CapturedProbe probe{1, &plan.capture};
  REQUIRE(trial.prepare(kNop5, std::span(&probe, 1)));
  Random random(7);
  Machine start = trial.random_state(random);
  Outcome outcome;
  for (std::size_t length = 0; length < 600; length += length < 40 ? 1 : 37) {
    for (std::size_t shift = 0; shift < 9; ++shift) {
      start.data.fill('x');
      std::memcpy(start.data.data() + Trial::kThreadPointer, &start.regs.fs_base, 8);
      start.data[shift + length] = 0;
      start.regs.rsi = trial.data() + shift;
      trial.run_detour(start, outcome);
      const auto records = trial.drain();
      REQUIRE(records.size() == 1);
      const std::size_t kept = std::min<std::size_t>(length, 512);
      CHECK(records[0].words.size() == (32 + 8 + kept + 7) / 8);
      const Packed packed = unpacked(plan, records[0]);
      REQUIRE(packed.size() == 3 + kept);
      CHECK(std::all_of(packed.begin() + 3, packed.end(), [](std::byte b) { return b == std::byte{'x'}; }));
    }
  }
}

// ---- what is drawn ----

std::string random_argument(Random& random) {
  static const char* const kTypes[] = {"",     ":u8",  ":u16", ":u32",    ":s8",       ":s16", ":s32",
                                       ":s64", ":x16", ":u64", ":b3@1/8", ":b17@3/32", ":char"};
  static const char* const kSources[] = {"%ax",          "%cx",      "%dx",     "%di",     "%r12",    "$stack0",
                                         "$stack5",      "$stack",   "+0(%di)", "+9(%di)", "+0(%r9)", "+8(+0(%r8))",
                                         "+0(+16(%r8))", "-16(%di)", "+0(%sp)", "%r8",     "%flags",  "+0(+0(+0(%r8)))",
                                         "\\77",         "%sp"};
  static const char* const kOthers[] = {"+0(%si):string", "+0(+8(%r8)):string", "+0(%r8):string[3]",
                                        "+0(%di):u16[6]", "+4(%di):s32[3]",     "$comm",
                                        "+0(%r9):u8[2]"};
  if (random.chance(20)) return random.pick(kOthers);
  return std::string(random.pick(kSources)) + random.pick(kTypes);
}

std::string random_arguments(Random& random, unsigned count) {
  std::string text;
  for (unsigned i = 0; i < count; ++i) text += " a" + std::to_string(i) + "=" + random_argument(random);
  return text;
}

TEST_CASE("random definitions record what the breakpoint tier records") {
  const std::uint64_t seed = chosen_seed();
  INFO("PROBED_TEST_SEED=", seed);
  Random random(seed);
  for (const bool far : {false, true}) {
    Agreement agreement({.far_channel = far});
    for (std::uint64_t i = 0; i < from_environment("PROBED_TEST_CASES", 300); ++i) {
      agreement.trial().own_lane(random.chance(70));
      agreement.check({random_arguments(random, 1 + static_cast<unsigned>(random.below(8))), ""}, random, 4);
    }
    agreement.trial().own_lane(false);
  }
}

// ---- filters ----

constexpr FilterField kFields[] = {
    {"a", "a=%ax:u8", 8, false},       {"b", "b=%bx:s32", 32, true},        {"c", "c=%cx", 64, false},
    {"d", "d=+0(%di):s16", 16, true},  {"e", "e=+0(%r9):u32", 32, false},   {"f", "f=$stack1:s64", 64, true},
    {"g", "g=%dx:b3@4/16", 16, false}, {"h", "h=+4(+0(%r8)):u8", 8, false}, {"i", "i=%r14:u32", 32, false},
    {"j", "j=%sp:s8", 8, true},
};

TEST_CASE("random filters accept what the breakpoint tier accepts, and hits and rejections are counted exactly") {
  const std::uint64_t seed = chosen_seed();
  INFO("PROBED_TEST_SEED=", seed);
  Random random(seed);
  Agreement agreement;
  std::string arguments;
  for (const FilterField& field : kFields) arguments += std::string(" ") + field.argument;
  for (std::uint64_t i = 0; i < from_environment("PROBED_TEST_CASES", 400); ++i) {
    agreement.trial().own_lane(random.chance(70));
    agreement.check({arguments, "c > 0 && " + random_filter(random, kFields, static_cast<unsigned>(random.below(4)))},
                    random, 6);
  }
  agreement.trial().own_lane(false);
  CHECK(agreement.accepted() > 100);
  CHECK(agreement.rejected() > 100);
}

// ---- what is only there at times ----

TEST_CASE("random guards turn arguments into nulls, and filters away, as in the breakpoint tier") {
  const std::uint64_t seed = chosen_seed();
  INFO("PROBED_TEST_SEED=", seed);
  Random random(seed);
  static constexpr const char* kNumbers[] = {"ax", "si", "r12", "r9", "sp"};
  static constexpr const char* kPointing[] = {"di", "r8", "sp"};
  const GuardRegisters registers{kNumbers, kPointing, "r9"};
  Agreement agreement;
  std::string fields;
  for (const FilterField& field : kFields) fields += std::string(" ") + field.argument;
  const auto guard = [&](lang::FetchArg& arg) {
    if (random.chance(60)) guard_at_random(arg, registers, random);
  };
  for (std::uint64_t i = 0; i < from_environment("PROBED_TEST_CASES", 300); ++i) {
    agreement.trial().own_lane(random.chance(70));
    const bool filtered = random.chance(40);
    const unsigned count = 1 + static_cast<unsigned>(random.below(8));
    const std::string more = random_filter(random, kFields, static_cast<unsigned>(random.below(3)));
    agreement.check({filtered ? fields : random_arguments(random, count), filtered ? "c > 0 && " + more : "", guard},
                    random, 4);
  }
  agreement.trial().own_lane(false);
  CHECK(agreement.accepted() > 100);
  CHECK(agreement.rejected() > 100);
}

TEST_CASE("each comparison is exact at its edges, signed and unsigned") {
  Random random(9);
  Trial trial;
  for (const char* type : {"u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"}) {
    for (const char* op : {"==", "!=", "<", "<=", ">", ">=", "&"}) {
      for (const char* limit : {"0", "1", "100", "127"}) {
        const Compiled compiled = Rig::compile({std::string("a=%r11:") + type, std::string("a ") + op + " " + limit});
        trial.rig().enable(0, compiled.plan);
        const arch::CapturedProbe probe{0, &compiled.plan.capture};
        REQUIRE(trial.prepare(kNop5, std::span(&probe, 1)));
        for (const std::uint64_t base :
             {0ull, 1ull, 100ull, 127ull, 128ull, 0x8000ull, 0x80000000ull, 1ull << 63, ~0ull}) {
          for (const std::uint64_t delta : {~0ull, 0ull, 1ull}) {
            Machine start = trial.random_state(random);
            start.regs.r11 = base + delta;
            const bool accepted = ask(compiled, trial, start).accepted;
            Outcome outcome;
            trial.run_detour(start, outcome);
            CAPTURE(type);
            CAPTURE(op);
            CAPTURE(start.regs.r11);
            CHECK(trial.drain().size() == (accepted ? 1u : 0u));
          }
        }
      }
    }
  }
}

// ---- several probes, modes, identity ----

TEST_CASE("several probes at one site record in order, each with its own filter and mode") {
  Random random(10);
  Trial trial;
  trial.own_lane(true);
  const auto plain = Rig::plan({"a=%di", ""}), strings = Rig::plan({"s=+0(%si):string f=%flags", ""}),
             filtered = Rig::plan({"m=+0(%di) a=%ax", "m != 0 && a < 100"}), counted = Rig::plan({"", ""});
  trial.rig().enable(10, plain);
  trial.rig().enable(11, strings);
  trial.rig().enable(12, filtered);
  trial.rig().enable(13, counted, arch::channel::kCountOnly);
  trial.rig().enable(14, plain, arch::channel::kDisabled);
  const arch::CapturedProbe probes[] = {{10, &plain.capture},
                                        {14, &plain.capture},
                                        {12, &filtered.capture},
                                        {13, &counted.capture},
                                        {11, &strings.capture}};
  REQUIRE(trial.prepare(kNop5, probes));
  for (const std::uint64_t ax : {5ull, 500ull}) {
    Machine start = trial.random_state(random);
    start.regs.rdi = start.regs.rsi = trial.data() + 0x10;
    start.regs.rax = ax;
    Outcome native, got;
    trial.run_native(start, native);
    trial.run_detour(start, got);
    CHECK(native.machine.regs == got.machine.regs);
    std::vector<std::uint32_t> order;
    for (const auto& r : trial.drain()) order.push_back(r.probe);
    CHECK(order == (ax == 5 ? std::vector<std::uint32_t>{10, 12, 11} : std::vector<std::uint32_t>{10, 11}));
  }
  auto& channel = trial.rig().channel();
  CHECK(channel.counts(12).recorded == 1);
  CHECK(channel.counts(12).filtered == 1);
  CHECK(channel.counts(13).counted == 2);
  CHECK(channel.counts(13).recorded == 0);
  CHECK(channel.counts(14).hits() == 0);
}

TEST_CASE("records say when, on which cpu, and by whom") {
  Random random(11);
  stay_on_this_cpu();
  for (const bool rdpid : {true, false}) {
    auto features = arch::x86_64::detour_features();
    features.cpu_number = features.cpu_number && rdpid;
    Trial trial({.features = features});
    const auto plan = Rig::plan({"a=%di", ""});
    trial.rig().enable(1, plan);
    const arch::CapturedProbe probe{1, &plan.capture};
    REQUIRE(trial.prepare(kNop5, std::span(&probe, 1)));
    for (const bool owned : {true, false}) {
      trial.own_lane(owned);
      const Machine start = trial.random_state(random);
      Outcome outcome;
      const std::uint64_t before = __builtin_ia32_rdtsc();
      trial.run_detour(start, outcome);
      const std::uint64_t after = __builtin_ia32_rdtsc();
      const auto records = trial.drain();
      REQUIRE(records.size() == 1);
      CHECK(records[0].time > before);
      CHECK(records[0].time < after);
      CHECK((records[0].owner != 0) == owned);
      if (!owned) CHECK(records[0].thread_pointer == start.regs.fs_base);
      const auto cpu = features.cpu_number ? static_cast<std::uint32_t>(sched_getcpu()) : events::ChannelRecord::kNoCpu;
      CHECK(records[0].cpu == cpu);
    }
  }
}

TEST_CASE("a thread without thread pointer, or with a foreign word at fs:0, uses the shared lane") {
  if (!Sandbox::has_segment_bases()) {
    MESSAGE("skipped: this kernel lets no program set its segment bases (no FSGSBASE)");
    return;
  }
  Random random(12);
  Trial trial;
  trial.own_lane(true);
  const auto plan = Rig::plan({"a=%di", ""}), counted = Rig::plan({"", ""});
  trial.rig().enable(1, plan);
  trial.rig().enable(2, counted, arch::channel::kCountOnly);
  const arch::CapturedProbe probes[] = {{1, &plan.capture}, {2, &counted.capture}};
  REQUIRE(trial.prepare(kNop5, probes));
  for (const std::uint64_t base : {std::uint64_t{0}, trial.data() + 0x100, std::uint64_t{0x10}}) {
    Machine start = trial.random_state(random);
    start.regs.fs_base = base;
    Outcome native, got;
    trial.run_native(start, native);
    trial.run_detour(start, got);
    CHECK(native.machine.regs == got.machine.regs);
    const auto records = trial.drain();
    REQUIRE(records.size() == 1);
    CHECK(records[0].owner == 0);
    CHECK(records[0].thread_pointer == base);
  }
  CHECK(trial.rig().channel().counts(2).counted == 3);
  CHECK(trial.rig().channel().take_shared_counting());
  CHECK_FALSE(trial.rig().channel().take_shared_counting());
  Outcome owned;
  trial.run_detour(trial.random_state(random), owned);
  CHECK(trial.rig().channel().counts(2).counted == 4);
  CHECK_FALSE(trial.rig().channel().take_shared_counting());
}

// ---- plans ----

TEST_CASE("what a detour can't decide is left to the daemon, with a reason") {
  const auto reason = [](const char* filter) { return Rig::plan({"a=%di s=+0(%si):string", filter}).filter_in_daemon; };
  CHECK(reason("s == \"x\"") == "it compares a string");
  CHECK(reason("a == 1 && s ~ \"x*\"") == "it compares a string");
  CHECK(reason("comm == sh") == "it compares comm");
  CHECK(reason("cpu == 1") == "it compares cpu");
  CHECK(reason("tid == 1 || a == 2") == "it compares tid");
  CHECK(reason("pid == 1") == "it is false for every hit");
  CHECK(reason("pid != 1").empty());
  CHECK(reason("pid == 1 || a > 2").empty());
}

TEST_CASE("a filter on an argument that no record has is left to the daemon") {
  const auto parsed = lang::parse_definition("p:t 0x1000 gone=%di other=%si");
  REQUIRE(parsed);
  std::vector<lang::FetchArg> args = parsed->args;
  values::Placement nowhere;
  nowhere.absent = "it is optimised out";
  lang::PlacedExpr placed;
  placed.place = std::make_shared<const values::Placement>(nowhere);
  args[0].expr = std::make_shared<const lang::FetchExpr>(lang::FetchExpr{placed, 0});
  const auto program = events::FetchProgram::compile(args, {});
  REQUIRE(program);
  for (const char* text : {"gone == 5", "gone == 5 || other == 5", "!(gone == 5)"}) {
    CAPTURE(text);
    const auto filter = lang::Filter::compile(text, args);
    REQUIRE(filter);
    const auto plan = events::plan_detour(*program, *filter, 1);
    REQUIRE(plan);
    CHECK(plan->filter_in_daemon == "it compares what isn't captured");
    CHECK(plan->capture.filter.empty());
  }
}

TEST_CASE("what no record can hold or no code can read is refused with a reason") {
  const auto refusal = [](const char* arguments, const char* filter = "") {
    Trial trial;
    const auto plan = Rig::plan({arguments, filter});
    const arch::CapturedProbe probe{0, &plan.capture};
    return trial.prepare(kNop5, std::span(&probe, 1)).refusal;
  };
  CHECK(refusal("a=+0x100000000(%di)") == arch::DetourRefusal::far_offset);
  CHECK(refusal("a=+0(%di):u8[64] b=+0(%di):u8[64] c=+0(%di):u8[64] d=+0(%di):u8[64] e=+0(%di):u8[64] f=+0(%di):u8[64] "
                "g=+0(%di):u8[64] h=+0(%di):u8[64]") == arch::DetourRefusal::code_size);
  CHECK(refusal("a=+0(%di) b=+1(%di) c=+2(%di) d=+3(%di) e=+4(%di) f=+5(%di) g=+6(%di) h=+7(%di) i=+8(%di)",
                "a==1||b==1||c==1||d==1||e==1||f==1||g==1||h==1||i==1") == arch::DetourRefusal::filter_size);
  const auto parsed = lang::parse_definition("p:t 0x1000 a=+0(%di):string[16]");
  REQUIRE(parsed);
  const auto program = events::FetchProgram::compile(parsed->args, {});
  REQUIRE(program);
  const auto plan = events::plan_detour(*program, {}, 1);
  REQUIRE(!plan);
  CHECK(plan.error().reason == Reason::unsupported);
}

TEST_CASE("unpacking a record of random words stays within its bounds") {
  Random random(13);
  for (unsigned i = 0; i < 20000; ++i) {
    static const auto plan =
        Rig::plan({"a=%di s=+0(%si):string b=+0(%di):u8[9] t=+0(%r8):string[4] c=$comm d=+0(%di)", ""});
    const std::size_t size = 4 + random.below(plan.capture.layout.max_size / 8 - 3);
    std::vector<std::uint64_t> words(size);
    for (auto& word : words) word = random.chance(50) ? random.below(600) : random.word();
    Packed out(plan.sources.size() + random.below(3000));
    const std::size_t used = events::unpack(plan, words, {.comm = "comm"}, out);
    CHECK(used <= out.size());
    CHECK(used >= plan.sources.size());
  }
}

}  // namespace
}  // namespace probed::test
