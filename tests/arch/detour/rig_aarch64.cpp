#include "tests/arch/detour/rig_cpu.hpp"

namespace probed::test {

std::uint64_t pc_of(const ucontext_t& interrupted) { return interrupted.uc_mcontext.pc; }
void set_pc(ucontext_t& interrupted, std::uint64_t pc) { interrupted.uc_mcontext.pc = pc; }

std::uint64_t thread_pointer() { return reinterpret_cast<std::uint64_t>(__builtin_thread_pointer()); }

Body summing_function() {
  static constexpr std::uint8_t kCode[] = {0x00, 0x00, 0x01, 0x8b, 0xc0, 0x03, 0x5f, 0xd6};  // add x0, x0, x1; ret
  return {kCode, 4, 4};
}

Body storing_function() {
  static constexpr std::uint8_t kCode[] = {0x01, 0x00, 0x00, 0xf9, 0xc0, 0x03, 0x5f, 0xd6};  // str x1, [x0]; ret
  return {kCode, 4, 4};
}

}  // namespace probed::test
