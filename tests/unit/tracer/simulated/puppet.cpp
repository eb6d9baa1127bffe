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
constexpr std::uint64_t kFork = ~0ull, kSpin = ~0ull - 1;

void need(bool done, const char* what) {
  if (!done) throw std::runtime_error(what);
}

void* wait_for_ever(void* started) {
  static_cast<std::atomic<pid_t>*>(started)->store(::gettid());
  for (;;) ::pause();
  return nullptr;
}

// Where a process reads commands, and answers.
struct Channel {
  int commands = -1, answers = -1;
};

bool receive(int from, Command& command, bool spins) {
  for (;;) {
    const ssize_t got = ::read(from, &command, sizeof command);
    if (got != -1 || errno != EAGAIN || !spins) return got == sizeof command;
  }
}

// Raw: no library call that could take a lock which a thread of the process before the fork held.
void serve(Channel own, Channel of_copy) {
  bool spins = false;
  for (Command command; receive(own.commands, command, spins);) {
    std::int64_t result = 0;
    if (command.number == kSpin) {
      result = ::fcntl(own.commands, F_SETFL, O_NONBLOCK);
      spins = result == 0;
    } else if (command.number == kFork) {
      result = ::fork();
      if (result == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve(of_copy, {});
        ::_exit(0);
      }
    } else {
      const auto& a = command.arguments;
      result = ::syscall(static_cast<long>(command.number), a[0], a[1], a[2], a[3], a[4], a[5]);
    }
    if (result == -1) result = -errno;
    if (::write(own.answers, &result, sizeof result) != sizeof result) break;
  }
}

[[noreturn]] void live(unsigned threads, Channel own, Channel of_copy) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (unsigned i = 1; i < threads; ++i) {
    std::atomic<pid_t> started{0};
    pthread_t thread{};
    if (::pthread_create(&thread, nullptr, wait_for_ever, &started) != 0) ::_exit(2);
    while (started == 0) ::sched_yield();
    const pid_t tid = started;
    if (::write(own.answers, &tid, sizeof tid) != sizeof tid) ::_exit(2);
  }
  serve(own, of_copy);
  ::_exit(0);
}

}  // namespace

Puppet::Puppet(unsigned threads) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // its copy is ours when it has ended
  std::vector<UniqueFd> theirs;
  const auto channel_to = [&theirs](Process& process) {
    int to[2], from[2];
    need(::pipe2(to, O_CLOEXEC) == 0 && ::pipe2(from, O_CLOEXEC) == 0, "pipes");
    process.commands.reset(to[1]);
    process.answers.reset(from[0]);
    theirs.emplace_back(to[0]);
    theirs.emplace_back(from[1]);
    return Channel{to[0], from[1]};
  };
  const Channel own = channel_to(first_), of_copy = channel_to(copy_);
  first_.pid = ::fork();
  need(first_.pid >= 0, "fork");
  if (first_.pid == 0) {
    for (Process* side : {&first_, &copy_}) side->commands.reset(), side->answers.reset();
    live(threads, own, of_copy);
  }
  threads_.push_back(first_.pid);
  for (unsigned i = 1; i < threads; ++i) {
    pid_t tid = 0;
    need(::read(first_.answers.get(), &tid, sizeof tid) == sizeof tid, "a puppet that starts");
    threads_.push_back(tid);
  }
  first_.open_memory();
}

void Puppet::Process::open_memory() {
  memory.reset(::open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDWR | O_CLOEXEC));
  need(static_cast<bool>(memory), "the puppet's memory");
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

std::int64_t Puppet::call(pid_t process_id, std::uint64_t number, const std::array<std::uint64_t, 6>& arguments) {
  const Process& made_by = process(process_id);
  const Command command{number, arguments};
  std::int64_t result = 0;
  need(::write(made_by.commands.get(), &command, sizeof command) == sizeof command &&
           ::read(made_by.answers.get(), &result, sizeof result) == sizeof result,
       "a puppet that answers");
  return result;
}

pid_t Puppet::fork() {
  copy_.pid = static_cast<pid_t>(call(pid(), kFork, {}));
  need(copy_.pid > 0, "a puppet that forks");
  copy_.open_memory();
  return copy_.pid;
}

void Puppet::spin() { need(call(pid(), kSpin, {}) == 0, "a puppet that spins"); }

bool Puppet::read(pid_t from, std::uint64_t address, void* to, std::size_t size) const {
  return ::pread(process(from).memory.get(), to, size, static_cast<off_t>(address)) == static_cast<ssize_t>(size);
}

bool Puppet::write(pid_t to, std::uint64_t address, const void* from, std::size_t size) const {
  return ::pwrite(process(to).memory.get(), from, size, static_cast<off_t>(address)) == static_cast<ssize_t>(size);
}

}  // namespace probed::tracer::simulated
