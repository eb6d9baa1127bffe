#include "daemon/tracer/kernel/interrupted_calls.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <string_view>

#include "arch/arch.hpp"
#include "daemon/base/momentary.hpp"

namespace probed::tracer {
namespace {

namespace native = arch::native;

// Architectures differ in which of these exist; a missing one is left out, not renumbered.
constexpr std::uint64_t kMadeAgain[] = {
#ifdef SYS_epoll_wait
    SYS_epoll_wait,
#endif
#ifdef SYS_accept
    SYS_accept,
#endif
#ifdef SYS_select
    SYS_select,
#endif
    // These write the rest of their time limit back, and return EINTR only where they can't: it is constant.
    SYS_pselect6, SYS_ppoll, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_rt_sigtimedwait, SYS_semop, SYS_semtimedop,
    SYS_io_getevents, SYS_io_uring_enter, SYS_msgrcv, SYS_msgsnd, SYS_futex,
    // Sockets with a timeout set (SO_RCVTIMEO, SO_SNDTIMEO) return EINTR, and only when nothing was transferred.
    SYS_read, SYS_readv, SYS_write, SYS_writev, SYS_recvfrom, SYS_recvmsg, SYS_sendto, SYS_sendmsg, SYS_accept4,
    SYS_connect, SYS_recvmmsg, SYS_sendmmsg,
    // On files of a file system in user space (FUSE).
    SYS_pread64, SYS_preadv, SYS_pwrite64, SYS_pwritev};

// Of those, the ones that always fail; the others only do with a time limit of their socket, or where they can't write
// the rest of their time back.
constexpr std::uint64_t kAlwaysFail[] = {
#ifdef SYS_epoll_wait
    SYS_epoll_wait,
#endif
    SYS_epoll_pwait, SYS_epoll_pwait2, SYS_rt_sigtimedwait, SYS_semop,
    SYS_semtimedop,  SYS_io_getevents, SYS_io_uring_enter};

// Calls that return a short count when stopped half-way: a program may not expect that.
constexpr std::uint64_t kShortCounts[] = {SYS_write,    SYS_writev, SYS_sendto,   SYS_sendmsg,
                                          SYS_sendfile, SYS_splice, SYS_pwrite64, SYS_pwritev};

std::string read_proc(const std::string& path) {
  const Momentary fd(path.c_str(), O_RDONLY);
  std::string text(4096, '\0');
  const ssize_t n = fd ? ::read(fd.get(), text.data(), text.size()) : 0;
  text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  return text;
}

// name: from its line's beginning; the first line, Name:, is the program's own to choose.
std::uint64_t hex_field(std::string_view text, std::string_view name) {
  std::uint64_t value = 0;
  for (std::size_t line = text.find('\n'); line != std::string_view::npos; line = text.find('\n', line + 1)) {
    const std::string_view rest = text.substr(line + 1);
    if (!rest.starts_with(name)) continue;
    std::from_chars(rest.data() + name.size(), rest.data() + rest.size(), value, 16);
    break;
  }
  return value;
}

}  // namespace

bool may_be_made_again(std::uint64_t number, CallTable table) {
  if (table == CallTable::other)
    return std::ranges::find(native::kOtherMadeAgain, number) != std::end(native::kOtherMadeAgain);
  return std::ranges::find(kMadeAgain, number) != std::end(kMadeAgain);
}

bool may_be_gone_on_with(std::uint64_t number) {
  return number == SYS_nanosleep || number == SYS_clock_nanosleep || number == SYS_futex ||
         number == SYS_restart_syscall;
}

int interruption_cost(pid_t tid) {
  const std::string text = read_proc("/proc/" + std::to_string(tid) + "/syscall");
  if (text.starts_with("running")) return 0;
  std::uint64_t number = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), number).ec != std::errc())
    return 6;  // "-1 ...": blocked outside
#ifdef SYS_vfork
  if (number == SYS_vfork) return 5;  // can't be stopped before its child lets go
#endif
  if (std::ranges::find(kShortCounts, number) != std::end(kShortCounts)) return 4;
  if (std::ranges::find(kAlwaysFail, number) != std::end(kAlwaysFail)) return 3;
  return may_be_made_again(number) ? 2 : 1;
}

// A futex is in the list of calls that may be made again for kernels before Linux 2.6.22; later ones go on with it
// (kernel/futex/waitwake.c).
bool may_lose_its_call(pid_t tid) {
  const auto call = blocked_call(tid);
  return call && call->number != SYS_futex && may_be_made_again(call->number);
}

// "NUMBER 0xARGUMENT, six of them, SP PC", or "-1 SP PC" outside of any call, or "running".
std::optional<BlockedCall> blocked_call(pid_t tid) {
  const std::string text = read_proc("/proc/" + std::to_string(tid) + "/syscall");
  std::array<std::uint64_t, 9> words{};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto [next, error] = std::from_chars(at, end, words[i], i == 0 ? 10 : 16);
    if (error != std::errc()) return std::nullopt;
    at = std::find(next, end, 'x');  // of the next word's 0x
    at += at != end ? 1 : 0;
  }
  return BlockedCall{words[0], words[1], words[7], words[8]};
}

bool may_be_cloning(pid_t tid) {
  constexpr std::uint64_t kCloning[] = {
#ifdef SYS_fork
      SYS_fork, SYS_vfork,
#endif
      SYS_clone, SYS_clone3};
  const std::string text = read_proc("/proc/" + std::to_string(tid) + "/syscall");
  if (text.starts_with("running")) return true;
  std::uint64_t number = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), number).ec != std::errc()) return false;
  return std::ranges::find(kCloning, number) != std::end(kCloning);
}

bool synchronous_signal_pending(pid_t tid) {
  const std::string status = read_proc("/proc/" + std::to_string(tid) + "/status");
  std::uint64_t synchronous = 0;
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP}) synchronous |= 1ULL << (signal - 1);
  return (hex_field(status, "SigPnd:\t") & synchronous & ~hex_field(status, "SigBlk:\t")) != 0;
}

bool would_be_ignored(pid_t tid, int signal) {
  const std::string status = read_proc("/proc/" + std::to_string(tid) + "/status");
  const std::uint64_t bit = 1ULL << (signal - 1);
  if (hex_field(status, "SigIgn:\t") & bit) return true;
  if (hex_field(status, "SigCgt:\t") & bit) return false;
  return signal == SIGCHLD || signal == SIGURG || signal == SIGWINCH || signal == SIGCONT;
}

bool handles_signals(pid_t tid) {
  constexpr std::uint64_t kOthers = 1ULL << 31 | 1ULL << 32 | 1ULL << (SIGTRAP - 1);  // SIGCANCEL, SIGSETXID: nptl's
  const std::string status = read_proc("/proc/" + std::to_string(tid) + "/status");
  return status.empty() || (hex_field(status, "SigCgt:\t") & ~kOthers) != 0;
}

std::optional<int> unused_signal(pid_t tid, SignalKind kind) {
  constexpr int kStandard[] = {SIGURG, SIGWINCH, SIGIO, SIGPWR, SIGUSR1, SIGUSR2, SIGVTALRM, SIGPROF, SIGALRM};
  constexpr int kLast = 64, kFirst = 35;
  const std::string status = read_proc("/proc/" + std::to_string(tid) + "/status");
  if (status.empty()) return std::nullopt;
  const std::uint64_t pending = hex_field(status, "SigPnd:\t") | hex_field(status, "ShdPnd:\t");
  const std::uint64_t ignored = hex_field(status, "SigIgn:\t");
  const std::uint64_t caught = hex_field(status, "SigCgt:\t");
  const auto unused = [pending](int signal) { return (pending & (1ULL << (signal - 1))) == 0; };
  const auto fits = [&](int signal) {
    const std::uint64_t bit = 1ULL << (signal - 1);
    const bool by_default = (signal == SIGURG || signal == SIGWINCH) && (caught & bit) == 0;
    return unused(signal) && (kind == SignalKind::standard || by_default || (ignored & bit) != 0);
  };
  if (kind != SignalKind::real_time) {
    const auto found = std::ranges::find_if(kStandard, fits);
    return found == std::end(kStandard) ? std::nullopt : std::optional(*found);
  }
  for (int signal = kLast; signal >= kFirst; --signal)
    if (unused(signal)) return signal;
  return std::nullopt;
}

bool is_job_control(pid_t tid, int signal) {
  if (signal == SIGSTOP) return true;
  constexpr int kJobControl[] = {SIGTSTP, SIGTTIN, SIGTTOU, SIGCONT};
  if (std::ranges::find(kJobControl, signal) == std::end(kJobControl)) return false;
  const std::string status = read_proc("/proc/" + std::to_string(tid) + "/status");
  return !status.empty() && (hex_field(status, "SigCgt:\t") & (1ULL << (signal - 1))) == 0;
}

bool would_dump_core(pid_t tid, int signal) {
  // signal(7), action "Core"; kernel: SIG_KERNEL_COREDUMP_MASK, include/linux/signal.h.
  constexpr int kDumping[] = {SIGQUIT, SIGILL, SIGTRAP, SIGABRT, SIGFPE, SIGSEGV, SIGBUS, SIGXCPU, SIGXFSZ, SIGSYS};
  if (std::ranges::find(kDumping, signal) == std::end(kDumping)) return false;
  const std::string status = read_proc("/proc/" + std::to_string(tid) + "/status");
  if (status.empty()) return false;
  // A signal that is blocked by the time it is injected is queued again (kernel/signal.c, ptrace_signal).
  const std::uint64_t spared =
      hex_field(status, "SigBlk:\t") | hex_field(status, "SigIgn:\t") | hex_field(status, "SigCgt:\t");
  return (spared & (1ULL << (signal - 1))) == 0;
}

bool under_seccomp(pid_t tid) {
  const std::string status = read_proc("/proc/" + std::to_string(tid) + "/status");
  return hex_field(status, "Seccomp:\t") != 0;
}

}  // namespace probed::tracer
