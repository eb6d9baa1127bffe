#include "daemon/tracer/kernel/ptrace.hpp"

#include <elf.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <unordered_set>

#include "daemon/base/visits.hpp"
#include "daemon/tracer/kernel/left_calls.hpp"

namespace probed::tracer::ptrace {
namespace {

// TRACESYSGOOD tells the stops of an injected system call from SIGTRAP. No EXITKILL: our death must not be the
// target's.
constexpr unsigned long kOptions =
    PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC;

#ifndef PTRACE_O_SUSPEND_SECCOMP
constexpr unsigned long PTRACE_O_SUSPEND_SECCOMP = 1UL << 21;
#endif

// PTRACE_GET_RSEQ_CONFIGURATION and its struct: linux/ptrace.h, which can't be included beside sys/ptrace.h.
constexpr int kGetRseqConfiguration = 0x420f;
constexpr int kGetSyscallInfo = 0x420e;
constexpr int kSystemCallEmulation = 31;  // PTRACE_SYSEMU, of x86-64 and arm64
struct SyscallInfo {                      // struct ptrace_syscall_info, linux/ptrace.h
  std::uint8_t op, pad[3];
  std::uint32_t arch;
  std::uint64_t pc, sp, number, arguments[6];
  std::uint32_t filter_data;
};
struct RseqConfiguration {
  std::uint64_t area;
  std::uint32_t size, signature, flags, pad;
};

constexpr int kSetSyscallDispatch = 0x4210, kGetSyscallDispatch = 0x4211;

// glibc declares the request as an enum and the call as variadic; every call goes through here.
long raw(int request, pid_t tid, std::uintptr_t addr, std::uintptr_t data) {
  return ::ptrace(static_cast<__ptrace_request>(request), tid, addr, data);
}

Outcome call(int request, pid_t tid, std::uintptr_t addr, std::uintptr_t data) {
  if (raw(request, tid, addr, data) != -1) return Outcome::ok;
  return errno == ESRCH ? Outcome::gone : Outcome::failed;
}

// The tracer thread's.
thread_local std::unordered_set<pid_t> interrupted;
thread_local pid_t standing = 0;

// For requests that end a stop.
Outcome end_stop(int request, pid_t tid, int signal) {
  if (tid == standing) standing = 0;
  return call(request, tid, 0, static_cast<std::uintptr_t>(signal));
}

std::uintptr_t pointer(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

constexpr bool kHasRequests = arch::native::kRegisterRequests.has_value();

Outcome put_registers(pid_t tid, const Registers& regs) {
  if constexpr (kHasRequests) {
    return call(arch::native::kRegisterRequests->set, tid, 0, pointer(&regs));
  } else {
    Registers copy = regs;
    iovec io{&copy, sizeof copy};
    return call(PTRACE_SETREGSET, tid, NT_PRSTATUS, pointer(&io));
  }
}

// One by one, what is not as it should be. struct user begins with the registers (sys/user.h).
Outcome put_what_differs(pid_t tid, const Registers& regs) {
  using Words = std::array<std::uint64_t, sizeof(Registers) / sizeof(std::uint64_t)>;
  Registers now{};
  if (const Outcome outcome = get_registers(tid, now); outcome != Outcome::ok) return outcome;
  const auto wanted = std::bit_cast<Words>(regs), is = std::bit_cast<Words>(now);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] == is[i]) continue;
    const Outcome outcome = call(PTRACE_POKEUSER, tid, i * sizeof(std::uint64_t), wanted[i]);
    if (outcome != Outcome::ok) return outcome;
  }
  return Outcome::ok;
}

}  // namespace

// May wait for a program that is being executed, whose file a user serves (kernel/ptrace.c, cred_guard_mutex).
Outcome seize(pid_t tid) {
  const Visit visit(tid);
  const Outcome outcome = call(PTRACE_SEIZE, tid, 0, kOptions);
  if (outcome == Outcome::ok) begin_call_notes(tid, Tracked::seized);
  return outcome;
}
Outcome interrupt(pid_t tid) {
  note_call(tid);
  return interrupt_in_stop(tid);
}
Outcome interrupt_in_stop(pid_t tid) {
  const Outcome outcome = call(PTRACE_INTERRUPT, tid, 0, 0);
  if (outcome == Outcome::ok) interrupted.insert(tid);
  return outcome;
}
bool is_interrupted(pid_t tid) { return interrupted.contains(tid); }
void note_event_stop(pid_t tid) { interrupted.erase(tid); }
void note_standing(pid_t tid) { standing = tid; }
pid_t standing_thread() { return standing; }
Outcome resume(pid_t tid, int signal) { return end_stop(PTRACE_CONT, tid, signal); }
Outcome step(pid_t tid, int signal) { return end_stop(PTRACE_SINGLESTEP, tid, signal); }
Outcome report_vfork_done(pid_t tid) { return call(PTRACE_SETOPTIONS, tid, 0, kOptions | PTRACE_O_TRACEVFORKDONE); }
Outcome resume_to_syscall(pid_t tid, int signal) { return end_stop(PTRACE_SYSCALL, tid, signal); }
Outcome resume_without_syscall(pid_t tid, int signal) {
  const Outcome outcome = end_stop(kSystemCallEmulation, tid, signal);
  return outcome == Outcome::failed ? resume(tid, signal) : outcome;
}
Outcome listen(pid_t tid) { return end_stop(PTRACE_LISTEN, tid, 0); }
Outcome detach(pid_t tid, int signal) { return end_stop(PTRACE_DETACH, tid, signal); }

Outcome get_registers(pid_t tid, Registers& regs) {
  if constexpr (kHasRequests) return call(arch::native::kRegisterRequests->get, tid, 0, pointer(&regs));
  iovec io{&regs, sizeof regs};
  const Outcome outcome = call(PTRACE_GETREGSET, tid, NT_PRSTATUS, pointer(&io));
  if (outcome == Outcome::ok && io.iov_len != sizeof regs) {
    errno = EPROTO;
    return Outcome::failed;
  }
  return outcome;
}

std::uint64_t thread_pointer(pid_t tid, const Registers& regs) {
  if constexpr (arch::native::kThreadPointerSet) {
    std::uint64_t pointer_of = 0;
    iovec io{&pointer_of, sizeof pointer_of};
    return call(PTRACE_GETREGSET, tid, *arch::native::kThreadPointerSet, pointer(&io)) == Outcome::ok ? pointer_of : 0;
  } else {
    return regs.thread_pointer();
  }
}

Outcome get_vector_registers(pid_t tid, std::vector<std::byte>& set) {
  set.resize(1024);
  iovec io{set.data(), set.size()};
  const Outcome outcome = call(PTRACE_GETREGSET, tid, NT_PRFPREG, pointer(&io));
  set.resize(outcome == Outcome::ok ? io.iov_len : 0);
  return outcome;
}

void get_set_lost_in_calls(pid_t tid, std::vector<std::byte>& set) {
  if constexpr (arch::native::kSetLostInCalls) {
    std::array<std::byte, arch::native::kLostSetHeader> header{};
    iovec io{header.data(), header.size()};
    const int number = *arch::native::kSetLostInCalls;
    if (call(PTRACE_GETREGSET, tid, number, pointer(&io)) != Outcome::ok || io.iov_len != header.size()) return;
    set.resize(arch::native::lost_set_size(header));
    io = {set.data(), set.size()};
    if (!set.empty() && call(PTRACE_GETREGSET, tid, number, pointer(&io)) != Outcome::ok) set.clear();
  }
}

void set_set_lost_in_calls(pid_t tid, const std::vector<std::byte>& set) {
  if constexpr (arch::native::kSetLostInCalls) {
    iovec io{const_cast<std::byte*>(set.data()), set.size()};
    if (!set.empty()) call(PTRACE_SETREGSET, tid, *arch::native::kSetLostInCalls, pointer(&io));
  }
}

namespace {

constexpr std::size_t kMostState = 16 << 10;  // bytes of all register sets that xsave saves: with AMX's tiles, 11 KiB

[[maybe_unused]] std::vector<std::byte> key_rights_set(pid_t tid) {
  std::vector<std::byte> set(kMostState);
  iovec io{set.data(), set.size()};
  if (call(PTRACE_GETREGSET, tid, arch::native::kKeyRightsSet.value_or(0), pointer(&io)) != Outcome::ok) return {};
  set.resize(io.iov_len);
  return set;
}

[[maybe_unused]] bool put_key_rights_set(pid_t tid, std::vector<std::byte>& set) {
  iovec io{set.data(), set.size()};
  return call(PTRACE_SETREGSET, tid, arch::native::kKeyRightsSet.value_or(0), pointer(&io)) == Outcome::ok;
}

}  // namespace

std::optional<std::uint32_t> lift_key_rights([[maybe_unused]] pid_t tid) {
  if constexpr (arch::native::kKeyRightsSet) {
    auto set = key_rights_set(tid);
    const auto before = arch::native::lift_key_rights(set);
    if (!before || !put_key_rights_set(tid, set)) return std::nullopt;
    auto now = key_rights_set(tid);
    return arch::native::lift_key_rights(now) == before ? std::nullopt : before;
  } else {
    return std::nullopt;
  }
}

void put_key_rights([[maybe_unused]] pid_t tid, [[maybe_unused]] std::uint32_t rights) {
  if constexpr (arch::native::kKeyRightsSet) {
    auto set = key_rights_set(tid);
    if (arch::native::put_key_rights(set, rights)) put_key_rights_set(tid, set);
  }
}

Outcome get_vector_register(pid_t tid, unsigned index, std::uint64_t& low) {
  std::vector<std::byte> set;
  const Outcome outcome = get_vector_registers(tid, set);
  if (outcome != Outcome::ok) return outcome;
  const std::size_t at = arch::native::kVectorsInRegisterSet + std::size_t{16} * index;
  if (at + sizeof low > set.size()) {
    errno = EPROTO;
    return Outcome::failed;
  }
  std::memcpy(&low, set.data() + at, sizeof low);
  return outcome;
}

// The kernel refuses values that programs can have all the same: a segment base in the upper half of the address space
// (wrgsbase), a selector of a privilege other than 3 (`mov $1, %ds`); and with it what comes behind it in the set
// (arch/x86/kernel/ptrace.c, putreg, genregs_set). As we change none of these, they are as they should be.
Outcome set_registers(pid_t tid, const Registers& regs) {
  const Outcome outcome = put_registers(tid, regs);
  if (!kHasRequests || outcome != Outcome::failed || errno != EIO) return outcome;
  return put_what_differs(tid, regs);
}

Outcome set_registers(pid_t tid, const Registers& regs, const Registers& now) {
  if constexpr (arch::native::kPcInUserArea) {
    Registers moved = now;
    moved.set_pc(regs.pc());
    if (moved == regs) return call(PTRACE_POKEUSER, tid, *arch::native::kPcInUserArea, regs.pc());
  }
  return set_registers(tid, regs);
}

Outcome set_system_call(pid_t tid, int number) {
  iovec io{&number, sizeof number};
  return call(PTRACE_SETREGSET, tid, arch::native::kSystemCallSet, pointer(&io));
}

// glibc returns the word (ptrace(2), "C library/kernel differences"), so only errno tells -1 from an error.
Outcome peek_word(pid_t tid, std::uint64_t address, std::uint64_t& word) {
  errno = 0;
  word = static_cast<std::uint64_t>(raw(PTRACE_PEEKTEXT, tid, address, 0));
  if (errno == 0) return Outcome::ok;
  return errno == ESRCH ? Outcome::gone : Outcome::failed;
}
Outcome poke_word(pid_t tid, std::uint64_t address, std::uint64_t word) {
  return call(PTRACE_POKETEXT, tid, address, word);
}

Outcome get_siginfo(pid_t tid, siginfo_t& info) { return call(PTRACE_GETSIGINFO, tid, 0, pointer(&info)); }
Outcome set_siginfo(pid_t tid, const siginfo_t& info) { return call(PTRACE_SETSIGINFO, tid, 0, pointer(&info)); }

template <class F>
static bool any_queued(pid_t tid, std::uint32_t queue, F wanted) {
  std::array<siginfo_t, 32> some;
  __ptrace_peeksiginfo_args which{.off = 0, .flags = queue, .nr = some.size()};
  for (long got = 1; got > 0; which.off += static_cast<std::uint64_t>(got)) {
    got = raw(PTRACE_PEEKSIGINFO, tid, pointer(&which), pointer(some.data()));
    if (std::ranges::any_of(std::span(some).first(static_cast<std::size_t>(std::max(got, 0L))), wanted)) return true;
  }
  return false;
}

bool signal_queued(pid_t tid, int signal) {
  return any_queued(tid, 0, [signal](const siginfo_t& info) { return info.si_signo == signal; });
}

bool signal_queued(pid_t tid, const siginfo_t& info) {
  // The kernel fills all of it (kernel/signal.c, copy_siginfo_to_user).
  const auto bytes_of = [](const siginfo_t& one) { return std::as_bytes(std::span(&one, 1)); };
  const auto same = [&](const siginfo_t& other) { return std::ranges::equal(bytes_of(other), bytes_of(info)); };
  return any_queued(tid, 0, same) || any_queued(tid, PTRACE_PEEKSIGINFO_SHARED, same);
}

Outcome get_sigmask(pid_t tid, std::uint64_t& mask) {
  return call(PTRACE_GETSIGMASK, tid, sizeof mask, pointer(&mask));
}
Outcome set_sigmask(pid_t tid, std::uint64_t mask) { return call(PTRACE_SETSIGMASK, tid, sizeof mask, pointer(&mask)); }

Outcome get_event_message(pid_t tid, unsigned long& message) {
  return call(PTRACE_GETEVENTMSG, tid, 0, pointer(&message));
}

Outcome suspend_seccomp(pid_t tid, bool on) {
  return call(PTRACE_SETOPTIONS, tid, 0, on ? kOptions | PTRACE_O_SUSPEND_SECCOMP : kOptions);
}

Outcome get_syscall_dispatch(pid_t tid, SyscallDispatch& config) {
  return call(kGetSyscallDispatch, tid, sizeof config, pointer(&config));
}
Outcome set_syscall_dispatch(pid_t tid, const SyscallDispatch& config) {
  return call(kSetSyscallDispatch, tid, sizeof config, pointer(&config));
}

std::optional<std::uint32_t> call_table(pid_t tid) {
  SyscallInfo info{};
  if (raw(kGetSyscallInfo, tid, sizeof info, pointer(&info)) <= 0) return std::nullopt;
  return info.arch;
}

std::optional<std::uint64_t> last_first_argument(pid_t tid) {
  constexpr std::uint8_t kSeccomp = 3;  // PTRACE_SYSCALL_INFO_SECCOMP
  SyscallInfo info{};
  siginfo_t own;
  if (get_siginfo(tid, own) != Outcome::ok) return std::nullopt;
  siginfo_t asked = own;
  asked.si_code = SIGTRAP | PTRACE_EVENT_SECCOMP << 8;
  if (set_siginfo(tid, asked) != Outcome::ok) return std::nullopt;
  const long size = raw(kGetSyscallInfo, tid, sizeof info, pointer(&info));
  if (set_siginfo(tid, own) != Outcome::ok || info.op != kSeccomp) return std::nullopt;
  if (size < static_cast<long>(offsetof(SyscallInfo, filter_data))) return std::nullopt;
  return info.arguments[0];
}

std::optional<std::uint64_t> rseq_area(pid_t tid) {
  RseqConfiguration config{};
  if (raw(kGetRseqConfiguration, tid, sizeof config, pointer(&config)) == -1 || config.area == 0) return std::nullopt;
  return config.area;
}

}  // namespace probed::tracer::ptrace
