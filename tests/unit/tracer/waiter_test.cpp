// The tracer's wait: no wake-up is lost, alarms go off, no thread is starved. On real tracees.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "daemon/tracer/kernel/ptrace.hpp"
#include "daemon/tracer/kernel/wait.hpp"

using namespace probed::tracer;
using namespace std::chrono_literals;
using Clock = Waiter::Clock;

namespace {

constexpr auto kPatience = 20s;

// What the calling thread does at the very last moment before it enters the kernel's waitid.
thread_local std::function<void()> before_waitid;

// A thread that waits as the tracer does: acknowledges every wake-up.
class WaitingThread {
 public:
  // child: a process to trace meanwhile; 0: none.
  explicit WaitingThread(pid_t child) {
    Waiter::block_signals();
    thread_ = std::thread([this, child] { run(child); });
    while (!ready_.load()) std::this_thread::yield();
  }
  ~WaitingThread() {
    stop_ = true;
    waiter_.wake();
    thread_.join();
  }
  // False: the wake-up was lost.
  bool wake() {
    const unsigned before = seen_.load();
    waiter_.wake();
    const auto deadline = Clock::now() + kPatience;
    while (seen_.load() == before)
      if (Clock::now() > deadline) return false;
    return true;
  }

 private:
  // The tracee goes free when this thread ends.
  void run(pid_t child) {
    waiter_.bind_to_this_thread();
    if (child != 0) REQUIRE(ptrace::seize(child) == ptrace::Outcome::ok);
    ready_ = true;
    while (!stop_) {
      if (waiter_.take_wake())
        ++seen_;
      else
        waiter_.wait();
    }
  }

  Waiter waiter_;
  std::thread thread_;
  std::atomic<bool> ready_{false}, stop_{false};
  std::atomic<unsigned> seen_{0};
};

// A child that does something until it is killed.
class Child {
 public:
  explicit Child(void (*body)()) : pid_(fork()) {
    if (pid_ == 0)
      for (;;) body();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, __WALL);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

void sleep_on() { pause(); }
// A stop for the tracer, every time. Until it is seized it ignores the signal.
void raise_signals() {
  signal(SIGUSR1, SIG_IGN);
  raise(SIGUSR1);
}

bool stands_still(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t state = text.rfind(") ");
  return state != std::string::npos && text.compare(state + 2, 1, "t") == 0;
}

bool wait_for_standstill(pid_t pid) {
  for (const auto deadline = Clock::now() + kPatience; !stands_still(pid);)
    if (Clock::now() > deadline) return false;
  return true;
}

void spin(unsigned rounds) {
  for (unsigned i = 0; i < rounds; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
}

// Runs body(waiter) on a thread of its own that traces a sleeping child.
template <class Body>
void on_a_waiting_thread(Body body) {
  Waiter::block_signals();
  const Child sleeper(sleep_on);
  std::thread([&] {
    Waiter waiter;
    waiter.bind_to_this_thread();
    REQUIRE(ptrace::seize(sleeper.pid()) == ptrace::Outcome::ok);
    body(waiter);
    before_waitid = nullptr;
  }).join();
}

// The wait ends long before the alarm that would end it anyway.
bool returns_in_time(Waiter& waiter) {
  waiter.set_alarm(Clock::now() + kPatience);
  const auto began = Clock::now();
  waiter.wait();
  return Clock::now() - began < kPatience / 2;
}

// Wakes at ever other moments of the thread's way back into the kernel; fewer times where that takes long.
void wake_often(WaitingThread& thread) {
  const auto until = Clock::now() + 20s;
  for (unsigned i = 0; i < 20'000 && (i < 1'500 || Clock::now() < until); ++i) {
    spin(i * 7919 % 1500);
    REQUIRE(thread.wake());
  }
}

}  // namespace

// Takes the place of the C library's for this whole program.
extern "C" int waitid(idtype_t type, id_t id, siginfo_t* info, int options) {
  if (before_waitid && (options & WNOHANG) == 0) before_waitid();
  return static_cast<int>(syscall(SYS_waitid, type, id, info, options, nullptr));
}

TEST_CASE("a wake-up between the last look and the system call ends the wait") {
  on_a_waiting_thread([](Waiter& waiter) {
    before_waitid = [&waiter] { waiter.wake(); };
    CHECK(returns_in_time(waiter));
    CHECK(waiter.take_wake());
  });
}

TEST_CASE("a wake-up before the wait ends it at once") {
  on_a_waiting_thread([](Waiter& waiter) {
    waiter.wake();
    CHECK(returns_in_time(waiter));
    CHECK(waiter.take_wake());
  });
  std::thread([] {
    Waiter waiter;
    waiter.bind_to_this_thread();
    waiter.wake();
    CHECK(returns_in_time(waiter));
  }).join();
}

TEST_CASE("no wake-up is lost, at whatever moment before or after the tracer blocks it comes") {
  const Child sleeper(sleep_on);
  WaitingThread thread(sleeper.pid());
  wake_often(thread);
}

TEST_CASE("no wake-up is lost while nothing is traced") {
  WaitingThread thread(0);
  wake_often(thread);
}

TEST_CASE("an alarm ends the wait when its time has come, and not before") {
  Waiter::block_signals();
  std::thread([] {
    Waiter waiter;
    waiter.bind_to_this_thread();
    for (const auto delay : {30ms, -1000ms, 0ms, 5ms}) {
      const auto at = Clock::now() + delay;
      waiter.set_alarm(at);
      while (!waiter.take_wake()) waiter.wait();
      CHECK(Clock::now() >= at);
    }
    waiter.set_alarm(Clock::now() + 10ms);
    waiter.set_alarm(std::nullopt);
    waiter.set_alarm(Clock::now() + 60ms);
    const auto at = Clock::now() + 50ms;
    while (!waiter.take_wake()) waiter.wait();
    CHECK(Clock::now() >= at);
  }).join();
}

// Every thread has stopped again before the next wait: the kernel alone would answer with the youngest for ever.
TEST_CASE("a thread that stops all the time does not hide the others' stops") {
  Waiter::block_signals();
  std::thread([] {
    constexpr std::size_t kChildren = 5, kWaits = 40;
    Waiter waiter;
    waiter.bind_to_this_thread();
    std::vector<std::unique_ptr<Child>> children;
    for (std::size_t i = 0; i < kChildren; ++i) {
      children.push_back(std::make_unique<Child>(raise_signals));
      REQUIRE(ptrace::seize(children.back()->pid()) == ptrace::Outcome::ok);
    }
    for (const auto& child : children) REQUIRE(wait_for_standstill(child->pid()));
    std::map<pid_t, int> stops;
    for (std::size_t i = 0; i < kWaits; ++i) {
      const auto stop = waiter.wait();
      REQUIRE(stop);
      ++stops[stop->tid];
      ptrace::resume(stop->tid, 0);
      REQUIRE(wait_for_standstill(stop->tid));
    }
    CHECK(stops.size() == kChildren);
    for (const auto& [tid, count] : stops) CHECK(count >= 2);
  }).join();
}

// A tracer thread's end lets its tracees go as its process's death does (kernel/ptrace.c, exit_ptrace).
TEST_CASE("a signal whose stop was handed out is delivered when the tracer dies before the thread was resumed") {
  Waiter::block_signals();
  const pid_t child = fork();
  if (child == 0)
    for (;;) pause();
  std::thread([&] {
    Waiter waiter;
    waiter.bind_to_this_thread();
    REQUIRE(ptrace::seize(child) == ptrace::Outcome::ok);
    kill(child, SIGUSR1);
    const auto stop = waiter.wait();
    REQUIRE(stop);
    CHECK(stop->status.kind() == WaitStatus::Kind::signal);
    CHECK(stop->status.signal() == SIGUSR1);
  }).join();
  // The thread is joined before it lets the child go: until then its stop is seen, and is to be left for the child.
  std::optional<bool> died;
  for (const auto deadline = Clock::now() + kPatience; !died && Clock::now() < deadline;) {
    siginfo_t info{};
    const int result = waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT | __WALL);
    if (result == 0 && info.si_pid == child && info.si_code != CLD_TRAPPED && info.si_code != CLD_STOPPED)
      died = info.si_code == CLD_KILLED && info.si_status == SIGUSR1;
  }
  CHECK(died.value_or(false));
  if (!died) kill(child, SIGKILL);
  waitpid(child, nullptr, __WALL);
}

TEST_CASE("of threads that stop at the same time no signal is taken before the guardian has seen to it") {
  struct Secured final : Waiter::Guardian {
    std::map<pid_t, int> signals;
    bool secure(pid_t tid, int signal) override { return signals[tid] = signal, true; }
    void keep_call(pid_t) override {}
  };
  Waiter::block_signals();
  std::thread([] {
    Secured secured;
    Waiter waiter;
    waiter.bind_to_this_thread();
    waiter.set_guardian(&secured);
    std::vector<std::unique_ptr<Child>> children;
    for (unsigned i = 0; i < 4; ++i) {
      children.push_back(std::make_unique<Child>(raise_signals));
      REQUIRE(ptrace::seize(children.back()->pid()) == ptrace::Outcome::ok);
    }
    for (const auto& child : children) REQUIRE(wait_for_standstill(child->pid()));
    std::map<pid_t, int> handed_out;
    for (std::size_t i = 0; i < children.size(); ++i) {
      const auto stop = waiter.wait();
      REQUIRE(stop);
      ++handed_out[stop->tid];
      // The first was the kernel's own answer, and stands; nobody was asked about it.
      CHECK(secured.signals.contains(stop->tid) == (i > 0));
    }
    CHECK(handed_out.size() == children.size());
  }).join();
}
