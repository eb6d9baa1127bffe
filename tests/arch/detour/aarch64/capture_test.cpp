// What detours record and which hits they take, against the breakpoint tier's own code as the oracle: FetchProgram::run
// and Filter::matches on the same registers and memory must say the same, byte for byte.
#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "tests/arch/detour/aarch64/trial.hpp"
#include "tests/arch/detour/own_memory.hpp"
#include "tests/arch/detour/random_filter.hpp"
#include "tests/arch/detour/random_guard.hpp"
#include "tests/arch/detour/rig_cpu.hpp"
#include "tests/arch/differential/options.hpp"
#include "tests/arch/differential/random.hpp"

namespace probed::test {
namespace {

constexpr std::uint32_t kNopInsn[] = {0xd503201f};
constexpr std::string_view kComm = "a comm";
// The last page of the data, of which the rest is words and the stack.
constexpr std::uint64_t kText = kDataSize - 0x1000, kPointers = 0x300;

using Data = std::vector<std::uint8_t>;

struct Oracle {
  Packed packed;
  bool accepted = false;
};

Oracle ask(const Compiled& compiled, const CpuState& start, const Data& data) {
  std::ranges::copy(data, NativeCpu::data().begin());
  arch::native::Registers regs = start.regs;
  regs.program_counter = kOriginal;
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

struct Start {
  CpuState state;
  Data data;
};

// A state whose x0, x1 and x2 point at something: x0 at words and pointers, x1 at text that may run against the end of
// what can be read, x2 at pointers to text; and x7 nowhere.
Start pointing_state(Random& random) {
  Start start{random_state(), random_data()};
  const auto word = [&](std::size_t at, std::uint64_t value) { std::memcpy(start.data.data() + at, &value, 8); };
  for (std::size_t i = kText; i < kDataSize; ++i)
    start.data[i] = static_cast<std::uint8_t>(random.chance(3) ? 0 : 'a' + random.below(26));
  const std::uint64_t text = kDataBegin + kText + random.below(0xa00);
  auto& x = start.state.regs.x;
  for (std::uint64_t& value : x)
    if (random.chance(30)) value = random.word();
  // Where no other register points to: a detour's frame is below.
  start.state.regs.stack_pointer = kDataBegin + 0x2800 + random.below(16) * 16;
  x[0] = kDataBegin + random.below(0x200);
  x[9] = kDataBegin + random.below(0x400);
  x[1] = random.chance(30) ? kDataBegin + kDataSize - 1 - random.below(20) : text;
  x[2] = kDataBegin + kPointers;
  x[7] = random.word() | 1ull << 60;
  for (unsigned i = 0; i < 8; ++i)
    word(kPointers + 8 * i, random.chance(25) ? random.word() : random.chance(20) ? 0 : text + random.below(64));
  if (random.chance(10)) x[2] = kDataBegin + kDataSize - 20;
  if (random.chance(10)) x[0] = kDataBegin + kDataSize - 20;
  return start;
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
    REQUIRE(trial_.prepare(kNopInsn, std::span(&probe, 1)));
    std::uint64_t accepted = 0;
    for (unsigned i = 0; i < states; ++i) accepted += check_one(compiled, pointing_state(random), index) ? 1 : 0;
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
  bool check_one(const Compiled& compiled, const Start& start, std::uint32_t index) {
    const Oracle oracle = ask(compiled, start.state, start.data);
    const CpuTrial outcome = trial_.run_detour(start.state, start.data);
    CHECK(outcome.outcome.state.regs.pc() == kOriginal + 4);
    const auto records = trial_.drain();
    CHECK(records.size() == (oracle.accepted ? 1u : 0u));
    if (records.size() != 1 || !oracle.accepted) return oracle.accepted;
    CHECK(records[0].probe == index);
    CHECK(hex(unpacked(compiled.plan, records[0])) == hex(oracle.packed));
    return true;
  }

  Trial trial_;
  std::uint64_t accepted_ = 0, rejected_ = 0;
};

}  // namespace

// ---- what is written out ----

TEST_CASE("registers, immediates, the stack, texts and comm are recorded as the breakpoint tier records them") {
  Random random(1);
  Agreement agreement;
  std::vector<std::string> names = {"sp", "pc", "lr"};
  for (unsigned i = 0; i <= 30; ++i) names.push_back("x" + std::to_string(i));
  for (const std::string& name : names) {
    const std::string reg = "%" + name;
    agreement.check({"a=" + reg + " b=" + reg + ":u8 c=" + reg + ":s32 d=" + reg + ":b5@3/16", ""}, random, 3);
    // Registers that strings and arrays need for themselves.
    agreement.check({"s=+0(%x1):string a=" + reg + " t=+0(%x0):u8[2] b=" + reg + ":s16", ""}, random, 3);
  }
  agreement.check({"a=$stack b=$stack0 c=$stack1:s16 d=$stack20 e=$stack9:u8", ""}, random, 10);
  agreement.check({"a=\\1 b=\\-5:s64 c=\\0x123456789abcdef d=$comm e=\\\"text\" f=%x0 g=$comm", ""}, random, 5);
  agreement.check({"a=$arg1 b=$arg8 c=$arg9 d=$arg12:s8", ""}, random, 5);
}

TEST_CASE("every integer type is cut and extended from registers and from memory") {
  Random random(2);
  Agreement agreement;
  for (const char* type : {"u8",      "u16",      "u32",      "u64",      "s8",       "s16",     "s32",    "s64",
                           "x8",      "x16",      "x32",      "x64",      "char",     "symbol",  "b1@0/8", "b7@1/8",
                           "b9@5/16", "b31@1/32", "b32@0/32", "b63@1/64", "b1@63/64", "b64@0/64"}) {
    const std::string t = std::string(":") + type;
    agreement.check({"a=%x3" + t + " b=+3(%x0)" + t + " c=$stack2" + t + " d=+0(%x7)" + t + " e=%x13" + t, ""}, random,
                    6);
  }
}

TEST_CASE("dereferences nest, and one that faults makes its argument null") {
  Random random(3);
  Agreement agreement;
  agreement.check({"a=+0(+0(%x2)):u16 b=+8(+8(%x2)) c=+0(+0(+0(%x2))) d=-8(%x0):u32 e=+0(%x7)", ""}, random, 40);
  agreement.check({"a=+0($stack1) b=+4($stack):u8 c=+0(+0(%sp))", ""}, random, 20);
  CHECK(agreement.trial().fixups() > 20);
}

TEST_CASE("offsets that no instruction has room for are added") {
  Random random(4);
  Agreement agreement;
  for (const char* offset : {"255", "256", "-256", "-257", "4095", "4097", "8191", "12345", "-8192", "0x100000000"}) {
    const std::string at = (*offset == '-' ? "" : "+") + std::string(offset);
    agreement.check({"a=" + at + "(%x0):u8 b=" + at + "(%x0):u16 c=" + at + "(%x0):u32 d=" + at + "(%x0) e=" + at +
                         "(%sp):u32 f=" + at + "(+0(%x2)):s64 g=" + at + "(%x9):u64",
                     ""},
                    random, 5);
  }
}

TEST_CASE("fixed addresses are read, readable or not") {
  Random random(4);
  Agreement agreement;
  static const std::uint64_t far = 0x1122334455667788;
  const auto at = [](std::uint64_t address) {
    char text[32];
    std::snprintf(text, sizeof text, "@0x%llx", static_cast<unsigned long long>(address));
    return std::string(text);
  };
  const std::uint64_t near = kDataBegin + 0x40;
  agreement.check({"a=" + at(near) + ":u32 b=+8(" + at(near) + ") c=" + at(reinterpret_cast<std::uint64_t>(&far)) +
                       " d=" + at(0x10) + " e=" + at(near) + ":string f=" + at(0x7fff'ffff'f000) + ":u8",
                   ""},
                  random, 10);
}

TEST_CASE("arrays are recorded element by element") {
  Random random(5);
  Agreement agreement;
  agreement.check({"a=+0(%x0):u8[64] b=+0(%x0):s16[7] c=+0(%x7):u32[3] d=+0(+0(%x2)):u64[2] e=$stack3", ""}, random,
                  30);
  agreement.check({"a=+0(%x2):string[4] b=+8(%x2):string[2] c=%x0", ""}, random, 30);
  agreement.check({"a=+0(%x0):b3@2/16[9]", ""}, random, 10);
}

TEST_CASE("strings are recorded up to their end, their limit, or not at all when they run into a hole") {
  Random random(6);
  Agreement agreement;
  for (const bool owned : {true, false}) {
    agreement.trial().own_lane(owned);
    agreement.check(
        {"s=+0(%x1):string t=+0(+0(%x2)):string u=%x0 n=+0(%x7):string v=+1(%x1):ustring w=+2(%x1):string", ""}, random,
        150);
  }
  CHECK(agreement.trial().fixups() > 20);
}

TEST_CASE(
    "a string of any length at any alignment is copied whole, cut at 512 bytes, and gives back what it doesn't need") {
  Trial trial;
  trial.own_lane(true);
  const auto plan = Rig::plan({"s=+0(%x1):string", ""});
  trial.rig().enable(1, plan);
  const arch::CapturedProbe probe{1, &plan.capture};
  REQUIRE(trial.prepare(kNopInsn, std::span(&probe, 1)));
  CpuState start = random_state();
  for (std::size_t length = 0; length < 600; length += length < 40 ? 1 : 37) {
    for (std::size_t shift = 0; shift < 9; ++shift) {
      Data data(kDataSize, 'x');
      data[shift + length] = 0;
      start.regs.x[1] = kDataBegin + shift;
      trial.run_detour(start, data);
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

namespace {

std::string random_argument(Random& random) {
  static const char* const kTypes[] = {"",     ":u8",  ":u16", ":u32",    ":s8",       ":s16", ":s32",
                                       ":s64", ":x16", ":u64", ":b3@1/8", ":b17@3/32", ":char"};
  static const char* const kSources[] = {"%x3",          "%x9",      "%x15",    "%x0",     "%x17",    "$stack0",
                                         "$stack5",      "$stack",   "+0(%x0)", "+9(%x0)", "+0(%x7)", "+8(+0(%x2))",
                                         "+0(+16(%x2))", "-16(%x0)", "+0(%sp)", "%x2",     "%x30",    "+0(+0(+0(%x2)))",
                                         "\\77",         "%sp",      "%x8"};
  static const char* const kOthers[] = {"+0(%x1):string", "+0(+8(%x2)):string", "+0(%x2):string[3]",
                                        "+0(%x0):u16[6]", "+4(%x0):s32[3]",     "$comm",
                                        "+0(%x7):u8[2]"};
  if (random.chance(20)) return random.pick(kOthers);
  return std::string(random.pick(kSources)) + random.pick(kTypes);
}

std::string random_arguments(Random& random, unsigned count) {
  std::string text;
  for (unsigned i = 0; i < count; ++i) text += " a" + std::to_string(i) + "=" + random_argument(random);
  return text;
}

}  // namespace

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

namespace {

constexpr FilterField kFields[] = {
    {"a", "a=%x3:u8", 8, false},        {"b", "b=%x10:s32", 32, true},       {"c", "c=%x12", 64, false},
    {"d", "d=+0(%x0):s16", 16, true},   {"e", "e=+0(%x7):u32", 32, false},   {"f", "f=$stack1:s64", 64, true},
    {"g", "g=%x15:b3@4/16", 16, false}, {"h", "h=+4(+0(%x2)):u8", 8, false}, {"i", "i=%x30:u32", 32, false},
    {"j", "j=%sp:s8", 8, true},
};

}  // namespace

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
  static constexpr const char* kNumbers[] = {"x3", "x1", "x13", "x7", "sp"};
  static constexpr const char* kPointing[] = {"x0", "x2", "x9", "sp"};
  const GuardRegisters registers{kNumbers, kPointing, "x7"};
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
  Trial trial;
  const CpuState random = random_state();
  for (const char* type : {"u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"}) {
    for (const char* op : {"==", "!=", "<", "<=", ">", ">=", "&"}) {
      for (const char* limit : {"0", "1", "100", "127"}) {
        const Compiled compiled = Rig::compile({std::string("a=%x11:") + type, std::string("a ") + op + " " + limit});
        trial.rig().enable(0, compiled.plan);
        const arch::CapturedProbe probe{0, &compiled.plan.capture};
        REQUIRE(trial.prepare(kNopInsn, std::span(&probe, 1)));
        for (const std::uint64_t base :
             {0ull, 1ull, 100ull, 127ull, 128ull, 0x8000ull, 0x80000000ull, 1ull << 63, ~0ull}) {
          for (const std::uint64_t delta : {~0ull, 0ull, 1ull}) {
            CpuState start = random;
            start.regs.x[11] = base + delta;
            const bool accepted = ask(compiled, start, random_data()).accepted;
            trial.run_detour(start, random_data());
            CAPTURE(type);
            CAPTURE(op);
            CAPTURE(start.regs.x[11]);
            CHECK(trial.drain().size() == (accepted ? 1u : 0u));
          }
        }
      }
    }
  }
}

TEST_CASE("comparisons with large and negative numbers are exact") {
  Trial trial;
  const CpuState random = random_state();
  for (const char* filter : {"a == -1", "a > -4095", "a >= -4096", "a < -4097", "a != 4095", "a <= 4096", "a > 4097",
                             "a == 0x7fffffff", "a < -2147483648", "a & 0xff000", "a & 0x5a5a5a5a"}) {
    for (const char* type : {"s32", "s64"}) {
      const Compiled compiled = Rig::compile({std::string("a=%x11:") + type, filter});
      trial.rig().enable(0, compiled.plan);
      const arch::CapturedProbe probe{0, &compiled.plan.capture};
      REQUIRE(trial.prepare(kNopInsn, std::span(&probe, 1)));
      for (const std::int64_t base : {0l, -1l, -4095l, -4096l, -4097l, 4095l, 4096l, 4097l, 0x7fffffffl, -0x80000000l})
        for (const std::int64_t delta : {-1l, 0l, 1l}) {
          CpuState start = random;
          start.regs.x[11] = static_cast<std::uint64_t>(base + delta);
          const bool accepted = ask(compiled, start, random_data()).accepted;
          trial.run_detour(start, random_data());
          CAPTURE(filter);
          CAPTURE(base + delta);
          CHECK(trial.drain().size() == (accepted ? 1u : 0u));
        }
    }
  }
}

// ---- several probes, modes, identity ----

TEST_CASE("several probes at one site record in order, each with its own filter and mode") {
  Trial trial;
  trial.own_lane(true);
  const auto plain = Rig::plan({"a=%x0", ""}), strings = Rig::plan({"s=+0(%x1):string f=%x10", ""}),
             filtered = Rig::plan({"m=+0(%x0) a=%x3", "m != 0 && a < 100"}), counted = Rig::plan({"", ""});
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
  REQUIRE(trial.prepare(kNopInsn, probes));
  for (const std::uint64_t a : {5ull, 500ull}) {
    CpuState start = random_state();
    start.regs.x[0] = start.regs.x[1] = kDataBegin + 0x10;
    start.regs.x[3] = a;
    const CpuTrial native = trial.run_native(start, random_data());
    CpuTrial got = trial.run_detour(start, random_data());
    Trial::forget_frame(start, native, got);
    CHECK(differences(native, got) == "");
    std::vector<std::uint32_t> order;
    for (const auto& r : trial.drain()) order.push_back(r.probe);
    CHECK(order == (a == 5 ? std::vector<std::uint32_t>{10, 12, 11} : std::vector<std::uint32_t>{10, 11}));
  }
  auto& channel = trial.rig().channel();
  CHECK(channel.counts(12).recorded == 1);
  CHECK(channel.counts(12).filtered == 1);
  CHECK(channel.counts(13).counted == 2);
  CHECK(channel.counts(13).recorded == 0);
  CHECK(channel.counts(14).hits() == 0);
}

TEST_CASE("records say when and by whom") {
  Trial trial;
  const auto plan = Rig::plan({"a=%x0", ""});
  trial.rig().enable(1, plan);
  const arch::CapturedProbe probe{1, &plan.capture};
  REQUIRE(trial.prepare(kNopInsn, std::span(&probe, 1)));
  for (const bool owned : {true, false}) {
    trial.own_lane(owned);
    const std::uint64_t before = arch::native::record_clock();
    trial.run_detour(random_state(), random_data());
    const std::uint64_t after = arch::native::record_clock();
    const auto records = trial.drain();
    REQUIRE(records.size() == 1);
    CHECK(records[0].time >= before);
    CHECK(records[0].time <= after);
    CHECK((records[0].owner != 0) == owned);
    if (owned) CHECK(records[0].cpu < 1024);
    if (!owned) CHECK(records[0].cpu == events::ChannelRecord::kNoCpu);
    if (!owned) CHECK(records[0].thread_pointer == thread_pointer());
  }
}

// ---- plans ----

TEST_CASE("what no record can hold or no code can read is refused with a reason") {
  const auto refusal = [](const char* arguments, const char* filter = "") {
    Trial trial;
    const auto plan = Rig::plan({arguments, filter});
    const arch::CapturedProbe probe{0, &plan.capture};
    return trial.prepare(kNopInsn, std::span(&probe, 1)).refusal;
  };
  CHECK(refusal("a=%pstate") == arch::DetourRefusal::register_operand);
  CHECK(refusal("a=+0(%x0):u8[64] b=+0(%x0):u8[64] c=+0(%x0):u8[64] d=+0(%x0):u8[64] e=+0(%x0):u8[64] f=+0(%x0):u8[64] "
                "g=+0(%x0):u8[64] h=+0(%x0):u8[64]") == arch::DetourRefusal::code_size);
  CHECK(refusal("a=+0(%x0) b=+1(%x0) c=+2(%x0) d=+3(%x0) e=+4(%x0) f=+5(%x0) g=+6(%x0) h=+7(%x0) i=+8(%x0)",
                "a==1||b==1||c==1||d==1||e==1||f==1||g==1||h==1||i==1") == arch::DetourRefusal::filter_size);
}

}  // namespace probed::test
