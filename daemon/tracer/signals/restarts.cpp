#include "daemon/tracer/signals/restarts.hpp"

#include <cerrno>

#include "daemon/tracer/kernel/interrupted_calls.hpp"
#include "daemon/tracer/kernel/left_calls.hpp"
#include "daemon/tracer/rooms.hpp"
#include "daemon/tracer/stops.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using ptrace::Outcome;
using Kind = WaitStatus::Kind;

}  // namespace

// Our interrupt made a call return EINTR although nothing happened to the program.
void Restarts::put_back_interrupted_call(Tracee& tracee) {
  ptrace::Registers regs;
  if (ptrace::get_registers(tracee.tid, regs) != Outcome::ok) return;
  RemoteAddr base;
  const bool in_slot = tracee.process->space && tracee.process->space->xol().find(native_place(regs), base);
  if (!in_slot) rooms_.slot_threads.leave_slot(tracee);
  if (was_only_interrupted(tracee.tid, regs)) make_call_again(tracee, regs);
}

// As Loop::on_interrupt() will, when this thread's turn comes: others may come first.
void Restarts::keep_call(pid_t tid) {
  const auto it = targets_.tracees.find(tid);
  if (it == targets_.tracees.end()) return;
  Tracee& tracee = it->second;
  const bool is_copy = tracee.process && tracee.process->copy_of;
  if (!tracee.process || is_copy || !std::holds_alternative<Running>(tracee.left)) return;
  ptrace::Registers regs;
  if (ptrace::get_registers(tid, regs) == Outcome::ok && was_only_interrupted(tid, regs)) make_call_again(tracee, regs);
}

void Restarts::make_call_again(Tracee& tracee, ptrace::Registers& regs) {
  if (!make_again(tracee.tid, regs)) return;
  ptrace::set_registers(tracee.tid, regs);
  if (!native::kRegistersTellCall) tracee.made_again = regs;
}

// A call that is to end at a certain time is gone on with as restart_syscall. Where that leaves this call's number in a
// register, and not the one that the program put there, a program that makes the same call again would make that one.
void Restarts::note_restart([[maybe_unused]] Tracee& tracee, [[maybe_unused]] const WaitStatus& status) {
  if constexpr (native::kRestartNumber) {
    ptrace::Registers regs;
    if (!status.stopped() || status.kind() == Kind::syscall || !tracee.is_itself()) return;
    if (status.kind() == Kind::signal && is_forced_signal(status.signal())) return;
    if (ptrace::get_registers(tracee.tid, regs) != Outcome::ok) return;
    const std::uint64_t number = native::syscall_number(regs);
    if (number == native::kRestartNumber) {
      if (tracee.restart) tracee.restart->entered = false;
    } else if (may_be_gone_on_with(number)) {
      tracee.restart = {number, false};
    } else {
      tracee.restart.reset();
    }
  }
}

void Restarts::mend_restart([[maybe_unused]] Tracee& tracee) {
  if constexpr (native::kRestartNumber) {
    ptrace::Registers regs;
    if (!tracee.restart || ptrace::get_registers(tracee.tid, regs) != Outcome::ok) return;
    const bool as_restart = native::syscall_number(regs) == native::kRestartNumber;
    if (!std::exchange(tracee.restart->entered, as_restart)) {
      if (!as_restart) tracee.restart.reset();
      return;
    }
    native::set_syscall_number(regs, tracee.restart->number);
    ptrace::set_registers(tracee.tid, regs);
    tracee.restart->entered = false;
    if (!is_to_be_restarted(regs)) tracee.restart.reset();
  }
}

}  // namespace probed::tracer
