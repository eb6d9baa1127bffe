#include "tests/unit/tracer/simulated/kernel.hpp"

#include <elf.h>
#include <errno.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstring>
#include <ranges>
#include <tuple>
#include <utility>

#include "arch/arch.hpp"

namespace probed::tracer::simulated {
namespace {

using State = Thread::State;
using How = Thread::How;

constexpr int kEventStop = 128;        // PTRACE_EVENT_STOP
constexpr int kTrapBreakpoint = 0x80;  // SI_KERNEL
constexpr int kTrapTrace = 2;          // TRAP_TRACE
constexpr int kSystemCallEmulation = 31;
constexpr int kMostInstructions = 64;  // until it is in the program's text again: no copy, detour or pad is longer

Kernel* kernel = nullptr;

constexpr std::uint64_t bit(int signal) { return 1ull << (signal - 1); }

long failed(int error) {
  errno = error;
  return -1;
}

int stopped(int signal) { return signal << 8 | 0x7f; }

siginfo_t info_of(int signal, int code, std::uint64_t address) {
  siginfo_t info{};
  info.si_signo = signal;
  info.si_code = code;
  info.si_addr = reinterpret_cast<void*>(address);
  return info;
}

}  // namespace

Kernel::Kernel(unsigned threads, ProgramText text) : puppet_(threads), text_(text) {
  for (const pid_t tid : puppet_.threads()) add(tid, puppet_.pid());
  kernel = this;
}

Kernel::~Kernel() { kernel = nullptr; }

Thread& Kernel::add(pid_t tid, pid_t process) {
  Thread& thread = threads_[tid];
  thread.tid = tid;
  thread.process = process;
  thread.regs.rip = text_.begin;
  thread.regs.cs = 0x33;  // 64-bit code (arch/x86/include/asm/segment.h, __USER_CS)
  thread.regs.ss = 0x2b;
  thread.regs.eflags = 0x202;
  thread.regs.orig_rax = ~0ull;
  thread.regs.rax = SYS_getppid;                            // should it come to a system call
  std::uint64_t area[6] = {0, 1 << 20, 3, 0x22, ~0ull, 0};  // PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS
  const std::int64_t stack = puppet_.call(process, SYS_mmap, {area[0], area[1], area[2], area[3], area[4], area[5]});
  thread.regs.rsp = static_cast<std::uint64_t>(stack) + (1 << 20) - 4096;
  return thread;
}

const Thread* Kernel::find(pid_t tid) const {
  const auto found = threads_.find(tid);
  return found == threads_.end() ? nullptr : &found->second;
}

// ---- stops ----------------------------------------------------------------------------------------------------------

// Every stop takes a pending trap stop away (kernel/signal.c, ptrace_stop).
void Kernel::stop(Thread& thread, int status, const siginfo_t& info) {
  thread.state = State::stopped;
  thread.trap_stop = false;
  thread.report = status;
  thread.report_there = true;
  thread.info = info;
  reports_.push_back(thread.tid);
}

void Kernel::stop_for_event(Thread& thread, int event, int signal) {
  stop(thread, event << 16 | stopped(signal), info_of(signal, event << 8 | signal, 0));
}

void Kernel::stop_for_call(Thread& thread) {
  stop(thread, stopped(SIGTRAP | 0x80), info_of(SIGTRAP, SIGTRAP | 0x80, 0));
}

// The next one that isn't blocked, as its tracer sees it first: raised by an instruction, of a kind that can be so, by
// number (kernel/signal.c, dequeue_synchronous_signal, next_signal). SIGKILL has been dealt with.
bool Kernel::take_signal(Thread& thread) {
  constexpr std::uint64_t kSynchronous =
      bit(SIGSEGV) | bit(SIGBUS) | bit(SIGILL) | bit(SIGTRAP) | bit(SIGFPE) | bit(SIGSYS);
  const auto rank = [](const siginfo_t& info) {
    const bool synchronous = (bit(info.si_signo) & kSynchronous) != 0;
    return std::tuple(!(synchronous && info.si_code > 0), !synchronous, info.si_signo);
  };
  const auto blocked = [&](const siginfo_t& info) { return (thread.mask & bit(info.si_signo)) != 0; };
  const auto next = std::ranges::min_element(
      thread.pending, {}, [&](const siginfo_t& info) { return std::tuple(blocked(info), rank(info)); });
  if (next == thread.pending.end() || blocked(*next)) return false;
  const siginfo_t info = *next;
  thread.pending.erase(next);
  if (thread.traced)
    stop(thread, stopped(info.si_signo), info);
  else
    deliver(thread, info);
  return thread.traced || thread.state == State::ended;
}

// By an instruction (kernel/signal.c, force_sig_info_to_task).
void Kernel::raise(Thread& thread, int signal, int code, std::uint64_t address) {
  if ((thread.mask & bit(signal)) != 0) {
    thread.reset.insert(signal);
    thread.mask &= ~bit(signal);
  }
  // Where one is pending, that one is it, and no other comes (kernel/signal.c, legacy_queue).
  if (std::ranges::find(thread.pending, signal, &siginfo_t::si_signo) == thread.pending.end())
    thread.pending.push_front(info_of(signal, code, address));
}

void Kernel::deliver(Thread& thread, const siginfo_t& info) {
  thread.delivered.push_back({info.si_signo, thread.regs.rip, thread.mask, info});
  thread.regs.orig_rax = ~0ull;
  if (fatal_.contains(info.si_signo)) return end_process(thread.process, info.si_signo);
  thread.frames.push_back({thread.regs, thread.mask});
  thread.mask |= bit(info.si_signo);
  thread.regs.rip = text_.handler;
  // arch/x86/kernel/signal.c, handle_signal; signal_setup_done
  if (thread.how == How::step) raise(thread, SIGTRAP, TRAP_BRKPT, text_.handler);
}

void Kernel::end(Thread& thread, int status) {
  if (thread.state == State::ended) return;
  thread.state = State::ended;
  thread.report = status;
  thread.report_there = thread.traced;
  std::erase(reports_, thread.tid);
  if (thread.traced) reports_.push_back(thread.tid);
}

// The main thread's end is reported last (kernel/exit.c, delay_group_leader).
void Kernel::end_process(pid_t process, int status) {
  for (auto& [tid, thread] : threads_)
    if (thread.process == process && tid != process) end(thread, status);
  if (const auto main = threads_.find(process); main != threads_.end()) end(main->second, status);
}

// ---- what it executes -----------------------------------------------------------------------------------------------

void Kernel::advance(Thread& thread) {
  for (int n = 0; thread.state == State::running; ++n) {
    if (thread.trap_stop) return stop_for_event(thread, kEventStop, SIGTRAP);
    if (take_signal(thread)) return;
    if (thread.state != State::running || (thread.parked && is_beside(thread.regs.rip))) return;
    if (!thread.frames.empty() && thread.regs.rip == text_.handler && thread.how != How::step) {
      if (!return_from_handler(thread)) return;
      continue;
    }
    std::uint8_t first = 0;
    puppet_.read(thread.process, thread.regs.rip, &first, 1);
    const bool runs_on = is_program(thread.regs.rip) && first != 0xcc && !thread.in_call;
    if ((runs_on && thread.how != How::step) || n == kMostInstructions) return;
    const bool steps = thread.how == How::step;
    if (!execute(thread)) return;
    std::ranges::move(std::exchange(thread.behind, {}), std::back_inserter(thread.pending));
    if (steps) raise(thread, SIGTRAP, kTrapTrace, thread.regs.rip);
  }
}

bool Kernel::execute(Thread& thread) {
  std::array<std::uint8_t, 16> code{};
  if (thread.in_call) return execute_call(thread);
  puppet_.read(thread.process, thread.regs.rip, code.data(), code.size());
  const auto insn = arch::native::decode(code, thread.regs.rip);
  if (code[0] == 0xcc) {
    ++thread.regs.rip;
    raise(thread, SIGTRAP, kTrapBreakpoint, 0);
    return thread.state == State::running;
  }
  if (insn.length == 0) {
    raise(thread, SIGILL, ILL_ILLOPN, thread.regs.rip);
    return thread.state == State::running;
  }
  if (code[0] == 0x0f && code[1] == 0x05) return execute_call(thread);
  const bool jumps = (code[0] == 0xe9 || code[0] == 0xeb) && insn.target;
  thread.regs.rip = jumps ? *insn.target : thread.regs.rip + insn.length;
  thread.regs.orig_rax = ~0ull;
  if (code[0] == 0xff && code[1] == 0xe0) thread.regs.rip = thread.regs.rax;  // jmp *%rax
  if (code[0] == 0x53) thread.regs.rsp -= 8;                                  // push %rbx
  if (code[0] == 0x5b) thread.regs.rsp += 8;                                  // pop %rbx
  return true;
}

bool Kernel::is_beside(std::uint64_t pc) const {
  constexpr std::uint64_t kNear = 1ull << 31;
  return !is_program(pc) && pc + kNear > text_.begin && pc < text_.begin + kNear;
}

// By rt_sigreturn(2), which its tracer may see.
bool Kernel::return_from_handler(Thread& thread) {
  const bool seen = thread.how == How::to_call;
  if (seen && !std::exchange(thread.returning, true)) {
    thread.regs.orig_rax = SYS_rt_sigreturn;
    stop_for_call(thread);
    return false;
  }
  thread.returning = false;
  thread.regs = thread.frames.back().regs;
  thread.mask = thread.frames.back().mask;
  thread.frames.pop_back();
  if (seen) stop_for_call(thread);
  return !seen;
}

void Kernel::begin_call(Thread& thread) const {
  auto& regs = thread.regs;
  regs.rip += 2;
  regs.orig_rax = regs.rax;
  regs.rax = static_cast<std::uint64_t>(-ENOSYS);
  regs.rcx = regs.rip;
  regs.r11 = regs.eflags;
}

// At its instruction, or at its entry's stop (`in_call`), whose registers its tracer may have changed.
bool Kernel::execute_call(Thread& thread) {
  auto& regs = thread.regs;
  if (!thread.in_call) {
    begin_call(thread);
    if (thread.how == How::to_call || thread.how == How::without_call) {
      thread.in_call = true;
      thread.skip_call = thread.how == How::without_call;
      stop_for_call(thread);
      return false;
    }
  }
  const bool from_entry = std::exchange(thread.in_call, false);
  if (!std::exchange(thread.skip_call, false))
    regs.rax = static_cast<std::uint64_t>(
        puppet_.call(thread.process, regs.orig_rax, {regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9}));
  if (!from_entry || thread.how != How::to_call) return true;
  stop_for_call(thread);
  return false;
}

// ---- what the tracer asks -------------------------------------------------------------------------------------------

long Kernel::resume(Thread& thread, How how, int signal) {
  if (thread.report_there) std::erase(reports_, thread.tid);
  const bool of_signal = thread.report >> 16 == 0 && WSTOPSIG(thread.report) != (SIGTRAP | 0x80);
  thread.report_there = false;
  thread.state = State::running;
  thread.how = how;
  if (signal != 0 && of_signal) {
    siginfo_t info = thread.info;
    if (info.si_signo != signal) info = info_of(signal, SI_USER, 0);  // kernel/signal.c, ptrace_signal
    if ((thread.mask & bit(signal)) != 0)
      thread.pending.push_back(info);
    else
      deliver(thread, info);
  }
  advance(thread);
  return 0;
}

long Kernel::detach(Thread& thread, int signal) {
  thread.traced = false;
  thread.trap_stop = false;
  puppet_.let_go(thread.tid);
  return resume(thread, How::freely, signal);
}

long Kernel::interrupt(Thread& thread) {
  if (thread.state == State::listening) return stop_for_event(thread, kEventStop, SIGSTOP), 0;
  thread.trap_stop = true;
  if (thread.state == State::running && stops_at_once_) stop_for_event(thread, kEventStop, SIGTRAP);
  return 0;
}

long Kernel::register_set(Thread& thread, bool set, int which, void* iov) const {
  auto& io = *static_cast<iovec*>(iov);
  if (which == NT_PRSTATUS) {
    io.iov_len = std::min(io.iov_len, sizeof thread.regs);
    if (set)
      std::memcpy(&thread.regs, io.iov_base, io.iov_len);
    else
      std::memcpy(io.iov_base, &thread.regs, io.iov_len);
    return 0;
  }
  if (which != NT_PRFPREG) return failed(EINVAL);
  io.iov_len = std::min(io.iov_len, sizeof(user_fpregs_struct));
  if (!set) std::memset(io.iov_base, 0, io.iov_len);
  return 0;
}

long Kernel::ptrace(int request, pid_t tid, std::uintptr_t address, std::uintptr_t data) {
  const auto found = threads_.find(tid);
  if (found == threads_.end() || found->second.state == State::ended) return failed(ESRCH);
  Thread& thread = found->second;
  if (request == PTRACE_SEIZE) {
    if (thread.traced) return failed(EPERM);
    thread.traced = true;
    puppet_.trace(tid);
    return 0;
  }
  if (!thread.traced) return failed(ESRCH);
  if (request == PTRACE_INTERRUPT) return interrupt(thread);
  if (thread.state != State::stopped) return failed(ESRCH);
  void* const at = reinterpret_cast<void*>(data);
  const int signal = static_cast<int>(data);
  switch (request) {
    case PTRACE_CONT: return resume(thread, How::freely, signal);
    case PTRACE_SINGLESTEP: return resume(thread, How::step, signal);
    case PTRACE_SYSCALL: return resume(thread, How::to_call, signal);
    case kSystemCallEmulation: return resume(thread, How::without_call, signal);
    case PTRACE_DETACH: return detach(thread, signal);
    case PTRACE_LISTEN:
      std::erase(reports_, tid);
      thread.report_there = false;
      thread.state = State::listening;
      return 0;
    case PTRACE_SETOPTIONS: return 0;
    case PTRACE_GETREGS: return std::memcpy(at, &thread.regs, sizeof thread.regs), 0;
    case PTRACE_SETREGS: return std::memcpy(&thread.regs, at, sizeof thread.regs), 0;
    case PTRACE_POKEUSER:
      if (address >= sizeof thread.regs) return failed(EIO);
      return std::memcpy(reinterpret_cast<char*>(&thread.regs) + address, &data, sizeof data), 0;
    case PTRACE_GETSIGINFO: return std::memcpy(at, &thread.info, sizeof thread.info), 0;
    case PTRACE_SETSIGINFO: return std::memcpy(&thread.info, at, sizeof thread.info), 0;
    case PTRACE_PEEKSIGINFO: return peek(thread, *reinterpret_cast<const __ptrace_peeksiginfo_args*>(address), at);
    case PTRACE_GETSIGMASK: return std::memcpy(at, &thread.mask, sizeof thread.mask), 0;
    case PTRACE_SETSIGMASK: return std::memcpy(&thread.mask, at, sizeof thread.mask), 0;
    case PTRACE_GETEVENTMSG: return std::memcpy(at, &thread.message, sizeof thread.message), 0;
    case PTRACE_GETREGSET: return register_set(thread, false, static_cast<int>(address), at);
    case PTRACE_SETREGSET: return register_set(thread, true, static_cast<int>(address), at);
    case PTRACE_PEEKTEXT: {
      std::uint64_t word = 0;
      if (!puppet_.read(thread.process, address, &word, sizeof word)) return failed(EIO);
      errno = 0;
      return static_cast<long>(word);
    }
    case PTRACE_POKETEXT: return puppet_.write(thread.process, address, &data, sizeof data) ? 0 : failed(EIO);
    default: return failed(EIO);  // what older kernels don't know
  }
}

// Its own queue, of which none is shared with other threads here.
long Kernel::peek(const Thread& thread, const __ptrace_peeksiginfo_args& which, void* to) {
  const auto begin = std::min<std::size_t>(which.off, thread.pending.size());
  const auto count = std::min<std::size_t>(static_cast<std::size_t>(which.nr), thread.pending.size() - begin);
  std::copy_n(thread.pending.begin() + static_cast<std::ptrdiff_t>(begin), count, static_cast<siginfo_t*>(to));
  return static_cast<long>(count);
}

std::optional<pid_t> Kernel::reported(std::optional<pid_t> tid) const {
  const auto traced = [](const Thread& thread) {
    return thread.traced && (thread.state != State::ended || thread.report_there);
  };
  if (tid) {
    const Thread* const thread = find(*tid);
    if (!thread || !traced(*thread)) return std::nullopt;
    return thread->report_there ? *tid : 0;
  }
  if (!reports_.empty()) return reports_.front();
  const auto all = std::views::values(threads_);
  return std::ranges::any_of(all, traced) ? std::optional<pid_t>(0) : std::nullopt;
}

int Kernel::take(pid_t tid) {
  Thread& thread = threads_.at(tid);
  thread.report_there = false;
  std::erase(reports_, tid);
  if (thread.state == State::ended) {
    thread.traced = false;
    puppet_.let_go(tid);
  }
  return thread.report;
}

// ---- what happens to threads ----------------------------------------------------------------------------------------

void Kernel::go_to(pid_t tid, std::uint64_t address) {
  Thread& thread = threads_.at(tid);
  thread.regs.rip = address;
  thread.regs.orig_rax = ~0ull;
  advance(thread);
}

void Kernel::unpark(pid_t tid) {
  Thread& thread = threads_.at(tid);
  thread.parked = false;
  if (thread.state == State::running) advance(thread);
}

void Kernel::send(pid_t tid, int signal, int code, pid_t from) {
  Thread& thread = threads_.at(tid);
  if (signal == SIGKILL) return end_process(thread.process, SIGKILL);
  // A standard signal that is pending already is the same one (kernel/signal.c, legacy_queue).
  constexpr int kFirstRealTime = 32;
  if (signal >= kFirstRealTime ||
      std::ranges::find(thread.pending, signal, &siginfo_t::si_signo) == thread.pending.end()) {
    siginfo_t info = info_of(signal, code, 0);
    info.si_pid = from;
    thread.pending.push_back(info);
  }
  if (thread.state == State::listening && signal == SIGCONT) stop_for_event(thread, kEventStop, SIGTRAP);
  if (thread.state == State::running) advance(thread);
}

void Kernel::send_behind(pid_t tid, int signal) {
  siginfo_t info = info_of(signal, SI_USER, 0);
  info.si_pid = 1;
  threads_.at(tid).behind.push_back(info);
}

void Kernel::fault(pid_t tid, int signal) {
  Thread& thread = threads_.at(tid);
  raise(thread, signal, 1, thread.regs.rip);  // SEGV_MAPERR, ILL_ILLOPC
  advance(thread);
}

// The creator's event, and the first stop of what it has created.
void Kernel::create(Thread& creator, Thread& created, int event) {
  if (!is_program(creator.regs.rip)) {
    begin_call(creator);
    creator.regs.rax = static_cast<std::uint64_t>(created.tid);
  }
  created.regs = creator.regs;
  if (!is_program(creator.regs.rip)) created.regs.rax = 0;
  created.mask = creator.mask;
  created.traced = true;
  puppet_.trace(created.tid);
  stop_for_event(created, kEventStop, SIGTRAP);
  creator.message = static_cast<unsigned long>(created.tid);
  stop_for_event(creator, event, SIGTRAP);
}

void Kernel::clone(pid_t tid, pid_t created) {
  Thread& creator = threads_.at(tid);
  create(creator, add(created, creator.process), PTRACE_EVENT_CLONE);
}

void Kernel::fork(pid_t tid, pid_t created) {
  Thread& thread = threads_[created];
  thread.tid = thread.process = created;
  create(threads_.at(tid), thread, PTRACE_EVENT_FORK);
}

// fs/exec.c, de_thread: the others die; one that isn't the main thread takes its id over.
void Kernel::exec(pid_t tid) {
  Thread before = threads_.at(tid);
  const pid_t process = before.process;
  for (auto& [other, thread] : threads_)
    if (thread.process == process && other != tid && other != process) end(thread, 0);
  Thread& thread = threads_.at(process);
  if (tid != process) {
    threads_.at(tid).state = State::ended;
    threads_.at(tid).traced = false;
    std::erase(reports_, tid);
  }
  std::erase(reports_, process);
  thread = before;
  thread.tid = process;
  thread.message = static_cast<unsigned long>(tid);
  thread.regs.rip = text_.begin;
  stop_for_event(thread, PTRACE_EVENT_EXEC, SIGTRAP);
}

void Kernel::exit(pid_t tid, int code) { end(threads_.at(tid), code << 8); }

void Kernel::stop_job(pid_t tid, int signal) {
  for (auto& [other, thread] : threads_)
    if (thread.process == threads_.at(tid).process && thread.state == State::running)
      stop_for_event(thread, kEventStop, signal);
}

void Kernel::let_stop(pid_t tid) {
  Thread& thread = threads_.at(tid);
  if (thread.state == State::running && thread.trap_stop) stop_for_event(thread, kEventStop, SIGTRAP);
}

}  // namespace probed::tracer::simulated

// ---- in place of the C library's ------------------------------------------------------------------------------------

using probed::tracer::simulated::Thread;
namespace simulated = probed::tracer::simulated;

extern "C" {

long ptrace(enum __ptrace_request request, ...) noexcept {
  va_list arguments;
  va_start(arguments, request);
  const pid_t tid = va_arg(arguments, pid_t);
  const auto address = va_arg(arguments, std::uintptr_t);
  const auto data = va_arg(arguments, std::uintptr_t);
  va_end(arguments);
  if (!simulated::kernel) return simulated::failed(ESRCH);
  return simulated::kernel->ptrace(static_cast<int>(request), tid, address, data);
}

// One that would have to wait for ever is a fault of the test: nothing happens meanwhile.
int waitid(idtype_t type, id_t id, siginfo_t* info, int) {
  info->si_pid = 0;
  if (!simulated::kernel) return static_cast<int>(simulated::failed(ECHILD));
  const auto tid = simulated::kernel->reported(type == P_ALL ? std::nullopt : std::optional(static_cast<pid_t>(id)));
  if (!tid) return static_cast<int>(simulated::failed(ECHILD));
  if (*tid == 0) return 0;
  const Thread& thread = *simulated::kernel->find(*tid);
  info->si_pid = *tid;
  const bool exited = thread.state == Thread::State::ended;
  info->si_code = !exited ? CLD_TRAPPED : WIFEXITED(thread.report) ? CLD_EXITED : CLD_KILLED;
  info->si_status = !exited                    ? thread.report >> 8
                    : WIFEXITED(thread.report) ? WEXITSTATUS(thread.report)
                                               : WTERMSIG(thread.report);
  return 0;
}

int tgkill(pid_t, pid_t tid, int signal) noexcept {
  if (!simulated::kernel || !simulated::kernel->find(tid)) return static_cast<int>(simulated::failed(ESRCH));
  simulated::kernel->send(tid, signal, SI_TKILL, ::getpid());
  return 0;
}

pid_t waitpid(pid_t tid, int* status, int) {
  if (!simulated::kernel) return static_cast<pid_t>(simulated::failed(ECHILD));
  const auto there = simulated::kernel->reported(tid);
  if (!there) return static_cast<pid_t>(simulated::failed(ECHILD));
  if (*there != 0) *status = simulated::kernel->take(tid);
  return *there;
}
}
