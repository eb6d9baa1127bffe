#include "daemon/tracer/left_calls.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <span>
#include <utility>

#include "daemon/tracer/interrupted_calls.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;
using ptrace::Outcome;

constexpr std::size_t kInsnSize = std::size(native::kSyscallInsn);

// Whether the thread's pc is right behind a system call instruction. It might have got there long ago, and carry EINTR
// about; but it would have to be seen before its next instruction.
bool is_behind_call(pid_t tid, const ptrace::Registers& regs) {
  constexpr std::uint64_t kWord = sizeof(std::uint64_t);
  const std::uint64_t insn = regs.pc() - kInsnSize;
  std::uint64_t word = 0;
  if (ptrace::peek_word(tid, insn / kWord * kWord, word) != Outcome::ok) return false;
  std::array<std::uint8_t, kWord> bytes{};
  std::memcpy(bytes.data(), &word, sizeof word);
  return insn % kWord + kInsnSize <= kWord &&
         std::ranges::equal(std::span(bytes).subspan(insn % kWord, kInsnSize), native::kSyscallInsn);
}

// /proc/TID/syscall shows the arguments of the call a thread is in, the first as it was when it was made
// (syscall_get_arguments). Having told us of the stop, the kernel takes the thread for outside of any; so it is given a
// number while we look. Kernels that show the result there instead have lost the argument: nullopt.
std::optional<std::uint64_t> first_argument(pid_t tid, const ptrace::Registers& regs) {
  constexpr int kNone = -1;
  if (ptrace::set_system_call(tid, static_cast<int>(native::syscall_number(regs))) != Outcome::ok) return std::nullopt;
  const auto argument = first_argument_shown(tid);
  ptrace::set_system_call(tid, kNone);
  const auto result = static_cast<std::uint64_t>(native::syscall_result(regs));
  return argument == result ? std::nullopt : argument;
}

}  // namespace

bool was_only_interrupted(pid_t tid, const ptrace::Registers& regs) {
  if (native::syscall_result(regs) != -EINTR || !may_be_made_again(native::syscall_number(regs))) return false;
  return native::kRegistersTellCall ? native::in_syscall(regs) : is_behind_call(tid, regs);
}

bool make_again(pid_t tid, ptrace::Registers& regs) {
  if constexpr (!native::kRegistersTellCall) {
    const auto argument = first_argument(tid, regs);
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

}  // namespace probed::tracer
