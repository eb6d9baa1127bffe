// bench-detour [--quick]: what a hit of an optimised probe costs, by what it records, beside the hand-written floor of
// detour_floor_x86_64.S, in one process and one run. Prints a table, and with --json one object a line: name, ns
// (median), least, ratio to the floor.
//
// Every figure is the time of a call of a probed function of two instructions minus that of the same function without
// a probe. Rings are never full and never read while writers are measured; "drained" rows have a reader on the other
// core.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/arch/detour/rig.hpp"

extern "C" {
void bench_floor_site();
extern std::uint64_t bench_floor_ring, bench_floor_mask;
}

namespace {

using namespace probed;
using Clock = std::chrono::steady_clock;
using Function = std::uint64_t (*)(std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t,
                                   std::uint64_t);

// nopl 0(%rax,%rax); lea (%rdi,%rsi), %rax; ret
constexpr std::array<std::uint8_t, 10> kBody = {0x0f, 0x1f, 0x44, 0x00, 0x00, 0x48, 0x8d, 0x04, 0x37, 0xc3};
constexpr std::size_t kRegion = 5;

struct Settings {
  // Short runs, so that most of them fit between two preemptions, and many.
  unsigned runs = 301;
  unsigned calls = 20'000;
  bool json = false;
};

struct Figure {
  double median = 0, least = 0;
};

void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

double run(Function function, unsigned calls, std::uint64_t second) {
  std::uint64_t sum = 0;
  const auto start = Clock::now();
  for (unsigned i = 0; i < calls; ++i) sum += function(i, second, 3, 4, 5, 6);
  const std::chrono::duration<double, std::nano> took = Clock::now() - start;
  asm volatile("" : : "r"(sum));
  return took.count() / calls;
}

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

Figure summarise(std::vector<double> samples) {
  std::ranges::sort(samples);
  return {samples[samples.size() / 2], samples.front()};
}

class Bench {
 public:
  explicit Bench(const Settings& settings) : settings_(settings) {
    floor_memory_.resize(1 << 16);
    bench_floor_ring = reinterpret_cast<std::uint64_t>(floor_memory_.data());
    bench_floor_mask = (1 << 18) - 1;
    plain_ = function_at(rig_.place(kBody));
  }

  void rows() {
    pin(0);
    rig_.own_lane(1);
    unlimited();
    floor_ = measure(reinterpret_cast<Function>(reinterpret_cast<void*>(bench_floor_site)));
    print("floor: hand-written", floor_);
    single("no argument", {"", ""});
    single("1 argument", {"a=%di", ""});
    single("2 arguments", {"a=%di b=%si", ""});
    single("6 arguments", {"a=%di b=%si c=%dx d=%cx e=%r8 f=%r9", ""});
    single("2 arguments in memory", {"a=+0(%si) b=+8(%si):u32", ""}, text());
    single("string of 8", {"s=+0(%si):string", ""}, text());
    single("string of 40", {"s=+0(%si):string", ""}, text() + 64);
    single("filter rejects", {"a=%di b=%si", "b > 100"});
    single("filter accepts", {"a=%di b=%si", "b < 100"});
    single("count only", {"", ""}, 2, arch::channel::kCountOnly);
    single("disabled", {"", ""}, 2, arch::channel::kDisabled);
    rig_.retire_own_lane();
    rig_.channel().drain(1, [](const auto&) {});
    single("2 arguments, shared lane", {"a=%di b=%si", ""});
    single("count only, shared lane", {"", ""}, 2, arch::channel::kCountOnly);
  }

  void two_threads() {
    const auto floor = parallel(reinterpret_cast<Function>(reinterpret_cast<void*>(bench_floor_site)), false);
    print("floor, 2 threads", floor);
    const Function function = probed({"a=%di b=%si", ""});
    print("2 arguments, 2 threads", parallel(function, true));
    print("2 arguments, shared lane, 2 threads", parallel(function, false));
    const Function counting = probed({"", ""}, arch::channel::kCountOnly);
    print("count only, 2 threads", parallel(counting, true));
  }

  // The writer is throttled by nothing: what the reader can't take is dropped, and counted.
  void drained() {
    test::Rig rig({.channel = {.bytes = 8 << 20, .lanes = 3, .probes = 16}});
    const auto plan = rig.plan({"a=%di b=%si", ""});
    rig.enable(0, plan);
    const std::uint64_t site = rig.place(kBody);
    const arch::CapturedProbe probe{0, &plan.capture};
    rig.install(site, kRegion, std::span(&probe, 1));
    std::atomic<bool> stop{false};
    std::uint64_t taken = 0;
    std::thread reader([&] {
      pin(1);
      while (!stop.load()) taken += rig.channel().drain(4096, [](const auto& r) { asm volatile("" : : "r"(r.time)); });
    });
    std::vector<double> samples;
    std::thread writer([&] {
      pin(0);
      rig.own_lane(9);
      for (unsigned i = 0; i < settings_.runs; ++i)
        samples.push_back(run(function_at(site), settings_.calls, 2) - base_);
      rig.retire_own_lane();
    });
    writer.join();
    stop = true;
    reader.join();
    while (const std::size_t n = rig.channel().drain(4096, [](const auto&) {})) taken += n;
    const auto counts = rig.channel().counts(0);
    print("2 arguments, drained", summarise(samples));
    const double calls = double(settings_.calls) * settings_.runs;
    std::printf("    of %.0f hits %.1f %% recorded, %.1f %% dropped; sum %s\n", calls,
                100 * double(counts.recorded) / calls, 100 * double(counts.dropped) / calls,
                double(counts.hits()) == calls && taken == counts.recorded ? "exact" : "WRONG");
  }

  // How long generating takes.
  void generation() {
    const auto plan = rig_.plan({"a=%di b=%si", ""});
    // push %rbp; mov %rsp,%rbp; push %r15
    const std::uint8_t prologue[] = {0x55, 0x48, 0x89, 0xe5, 0x41, 0x57};
    const std::uint64_t site = rig_.place(prologue);
    std::array<arch::Insn, 3> insns;
    for (std::size_t i = 0, at = 0; i < insns.size(); at += insns[i++].length)
      insns[i] = arch::x86_64::decode(std::span(prologue).subspan(at), site + at);
    for (const auto& [name, p] : {std::pair("no argument", rig_.plan({"", ""})), std::pair("2 arguments", plan)}) {
      arch::Detour detour;
      std::size_t bytes = 0;
      constexpr unsigned kCount = 50'000;
      const double start = cpu_seconds();
      for (unsigned i = 0; i < kCount; ++i) {
        const arch::CapturedProbe probe{i, &p.capture};
        const std::uint64_t address = (rig_.code_begin() + 0x100000 + bytes) & ~15ull;
        arch::x86_64::build_detour({site, prologue, insns, address, std::span(&probe, 1)}, rig_.runtime(), detour);
        bytes += (detour.code.size() + 15) & ~15ull;
      }
      std::printf("50,000 detours, %s: %.3f s of cpu, %.1f MB, %zu bytes each\n", name, cpu_seconds() - start,
                  double(bytes) / 1e6, detour.code.size());
    }
  }

 private:
  static Function function_at(std::uint64_t address) { return reinterpret_cast<Function>(address); }

  // Text to point at: 8 bytes at 0, 40 bytes at 64.
  std::uint64_t text() {
    static char buffer[256];
    std::memcpy(buffer, "eightchr", 9);
    std::memcpy(buffer + 64, "a string of some forty characters, as is", 41);
    return reinterpret_cast<std::uint64_t>(buffer);
  }

  void set_limits(std::uint64_t limit) {
    const auto& layout = rig_.channel().layout();
    for (unsigned i = 0; i < layout.lanes; ++i) {
      auto* const at = rig_.target_view() + layout.lane_at(events::LaneId{i}) + arch::channel::kLaneLimit;
      std::memcpy(at, &limit, sizeof limit);
    }
  }
  void unlimited() { set_limits(~0ull >> 1); }
  // A fresh rig would do, too; this one's rings are full of what nobody read.
  void limited() {
    const auto& layout = rig_.channel().layout();
    for (unsigned i = 0; i < layout.lanes; ++i) {
      std::byte* const lane = rig_.target_view() + layout.lane_at(events::LaneId{i});
      std::memset(lane + arch::channel::kLaneHead, 0, 8);
      std::memset(rig_.target_view() + layout.ring_at(events::LaneId{i}), 0, layout.ring_stride);
    }
    set_limits(layout.ring_size);
  }

  Function probed(const test::Definition& definition, arch::channel::ProbeFlags mode = arch::channel::kRecord) {
    plans_.push_back(std::make_unique<events::DetourPlan>(rig_.plan(definition)));
    const std::uint32_t index = next_probe_++;
    rig_.enable(index, *plans_.back(), mode);
    const std::uint64_t site = rig_.place(kBody);
    const arch::CapturedProbe probe{index, &plans_.back()->capture};
    rig_.install(site, kRegion, std::span(&probe, 1));
    return function_at(site);
  }

  void single(const char* name, const test::Definition& definition, std::uint64_t second = 2,
              arch::channel::ProbeFlags mode = arch::channel::kRecord) {
    const Function function = probed(definition, mode);
    unlimited();
    print(name, measure(function, second));
  }

  // Unprobed and probed runs alternate, so that both see the same machine.
  Figure measure(Function function, std::uint64_t second = 2) {
    std::vector<double> samples, bases;
    run(function, settings_.calls / 4, second);
    for (unsigned i = 0; i < settings_.runs; ++i) {
      bases.push_back(run(plain_, settings_.calls, second));
      samples.push_back(run(function, settings_.calls, second));
    }
    base_ = summarise(bases).least;
    for (double& sample : samples) sample -= base_;
    return summarise(samples);
  }

  Figure parallel(Function function, bool own_lanes) {
    std::vector<double> samples[2];
    std::atomic<unsigned> at_line{0};
    const auto body = [&](unsigned i) {
      pin(static_cast<int>(i));
      if (own_lanes) rig_.own_lane(2 + i);
      unlimited();
      for (unsigned r = 0; r < settings_.runs; ++r) {
        at_line.fetch_add(1);
        while (at_line.load() < 2 * (r + 1)) {
        }
        samples[i].push_back(run(function, settings_.calls, 2) - base_);
      }
      if (own_lanes) rig_.retire_own_lane();
    };
    std::thread other(body, 1), one(body, 0);
    other.join();
    one.join();
    limited();
    rig_.channel().drain(1, [](const auto&) {});
    std::vector<double> both;
    for (unsigned r = 0; r < settings_.runs; ++r) both.push_back((samples[0][r] + samples[1][r]) / 2);
    return summarise(both);
  }

  void print(const std::string& name, const Figure& figure) {
    const double ratio = figure.median / floor_.median, least_ratio = figure.least / floor_.least;
    if (settings_.json)
      std::printf("{\"name\":\"%s\",\"ns\":%.2f,\"least\":%.2f,\"ratio\":%.3f}\n", name.c_str(), figure.median,
                  figure.least, ratio);
    else
      std::printf("%-38s %7.2f ns  least %7.2f  x%.2f (least x%.2f)\n", name.c_str(), figure.median, figure.least,
                  ratio, least_ratio);
  }

  const Settings settings_;
  test::Rig rig_{{.channel = {.bytes = 8 << 20, .lanes = 15, .probes = 256}}};
  std::vector<std::uint64_t> floor_memory_;
  std::vector<std::unique_ptr<events::DetourPlan>> plans_;
  Function plain_ = nullptr;
  std::uint32_t next_probe_ = 0;
  double base_ = 0;
  Figure floor_;
};

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--quick") settings.runs = 5;
    if (std::string_view(argv[i]) == "--json") settings.json = true;
  }
  Bench bench(settings);
  bench.rows();
  bench.two_threads();
  bench.drained();
  bench.generation();
}
