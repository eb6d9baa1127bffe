// Which lock of the C library's a thread waits for, by what a signal's handler finds in its registers.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include <cstdint>
#include <cstring>

namespace probed::arch {

// `context`: the third argument of a handler with SA_RESTART, before whose return the kernel puts the thread in front
// of its call again, with all arguments (arch/x86/kernel/signal.c, handle_signal; arch/arm64/kernel/signal.c,
// do_signal). null: it doesn't wait for a lock. Such a lock is 0 when it is free, and 2 when somebody waits (glibc,
// nptl/lowlevellock.c). malloc's are of that kind, and streams'. Mutexes are, too, but know their owner: whoever gets
// one that was freed like this is aborted. Async-signal-safe.
inline int* lock_waited_for(const void* context) {
  constexpr int kWaited = 2;
  const mcontext_t& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  const auto& regs = machine.gregs;
  const auto pc = static_cast<std::uintptr_t>(regs[REG_RIP]);
  const auto number = regs[REG_RAX], address = regs[REG_RDI], operation = regs[REG_RSI], value = regs[REG_RDX];
  constexpr std::uint8_t kCall[] = {0x0f, 0x05};  // syscall
#elif defined(__aarch64__)
  const auto pc = static_cast<std::uintptr_t>(machine.pc);
  const auto number = machine.regs[8], address = machine.regs[0], operation = machine.regs[1], value = machine.regs[2];
  constexpr std::uint8_t kCall[] = {0x01, 0x00, 0x00, 0xd4};  // svc #0
#endif
  if (number != SYS_futex || static_cast<int>(operation) != FUTEX_WAIT_PRIVATE || static_cast<int>(value) != kWaited)
    return nullptr;
  if (std::memcmp(reinterpret_cast<const void*>(pc), kCall, sizeof kCall) != 0) return nullptr;
  return reinterpret_cast<int*>(address);
}

}  // namespace probed::arch
