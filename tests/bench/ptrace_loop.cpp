// bench-ptrace-loop PID ADDRESS SKIP CPU [OPTION]...: the least that a tracer with one stop a hit can do, and what ours
// is measured against. Seizes every thread of PID, puts int3 at ADDRESS, prints "armed", and from then on lets every
// thread that hits it go on SKIP bytes behind: wait, read the registers, set the pc, continue. No record is made. Ends
// with PID and prints the number of hits. CPU: where it runs; -1: anywhere.
//
// Options put in what a real tracer does more, or does otherwise, to see what that costs:
//   pc-only    writes the pc alone (PTRACE_POKEUSER) and not all registers
//   siginfo    also asks what raised the signal
//   read-cpu   also reads the CPU's number from the thread's rseq area
//   sigwait    waits for SIGCHLD with sigtimedwait, then asks waitpid without blocking
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

namespace {

struct Options {
  pid_t pid = 0;
  std::uintptr_t address = 0;
  std::uintptr_t skip = 0;
  int cpu = -1;
  bool pc_only = false, siginfo = false, read_cpu = false, sigwait = false;
};

struct Loop {
  const Options& options;
  int memory;
  std::uintptr_t rseq = 0;
  unsigned long hits = 0;
};

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "bench-ptrace-loop: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

long call(int request, pid_t tid, std::uintptr_t address, std::uintptr_t data) {
  return ptrace(static_cast<__ptrace_request>(request), tid, address, data);
}

template <class T>
std::uintptr_t pointer(T& object) {
  return reinterpret_cast<std::uintptr_t>(&object);
}

bool parse_option(std::string_view word, Options& options) {
  if (word == "pc-only") return options.pc_only = true;
  if (word == "siginfo") return options.siginfo = true;
  if (word == "read-cpu") return options.read_cpu = true;
  if (word == "sigwait") return options.sigwait = true;
  return false;
}

Options parse(int argc, char** argv) {
  Options options;
  bool good = argc >= 5;
  if (good) {
    options.pid = std::atoi(argv[1]);
    options.address = std::strtoul(argv[2], nullptr, 16);
    options.skip = std::strtoul(argv[3], nullptr, 10);
    options.cpu = std::atoi(argv[4]);
  }
  for (int i = 5; good && i < argc; ++i) good = parse_option(argv[i], options);
  if (good) return options;
  std::fprintf(stderr, "usage: bench-ptrace-loop PID ADDRESS SKIP CPU [pc-only] [siginfo] [read-cpu] [sigwait]\n");
  std::exit(2);
}

void run_on(int cpu) {
  if (cpu < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(cpu), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) die("sched_setaffinity");
}

// All threads stand still when this returns; none starts another.
void seize_all(pid_t pid) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    const pid_t tid = std::atoi(entry.path().filename().c_str());
    if (call(PTRACE_SEIZE, tid, 0, 0) != 0 || call(PTRACE_INTERRUPT, tid, 0, 0) != 0) die("PTRACE_SEIZE");
    if (waitpid(tid, nullptr, __WALL) != tid) die("waitpid");
  }
}

void arm(const Loop& loop) {
  const unsigned char int3 = 0xcc;
  if (pwrite(loop.memory, &int3, 1, static_cast<off_t>(loop.options.address)) != 1) die("write of the breakpoint");
}

void let_all_go(pid_t pid) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task"))
    call(PTRACE_CONT, std::atoi(entry.path().filename().c_str()), 0, 0);
}

std::uintptr_t rseq_area(pid_t pid) {
  constexpr int kGetRseqConfiguration = 0x420f;  // linux/ptrace.h, which can't be included beside sys/ptrace.h
  struct {
    std::uint64_t area;
    std::uint32_t size, signature, flags, pad;
  } config{};
  return call(kGetRseqConfiguration, pid, sizeof config, pointer(config)) > 0 ? config.area : 0;
}

pid_t wait_for_stop(const Options& options, int& status) {
  if (!options.sigwait) return waitpid(-1, &status, __WALL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  const timespec limit{0, 100'000'000};
  for (;;) {
    const pid_t tid = waitpid(-1, &status, __WALL | WNOHANG);
    if (tid != 0) return tid;
    sigtimedwait(&set, nullptr, &limit);
  }
}

void pass(Loop& loop, pid_t tid) {
  const Options& options = loop.options;
  user_regs_struct regs;
  if (call(PTRACE_GETREGS, tid, 0, pointer(regs)) != 0) return;
  siginfo_t info;
  if (options.siginfo) call(PTRACE_GETSIGINFO, tid, 0, pointer(info));
  std::uint32_t cpu = 0;
  constexpr std::size_t kCpuId = 4;  // struct rseq, linux/rseq.h
  if (options.read_cpu && pread(loop.memory, &cpu, sizeof cpu, static_cast<off_t>(loop.rseq + kCpuId)) < 0)
    die("pread");
  regs.rip = options.address + options.skip;
  if (options.pc_only)
    call(PTRACE_POKEUSER, tid, offsetof(user_regs_struct, rip), regs.rip);
  else
    call(PTRACE_SETREGS, tid, 0, pointer(regs));
  call(PTRACE_CONT, tid, 0, 0);
  ++loop.hits;
}

void run(Loop& loop) {
  int status = 0;
  for (;;) {
    const pid_t tid = wait_for_stop(loop.options, status);
    if (tid < 0) return;
    if (!WIFSTOPPED(status)) continue;
    if (status >> 8 == SIGTRAP)
      pass(loop, tid);
    else
      call(PTRACE_CONT, tid, 0, static_cast<std::uintptr_t>(status >> 16 != 0 ? 0 : WSTOPSIG(status)));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  if (options.sigwait) sigprocmask(SIG_BLOCK, &set, nullptr);
  run_on(options.cpu);
  Loop loop{options, open(("/proc/" + std::to_string(options.pid) + "/mem").c_str(), O_RDWR | O_CLOEXEC)};
  if (loop.memory < 0) die("/proc/PID/mem");
  seize_all(options.pid);
  loop.rseq = rseq_area(options.pid);
  arm(loop);
  let_all_go(options.pid);
  std::puts("armed");
  std::fflush(stdout);
  run(loop);
  std::printf("%lu\n", loop.hits);
  return 0;
}
