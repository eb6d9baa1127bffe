// Tests of a stop: fault, step trap, breakpoint trap, and where the thread stands.
#pragma once

#include <signal.h>

#include <cerrno>
#include <cstdint>

#include "arch/arch.hpp"
#include "daemon/base/types.hpp"
#include "daemon/tracer/kernel/interrupted_calls.hpp"
#include "daemon/tracer/kernel/ptrace.hpp"

namespace probed::tracer {

constexpr std::uint64_t signal_bit(int signal) { return 1ULL << (signal - 1); }
inline constexpr std::uint64_t kNeverBlocked = signal_bit(SIGKILL) | signal_bit(SIGSTOP);
inline constexpr int kFirstRealTime = 32;  // the kernel's SIGRTMIN
// Raised by the instruction itself; force_sig() would reset the handler of a blocked one, so these are never blocked.
inline constexpr std::uint64_t kSynchronous =
    signal_bit(SIGSEGV) | signal_bit(SIGBUS) | signal_bit(SIGILL) | signal_bit(SIGFPE) | signal_bit(SIGTRAP);

// A fault of the instruction at hand, not a kill() of the same number: only the kernel sets a positive si_code.
inline bool is_fault(int signal, const siginfo_t& info) {
  return (kSynchronous & signal_bit(signal)) != 0 && info.si_code > 0 && info.si_code != SI_USER;
}

// At the end of a single step.
inline bool is_step_trap(const siginfo_t& info) { return info.si_code == TRAP_TRACE; }

// Whether a thread behind it may stand there for having run into its breakpoint as well.
inline bool is_of_trap_size(const arch::Insn& insn) {
  return arch::native::kTrapMovesPc && insn.length == arch::native::kBreakpointSize;
}

// Raised by a breakpoint instruction: SI_KERNEL on x86-64 (do_int3), TRAP_BRKPT on aarch64.
inline bool is_breakpoint_trap(const siginfo_t& info) {
  return info.si_code == SI_KERNEL || info.si_code == TRAP_BRKPT;
}

// Where a thread is, as far as that can be in code of ours: that is native. In other code (32-bit code of a 64-bit
// process) the pc may be no address at all; then: nowhere.
inline RemoteAddr native_place(const ptrace::Registers& regs) {
  return {arch::native::executes_native_code(regs) ? regs.pc() : 0};
}

inline constexpr const char* kIsOtherCode = "32-bit code was executed there; only 64-bit code can be probed";
inline constexpr const char* kStepsItself =
    "the process steps itself by the trap flag, and would see the steps of a jump";

// Of a thread that is stopped on its way out of a call: whether that was interrupted and is made again unless a handler
// is called. ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK (include/linux/errno.h).
inline bool is_to_be_restarted(const ptrace::Registers& regs) {
  if (arch::native::kRegistersTellCall && !arch::native::in_syscall(regs)) return false;
  const auto result = arch::native::syscall_result(regs);
  return (result <= -512 && result >= -514) || result == -516;
}

// Takes a thread at the end of a copy to where the original program would be.
inline void apply(const arch::CopyPoint& point, ptrace::Registers& regs) {
  regs.set_pc(point.original_pc);
  if (point.fix_link) regs.set_link(point.link);
}

}  // namespace probed::tracer
