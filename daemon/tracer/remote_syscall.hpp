// System calls made by a target on our behalf: mmap for the XOL area, munmap when we leave.
//
// Owning thread: the tracer thread. RAII: the constructor borrows a thread that stands in a PTRACE_EVENT_STOP, the
// destructor gives it back in one, with every register, the signal mask and an interrupted system call's restart state
// as they were. The thread executes an existing `syscall` instruction of the target; no text is touched.
//
// How a displaced system call survives: if the thread was stopped inside one, its registers hold -ERESTART*, which the
// kernel only acts upon on its way out through get_signal() (arch/x86/kernel/signal.c). So we leave the way we came in:
// PTRACE_INTERRUPT, one more EVENT_STOP, and there the saved registers go back.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "daemon/base/types.hpp"
#include "daemon/tracer/ptrace.hpp"
#include "daemon/tracer/wait.hpp"

namespace probed::tracer {

class RemoteSyscalls {
 public:
  RemoteSyscalls(Waiter& waiter, pid_t tid, RemoteAddr syscall_insn);
  RemoteSyscalls(const RemoteSyscalls&) = delete;
  RemoteSyscalls& operator=(const RemoteSyscalls&) = delete;
  ~RemoteSyscalls();

  // The call's result, negative errno included; nullopt: the thread is gone (see exit_status()).
  std::optional<std::int64_t> call(std::uint64_t number, const std::array<std::uint64_t, 6>& args);
  // Gives the thread back early; false: it died meanwhile.
  bool finish();
  // When it died, or was replaced by an exec, while borrowed: the status that the main loop still has to handle.
  std::optional<WaitStatus> exit_status() const { return exit_; }
  // The stop the thread was given back in: interrupt, or group_stop when job control stopped it.
  WaitStatus::Kind final_stop() const { return final_stop_; }

 private:
  bool run_to_syscall_stop();
  bool run_to_event_stop();
  bool gone(std::optional<WaitStatus> status);

  Waiter& waiter_;
  pid_t tid_;
  RemoteAddr syscall_insn_;
  ptrace::Registers saved_{};
  std::uint64_t saved_mask_ = 0;
  bool usable_ = false;
  bool finished_ = false;
  bool stop_requested_ = false;  // a SIGSTOP arrived meanwhile; sent again at the end
  std::optional<WaitStatus> exit_;
  WaitStatus::Kind final_stop_ = WaitStatus::Kind::interrupt;
};

}  // namespace probed::tracer
