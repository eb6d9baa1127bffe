// The one gate for ptrace(2). Nothing else in the project calls it.
//
// Owning thread: the tracer thread; ptrace requests are only valid from the thread that attached. A thread id that has
// died, or was killed while stopped, answers ESRCH to everything: that is Gone, an ordinary outcome, and the exit
// status follows through wait.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "arch/arch.hpp"

namespace probed::tracer::ptrace {

using Registers = arch::native::Registers;

enum class Outcome : std::uint8_t { ok, gone, failed };  // failed: errno says why

// PTRACE_SEIZE with the options every tracee gets (ours()). failed with EPERM: not permitted, or already traced.
Outcome seize(pid_t tid);
Outcome interrupt(pid_t tid);
// The same for a thread that stands in a stop, or is away on a call for us: it waits in none of the program's.
Outcome interrupt_in_stop(pid_t tid);
// Whether the thread was interrupted and note_event_stop() has not been told of its stop since. Every other stop takes
// a pending interrupt away (kernel/signal.c, ptrace_stop): who resumes it from one must ask again.
bool is_interrupted(pid_t tid);
void note_event_stop(pid_t tid);
// The thread whose stop has been handed out while its report is still with the kernel (wait.hpp), until it is resumed
// in whatever way; 0: there is none.
void note_standing(pid_t tid);
pid_t standing_thread();
// Resumes a stopped thread, injecting `signal` (0: none). Only meaningful from a signal-delivery-stop.
Outcome resume(pid_t tid, int signal);
// Resumes for exactly one instruction.
Outcome step(pid_t tid, int signal);
// Resumes to the next system call entry or exit stop; `signal` as for resume().
Outcome resume_to_syscall(pid_t tid, int signal = 0);
// Resumes to the stop at the next system call's entry, which is then not made; no seccomp filter sees it
// (PTRACE_SYSEMU: kernel/entry/common.c, arch/arm64/kernel/ptrace.c, syscall_trace_enter). Kernels that don't know
// that, arm64's before Linux 5.3, resume the thread without such a stop.
Outcome resume_without_syscall(pid_t tid, int signal = 0);
// For a thread that stands in its vfork event: it will stop once more when the child has let go of its memory
// (PTRACE_EVENT_VFORK_DONE, which kernel/fork.c looks for only then).
Outcome report_vfork_done(pid_t tid);
// Leaves a group-stopped thread stopped, but open to SIGCONT and PTRACE_INTERRUPT.
Outcome listen(pid_t tid);
Outcome detach(pid_t tid, int signal);

// In whatever mode the thread executes (native::executes_native_code).
Outcome get_registers(pid_t tid, Registers& regs);
// What the thread's own data is found by; 0: not known. regs: what get_registers has said.
std::uint64_t thread_pointer(pid_t tid, const Registers& regs);
// The register set of floating-point numbers and vectors, as it is.
Outcome get_vector_registers(pid_t tid, std::vector<std::byte>& set);
// What a call would take from the thread (arch regs.hpp, kSetLostInCalls); empty: nothing.
void get_set_lost_in_calls(pid_t tid, std::vector<std::byte>& set);
void set_set_lost_in_calls(pid_t tid, const std::vector<std::byte>& set);
// The low 64 bits of one register for floating-point numbers.
Outcome get_vector_register(pid_t tid, unsigned index, std::uint64_t& low);
// Gives the thread the rights to memory of protection key 0 (arch regs.hpp, lift_key_rights). What they were; nullopt:
// it has gone, it had them, there are no such keys here, or the kernel doesn't take them (Linux 5.14 to 6.1, where
// commit 4a804c4f8356 hasn't been taken over: "Allow PKRU to be (once again) written by ptrace").
std::optional<std::uint32_t> lift_key_rights(pid_t tid);
// Puts them back, unless it has set others meanwhile.
void put_key_rights(pid_t tid, std::uint32_t rights);

// What is as it should be already is no reason to fail, even where the kernel refuses to be told so.
Outcome set_registers(pid_t tid, const Registers& regs);
// The same, when get_registers returned `now` at this stop: writes the pc alone where nothing else differs, for less
// than half the price (a twelfth of a whole hit; tests/bench, part-pc-only).
Outcome set_registers(pid_t tid, const Registers& regs, const Registers& now);

// The number of the call that the thread is in, where it is no general register (native::kSystemCallSet).
Outcome set_system_call(pid_t tid, int number);

// The word at an aligned address, text included; the thread must stand still.
Outcome peek_word(pid_t tid, std::uint64_t address, std::uint64_t& word);
Outcome poke_word(pid_t tid, std::uint64_t address, std::uint64_t word);

Outcome get_siginfo(pid_t tid, siginfo_t& info);
Outcome set_siginfo(pid_t tid, const siginfo_t& info);

// Whether the signal waits in the stopped thread's own queue, not in its process's (PTRACE_PEEKSIGINFO).
bool signal_queued(pid_t tid, int signal);
// Whether one that is like this in every byte waits in either.
bool signal_queued(pid_t tid, const siginfo_t& info);

// The kernel's 64-bit signal mask.
Outcome get_sigmask(pid_t tid, std::uint64_t& mask);
Outcome set_sigmask(pid_t tid, std::uint64_t mask);

// The new thread's id at a clone/fork/vfork event, the former thread id at exec, the exit status at exit.
Outcome get_event_message(pid_t tid, unsigned long& message);

// The table of system calls (AUDIT_ARCH_*, linux/audit.h) that the call which the stopped thread is in belongs to, or
// else the one of its program (PTRACE_GET_SYSCALL_INFO, Linux 5.3). nullopt: gone, or the kernel doesn't say.
std::optional<std::uint32_t> call_table(pid_t tid);

// The first argument of the call that the stopped thread has made last, where the register that had it has the result
// by now and the kernel still knows (arm64: orig_x0). PTRACE_GET_SYSCALL_INFO tells a call's arguments at a seccomp
// filter's stop, for which it takes whatever stop has that one's si_code (kernel/ptrace.c, ptrace_get_syscall_info):
// this one's has, for a moment. So only at a stop whose siginfo nobody will look at, should we die meanwhile: of our
// interrupt, or of a signal that is going to be discarded. nullopt: gone, or the kernel doesn't say (before Linux 5.3).
std::optional<std::uint64_t> last_first_argument(pid_t tid);

// While on, the tracee's seccomp filters don't run: PTRACE_O_SUSPEND_SECCOMP. Needs CAP_SYS_ADMIN.
Outcome suspend_seccomp(pid_t tid, bool on);

// Syscall User Dispatch (PR_SET_SYSCALL_USER_DISPATCH): system calls from outside of a range raise SIGSYS instead.
struct SyscallDispatch {
  std::uint64_t mode = 0, selector = 0, offset = 0, length = 0;  // struct ptrace_sud_config, linux/ptrace.h
};
// failed: the kernel is older than 6.4, which can't be asked.
Outcome get_syscall_dispatch(pid_t tid, SyscallDispatch& config);
Outcome set_syscall_dispatch(pid_t tid, const SyscallDispatch& config);

// Address of the thread's registered rseq area (PTRACE_GET_RSEQ_CONFIGURATION, Linux 5.13); nullopt: none.
std::optional<std::uint64_t> rseq_area(pid_t tid);

}  // namespace probed::tracer::ptrace
