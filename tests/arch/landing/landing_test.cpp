// The landing, executed: its handler is installed in this very program, or a child of it, as a tracer would have.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <vector>

#include "arch/arch.hpp"
#include "arch/x86_64/orphan.hpp"

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
        mmap(nullptr, kSize, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    code_ = x86_64::build_landing(address(0));
    std::memcpy(memory_, code_.code.data(), code_.code.size());
    const LandingData data{address(kTable), kCapacity - 1};
    std::memcpy(memory_ + kLandingData, &data, sizeof data);
  }
  ~Rig() { munmap(memory_, kSize); }

  std::uint64_t address(std::size_t at) const { return reinterpret_cast<std::uint64_t>(memory_) + at; }
  std::uint8_t* at(std::size_t offset) { return memory_ + offset; }
  void write(std::size_t at, std::initializer_list<std::uint8_t> bytes) { std::copy(bytes.begin(), bytes.end(), memory_ + at); }
  void enter(std::uint64_t trapped, std::uint64_t landing) {
    auto* table = reinterpret_cast<LandingEntry*>(memory_ + kTable);
    std::uint64_t i = landing_hash(trapped, kCapacity);
    while (table[i].trapped != 0 && table[i].trapped != trapped) ++i;
    table[i] = {trapped, landing};
  }
  void install() const {
    constexpr std::uint64_t kRestorer = 0x04000000;
    const KernelAction action{address(code_.handler), SA_SIGINFO | SA_NODEFER | SA_ONSTACK | kRestorer,
                              address(code_.restorer), 0};
    syscall(SYS_rt_sigaction, SIGTRAP, &action, nullptr, 8);
  }

  static constexpr std::size_t kFunction = 4096, kCopy = 8192, kTable = 12288, kSize = 65536;
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

// mov eax, 42; ret, with the breakpoint over its first byte; the copy jumps back behind the instruction.
void put_function(Rig& rig) {
  rig.write(Rig::kFunction, {0xcc, 42, 0, 0, 0, 0xc3});
  rig.write(Rig::kCopy, {0xb8, 42, 0, 0, 0, 0xe9});
  const auto distance = static_cast<std::int32_t>(Rig::kFunction + 5 - (Rig::kCopy + 10));
  std::memcpy(rig.at(Rig::kCopy + 6), &distance, 4);
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

TEST_CASE("a breakpoint that was taken out meanwhile is gone back to") {
  Rig rig;
  rig.write(Rig::kFunction, {0xb8, 7, 0, 0, 0, 0xc3});
  rig.enter(rig.address(Rig::kFunction), rig.address(Rig::kFunction));
  CHECK(fate([&] {
          rig.install();
          // As if it had run into the breakpoint just before: the signal comes with that context.
          siginfo_t info{};
          info.si_signo = SIGTRAP;
          info.si_code = SI_KERNEL;
          struct {
            std::uint64_t words[64] = {};
          } context;
          context.words[21] = rig.address(Rig::kFunction) + 1;  // rip
          reinterpret_cast<void (*)(int, siginfo_t*, void*)>(rig.address(0))(SIGTRAP, &info, &context);
          if (context.words[21] != rig.address(Rig::kFunction)) _exit(1);
          context.words[22] = 1 << 16;  // the resume flag: dealt with
          context.words[21] = rig.address(Rig::kFunction) + 1;
          reinterpret_cast<void (*)(int, siginfo_t*, void*)>(rig.address(0))(SIGTRAP, &info, &context);
          if (context.words[21] != rig.address(Rig::kFunction) + 1) _exit(2);
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
    asm volatile("int3");
  })));
  CHECK(killed_by_trap(fate([&] {
    rig.install();
    asm volatile("pushfq; orq $0x100, (%%rsp); popfq; nop" ::: "cc", "memory");
  })));
}

TEST_CASE("without a table nothing is ours") {
  Rig rig;
  const LandingData none;
  std::memcpy(rig.at(kLandingData), &none, sizeof none);
  const int status = fate([&] {
    rig.install();
    asm volatile("int3");
  });
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGTRAP));
}

}  // namespace
}  // namespace probed::arch
