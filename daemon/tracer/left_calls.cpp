#include "daemon/tracer/left_calls.hpp"

#include <cerrno>
#include <unordered_map>
#include <utility>

#include "daemon/tracer/interrupted_calls.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;

// What threads were blocked in when they were interrupted last.
thread_local std::unordered_map<pid_t, BlockedCall> noted;

// The call that the thread has left and no other: it stands right behind it, on the same stack, with its number.
const BlockedCall* noted_call(pid_t tid, const ptrace::Registers& regs) {
  const auto it = noted.find(tid);
  if (it == noted.end()) return nullptr;
  const BlockedCall& call = it->second;
  const bool same = call.pc == regs.pc() && call.sp == regs.sp() && call.number == native::syscall_number(regs);
  return same ? &call : nullptr;
}

}  // namespace

void note_call(pid_t tid) {
  if (const auto call = blocked_call(tid))
    noted.insert_or_assign(tid, *call);
  else
    noted.erase(tid);
}

bool was_only_interrupted(pid_t tid, const ptrace::Registers& regs) {
  if (native::syscall_result(regs) != -EINTR) return false;
  if (native::kRegistersTellCall ? !native::in_syscall(regs) : noted_call(tid, regs) == nullptr) return false;
  const bool other = native::kOtherCalls != 0 && ptrace::call_table(tid) == native::kOtherCalls;
  return may_be_made_again(native::syscall_number(regs), other ? CallTable::other : CallTable::own);
}

bool make_again(pid_t tid, ptrace::Registers& regs) {
  if constexpr (!native::kRegistersTellCall) {
    const BlockedCall* const call = noted_call(tid, regs);
    if (!call) return false;
    native::set_first_argument(regs, call->first_argument);
    noted.erase(tid);
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

}  // namespace probed::tracer
