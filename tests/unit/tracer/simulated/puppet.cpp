#include "tests/unit/tracer/simulated/puppet.hpp"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <string>

namespace probed::tracer::simulated {
namespace {

struct Command {
  std::uint64_t number = 0;
  std::array<std::uint64_t, 6> arguments{};
};
constexpr std::uint64_t kFork = ~0ull;

void need(bool done, const char* what) {
  if (!done) throw std::runtime_error(what);
}

void* wait_for_ever(void* started) {
  static_cast<std::atomic<pid_t>*>(started)->store(::gettid());
  for (;;) ::pause();
  return nullptr;
}

[[noreturn]] void do_nothing() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (;;) ::pause();
}

// Raw: no library call that could take a lock which a thread of the process before the fork held.
void serve(int commands, int answers) {
  for (Command command; ::read(commands, &command, sizeof command) == sizeof command;) {
    std::int64_t result = 0;
    if (command.number == kFork) {
      result = ::fork();
      if (result == 0) do_nothing();
    } else {
      const auto& a = command.arguments;
      result = ::syscall(static_cast<long>(command.number), a[0], a[1], a[2], a[3], a[4], a[5]);
    }
    if (result == -1) result = -errno;
    if (::write(answers, &result, sizeof result) != sizeof result) break;
  }
}

[[noreturn]] void live(unsigned threads, int commands, int answers) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (unsigned i = 1; i < threads; ++i) {
    std::atomic<pid_t> started{0};
    pthread_t thread{};
    if (::pthread_create(&thread, nullptr, wait_for_ever, &started) != 0) ::_exit(2);
    while (started == 0) ::sched_yield();
    const pid_t tid = started;
    if (::write(answers, &tid, sizeof tid) != sizeof tid) ::_exit(2);
  }
  serve(commands, answers);
  ::_exit(0);
}

}  // namespace

Puppet::Puppet(unsigned threads) {
  int to[2], from[2];
  need(::pipe2(to, O_CLOEXEC) == 0, "pipe");
  UniqueFd their_commands(to[0]);
  commands_.reset(to[1]);
  need(::pipe2(from, O_CLOEXEC) == 0, "pipe");
  answers_.reset(from[0]);
  UniqueFd their_answers(from[1]);
  const pid_t pid = ::fork();
  need(pid >= 0, "fork");
  if (pid == 0) {
    commands_.reset();
    live(threads, their_commands.get(), their_answers.get());
  }
  threads_.push_back(pid);
  their_answers.reset();
  for (unsigned i = 1; i < threads; ++i) {
    pid_t tid = 0;
    need(::read(answers_.get(), &tid, sizeof tid) == sizeof tid, "a puppet that starts");
    threads_.push_back(tid);
  }
  memory_.reset(::open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDWR | O_CLOEXEC));
  need(static_cast<bool>(memory_), "the puppet's memory");
}

// Of these three the system's own calls, of which a simulated kernel knows nothing.
Puppet::~Puppet() {
  ::kill(pid(), SIGKILL);  // its children die with it
  while (::syscall(SYS_wait4, -1, nullptr, __WALL, nullptr) > 0) {
  }
}

void Puppet::trace(pid_t tid) {
  need(::syscall(SYS_ptrace, PTRACE_SEIZE, tid, 0, 0) == 0, "a thread that can be traced");
  traced_.insert(tid);
}

void Puppet::let_go(pid_t tid) {
  if (traced_.erase(tid) == 0) return;
  ::syscall(SYS_ptrace, PTRACE_INTERRUPT, tid, 0, 0);
  ::syscall(SYS_wait4, tid, nullptr, __WALL, nullptr);
  ::syscall(SYS_ptrace, PTRACE_DETACH, tid, 0, 0);
}

std::int64_t Puppet::call(std::uint64_t number, const std::array<std::uint64_t, 6>& arguments) {
  const Command command{number, arguments};
  std::int64_t result = 0;
  need(::write(commands_.get(), &command, sizeof command) == sizeof command &&
           ::read(answers_.get(), &result, sizeof result) == sizeof result,
       "a puppet that answers");
  return result;
}

pid_t Puppet::fork() {
  const auto child = static_cast<pid_t>(call(kFork, {}));
  need(child > 0, "a puppet that forks");
  return child;
}

bool Puppet::read(std::uint64_t address, void* to, std::size_t size) const {
  return ::pread(memory_.get(), to, size, static_cast<off_t>(address)) == static_cast<ssize_t>(size);
}

bool Puppet::write(std::uint64_t address, const void* from, std::size_t size) const {
  return ::pwrite(memory_.get(), from, size, static_cast<off_t>(address)) == static_cast<ssize_t>(size);
}

}  // namespace probed::tracer::simulated
