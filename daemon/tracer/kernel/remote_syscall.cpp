#include "daemon/tracer/kernel/remote_syscall.hpp"

#include <linux/capability.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <utility>
#include <vector>

#include "daemon/base/capability.hpp"
#include "daemon/tracer/kernel/interrupted_calls.hpp"
#include "daemon/tracer/kernel/left_calls.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using ptrace::Outcome;
using Kind = WaitStatus::Kind;

// Nothing is delivered in between: not even a trap that the thread has just run into, whose registers are the saved
// ones. No instruction but the system call's own runs, so none can raise another.
constexpr std::uint64_t kEverything = ~0ULL;
constexpr unsigned kMostStops = 64;  // until the one we wait for; job control may make some more

bool is_forced(int signal) {
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGILL || signal == SIGSYS || signal == SIGTRAP;
}

// Why PTRACE_O_SUSPEND_SECCOMP has failed with this error: the conditions of kernel/ptrace.c, check_ptrace_options(),
// in its order.
const char* why_seccomp_stays(int error) {
  if (error == EINVAL)
    return "it is under a seccomp filter, which this kernel can't suspend (it lacks CONFIG_CHECKPOINT_RESTORE)";
  if (!has_capability(CAP_SYS_ADMIN))
    return "it is under a seccomp filter, which only a daemon with CAP_SYS_ADMIN may suspend";
  if (under_seccomp(::gettid()))
    return "it is under a seccomp filter, which the daemon can't suspend because it runs under one itself (its "
           "container's, or its systemd unit's: SystemCallFilter=, ProtectKernelTunables=, ...)";
  return "it is under a seccomp filter, which only a daemon with the machine's CAP_SYS_ADMIN may suspend, not with a "
         "container's";
}

}  // namespace

// Its mask first: until it has its registers it is on its way back, which sets that mask, too.
void Borrowed::give_back(pid_t tid) const {
  ptrace::set_sigmask(tid, mask);
  if (dispatch) ptrace::set_syscall_dispatch(tid, *dispatch);
  ptrace::suspend_seccomp(tid, false);
  ptrace::set_set_lost_in_calls(tid, lost_set);
  ptrace::set_registers(tid, regs);
  // The kernel looks at it once more on the thread's way out of this stop (kernel/rseq.c).
  if (sequence != 0) ptrace::poke_word(tid, sequence_at, sequence);
  if (pad.at) pad.end();
  end_own_calls(tid);
}

// The interrupt traps before the first user instruction: registers that are set for it never run, and without a pad
// must be set, as the kernel looks at them on the way.
void Borrowed::go_on_to_event_stop(pid_t tid, int signal) const {
  if (!pad.at) ptrace::set_registers(tid, regs);
  ptrace::interrupt_in_stop(tid);
  ptrace::resume(tid, signal);
}

RemoteSyscalls::RemoteSyscalls(Waiter& waiter, pid_t tid, CallPad pad, int put_back, RemoteAddr trapped_at,
                               Waiter::Clock::duration patience)
    : waiter_(waiter),
      tid_(tid),
      syscall_insn_(pad.at ? pad.at : pad.plain_call),
      put_back_(put_back),
      patience_(patience) {
  if (ptrace::get_registers(tid_, saved_.regs) != Outcome::ok) return;
  if (ptrace::get_sigmask(tid_, saved_.mask) != Outcome::ok) return;
  if ((refusal_ = why_not()) != nullptr) return;
  ptrace::get_set_lost_in_calls(tid_, saved_.lost_set);
  note_sequence();
  if (trapped_at) saved_.regs.set_pc(trapped_at.value);
  // From here on the thread needs giving back.
  usable_ = true;
  begin_own_calls(tid_, saved_.regs);
  const bool at_call = !native::kRegistersTellCall && may_be_gone_on_with(native::syscall_number(saved_.regs)) &&
                       is_call_at(tid_, saved_.regs.pc());
  const ptrace::Registers as_stopped = saved_.regs;
  if (!at_call) send_to_pad(pad, as_stopped);
  ptrace::set_sigmask(tid_, kEverything);
  if (!at_call) return;
  usable_ = settle();
  // The way back makes a call anew: what restart_syscall would go on with is forgotten there
  // (arch/arm64/kernel/signal.c, rt_sigreturn).
  if (usable_) send_to_pad(pad, as_stopped);
}

// way_back: the registers that the thread finds its way back to.
void RemoteSyscalls::send_to_pad(const CallPad& pad, const ptrace::Registers& way_back) {
  std::vector<std::byte> vectors;
  if (native::kRecordsVectors && pad.at && ptrace::get_vector_registers(tid_, vectors) != Outcome::ok) return;
  if (!pad.at || !pad.begin(way_back, saved_.mask, vectors)) return;
  saved_.pad = pad;
  ptrace::Registers regs = saved_.regs;
  native::prepare_syscall(regs, pad.at.value + native::kAfterCall, 0, {0, 0, 0, 0, 0, 0});
  native::mark_dealt_with(regs);
  ptrace::set_registers(tid_, regs);
}

// Where the kernel moves the pc in front of an interrupted call before it lets us look, it may still make another call
// of it on the way back to the program: a sleep is gone on with by restart_syscall. So the thread is sent to the very
// call's entry, which tells which it is, and the call is not made.
bool RemoteSyscalls::settle() {
  ptrace::Registers at_entry{};
  if (!run_to_syscall_stop() || ptrace::get_registers(tid_, at_entry) != Outcome::ok) return false;
  native::take_restart(saved_.regs, at_entry);
  return ptrace::set_system_call(tid_, -1) == Outcome::ok && run_to_syscall_stop();
}

RemoteSyscalls::~RemoteSyscalls() { finish(); }

const char* RemoteSyscalls::why_not() {
  if (!native::executes_native_code(saved_.regs)) return kIn32BitCode;
  if (!syscall_insn_) return "it has no system call instruction in its text";
  // A filter that forbids the call may answer by killing.
  if (ptrace::suspend_seccomp(tid_, true) != Outcome::ok)
    if (const int error = errno; under_seccomp(tid_)) return why_seccomp_stays(error);
  ptrace::SyscallDispatch dispatch;
  if (ptrace::get_syscall_dispatch(tid_, dispatch) != Outcome::ok || dispatch.mode == 0) return nullptr;
  if (ptrace::set_syscall_dispatch(tid_, {}) != Outcome::ok) return "it uses Syscall User Dispatch";
  saved_.dispatch = dispatch;
  return nullptr;
}

void RemoteSyscalls::note_sequence() {
  constexpr std::uint64_t kSequence = 8;  // offsetof(struct rseq, rseq_cs), linux/rseq.h
  const auto area = ptrace::rseq_area(tid_);
  if (!area) return;
  saved_.sequence_at = *area + kSequence;
  if (ptrace::peek_word(tid_, saved_.sequence_at, saved_.sequence) != Outcome::ok) saved_.sequence = 0;
}

bool RemoteSyscalls::gone(std::optional<WaitStatus> status) {
  // An exec in another thread takes this one's id over: what was borrowed is gone then, too.
  if (status && status->stopped() && status->kind() != Kind::exec) return false;
  exit_ = status;
  if (saved_.pad.at) saved_.pad.end();
  usable_ = false;
  finished_ = true;
  return true;
}

// The thread's next stop, to which it has been resumed. nullopt: there will be none for us.
std::optional<WaitStatus> RemoteSyscalls::next_stop(bool resumed) {
  if (!resumed) return std::nullopt;
  bool is_late = false;
  const auto status = waiter_.wait_for(tid_, Waiter::Clock::now() + patience_, is_late);
  if (is_late) {
    ptrace::interrupt_in_stop(tid_);
    late_ = saved_;
    usable_ = false;
    finished_ = true;
    return std::nullopt;
  }
  if (gone(status)) return std::nullopt;
  // Everything blockable is blocked; SIGSTOP is not, and takes effect: only so does a SIGCONT after it end it again.
  // A signal of the instruction's own says that there was no system call to make (any more).
  if (status->kind() == Kind::signal && !is_forced(status->signal())) put_back_ = status->signal();
  return status;
}

bool RemoteSyscalls::run_to_syscall_stop() {
  for (unsigned i = 0; i < kMostStops; ++i) {
    const bool resumed = ptrace::resume_to_syscall(tid_, std::exchange(put_back_, 0)) != Outcome::failed;
    const auto status = next_stop(resumed);
    if (!status) return false;
    if (status->kind() == Kind::syscall) return true;
    if (status->kind() == Kind::signal && is_forced(status->signal())) return false;
  }
  return false;
}

std::optional<std::int64_t> RemoteSyscalls::call(std::uint64_t number, const std::array<std::uint64_t, 6>& args) {
  if (!usable_) return std::nullopt;
  ptrace::Registers regs = saved_.regs;
  const std::uint64_t plain[6] = {args[0], args[1], args[2], args[3], args[4], args[5]};
  arch::native::prepare_syscall(regs, syscall_insn_.value, number, plain);
  if (ptrace::set_registers(tid_, regs) != Outcome::ok) return std::nullopt;
  if (!run_to_syscall_stop() || !run_to_syscall_stop()) return std::nullopt;
  if (ptrace::get_registers(tid_, regs) != Outcome::ok) return std::nullopt;
  return arch::native::syscall_result(regs);
}

bool RemoteSyscalls::run_to_event_stop() {
  for (unsigned i = 0; i < kMostStops; ++i) {
    ptrace::interrupt_in_stop(tid_);
    const bool resumed = ptrace::resume(tid_, std::exchange(put_back_, 0)) != Outcome::failed;
    const auto status = next_stop(resumed);
    if (!status) return false;
    if (status->kind() != Kind::interrupt && status->kind() != Kind::group_stop) continue;
    final_stop_ = status->kind();
    return true;
  }
  return false;
}

bool RemoteSyscalls::finish() {
  if (finished_ || !usable_) return !finished_ || usable_;
  // A pending interrupt traps before the first user instruction, so these registers never run.
  if (!saved_.pad.at) ptrace::set_registers(tid_, saved_.regs);
  if (run_to_event_stop()) saved_.give_back(tid_);
  finished_ = true;
  return usable_;
}

}  // namespace probed::tracer
