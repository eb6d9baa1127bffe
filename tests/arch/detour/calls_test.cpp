// A return probe's two detours: what the entry pushes onto its thread's call stack, what the exit makes of it, and what
// both leave to the tracer, whose part a SIGTRAP handler plays here by doing nothing: such calls go unseen.
#include <doctest/doctest.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>

#include "daemon/lang/definition.hpp"
#include "tests/arch/detour/rig.hpp"
#include "tests/arch/detour/rig_cpu.hpp"

namespace probed::test {
namespace {

using Function = std::uint64_t (*)(std::uint64_t, std::uint64_t);
using Role = arch::CapturedProbe::Role;
namespace ch = arch::channel;

constexpr std::uint32_t kTag = 77;
constexpr events::LaneId kLane{1};

std::atomic<unsigned> traps = 0;

void on_trap(int, siginfo_t*, void* context) {
  auto& interrupted = *static_cast<ucontext_t*>(context);
  ++traps;
  if constexpr (!arch::native::kTrapMovesPc) set_pc(interrupted, pc_of(interrupted) + arch::native::kBreakpointSize);
}

// The program is never seen in a trap that nobody asked for.
class Traps {
 public:
  Traps() {
    traps = 0;
    struct sigaction action = {};
    action.sa_sigaction = on_trap;
    action.sa_flags = SA_NODEFER | SA_SIGINFO;
    sigaction(SIGTRAP, &action, &before_);
  }
  ~Traps() { sigaction(SIGTRAP, &before_, nullptr); }

 private:
  struct sigaction before_ = {};
};

struct Plan {
  events::ReturnFetch fetch;
  events::ReturnPlan detours;
};

template <class T>
T must(Result<T> result) {
  REQUIRE_MESSAGE(result, result.error().message);
  return std::move(*result);
}

Plan plan_of(const std::string& arguments, const std::string& entry_filter = "") {
  const auto parsed = must(lang::parse_definition("r:t 0x1000 " + arguments));
  events::CompileContext context;
  auto fetch = must(events::ReturnFetch::compile(parsed.args, context));
  const auto filter =
      entry_filter.empty() ? lang::Filter() : must(lang::Filter::compile(entry_filter, fetch.entry_args()));
  auto detours = must(events::plan_return_detours(fetch, filter, {}, ::getpid()));
  return {std::move(fetch), std::move(detours)};
}

struct Calls {
  explicit Calls(const Plan& wanted, const Body& body = summing_function())
      : plan(wanted), rig({.channel = {.bytes = 4 << 20, .lanes = 3, .probes = 16, .calls = 64 << 10}}) {
    site = rig.place(body.code);
    exit = site + body.exit;
    const arch::CapturedProbe entry{.index = 3, .plan = &plan.detours.entry.capture, .role = Role::entry, .tag = kTag};
    const arch::CapturedProbe at_exit{.index = 3, .plan = &plan.detours.exit.capture, .role = Role::exit, .tag = kTag};
    rig.install(site, body.region, std::span(&entry, 1));
    rig.install(exit, body.region, std::span(&at_exit, 1));
    rig.enable(3, plan.detours.exit);
    REQUIRE(rig.own_lane(42));
  }
  void know_stack() {
    pthread_attr_t attributes;
    void* low = nullptr;
    std::size_t size = 0;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &low, &size);
    pthread_attr_destroy(&attributes);
    const auto begin = reinterpret_cast<std::uint64_t>(low);
    rig.channel().set_stack(kLane, begin, begin + size);
  }
  std::uint64_t call(std::uint64_t a, std::uint64_t b) { return reinterpret_cast<Function>(site)(a, b); }
  std::vector<std::vector<std::uint64_t>> records() {
    std::vector<std::vector<std::uint64_t>> all;
    rig.channel().drain(1000,
                        [&](const events::ChannelRecord& r) { all.emplace_back(r.words.begin(), r.words.end()); });
    return all;
  }

  const Plan& plan;
  Rig rig;
  std::uint64_t site = 0, exit = 0;
  Traps handler;
};

TEST_CASE("an entry's and an exit's detour make one record of a call, with what each of them saw") {
  const Plan plan = plan_of("a=$arg1:s64 sum=$retval:s64 b=$arg2:u8");
  Calls calls(plan);
  calls.know_stack();
  for (std::uint64_t i = 0; i < 100; ++i) CHECK(calls.call(i, 1000) == i + 1000);
  CHECK(traps == 0);
  const auto records = calls.records();
  REQUIRE(records.size() == 100);
  events::UnpackScratch scratch;
  std::array<std::byte, 256> packed{};
  for (std::uint64_t i = 0; i < 100; ++i) {
    const events::ReturnRecord said = events::describe_return(records[i]);
    CHECK(said.exit == calls.exit);
    CHECK_FALSE(said.tail_call);
    CHECK(said.entry_time <= records[i][ch::kRecordTime / 8]);
    CHECK(said.return_address != 0);
    const std::size_t size = events::unpack_return(plan.fetch, plan.detours, records[i], {}, scratch, packed);
    REQUIRE(size == 3 * 9);
    const auto value = [&](std::size_t at) {
      std::uint64_t v = 0;
      std::memcpy(&v, packed.data() + 9 * at + 1, sizeof v);
      return v;
    };
    CHECK(value(0) == i);
    CHECK(value(1) == i + 1000);
    CHECK(value(2) == (1000 & 0xff));
  }
  CHECK_FALSE(calls.rig.channel().take_call(kLane, ~0ull, [](const events::ChannelCall&) {}));
}

TEST_CASE("a call is counted without a record while nobody listens, and turned away at its entry by a filter") {
  const Plan plan = plan_of("a=$arg1:s64", "a < 10");
  Calls calls(plan);
  calls.know_stack();
  calls.rig.channel().set_mode(3, ch::kCountOnly);
  for (std::uint64_t i = 0; i < 30; ++i) calls.call(i, 0);
  CHECK(traps == 0);
  CHECK(calls.records().empty());
  CHECK(calls.rig.channel().counts(3).counted == 10);
  CHECK(calls.rig.channel().counts(3).filtered == 20);
  calls.rig.channel().set_mode(3, ch::kDisabled);
  calls.call(1, 1);
  CHECK(calls.rig.channel().counts(3).hits() == 10);
}

TEST_CASE("without a stack that is known, and where calls below haven't returned, the tracer is asked") {
  const Plan plan = plan_of("a=$arg1:s64");
  Calls calls(plan);
  CHECK(calls.call(1, 2) == 3);
  CHECK(traps == 2);
  calls.know_stack();
  CHECK(calls.call(1, 2) == 3);
  CHECK(traps == 2);
  // A call far below on the stack that is still there: whoever is above it has left it.
  std::uint64_t here = 0;
  const auto below = reinterpret_cast<std::uint64_t>(&here) - 4096;
  calls.rig.channel().mark_call(kLane, below & ~7ull);
  CHECK(calls.call(1, 2) == 3);
  CHECK(traps == 4);
  std::uint32_t tag = 1;
  CHECK(calls.rig.channel().take_call(kLane, ~0ull, [&](const events::ChannelCall& call) { tag = call.tag; }));
  CHECK(tag == 0);
  CHECK(calls.call(1, 2) == 3);
  CHECK(traps == 4);
  CHECK(calls.records().size() == 2);
}

TEST_CASE("a call stack that makes no sense is emptied, and what it held is lost") {
  const Plan plan = plan_of("a=$arg1:s64");
  Calls calls(plan);
  calls.know_stack();
  calls.call(1, 2);
  const auto& layout = calls.rig.channel().layout();
  auto* const lane = calls.rig.target_view() + layout.lane_at(kLane);
  for (const int word : {ch::kLaneCallTop, ch::kLaneCallNext}) {
    for (const std::uint64_t value : {0ull, 8ull, ~0ull, 0x1234'5678'9abcull}) {
      std::memcpy(lane + word, &value, sizeof value);
      CHECK_FALSE(calls.rig.channel().take_call(kLane, ~0ull, [](const events::ChannelCall&) {}));
      CHECK(calls.call(1, 2) == 3);
    }
  }
  CHECK(traps == 0);
  CHECK(calls.records().size() == 9);
}

// As a forked process does whose creator nobody traced any more.
TEST_CASE("a call stack that somebody else changes during a call leads nowhere") {
  const Plan plan = plan_of("a=$arg1:s64");
  Calls calls(plan, storing_function());
  calls.know_stack();
  const auto& layout = calls.rig.channel().layout();
  const auto lane = reinterpret_cast<std::uint64_t>(calls.rig.target_view()) + layout.lane_at(kLane);
  const auto word = [](std::uint64_t at) { return *reinterpret_cast<const std::uint64_t*>(at); };
  const std::uint64_t lowest = word(lane + ch::kLaneCallLowest), first = word(lane + ch::kLaneCallNext);
  REQUIRE(first > lowest);
  const auto harmless = [&](std::uint64_t at, std::uint64_t value) {
    CAPTURE(value);
    traps = 0;
    calls.call(at, value);
    CHECK(traps == 1);
    CHECK(calls.records().empty());
    while (calls.rig.channel().take_call(kLane, ~0ull, [](const events::ChannelCall&) {})) {
    }
    CHECK(word(lane + ch::kLaneCallTop) == lowest);
    CHECK(word(lane + ch::kLaneCallNext) == first);
  };
  for (const std::uint64_t value : {0ul, 8ul, ~0ul, lowest - 8, first, first + 64})
    harmless(first + static_cast<std::uint64_t>(ch::kCallBelow), value);
  for (const std::uint64_t value : {0ul, ~0ul, lowest, first + ch::kMaxCall + 8, first + (1 << 20)})
    harmless(lane + ch::kLaneCallNext, value);
  std::uint64_t elsewhere = 0;
  calls.call(reinterpret_cast<std::uint64_t>(&elsewhere), 7);
  CHECK(elsewhere == 7);
  CHECK(calls.records().size() == 1);
}

}  // namespace
}  // namespace probed::test
