// What the tracer decides, stop by stop, in orders that no real process can be made to keep: a thread in each of its
// states, and what may happen to it there. Whatever it is, the same has to be true afterwards (see after()).
#include <doctest/doctest.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "daemon/events/hit_queue.hpp"
#include "daemon/symbols/maps.hpp"
#include "daemon/tracer/engine.hpp"
#include "proto/base/fd.hpp"
#include "tests/unit/tracer/simulated/kernel.hpp"

// A page of code of its own. Nothing of it is ever executed.
asm(R"(
  .pushsection .text.simulated, "ax", @progbits
  .balign 4096
  .globl simulated_text, simulated_copied, simulated_emulated, simulated_push, simulated_pop, simulated_syscall, simulated_call, simulated_jump, simulated_handler, simulated_end
simulated_text:
  push %rbp
  mov %rsp, %rbp
simulated_copied:
  lea 1(%rdi), %rax
  xor %ecx, %ecx
simulated_emulated:
  nop
simulated_push:
  push %rbx
simulated_pop:
  pop %rbx
simulated_syscall:
  syscall
simulated_call:
  call simulated_text
  leave
  ret
simulated_jump:
  jmp *%rax
  nop
simulated_handler:
  ret
  .balign 4096, 0xc3
simulated_end:
  .popsection
)");
extern "C" {
extern const char simulated_text[], simulated_copied[], simulated_emulated[], simulated_push[], simulated_pop[],
    simulated_syscall[], simulated_call[], simulated_jump[], simulated_handler[], simulated_end[];
}

namespace probed::tracer {
namespace {

using namespace std::chrono_literals;
using simulated::Thread;
using State = Thread::State;

std::uint64_t at(const char* label) { return reinterpret_cast<std::uint64_t>(label); }

struct Told : Listener {
  void process_gone(pid_t, pid_t pid, std::optional<WaitStatus>) override { gone.push_back(pid); }
  void process_execed(pid_t, pid_t, bool, std::string) override { ++execs; }
  void process_ready(pid_t) override {}
  void process_forked(pid_t, pid_t) override {}
  void child_let_go(pid_t) override { ++let_go; }
  void limit_reached(std::vector<ProbeId>) override {}
  void taps_added(events::FeedPtr, std::vector<Tap>, pid_t, std::uint64_t) override {}
  void taps_unused(events::FeedPtr, std::vector<std::uint32_t>, pid_t) override {}
  void feed_closed(events::FeedPtr) override {}
  void longest_pause(pid_t, std::uint64_t) override {}
  void code_gone(pid_t, std::vector<ProbeId> probes, const char*) override { code += probes.size(); }
  void libraries_changed(pid_t, std::uint64_t) override {}

  std::vector<pid_t> gone;
  unsigned execs = 0, let_go = 0;
  std::size_t code = 0;
};

// A thread has one for ever.
Waiter& the_waiter() {
  static Waiter waiter;
  static const bool bound = [] {
    Waiter::block_signals();
    if (std::getenv("PROBED_TEST_LOG")) spdlog::set_level(spdlog::level::trace);  // a line a stop
    waiter.bind_to_this_thread();
    return true;
  }();
  static_cast<void>(bound);
  return waiter;
}

// A process of three threads, of which two are in the program, attached, with a probe.
class World {
 public:
  static constexpr unsigned kThreads = 4;

  // before: of the program, before anybody traces it.
  World(const char* where, bool step, std::optional<Action> before = {}) : site(at(where)) {
    if (before) set_action(*before);
    original.resize(at(simulated_end) - at(simulated_text));
    REQUIRE(kernel.puppet().read(pid(), at(simulated_text), original.data(), original.size()));
    engine.emplace(waiter, HitSink{queue, bell.get()}, told);
    const auto attached = engine->attach(pid(), {});
    REQUIRE_MESSAGE(attached, (attached ? "" : attached.error().message));
    settle();
    program = add(site, step);
    // What is only done at the first hit is done.
    kernel.go_to(other(), site);
    settle();
    kernel.go_to(other(), at(simulated_text));
    first_hits = program->counters->hits.load();
    REQUIRE(first_hits == 1);
  }
  ~World() {
    bool done = false;
    engine->detach_all([&] { done = true; });
    until([&] { return done; });
  }

  pid_t pid() { return kernel.puppet().pid(); }
  pid_t one() { return kernel.puppet().threads()[1]; }
  pid_t other() { return kernel.puppet().threads()[2]; }
  pid_t spare() { return kernel.puppet().threads()[3]; }
  Thread& thread() { return kernel.thread(one()); }

  ProgramPtr add(std::uint64_t address, bool step) {
    auto probe = std::make_shared<ProbeProgram>();
    probe->id = ProbeId{++last_id};
    probe->force_step = step;
    probe->no_detour = "it is to stay a breakpoint";
    SiteRequest request{plan(address), probe, std::nullopt};
    std::optional<Result<void>> answer;
    engine->add(pid(), 0, {std::move(request)}, [&](Result<void> done) { answer = std::move(done); });
    until([&] { return answer.has_value(); });
    REQUIRE(answer);
    CHECK_MESSAGE(*answer, (*answer ? "" : answer->error().message));
    return probe;
  }

  // Everything that has stopped is dealt with.
  void settle() {
    for (int n = 0; n < 1000; ++n) {
      if (const auto stop = waiter.poll())
        engine->handle(*stop);
      else
        return;
    }
    FAIL("the tracer and a thread go round in circles");
  }
  template <class Condition>
  bool until(Condition condition) {
    const auto limit = std::chrono::steady_clock::now() + 20s;
    for (;;) {
      settle();
      engine->check_deadlines();
      settle();
      if (condition()) return true;
      const auto now = std::chrono::steady_clock::now();
      if (now > limit) return false;
      std::this_thread::sleep_until(std::min(engine->next_deadline().value_or(now + 1ms), now + 5ms));
    }
  }
  bool detach() {
    bool done = false;
    engine->detach(pid(), [&](Result<void> result) { done = static_cast<bool>(result); });
    return until([&] { return done; });
  }

  // Of SIGTRAP, as the kernel has it.
  void set_action(const Action& action) {
    const std::uint64_t room = kernel.thread(pid()).regs.rsp;
    REQUIRE(kernel.puppet().write(pid(), room, &action, sizeof action));
    REQUIRE(kernel.puppet().call(pid(), SYS_rt_sigaction, {SIGTRAP, room, 0, 8, 0, 0}) == 0);
  }
  Action action() {
    const std::uint64_t room = kernel.thread(pid()).regs.rsp;
    Action now;
    REQUIRE(kernel.puppet().call(pid(), SYS_rt_sigaction, {SIGTRAP, 0, room, 8, 0, 0}) == 0);
    REQUIRE(kernel.puppet().read(pid(), room, &now, sizeof now));
    return now;
  }

  std::string text() { return text_of(pid()); }
  std::string text_of(pid_t process) {
    std::string now(original.size(), '\0');
    kernel.puppet().read(process, at(simulated_text), now.data(), now.size());
    return now;
  }
  bool in_program(std::uint64_t pc) const { return pc >= at(simulated_text) && pc < at(simulated_end); }
  std::uint64_t hits() const { return program->counters->hits.load() - first_hits; }
  int delivered(int signal) {
    return static_cast<int>(std::ranges::count(thread().delivered, signal, &simulated::Delivery::signal));
  }

  simulated::Kernel kernel{kThreads, {at(simulated_text), at(simulated_end), at(simulated_handler)}};
  events::HitQueue queue{1 << 20};
  UniqueFd bell{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  Told told;
  Waiter& waiter = the_waiter();
  std::optional<Engine> engine;
  std::uint64_t site;
  ProgramPtr program;
  std::string original;
  std::uint64_t first_hits = 0;
  std::uint32_t last_id = 0;

 private:
  SitePlan plan(std::uint64_t address) {
    SitePlan made;
    made.address = RemoteAddr{address};
    REQUIRE(kernel.puppet().read(pid(), address, made.bytes.data(), made.bytes.size()));
    made.insn = arch::native::decode(made.bytes, address);
    made.context = static_cast<std::uint8_t>(made.bytes.size());
    const auto maps = symbols::read_maps(pid());
    REQUIRE(maps);
    const auto mapping =
        std::ranges::find_if(*maps, [&](const symbols::Mapping& m) { return m.contains(made.address); });
    REQUIRE(mapping != maps->end());
    made.backing = mapping->backing(made.address);
    return made;
  }
};

// ---- states ---------------------------------------------------------------------------------------------------------

struct Start {
  const char* name;
  bool step;     // the probe is one that steps
  bool has_hit;  // the tracer has counted the hit, or will
  void (*bring)(World&);
};

void run_into(World& w) { w.kernel.go_to(w.one(), w.site); }

constexpr Start kStarts[] = {
    {"running ahead of the site", false, false, [](World&) {}},
    {"its breakpoint is reported", false, true, run_into},
    {"in the copy, without a processor", false, true,
     [](World& w) {
       run_into(w);
       w.kernel.park(w.one());
       w.settle();
     }},
    {"behind the site", false, true,
     [](World& w) {
       run_into(w);
       w.settle();
     }},
    {"ahead of the site, to be stepped", true, false, [](World&) {}},
    {"its breakpoint is reported, to be stepped", true, true, run_into},
    {"about to step", true, true,
     [](World& w) {
       run_into(w);
       w.kernel.park(w.one());
       w.settle();
     }},
};

constexpr const char* const kSites[] = {simulated_copied, simulated_emulated, simulated_push,
                                        simulated_pop,    simulated_syscall,  simulated_call};

// ---- what is true afterwards ----------------------------------------------------------------------------------------

// Of all signals that have been delivered to it.
std::uint64_t masks_of(const Thread& thread) {
  std::uint64_t mask = 0;
  for (const simulated::Delivery& delivery : thread.delivered) mask |= 1ull << (delivery.signal - 1);
  return mask;
}

// Everybody who hasn't ended goes on in the program, alone or traced, and finds its own text there.
void after(World& w, bool detached) {
  w.kernel.unpark(w.one());
  w.settle();
  for (const pid_t tid : w.kernel.puppet().threads()) {
    const Thread& thread = w.kernel.thread(tid);
    CAPTURE(tid);
    if (thread.state == State::ended) continue;
    CHECK(thread.state == State::running);
    CHECK_MESSAGE(w.in_program(thread.regs.rip), std::to_string(thread.regs.rip));
    CHECK(thread.mask == 0);
    if (detached) CHECK(!thread.traced);
  }
  for (const simulated::Delivery& delivery : w.thread().delivered) {
    CAPTURE(delivery.signal);
    CHECK(w.in_program(delivery.pc));
    // Its own mask: nothing, or what the handlers that it is in block.
    CHECK((delivery.mask & ~masks_of(w.thread())) == 0);
  }
  CHECK(w.thread().reset.empty());
  if (detached) CHECK(w.text() == w.original);
}

// For each state and instruction: `event` happens, and then its process is let go.
template <class Event>
void in_every_state(Event event) {
  for (const Start& start : kStarts)
    for (const char* where : kSites) {
      CAPTURE(std::string(start.name));
      CAPTURE(at(where) - at(simulated_text));
      World w(where, start.step);
      start.bring(w);
      event(w, start);
    }
}

// others: hits of other threads.
void go_through(World& w, const Start& start, std::uint64_t others = 0) {
  const std::uint64_t expected = (start.has_hit ? 1 : 0) + others;
  w.settle();
  after(w, false);
  CHECK(w.hits() == expected);
  REQUIRE(w.detach());
  after(w, true);
  CHECK(w.hits() == expected);
}

// Of the program's own, of SIGTRAP: /proc says so.
Action handler() {
  constexpr std::uint64_t kRestorer = 0x04000000;  // SA_RESTORER
  return {at(simulated_handler), kRestorer | SA_SIGINFO, at(simulated_handler), 0};
}

// It has arrived once, and nothing else has; it tells who sent it.
void check_first_of(World& w, int signal) {
  CHECK(w.delivered(signal) == 1);
  REQUIRE(w.thread().delivered.size() == 1);
  const siginfo_t& info = w.thread().delivered.front().info;
  CHECK(info.si_code == SI_USER);
  CHECK(info.si_pid == 1);
}

void check_arrives_once(World& w, const Start& start, int signal) {
  w.kernel.send(w.one(), signal);
  go_through(w, start);
  check_first_of(w, signal);
}

}  // namespace

TEST_CASE("policy: a thread that nothing happens to goes through its probe") {
  in_every_state([](World& w, const Start& start) {
    go_through(w, start);
    CHECK(w.thread().delivered.empty());
  });
}

TEST_CASE("policy: a thread is let go from every state, its breakpoint counted or undone") {
  in_every_state([](World& w, const Start&) {
    REQUIRE(w.detach());
    after(w, true);
    CHECK(w.thread().delivered.empty());
  });
}

TEST_CASE("policy: a signal reaches the program once, at a place of its own") {
  in_every_state([](World& w, const Start& start) { check_arrives_once(w, start, SIGUSR1); });
}

TEST_CASE("policy: a signal and the end of the trace at once") {
  in_every_state([](World& w, const Start&) {
    w.kernel.send(w.one(), SIGUSR1);
    REQUIRE(w.detach());
    after(w, true);
    check_first_of(w, SIGUSR1);
  });
}

// It can make no calls for the tracer; another one can.
TEST_CASE("policy: SIGTRAP's handler is put back though a thread is in 32-bit code at the end") {
  const Action own = handler();
  World w(simulated_copied, false, own);
  Action reset = w.action();
  REQUIRE(reset != own);  // the tracer has marked it
  reset.handler = 0;      // as the kernel does when an instruction raises the signal where it is blocked
  w.set_action(reset);
  w.kernel.puppet().spin();                 // a thread that runs is waited for
  w.kernel.thread(w.pid()).regs.cs = 0x23;  // 32-bit code (arch/x86/include/asm/segment.h, __USER32_CS)
  REQUIRE(w.detach());
  after(w, true);
  CHECK(w.action() == own);
}

TEST_CASE("policy: a signal that is held when the trace ends says who sent it") {
  World w(simulated_copied, false);
  run_into(w);
  w.kernel.park(w.one());
  w.settle();
  w.kernel.send(w.one(), SIGUSR1);
  w.settle();
  CHECK(w.delivered(SIGUSR1) == 0);
  REQUIRE(w.detach());
  after(w, true);
  check_first_of(w, SIGUSR1);
}

TEST_CASE("policy: of two real-time signals of a number, one of them held, each says who sent it") {
  constexpr int kRealTime = 40;
  World w(simulated_copied, false);
  run_into(w);
  w.kernel.park(w.one());
  w.settle();
  for (const int signal : {kRealTime, kRealTime, SIGTRAP}) w.kernel.send(w.one(), signal);
  w.settle();
  REQUIRE(w.delivered(SIGTRAP) == 1);
  w.kernel.unpark(w.one());
  w.settle();
  CHECK(w.delivered(kRealTime) == 2);
  for (const simulated::Delivery& delivery : w.thread().delivered) {
    CHECK(delivery.info.si_code == SI_USER);
    CHECK(delivery.info.si_pid == 1);
  }
  REQUIRE(w.detach());
  after(w, true);
}

TEST_CASE("policy: a step that a sent signal has hidden is over") {
  World w(simulated_jump, false, handler());
  const ProgramPtr behind = w.add(at(simulated_pop), false);
  w.thread().regs.rax = at(simulated_pop);
  run_into(w);
  w.kernel.park(w.one());
  w.settle();
  w.kernel.send(w.one(), SIGTRAP);
  w.settle();
  REQUIRE(w.thread().how == Thread::How::step);
  w.kernel.send_behind(w.one(), SIGTRAP);
  w.kernel.unpark(w.one());
  w.settle();
  after(w, false);
  check_first_of(w, SIGTRAP);
  CHECK(w.thread().delivered.front().pc == at(simulated_pop));
  CHECK(behind->counters->hits.load() == 1);
  CHECK(w.hits() == 1);
  REQUIRE(w.detach());
  after(w, true);
}

TEST_CASE("policy: a SIGTRAP that somebody sends is the program's") {
  in_every_state([](World& w, const Start& start) { check_arrives_once(w, start, SIGTRAP); });
}

TEST_CASE("policy: a thread that is killed in any state ends, and its probe stays usable") {
  in_every_state([](World& w, const Start&) {
    w.kernel.exit(w.one(), 0);
    w.settle();
    after(w, false);
    w.kernel.go_to(w.other(), w.site);
    w.settle();
    CHECK(w.kernel.thread(w.other()).state == State::running);
    CHECK(w.in_program(w.kernel.thread(w.other()).regs.rip));
    REQUIRE(w.detach());
    after(w, true);
  });
}

TEST_CASE("policy: a process that is killed in any state of a thread is forgotten") {
  in_every_state([](World& w, const Start&) {
    w.kernel.send(w.other(), SIGKILL);
    w.settle();
    CHECK(w.told.gone == std::vector<pid_t>{w.pid()});
    CHECK(w.engine->idle());
  });
}

TEST_CASE("policy: two threads at one site get through it both") {
  in_every_state([](World& w, const Start& start) {
    w.kernel.go_to(w.other(), w.site);
    w.settle();
    const Thread& other = w.kernel.thread(w.other());
    CHECK(other.state == State::running);
    CHECK(w.in_program(other.regs.rip));
    go_through(w, start, 1);
  });
}

TEST_CASE("policy: a probe is removed under a thread in every state") {
  in_every_state([](World& w, const Start&) {
    w.engine->remove(std::array{w.program->id}, nullptr);
    w.settle();
    after(w, false);
    CHECK(w.text() == w.original);
    CHECK(w.thread().delivered.empty());
    REQUIRE(w.detach());
    after(w, true);
  });
}

TEST_CASE("policy: a probe is disabled under a thread, and enabled again") {
  in_every_state([](World& w, const Start&) {
    w.engine->set_enabled(std::array{w.program->id}, false, [](const auto& failed) { CHECK(failed.empty()); });
    w.engine->set_enabled(std::array{w.program->id}, true, [](const auto& failed) { CHECK(failed.empty()); });
    w.settle();
    after(w, false);
    const auto before = w.hits();
    w.kernel.go_to(w.other(), w.site);
    w.settle();
    CHECK(w.hits() == before + 1);
    REQUIRE(w.detach());
    after(w, true);
    CHECK(w.thread().delivered.empty());
  });
}

TEST_CASE("policy: another probe is added while a thread is in any state") {
  in_every_state([](World& w, const Start& start) {
    w.add(at(simulated_text), false);
    go_through(w, start);
    CHECK(w.thread().delivered.empty());
  });
}

TEST_CASE("policy: a thread creates another one in any state") {
  in_every_state([](World& w, const Start& start) {
    const bool runs = w.thread().state == State::running && w.in_program(w.thread().regs.rip);
    if (!runs) return;
    const pid_t created = w.spare();
    w.kernel.exit(created, 0);
    w.settle();
    w.kernel.clone(w.one(), created);
    go_through(w, start);
    CHECK(w.kernel.thread(created).state == State::running);
  });
}

// In the copy of its system call: both are to go on behind the program's own.
TEST_CASE("policy: a thread creates another one in a copy") {
  World w(simulated_syscall, false);
  run_into(w);
  const pid_t created = w.spare();
  w.kernel.exit(created, 0);
  w.kernel.park(w.one());
  w.settle();
  REQUIRE(!w.in_program(w.thread().regs.rip));
  w.kernel.clone(w.one(), created);
  w.settle();
  after(w, false);
  for (const pid_t tid : {w.one(), created}) CHECK(w.kernel.thread(tid).regs.rip == at(simulated_call));
  CHECK(w.thread().regs.rax == static_cast<std::uint64_t>(created));
  CHECK(w.kernel.thread(created).regs.rax == 0);
  CHECK(w.hits() == 1);
  REQUIRE(w.detach());
  after(w, true);
}

TEST_CASE("policy: a thread creates a process in a copy") {
  for (const bool ends_first : {false, true}) {
    CAPTURE(ends_first);
    World w(simulated_syscall, false);
    run_into(w);
    w.kernel.park(w.one());
    w.settle();
    REQUIRE(!w.in_program(w.thread().regs.rip));
    const pid_t child = w.kernel.puppet().fork();
    w.kernel.fork(w.one(), child);
    if (ends_first) {
      bool done = false;
      w.engine->detach(w.pid(), [&](Result<void> result) { done = static_cast<bool>(result); });
      CHECK(w.until([&] { return done; }));
    } else {
      w.settle();
    }
    after(w, ends_first);
    const Thread& born = w.kernel.thread(child);
    CHECK(!born.traced);
    CHECK(born.regs.rip == at(simulated_call));
    CHECK(w.thread().regs.rip == at(simulated_call));
    CHECK(w.text_of(child) == w.original);
    REQUIRE((ends_first || w.detach()));
    after(w, true);
  }
}

TEST_CASE("policy: job control stops a process in any state, and SIGCONT lets it go on") {
  in_every_state([](World& w, const Start& start) {
    w.kernel.stop_job(w.pid(), SIGSTOP);
    w.settle();
    for (const pid_t tid : w.kernel.puppet().threads()) w.kernel.send(tid, SIGCONT);
    w.settle();
    for (const pid_t tid : w.kernel.puppet().threads()) w.kernel.thread(tid).delivered.clear();
    go_through(w, start);
  });
}

TEST_CASE("policy: job control stops a process that is let go, and it stays stopped") {
  in_every_state([](World& w, const Start&) {
    w.kernel.stop_job(w.pid(), SIGSTOP);
    REQUIRE(w.detach());
    CHECK(w.text() == w.original);
    for (const pid_t tid : w.kernel.puppet().threads()) CHECK(!w.kernel.thread(tid).traced);
    after(w, true);
  });
}

TEST_CASE("policy: a fault where a thread is reaches the program with the address of its own instruction") {
  in_every_state([](World& w, const Start&) {
    if (w.thread().state != State::running) return;  // it executes nothing that could fault
    const bool in_copy = !w.in_program(w.thread().regs.rip);
    w.kernel.fault(w.one(), SIGSEGV);
    w.settle();
    REQUIRE(w.delivered(SIGSEGV) == 1);
    const simulated::Delivery& fault = w.thread().delivered.front();
    if (in_copy) CHECK(fault.pc == w.site);
    CHECK(reinterpret_cast<std::uint64_t>(fault.info.si_addr) == fault.pc);
    after(w, false);
    REQUIRE(w.detach());
    after(w, true);
  });
}

TEST_CASE("policy: an interrupt that comes late finds the thread in every state") {
  in_every_state([](World& w, const Start&) {
    w.kernel.stop_at_once(false);
    bool done = false;
    w.engine->detach(w.pid(), [&](Result<void> result) { done = static_cast<bool>(result); });
    w.settle();
    w.kernel.unpark(w.one());
    w.settle();
    for (const pid_t tid : w.kernel.puppet().threads()) w.kernel.let_stop(tid);
    w.kernel.stop_at_once(true);
    CHECK(w.until([&] {
      for (const pid_t tid : w.kernel.puppet().threads()) w.kernel.let_stop(tid);
      return done;
    }));
    after(w, true);
    CHECK(w.thread().delivered.empty());
  });
}

TEST_CASE("policy: a thread executes another program in every state of the others") {
  in_every_state([](World& w, const Start&) {
    w.kernel.exec(w.other());
    w.settle();
    CHECK(w.told.execs == 1);
    CHECK(w.engine->idle());
    CHECK(!w.kernel.thread(w.pid()).traced);
  });
}

TEST_CASE("policy: a thread executes another program itself") {
  in_every_state([](World& w, const Start&) {
    if (w.thread().state != State::running) return;
    w.kernel.exec(w.one());
    w.settle();
    CHECK(w.told.execs == 1);
    CHECK(w.engine->idle());
    CHECK(!w.kernel.thread(w.pid()).traced);
  });
}

TEST_CASE("policy: a process that isn't followed is let go with its own text") {
  in_every_state([](World& w, const Start& start) {
    if (w.thread().state != State::running || !w.in_program(w.thread().regs.rip)) return;
    const pid_t child = w.kernel.puppet().fork();  // with the breakpoints that are there
    w.kernel.fork(w.one(), child);
    go_through(w, start);
    CHECK(!w.kernel.thread(child).traced);
    CHECK(w.in_program(w.kernel.thread(child).regs.rip));
    CHECK(w.text_of(child) == w.original);
    CHECK(w.told.let_go == 1);
  });
}

TEST_CASE("policy: the end of the trace overtakes everything that was asked for before") {
  in_every_state([](World& w, const Start&) {
    bool removed = false, detached = false;
    w.engine->set_enabled(std::array{w.program->id}, false, [](const auto&) {});
    w.engine->remove(std::array{w.program->id}, [&] { removed = true; });
    w.engine->detach(w.pid(), [&](Result<void> result) { detached = static_cast<bool>(result); });
    CHECK(w.until([&] { return removed && detached; }));
    after(w, true);
    CHECK(w.thread().delivered.empty());
  });
}

// What was queued behind the end of everything would stay in a target when the tracer goes.
TEST_CASE("policy: when all is let go for good, nothing is attached to any more") {
  in_every_state([](World& w, const Start&) {
    bool done = false;
    w.engine->detach_all([&] { done = true; });
    const auto refused_now = [&] {
      const auto attached = w.engine->attach(w.pid(), {});
      return !attached && attached.error().message.find("this daemon ends") != std::string::npos;
    };
    CHECK(refused_now());
    REQUIRE(w.until([&] { return done; }));
    CHECK(refused_now());
    after(w, true);
  });
}

TEST_CASE("policy: signals of many kinds at once all arrive, each once") {
  in_every_state([](World& w, const Start& start) {
    constexpr int kSignals[] = {SIGUSR1, SIGTRAP, SIGTERM, SIGSEGV, SIGCHLD, SIGURG, SIGALRM};
    for (const int signal : kSignals) w.kernel.send(w.one(), signal);
    go_through(w, start);
    for (const int signal : kSignals) {
      CAPTURE(signal);
      CHECK(w.delivered(signal) == 1);
    }
    for (const simulated::Delivery& delivery : w.thread().delivered) {
      CHECK(delivery.info.si_code == SI_USER);
      CHECK(delivery.info.si_pid == 1);
    }
  });
}

TEST_CASE("policy: the global switch under a thread in every state") {
  in_every_state([](World& w, const Start&) {
    CHECK(w.engine->set_armed(false).empty());
    CHECK(w.text() == w.original);
    w.settle();
    after(w, false);
    CHECK(w.engine->set_armed(true).empty());
    const auto before = w.hits();
    w.kernel.go_to(w.other(), w.site);
    w.settle();
    CHECK(w.hits() == before + 1);
    REQUIRE(w.detach());
    after(w, true);
    CHECK(w.thread().delivered.empty());
  });
}

}  // namespace probed::tracer
