// System calls made by a target on our behalf: mmap for the XOL area, munmap when we leave.
//
// Owning thread: the tracer thread. RAII: the constructor borrows a thread that stands in a PTRACE_EVENT_STOP, the
// destructor gives it back in one, with every register, the signal mask and an interrupted system call's restart state
// as they were. The thread makes them at a pad (call_pads.hpp): should this process be killed in the middle, it goes
// back by itself. From the record in the pad to the thread's last register there is no moment at which it would not.
//
// How a displaced system call survives: if the thread was stopped inside one, its registers hold -ERESTART*, which the
// kernel only acts upon on its way out through get_signal() (arch/x86/kernel/signal.c). So we leave the way we came in:
// PTRACE_INTERRUPT, one more EVENT_STOP, and there the saved registers go back.
//
// Two kinds of stop will do: a PTRACE_EVENT_STOP, and the signal-delivery-stop of a SIGTRAP, both inside get_signal().
// In the latter the signal is dropped, when it was our own trap; or it is put back: everything is blocked meanwhile,
// and a signal that the tracer passes on while it is blocked is queued again as it was, siginfo included
// (kernel/signal.c, ptrace_signal). It arrives anew once the mask is back. For standard signals only: others would lose
// their place.
//
// A thread in a restartable sequence (rseq(2)) is to be sent to the abort handler, as whenever it was interrupted
// there. The kernel forgets the sequence when it sees the thread elsewhere: so that is put back, too.
//
// What would make the call something else than a call is looked at first: a seccomp filter that can't be suspended, and
// Syscall User Dispatch, which is switched off meanwhile. A thread that doesn't come back in time (a frozen cgroup, a
// userfaultfd that nobody serves) is not waited for: its registers are handed to the caller as Borrowed, to go back at
// the thread's next stop.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "daemon/base/types.hpp"
#include "daemon/tracer/kernel/call_pads.hpp"
#include "daemon/tracer/kernel/ptrace.hpp"
#include "daemon/tracer/kernel/wait.hpp"

namespace probed::tracer {

// What a thread that is away on a call for us must get back.
struct Borrowed {
  ptrace::Registers regs{};
  std::uint64_t mask = 0;
  std::vector<std::byte> lost_set;                  // registers that calls spoil; empty: it has none of them in use
  std::optional<ptrace::SyscallDispatch> dispatch;  // was on
  std::uint64_t sequence_at = 0, sequence = 0;      // rseq_cs: where, and what it was; 0: the thread is in no sequence
  CallPad pad;

  // Whatever stop it is in: its next one, an event stop, is to be the one to give it back in.
  void go_on_to_event_stop(pid_t tid, int signal) const;
  void give_back(pid_t tid) const;
};

class RemoteSyscalls {
 public:
  // The one refusal() that passes.
  static constexpr const char* kIn32BitCode = "it executes 32-bit code; try again";

  // `put_back`: the signal of the stop the thread is in, to be delivered afterwards; 0: none, or dropped.
  // `trapped_at`: the breakpoint that the signal is of, when that is dropped: the thread is given back in front of it,
  // to run into it again if nobody is left to send it elsewhere. `patience`: for one system call, under load; whoever
  // serves others meanwhile has little.
  RemoteSyscalls(Waiter& waiter, pid_t tid, CallPad pad, int put_back = 0, RemoteAddr trapped_at = {},
                 Waiter::Clock::duration patience = std::chrono::seconds(1));
  RemoteSyscalls(const RemoteSyscalls&) = delete;
  RemoteSyscalls& operator=(const RemoteSyscalls&) = delete;
  ~RemoteSyscalls();

  // The call's result, negative errno included; nullopt: no call could be made: the thread is gone (exit_status()),
  // late (late()), or may make none (refusal()).
  std::optional<std::int64_t> call(std::uint64_t number, const std::array<std::uint64_t, 6>& args);
  pid_t tid() const { return tid_; }
  // Gives the thread back early; false: it died meanwhile, or is late.
  bool finish();
  // Why this thread may make no call for us; null: it may.
  const char* refusal() const { return refusal_; }
  // Set when the thread was interrupted but has not stopped within the time we give it.
  const std::optional<Borrowed>& late() const { return late_; }
  // When it died, or was replaced by an exec, while borrowed: the status that the main loop still has to handle.
  std::optional<WaitStatus> exit_status() const { return exit_; }
  // Whether the thread has left the stop it was borrowed in.
  bool ran() const { return usable_; }
  // The stop the thread was given back in: interrupt, or group_stop when job control stopped it.
  WaitStatus::Kind final_stop() const { return final_stop_; }

 private:
  const char* why_not();
  void note_sequence();
  bool run_to_syscall_stop();
  bool run_to_event_stop();
  bool settle();
  void send_to_pad(const CallPad& pad, const ptrace::Registers& way_back);
  std::optional<WaitStatus> next_stop(bool resumed);
  bool gone(std::optional<WaitStatus> status);

  Waiter& waiter_;
  pid_t tid_;
  RemoteAddr syscall_insn_;  // 0: the target has none
  int put_back_;             // signal to pass on at the next resumption
  Waiter::Clock::duration patience_;
  Borrowed saved_;
  const char* refusal_ = nullptr;
  bool usable_ = false;
  bool finished_ = false;
  std::optional<Borrowed> late_;
  std::optional<WaitStatus> exit_;
  WaitStatus::Kind final_stop_ = WaitStatus::Kind::interrupt;
};

}  // namespace probed::tracer
