// The landing, executed: its handler is installed in this very program, or a child of it, as a tracer would have.
#include <doctest/doctest.h>
#include <elf.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "arch/arch.hpp"
#include "machine.hpp"

namespace probed::arch {
namespace {

struct KernelAction {
  std::uint64_t handler = 0, flags = 0, restorer = 0, mask = 0;
};

// Memory as the tracer prepares it, and two functions: one with a breakpoint of ours, its copy elsewhere.
class Rig {
 public:
  Rig() {
    memory_ = static_cast<std::uint8_t*>(
        mmap(nullptr, kSize, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    code_ = native::build_landing(address(0));
    write(0, code_.code);
    const LandingData data{address(kTable), kCapacity - 1};
    std::memcpy(memory_ + kLandingData, &data, sizeof data);
  }
  ~Rig() { munmap(memory_, kSize); }

  std::uint64_t address(std::size_t at) const { return reinterpret_cast<std::uint64_t>(memory_) + at; }
  std::uint8_t* at(std::size_t offset) { return memory_ + offset; }
  void write(std::size_t at, std::span<const std::uint8_t> code) {
    std::ranges::copy(code, memory_ + at);
    __builtin___clear_cache(reinterpret_cast<char*>(memory_) + at, reinterpret_cast<char*>(memory_) + at + code.size());
  }
  void enter(std::uint64_t trapped, std::uint64_t landing) {
    auto* table = reinterpret_cast<LandingEntry*>(memory_ + kTable);
    std::uint64_t i = landing_hash(trapped, kCapacity);
    while (table[i].trapped != 0 && table[i].trapped != trapped) ++i;
    table[i] = {trapped, landing};
  }
  std::uint64_t handler() const { return address(code_.handler); }
  void install() const {
    constexpr std::uint64_t kRestorer = 0x04000000;
    const KernelAction action{handler(), SA_SIGINFO | SA_NODEFER | SA_ONSTACK | kRestorer, address(code_.restorer), 0};
    syscall(SYS_rt_sigaction, SIGTRAP, &action, nullptr, 8);
  }

  static constexpr std::size_t kFunction = 4096, kCopy = 8192, kTable = 12288, kPad = 16384, kSize = 65536;
  static constexpr std::uint64_t kCapacity = 64;

 private:
  std::uint8_t* memory_ = nullptr;
  LandingCode code_;
};

// How a child that does this ends.
int fate(const std::function<void()>& what) {
  const pid_t child = fork();
  if (child == 0) {
    what();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

using Function = long (*)();
Function function(Rig& rig, std::size_t at) { return reinterpret_cast<Function>(rig.address(at)); }

// With the breakpoint over its first bytes; the copy jumps back behind the instruction.
void put_function(Rig& rig, bool probed = true) {
  rig.write(Rig::kFunction, kFirst);
  rig.write(Rig::kFunction + kFirst.size(), kRest);
  if (probed) rig.write(Rig::kFunction, native::kBreakpoint);
  rig.write(Rig::kCopy, kFirst);
  const std::size_t back = Rig::kCopy + kFirst.size();
  rig.write(back, jump(rig.address(back), rig.address(Rig::kFunction + kFirst.size())));
}

TEST_CASE("a breakpoint in the table goes on in its copy, as often as it is run into") {
  Rig rig;
  put_function(rig);
  rig.enter(rig.address(Rig::kFunction), rig.address(Rig::kCopy));
  CHECK(fate([&] {
          rig.install();
          for (int i = 0; i < 1000; ++i)
            if (function(rig, Rig::kFunction)() != 42) _exit(1);
        }) == 0);
}

TEST_CASE("entries whose places collide are all found") {
  Rig rig;
  put_function(rig);
  const std::uint64_t site = rig.address(Rig::kFunction);
  for (std::uint64_t other = site + 8, same = 0; same < 5; ++other) {
    if (landing_hash(other, Rig::kCapacity) != landing_hash(site, Rig::kCapacity)) continue;
    rig.enter(other, 1);
    ++same;
  }
  rig.enter(site, rig.address(Rig::kCopy));
  CHECK(fate([&] {
          rig.install();
          if (function(rig, Rig::kFunction)() != 42) _exit(1);
        }) == 0);
}

TEST_CASE(
    "a breakpoint that was taken out meanwhile is gone back to, and who has been dealt with isn't sent anywhere") {
  Rig rig;
  put_function(rig, false);
  const std::uint64_t site = rig.address(Rig::kFunction), trapped = site + (native::kTrapMovesPc ? 1 : 0);
  rig.enter(native::breakpoint_address(trapped), site);
  CHECK(fate([&] {
          rig.install();
          // As if it had run into the breakpoint just before: the signal comes with that context.
          siginfo_t info{};
          info.si_signo = SIGTRAP;
          info.si_code = kTrapCode;
          info.si_addr = reinterpret_cast<void*>(trapped);
          const auto handler = reinterpret_cast<void (*)(int, siginfo_t*, void*)>(rig.handler());
          Context context;
          context.pc() = trapped;
          handler(SIGTRAP, &info, &context);
          if (context.pc() != site) _exit(1);
          context.pc() = trapped;
          context.deal_with(rig.address(Rig::kCopy));
          const std::uint64_t before = context.pc();
          handler(SIGTRAP, &info, &context);
          if (context.pc() != before) _exit(2);
        }) == 0);
}

TEST_CASE("SIGTRAPs that are not ours end the program as they would have") {
  Rig rig;
  put_function(rig);
  rig.enter(rig.address(Rig::kFunction), rig.address(Rig::kCopy));
  const auto killed_by_trap = [](int status) { return WIFSIGNALED(status) && WTERMSIG(status) == SIGTRAP; };
  CHECK(killed_by_trap(fate([&] { rig.install(), raise(SIGTRAP); })));
  CHECK(killed_by_trap(fate([&] { rig.install(), kill(getpid(), SIGTRAP), sleep(5); })));
  CHECK(killed_by_trap(fate([&] {
    rig.install();
    asm volatile(BREAKPOINT_OF_ITS_OWN);
  })));
#ifdef STEP_OF_ITS_OWN
  CHECK(killed_by_trap(fate([&] {
    rig.install();
    asm volatile(STEP_OF_ITS_OWN ::: "cc", "memory");
  })));
#endif
}

TEST_CASE("without a table nothing is ours") {
  Rig rig;
  const LandingData none;
  std::memcpy(rig.at(kLandingData), &none, sizeof none);
  const int status = fate([&] {
    rig.install();
    asm volatile(BREAKPOINT_OF_ITS_OWN);
  });
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGTRAP));
}

// ---- call pads ----

// A child that stands still, traced.
class Standing {
 public:
  Standing() : pid_(fork()) {
    if (pid_ == 0) {
      ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
      for (;;) raise(SIGSTOP);
    }
    wait();
  }
  ~Standing() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  template <class T>
  T get(int set) const {
    T value{};
    iovec io{&value, sizeof value};
    CHECK(ptrace(PTRACE_GETREGSET, pid_, set, &io) == 0);
    return value;
  }
  template <class T>
  void set(int set, T value) const {
    iovec io{&value, sizeof value};
    CHECK(ptrace(PTRACE_SETREGSET, pid_, set, &io) == 0);
  }
  std::uint64_t mask() const {
    std::uint64_t value = 0;
    CHECK(ptrace(kGetMask, pid_, sizeof value, &value) == 0);
    return value;
  }
  void set_mask(std::uint64_t value) const { CHECK(ptrace(kSetMask, pid_, sizeof value, &value) == 0); }
  // The signal of its next stop.
  int run() const {
    CHECK(ptrace(PTRACE_CONT, pid_, nullptr, nullptr) == 0);
    return wait();
  }

 private:
  static constexpr auto kGetMask = static_cast<__ptrace_request>(0x420a),
                        kSetMask = static_cast<__ptrace_request>(0x420b);

  int wait() const {
    int status = 0;
    waitpid(pid_, &status, 0);
    return WIFSTOPPED(status) ? WSTOPSIG(status) : 0;
  }

  pid_t pid_;
};

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

TEST_CASE("who takes the way back from a call has its registers and its mask again") {
  using Vectors = std::array<std::uint64_t, native::kRecordsVectors ? 66 : 64>;
  constexpr std::uint64_t kMask = 1 << (SIGUSR1 - 1);
  Rig rig;
  rig.write(Rig::kPad, native::build_call_pad(rig.address(Rig::kPad)));
  rig.write(Rig::kFunction, native::kBreakpoint);
  const Standing child;
  auto regs = child.get<native::Registers>(NT_PRSTATUS);
  fill(regs);
  regs.set_pc(rig.address(Rig::kFunction));
  Vectors vectors{};
  for (std::size_t i = 0; i < 64; ++i) vectors[i] = 0x0101010101010101 * (i + 1);
  const native::CallRecord record = native::call_record(regs, kMask, bytes_of(vectors));
  std::memcpy(rig.at(Rig::kPad + native::kCallPadData), &record, sizeof record);

  auto away = child.get<native::Registers>(NT_PRSTATUS);
  native::prepare_syscall(away, rig.address(Rig::kPad) + native::kAfterCall, 0, {0, 0, 0, 0, 0, 0});
  child.set(NT_PRSTATUS, away);
  child.set_mask(~std::uint64_t{0});
  CHECK(child.run() == SIGTRAP);
  auto back = child.get<native::Registers>(NT_PRSTATUS);
  back.set_pc(native::breakpoint_address(back.pc()));
  if (native::kRecordsVectors) {
    const auto now = child.get<Vectors>(NT_PRFPREG);
    CHECK(now == vectors);
    vectors = now;
  }
  CHECK(child.mask() == kMask);
  const native::CallRecord found = native::call_record(back, child.mask(), bytes_of(vectors));
  CHECK(std::ranges::equal(bytes_of(found), bytes_of(record)));
}

}  // namespace
}  // namespace probed::arch
