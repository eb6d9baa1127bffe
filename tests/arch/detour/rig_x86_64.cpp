#include <asm/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/arch/detour/rig_cpu.hpp"

namespace probed::test {

std::uint64_t pc_of(const ucontext_t& interrupted) {
  return static_cast<std::uint64_t>(interrupted.uc_mcontext.gregs[REG_RIP]);
}
void set_pc(ucontext_t& interrupted, std::uint64_t pc) {
  interrupted.uc_mcontext.gregs[REG_RIP] = static_cast<greg_t>(pc);
}

std::uint64_t thread_pointer() {
  std::uint64_t value = 0;
  ::syscall(SYS_arch_prctl, ARCH_GET_FS, &value);
  return value;
}

namespace {

constexpr std::size_t kRegion = 5, kExit = 10;

}  // namespace

Body summing_function() {
  // push %rbp; mov %rsp,%rbp; nop; lea (%rdi,%rsi),%rax; pop %rbp; | ret; nop...
  static constexpr std::uint8_t kCode[] = {0x55, 0x48, 0x89, 0xe5, 0x90, 0x48, 0x8d, 0x04,
                                           0x37, 0x5d, 0xc3, 0x90, 0x90, 0x90, 0x90};
  return {kCode, kRegion, kExit};
}

Body storing_function() {
  // The same with mov %rsi,(%rdi); nop instead of the lea.
  static constexpr std::uint8_t kCode[] = {0x55, 0x48, 0x89, 0xe5, 0x90, 0x48, 0x89, 0x37,
                                           0x90, 0x5d, 0xc3, 0x90, 0x90, 0x90, 0x90};
  return {kCode, kRegion, kExit};
}

}  // namespace probed::test
