// A process in this one's memory, and what is left of it when this one is killed.
#include "daemon/tracer/kernel/apart.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "daemon/base/alone.hpp"
#include "daemon/base/own_processes.hpp"
#include "proto/base/fd.hpp"

namespace probed::tracer {
namespace {

constexpr int kWake = SIGUSR2;

void on_wake(int, siginfo_t* info, void*) { note_death_of_daemon(info->si_pid); }

void handle_wake() {
  struct sigaction action {};
  action.sa_sigaction = on_wake;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(kWake, &action, nullptr);
}

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe(ends.data()) == 0);
    reader.reset(ends[0]);
    writer.reset(ends[1]);
  }
  // One byte; '\0': the last writer has gone.
  char next() const {
    char byte = 0;
    return ::read(reader.get(), &byte, 1) == 1 ? byte : '\0';
  }
  void say(char byte) const { CHECK(::write(writer.get(), &byte, 1) == 1); }
  UniqueFd reader, writer;
};

// What a killed process leaves locked, or in the middle of an allocation.
std::mutex held;

// In a child of the test's: its second thread makes the process.
[[noreturn]] void be_a_daemon(const Pipe& pipe) {
  held.lock();
  std::thread([&pipe] {
    run_apart(kWake, [&pipe] {
      handle_wake();
      pipe.say('b');
      while (!alone()) ::usleep(1000);
      const auto lock = lock_unless_alone(held);
      std::vector<std::unique_ptr<std::string>> much;
      for (std::size_t size = 1; size < 10'000'000; size *= 3) much.push_back(std::make_unique<std::string>(size, 'x'));
      pipe.say(lock.owns_lock() || much.back()->front() != 'x' ? 'w' : 'a');
    });
  }).detach();
  for (;;) ::pause();
}

std::FILE* const held_by_c = stderr;  // its lock is of the same kind as malloc's

// In a child of the test's: the process waits for a lock already when it gets alone.
[[noreturn]] void be_a_daemon_with_a_lock(const Pipe& pipe) {
  ::flockfile(held_by_c);
  std::thread([&pipe] {
    run_apart(kWake, [&pipe] {
      handle_wake();
      pipe.say('b');
      ::flockfile(held_by_c);
      pipe.say(alone() ? 'a' : 'w');
    });
  }).detach();
  for (;;) ::pause();
}

// What such a child has made says 'b' when it begins, and 'a' when it is alone and goes on.
void outlives(void (*be)(const Pipe&)) {
  if (!kMayRunApart) {
    MESSAGE("skipped: a sanitizer watches this program");
    return;
  }
  Pipe pipe;
  const pid_t child = ::fork();
  if (child == 0) be(pipe);
  REQUIRE(child > 0);
  pipe.writer.reset();
  CHECK(pipe.next() == 'b');
  ::kill(child, SIGKILL);
  CHECK(pipe.next() == 'a');
  CHECK(::waitpid(child, nullptr, 0) == child);
}

}  // namespace

TEST_CASE("what runs apart is another process in the same memory, and its end is waited for") {
  pid_t inside = 0, daemon = 0;
  std::thread([&] {
    run_apart(kWake, [&] {
      inside = ::getpid();
      daemon = daemon_process();
      CHECK(tracer_process() == inside);
    });
  }).join();
  CHECK(daemon == ::getpid());
  CHECK((inside != ::getpid()) == kMayRunApart);
  CHECK_FALSE(alone());
}

TEST_CASE("what runs apart outlives a killed daemon, knows that, and waits for no lock that died with it") {
  outlives(be_a_daemon);
}

TEST_CASE("what runs apart goes on when it waits for a lock of the C library's that dies with the daemon") {
  outlives(be_a_daemon_with_a_lock);
}

TEST_CASE("who kills what runs apart kills the daemon, too") {
  if (!kMayRunApart) {
    MESSAGE("skipped: a sanitizer watches this program");
    return;
  }
  Pipe pipe;
  const pid_t child = ::fork();
  if (child == 0) {
    std::thread([&pipe] {
      run_apart(kWake, [&pipe] {
        const pid_t self = ::getpid();
        [[maybe_unused]] const ssize_t n = ::write(pipe.writer.get(), &self, sizeof self);
        for (;;) ::pause();
      });
    }).detach();
    for (;;) ::pause();
  }
  pid_t apart = 0;
  CHECK(::read(pipe.reader.get(), &apart, sizeof apart) == sizeof apart);
  CHECK(apart != child);
  ::kill(apart, SIGTERM);  // ignored
  ::kill(apart, SIGKILL);
  int status = 0;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGKILL);
}

}  // namespace probed::tracer
