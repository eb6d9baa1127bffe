#include "daemon/tracer/kernel/left_calls.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/tracer/kernel/interrupted_calls.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;

// The thread stands right behind that call and no other: on the same stack, with its number.
bool is_behind(const BlockedCall& call, const ptrace::Registers& regs) {
  return call.pc == regs.pc() && call.sp == regs.sp() && call.number == native::syscall_number(regs);
}

class CallNotes {
 public:
  explicit CallNotes(Tracked how) : whole_(how == Tracked::born) {}

  // Who waits there has come back from any handler that was entered there.
  void see(const std::optional<BlockedCall>& call) {
    if (!call) return;
    argument_lost_at_.reset();
    std::erase(handlers_, call->sp);
    const auto same = [&](const BlockedCall& c) {
      return c.pc == call->pc && c.sp == call->sp && c.number == call->number;
    };
    if (std::ranges::none_of(seen_, same)) seen_[next_++ % seen_.size()] = *call;
  }
  void note(const std::optional<BlockedCall>& call) {
    see(call);
    now_ = call;
    noted_ = true;
  }
  bool is_noted() const { return noted_; }
  void set_away(bool away) { away_ = away; }
  bool is_away() const { return away_; }
  void settle() {
    now_.reset();
    noted_ = false;
  }
  // Of too many all is forgotten: where it waits from then on tells.
  void note_handler(std::uint64_t sp) {
    now_.reset();
    if (std::ranges::find(handlers_, sp) != handlers_.end()) return;
    if (handlers_.size() == kMostHandlers) {
      handlers_.clear();
      seen_ = {};
      next_ = 0;
      whole_ = false;
    }
    handlers_.push_back(sp);
  }
  void lose_argument(std::uint64_t sp) { argument_lost_at_ = sp; }
  bool has_lost_argument(std::uint64_t sp) const { return argument_lost_at_ == sp; }
  bool has_seen_none() const { return !whole_ && next_ == 0; }

  // The call that it waited in when it was interrupted; null: it has left another, or none.
  const BlockedCall* interrupted(const ptrace::Registers& regs) const {
    return now_ && is_behind(*now_, regs) ? &*now_ : nullptr;
  }
  // Whether a handler may have been entered there. (A program whose handler has been copes with a call that fails.)
  bool had_handler(std::uint64_t sp) const { return std::ranges::find(handlers_, sp) != handlers_.end(); }
  // Whether no handler can come back to there that was entered before it was traced: there is none, or the thread has
  // waited in that call meanwhile, on that stack.
  bool knows_all_handlers(const ptrace::Registers& regs) const {
    return whole_ || std::ranges::any_of(seen_, [&](const BlockedCall& call) { return is_behind(call, regs); });
  }

 private:
  static constexpr std::size_t kMostHandlers = 32;

  std::optional<BlockedCall> now_;
  bool away_ = false;                              // on calls for us
  bool noted_ = false;                             // for an interrupt that hasn't stopped it yet
  std::optional<std::uint64_t> argument_lost_at_;  // the stack pointer
  std::array<BlockedCall, 4> seen_{};              // the latest
  std::size_t next_ = 0;
  std::vector<std::uint64_t> handlers_;  // where they were entered, by the stack pointer
  bool whole_;
};

thread_local std::unordered_map<pid_t, CallNotes> notes_by_thread;

CallNotes& calls_of(pid_t tid) { return notes_by_thread.try_emplace(tid, Tracked::seized).first->second; }

// It wasn't seen to wait when it was interrupted, or it wasn't interrupted at all.
bool left_unseen(pid_t tid, const ptrace::Registers& regs) {
  const CallNotes& calls = calls_of(tid);
  return !calls.had_handler(regs.sp()) && !calls.has_lost_argument(regs.sp()) &&
         is_call_at(tid, regs.pc() - std::size(native::kSyscallInsn)) &&
         (calls.knows_all_handlers(regs) || !handles_signals(tid));
}

}  // namespace

void begin_call_notes(pid_t tid, Tracked how) {
  if (native::kRegistersTellCall) return;
  CallNotes& calls = notes_by_thread.insert_or_assign(tid, CallNotes(how)).first->second;
  if (how == Tracked::seized) calls.see(blocked_call(tid));
}

void forget_call_notes(pid_t tid) { notes_by_thread.erase(tid); }

void look_again_at_call(pid_t tid) {
  if (native::kRegistersTellCall) return;
  if (CallNotes& calls = calls_of(tid); calls.has_seen_none() && !calls.is_away()) calls.see(blocked_call(tid));
}

// An earlier note holds until it has stopped, unless it is seen to wait now.
void note_call(pid_t tid) {
  if (native::kRegistersTellCall) return;
  CallNotes& calls = calls_of(tid);
  if (calls.is_away()) return;
  if (const auto call = blocked_call(tid); call || !calls.is_noted()) calls.note(call);
}

void settle_call_note(pid_t tid) {
  if (!native::kRegistersTellCall) calls_of(tid).settle();
}

void begin_own_calls(pid_t tid, const ptrace::Registers& regs) {
  if (native::kRegistersTellCall) return;
  CallNotes& calls = calls_of(tid);
  calls.set_away(true);
  if (native::syscall_result(regs) == -EINTR) calls.lose_argument(regs.sp());
}

void end_own_calls(pid_t tid) {
  if (!native::kRegistersTellCall) calls_of(tid).set_away(false);
}

// Only where one is entered from a call that fails then: the kernel has the thread in front of those that it would make
// again.
void note_handler(pid_t tid, const ptrace::Registers& regs, int signal) {
  if (native::kRegistersTellCall) return;
  const bool in_call = native::syscall_result(regs) == -EINTR || is_call_at(tid, regs.pc());
  if (in_call && !would_be_ignored(tid, signal)) calls_of(tid).note_handler(regs.sp());
}

bool was_only_interrupted(pid_t tid, const ptrace::Registers& regs) {
  if (native::syscall_result(regs) != -EINTR) return false;
  if (native::kRegistersTellCall && !native::in_syscall(regs)) return false;
  const bool other = native::kOtherCalls != 0 && ptrace::call_table(tid) == native::kOtherCalls;
  if (!may_be_made_again(native::syscall_number(regs), other ? CallTable::other : CallTable::own)) return false;
  return native::kRegistersTellCall || calls_of(tid).interrupted(regs) || left_unseen(tid, regs);
}

// What was noted may be of an earlier call at that place.
bool make_again(pid_t tid, ptrace::Registers& regs) {
  if constexpr (!native::kRegistersTellCall) {
    CallNotes& calls = calls_of(tid);
    const BlockedCall* const call = calls.interrupted(regs);
    const bool is_lost = calls.has_lost_argument(regs.sp());
    auto argument = is_lost ? std::nullopt : ptrace::last_first_argument(tid);
    if (call && argument && *argument != call->first_argument && !left_unseen(tid, regs)) return false;
    if (!argument && call) argument = call->first_argument;
    if (!argument) return false;
    native::set_first_argument(regs, *argument);
  }
  native::restart_unless_handled(regs);
  return true;
}

bool unmake(std::optional<ptrace::Registers>& made_again, ptrace::Registers& regs) {
  const auto left = std::exchange(made_again, std::nullopt);
  if (!left || !native::same_execution(*left, regs)) return false;
  native::undo_rewind_syscall(regs, -EINTR);
  return true;
}

bool is_call_at(pid_t tid, std::uint64_t address) {
  std::uint64_t word = 0;
  if (ptrace::peek_word(tid, address / sizeof word * sizeof word, word) != ptrace::Outcome::ok) return false;
  const std::uint8_t* const insn = reinterpret_cast<const std::uint8_t*>(&word) + address % sizeof word;
  const bool whole = address % sizeof word + std::size(native::kSyscallInsn) <= sizeof word;
  return whole && std::equal(std::begin(native::kSyscallInsn), std::end(native::kSyscallInsn), insn);
}

}  // namespace probed::tracer
