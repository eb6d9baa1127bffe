#include "daemon/tracer/remote_syscall.hpp"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace probed::tracer {
namespace {

using ptrace::Outcome;
using Kind = WaitStatus::Kind;

// Synchronous signals stay deliverable: a blocked one would be forced, and its handler reset (kernel/signal.c,
// force_sig_info_to_task).
constexpr std::uint64_t bit(int signal) { return 1ULL << (signal - 1); }
constexpr std::uint64_t kSynchronous = bit(SIGSEGV) | bit(SIGBUS) | bit(SIGILL) | bit(SIGFPE) | bit(SIGTRAP);

}  // namespace

RemoteSyscalls::RemoteSyscalls(Waiter& waiter, pid_t tid, RemoteAddr syscall_insn)
    : waiter_(waiter), tid_(tid), syscall_insn_(syscall_insn) {
  if (!syscall_insn_) return;
  if (ptrace::get_registers(tid_, saved_) != Outcome::ok) return;
  if (ptrace::get_sigmask(tid_, saved_mask_) != Outcome::ok) return;
  // From here on the thread needs giving back.
  usable_ = true;
  ptrace::set_sigmask(tid_, saved_mask_ | ~kSynchronous);
  ptrace::suspend_seccomp(tid_, true);  // fails without CAP_SYS_ADMIN; a filter that forbids the call then says so
}

RemoteSyscalls::~RemoteSyscalls() { finish(); }

bool RemoteSyscalls::gone(std::optional<WaitStatus> status) {
  // An exec in another thread takes this one's id over: what was borrowed is gone then, too.
  if (status && status->stopped() && status->kind() != Kind::exec) return false;
  exit_ = status;
  usable_ = false;
  finished_ = true;
  return true;
}

bool RemoteSyscalls::run_to_syscall_stop() {
  for (;;) {
    if (ptrace::resume_to_syscall(tid_) == Outcome::failed) return false;
    const auto status = waiter_.wait_for(tid_);
    if (gone(status)) return false;
    if (status->kind() == Kind::syscall) return true;
    // Everything blockable is blocked; SIGSTOP is not. Swallowed here, sent again when we are done.
    if (status->kind() == Kind::signal && status->signal() == SIGSTOP) stop_requested_ = true;
  }
}

std::optional<std::int64_t> RemoteSyscalls::call(std::uint64_t number, const std::array<std::uint64_t, 6>& args) {
  if (!usable_) return std::nullopt;
  ptrace::Registers regs = saved_;
  const std::uint64_t plain[6] = {args[0], args[1], args[2], args[3], args[4], args[5]};
  arch::native::prepare_syscall(regs, syscall_insn_.value, number, plain);
  if (ptrace::set_registers(tid_, regs) != Outcome::ok) return std::nullopt;
  if (!run_to_syscall_stop() || !run_to_syscall_stop()) return std::nullopt;
  if (ptrace::get_registers(tid_, regs) != Outcome::ok) return std::nullopt;
  return arch::native::syscall_result(regs);
}

bool RemoteSyscalls::run_to_event_stop() {
  for (;;) {
    ptrace::interrupt(tid_);
    if (ptrace::resume(tid_, 0) == Outcome::failed) return false;
    const auto status = waiter_.wait_for(tid_);
    if (gone(status)) return false;
    if (status->kind() == Kind::interrupt || status->kind() == Kind::group_stop) {
      final_stop_ = status->kind();
      return true;
    }
    if (status->kind() == Kind::signal && status->signal() == SIGSTOP) stop_requested_ = true;
  }
}

bool RemoteSyscalls::finish() {
  if (finished_ || !usable_) return usable_ || !finished_;
  // A pending interrupt traps before the first user instruction, so these registers never run.
  ptrace::set_registers(tid_, saved_);
  if (run_to_event_stop()) {
    ptrace::set_registers(tid_, saved_);
    ptrace::set_sigmask(tid_, saved_mask_);
    ptrace::suspend_seccomp(tid_, false);
    if (stop_requested_) syscall(SYS_tkill, tid_, SIGSTOP);
  }
  finished_ = true;
  return usable_;
}

}  // namespace probed::tracer
