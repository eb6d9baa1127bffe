// Detours hit by many threads and signal handlers at once: every hit is recorded whole, or dropped and counted.
#include <doctest/doctest.h>
#include <pthread.h>
#include <sys/time.h>

#include <array>
#include <atomic>
#include <csetjmp>
#include <csignal>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "tests/arch/detour/rig.hpp"
#include "tests/arch/detour/rig_cpu.hpp"
#include "tests/arch/differential/options.hpp"

namespace probed::test {
namespace {

using Function = std::uint64_t (*)(std::uint64_t, std::uint64_t, const char*);

Function install(Rig& rig, std::uint32_t index, const events::DetourPlan& plan) {
  const Body body = summing_function();
  const std::uint64_t site = rig.place(body.code);
  const arch::CapturedProbe probe{index, &plan.capture};
  rig.install(site, body.region, std::span(&probe, 1));
  return reinterpret_cast<Function>(site);
}

std::uint64_t checked_call(Function function, std::uint64_t a, const char* text) {
  const std::uint64_t sum = function(a, ~a, text);
  if (sum != ~0ull) std::abort();
  return sum;
}

// Drains until told to stop, then until nothing is left. Records must be a=N b=~N, and N grow for each key.
class Reader {
 public:
  Reader(Rig& rig, const events::DetourPlan& plan) : rig_(rig), plan_(plan), thread_([this] { run(); }) {}
  void finish() {
    stop_ = true;
    thread_.join();
  }
  std::uint64_t taken = 0, broken = 0, disordered = 0;

 private:
  void run() {
    while (!stop_) once();
    while (once() > 0) {
    }
  }
  std::size_t once() {
    return rig_.channel().drain(1000, [this](const events::ChannelRecord& r) { look(r); });
  }
  void look(const events::ChannelRecord& r) {
    ++taken;
    const auto& items = plan_.capture.layout.items;
    const std::uint64_t a = r.words[items[0].offset / 8u], b = r.words[items[1].offset / 8u];
    if (b != ~a) ++broken;
    const std::uint64_t thread = a >> 40;
    if (r.owner != 0 && r.owner != thread) ++broken;
    std::uint64_t& last = last_[thread];
    if (a <= last) ++disordered;
    last = a;
  }

  Rig& rig_;
  const events::DetourPlan& plan_;
  std::atomic<bool> stop_{false};
  std::map<std::uint64_t, std::uint64_t> last_;
  std::thread thread_;
};

struct Load {
  unsigned threads, lanes;
  const char* arguments;
};

void run_threads(Function function, Rig& rig, unsigned threads, std::uint64_t calls) {
  std::vector<std::thread> all;
  for (unsigned t = 1; t <= threads; ++t)
    all.emplace_back([&rig, function, t, calls] {
      rig.own_lane(t);
      for (std::uint64_t i = 1; i <= calls; ++i) checked_call(function, std::uint64_t{t} << 40 | i, "some text");
      rig.retire_own_lane();
    });
  for (std::thread& thread : all) thread.join();
}

TEST_CASE("eight threads in lanes of their own, in one shared lane, and in both: every hit is whole or counted") {
  const std::uint64_t calls = from_environment("PROBED_TEST_CASES", 40000);
  for (const Load& load : {Load{8, 8, "a=$arg1 b=$arg2"}, Load{8, 0, "a=$arg1 b=$arg2"}, Load{8, 3, "a=$arg1 b=$arg2"},
                           Load{8, 3, "a=$arg1 b=$arg2 s=+0($arg3):string"}}) {
    CAPTURE(load.lanes);
    CAPTURE(load.arguments);
    Rig rig({.channel = {.bytes = 2 << 20, .lanes = load.lanes, .probes = 8}});
    const auto plan = Rig::plan({load.arguments, ""});
    rig.enable(3, plan);
    const Function function = install(rig, 3, plan);
    Reader reader(rig, plan);
    run_threads(function, rig, load.threads, calls);
    reader.finish();
    const auto counts = rig.channel().counts(3);
    CHECK(counts.recorded == reader.taken);
    CHECK(counts.hits() == load.threads * calls);
    CHECK(reader.broken == 0);
    CHECK(reader.disordered == 0);
    CHECK(rig.channel().damaged() == 0);
    CHECK(rig.channel().lost() == 0);
  }
}

TEST_CASE("counting is exact with eight threads, and when counting and recording alternate") {
  const std::uint64_t calls = from_environment("PROBED_TEST_CASES", 40000);
  Rig rig({.channel = {.bytes = 2 << 20, .lanes = 5, .probes = 8}});
  const auto plan = Rig::plan({"a=$arg1 b=$arg2", "a != 1"});
  rig.enable(2, plan, arch::channel::kCountOnly);
  const Function function = install(rig, 2, plan);
  Reader reader(rig, plan);
  std::atomic<bool> stop{false};
  std::thread switcher([&] {
    for (unsigned i = 0; !stop; ++i)
      rig.channel().set_mode(2, i % 2 == 0 ? arch::channel::kRecord : arch::channel::kCountOnly);
  });
  run_threads(function, rig, 8, calls);
  for (unsigned i = 0; i < 10; ++i) checked_call(function, 1, "");
  stop = true;
  switcher.join();
  reader.finish();
  const auto counts = rig.channel().counts(2);
  CHECK(counts.hits() == 8 * calls);
  CHECK(counts.filtered == 10);
  CHECK(reader.broken == 0);
}

// ---- signals ----

Function g_in_handler;
volatile std::uint64_t g_handler_calls;
volatile std::uint64_t g_inside;  // signals that came while the thread was in a detour's code
std::uint64_t g_code_begin, g_code_end;

bool is_inside(void* context) {
  const std::uint64_t pc = pc_of(*static_cast<ucontext_t*>(context));
  return pc >= g_code_begin && pc < g_code_end;
}

void hit_again(int, siginfo_t*, void* context) {
  if (is_inside(context)) g_inside = g_inside + 1;
  const std::uint64_t n = g_handler_calls + 1;
  g_handler_calls = n;
  checked_call(g_in_handler, std::uint64_t{2} << 40 | n, "from the handler");
}

void on_alarm(void (*handler)(int, siginfo_t*, void*), unsigned microseconds) {
  struct sigaction action {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGALRM, &action, nullptr);
  const itimerval timer{{0, static_cast<suseconds_t>(microseconds)}, {0, static_cast<suseconds_t>(microseconds)}};
  ::setitimer(ITIMER_REAL, &timer, nullptr);
}
void no_alarm() {
  const itimerval off{};
  ::setitimer(ITIMER_REAL, &off, nullptr);
  std::signal(SIGALRM, SIG_IGN);
}

// Signals by the timer, and from another thread as fast as they go.
class Pesterer {
 public:
  explicit Pesterer(pthread_t victim)
      : thread_([this, victim] {
          while (!stop_) pthread_kill(victim, SIGALRM);
        }) {}
  ~Pesterer() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST_CASE("a signal handler that hits the same probe while it captures loses and breaks nothing") {
  for (const char* arguments : {"a=$arg1 b=$arg2", "a=$arg1 b=$arg2 s=+0($arg3):string"}) {
    for (const bool owned : {true, false}) {
      CAPTURE(arguments);
      CAPTURE(owned);
      Rig rig({.channel = {.bytes = 4 << 20, .lanes = 2, .probes = 8}});
      const auto plan = Rig::plan({arguments, ""});
      rig.enable(1, plan);
      const Function function = install(rig, 1, plan);
      g_in_handler = function;
      g_handler_calls = 0;
      g_inside = 0;
      g_code_begin = rig.code_begin();
      g_code_end = rig.last_address() + rig.last().code.size();
      if (owned) REQUIRE(rig.own_lane(1));
      sigset_t alarm;
      sigemptyset(&alarm);
      sigaddset(&alarm, SIGALRM);
      pthread_sigmask(SIG_BLOCK, &alarm, nullptr);
      std::uint64_t calls = 0, taken = 0, broken = 0;
      std::atomic<bool> stop{false};
      std::thread reader([&] {
        const auto look = [&](const events::ChannelRecord& r) {
          ++taken;
          if (r.words[plan.capture.layout.items[0].offset / 8u] != ~r.words[plan.capture.layout.items[1].offset / 8u])
            ++broken;
        };
        while (!stop) rig.channel().drain(1000, look);
        while (rig.channel().drain(1000, look) > 0) {
        }
      });
      on_alarm(hit_again, 50);
      {
        const Pesterer pesterer(pthread_self());
        pthread_sigmask(SIG_UNBLOCK, &alarm, nullptr);
        const std::uint64_t enough = from_environment("PROBED_TEST_CASES", 300);
        while (calls < 200000 || (g_inside < enough && calls < 20'000'000))
          checked_call(function, std::uint64_t{1} << 40 | ++calls, "text");
        pthread_sigmask(SIG_BLOCK, &alarm, nullptr);
      }
      no_alarm();
      stop = true;
      reader.join();
      pthread_sigmask(SIG_UNBLOCK, &alarm, nullptr);
      const auto counts = rig.channel().counts(1);
      CHECK(g_inside > 20);
      CHECK(counts.hits() == calls + g_handler_calls);
      CHECK(counts.recorded == taken);
      CHECK(broken == 0);
      CHECK(rig.channel().damaged() == 0);
      CHECK(rig.channel().lost() == 0);
      rig.retire_own_lane();
    }
  }
}

sigjmp_buf g_out;
volatile std::uint64_t g_jumps;

void jump_out(int, siginfo_t*, void* context) {
  if (!is_inside(context)) return;
  g_jumps = g_jumps + 1;
  siglongjmp(g_out, 1);
}

// Calls until a signal jumps out of a detour, or 500 times.
[[gnu::noinline]] void call_until_thrown_out(Function function, volatile std::uint64_t& calls, const sigset_t& alarm) {
  if (sigsetjmp(g_out, 1) != 0) return;
  pthread_sigmask(SIG_UNBLOCK, &alarm, nullptr);
  const std::uint64_t last = calls + 500;
  while (calls < last) {
    calls = calls + 1;
    function(calls, ~calls, "");
  }
}

struct Abandoned {
  std::uint64_t taken = 0, broken = 0, stalls = 0;
};

// Takes everything out and steps over what will never be committed: the caller's thread is the only one, and is here.
void empty(Rig& rig, events::LaneId lane, Abandoned& seen) {
  const auto look = [&seen](const events::ChannelRecord& r) {
    ++seen.taken;
    if (r.words[4] != ~r.words[5]) ++seen.broken;
  };
  for (;;) {
    while (rig.channel().drain(1000, look) > 0) {
    }
    if (!rig.channel().stalled(lane)) return;
    ++seen.stalls;
    rig.channel().skip_hole(lane);
  }
}

// What a thread leaves that is killed in a detour, and what released targets may do: the capture part is left for good.
void check_abandoned(bool owned) {
  CAPTURE(owned);
  Rig rig({.channel = {.bytes = 4 << 20, .lanes = 2, .probes = 8}});
  const auto plan = Rig::plan({"a=$arg1 b=$arg2", ""});
  rig.enable(1, plan);
  const Function function = install(rig, 1, plan);
  g_code_begin = rig.code_begin();
  g_code_end = rig.last_address() + rig.last().code.size();
  g_jumps = 0;
  volatile std::uint64_t calls = 0;
  Abandoned seen;
  if (owned) REQUIRE(rig.own_lane(1));
  sigset_t alarm;
  sigemptyset(&alarm);
  sigaddset(&alarm, SIGALRM);
  pthread_sigmask(SIG_BLOCK, &alarm, nullptr);
  on_alarm(jump_out, 100);
  {
    const Pesterer pesterer(pthread_self());
    while ((calls < 100000 || g_jumps < 200) && calls < 20'000'000) {
      call_until_thrown_out(function, calls, alarm);
      pthread_sigmask(SIG_BLOCK, &alarm, nullptr);
      empty(rig, events::LaneId{owned ? 1u : 0u}, seen);
    }
  }
  no_alarm();
  pthread_sigmask(SIG_UNBLOCK, &alarm, nullptr);
  const std::uint64_t all = rig.channel().counts(1).hits() + rig.channel().lost();
  CHECK(g_jumps > 50);
  CHECK(seen.stalls > 0);
  CHECK(seen.stalls == rig.channel().lost());
  CHECK(all <= calls);
  CHECK(all + g_jumps >= calls);
  CHECK(seen.broken == 0);
  CHECK(rig.channel().damaged() == 0);
  rig.retire_own_lane();
}

TEST_CASE("reservations that are never committed cost one record each, and nothing behind them") {
  check_abandoned(true);
  check_abandoned(false);
}

}  // namespace
}  // namespace probed::test
