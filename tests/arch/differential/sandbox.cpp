// The signal frame as a door in and out; see sandbox.hpp.
#include "tests/arch/differential/sandbox.hpp"

#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstring>

#include "proto/base/check.hpp"
#include "tests/arch/differential/sandbox_state.hpp"

// What the handler's first and last instructions exchange with the rest of it. The offsets are in the assembly below.
struct ProbedSandboxDoor {
  std::uint64_t has_bases;         // 0: fs and gs bases are left alone
  std::uint64_t home_fs, home_gs;  // the process's own
  std::uint64_t left_fs, left_gs;  // what the code under test had
  std::uint64_t next_fs, next_gs;  // to be set when the handler returns
  std::uint64_t ds, es, fs, gs;    // selectors the code under test had
};
extern "C" {
ProbedSandboxDoor probed_sandbox_door;
void probed_sandbox_entry(int, siginfo_t*, void*);
void probed_sandbox_signal(int signal, siginfo_t* info, void* context);
}

// The code under test may have any AC, NT, fs base (which our stack protector and thread-local variables hang on) and
// selectors. Nothing of C++ may run before they are ours again.
asm(R"(
  .text
  .type probed_sandbox_entry, @function
  .globl probed_sandbox_entry
probed_sandbox_entry:
  pushq $2
  popfq
  subq $8, %rsp
  leaq probed_sandbox_door(%rip), %rcx
  cmpq $0, (%rcx)
  je 1f
  rdfsbase %rax
  movq %rax, 24(%rcx)
  rdgsbase %rax
  movq %rax, 32(%rcx)
  movl %ds, %eax
  movq %rax, 56(%rcx)
  movl %es, %r8d
  movq %r8, 64(%rcx)
  movl %fs, %r9d
  movq %r9, 72(%rcx)
  movl %gs, %r10d
  movq %r10, 80(%rcx)
  orl %r8d, %eax
  orl %r9d, %eax
  orl %r10d, %eax
  jz 2f
  xorl %eax, %eax
  movl %eax, %ds
  movl %eax, %es
  movl %eax, %fs
  movl %eax, %gs
2:
  movq 8(%rcx), %rax
  wrfsbase %rax
  movq 16(%rcx), %rax
  wrgsbase %rax
1:
  call probed_sandbox_signal
  leaq probed_sandbox_door(%rip), %rcx
  cmpq $0, (%rcx)
  je 3f
  movq 40(%rcx), %rax
  wrfsbase %rax
  movq 48(%rcx), %rax
  wrgsbase %rax
3:
  addq $8, %rsp
  ret
  .size probed_sandbox_entry, . - probed_sandbox_entry
)");
static_assert(offsetof(ProbedSandboxDoor, left_fs) == 24 && offsetof(ProbedSandboxDoor, next_fs) == 40 &&
              offsetof(ProbedSandboxDoor, ds) == 56 && offsetof(ProbedSandboxDoor, gs) == 80);

namespace probed::test {
namespace {

using arch::x86_64::Registers;

constexpr int kSignals[] = {SIGTRAP, SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGUSR1};
constexpr std::uint64_t kResumeFlag = 0x10000;  // RF: the processor's own, differs between trap and fault
constexpr greg_t kDebugTrap = 1, kBreakpointTrap = 3;

struct GregOf {
  int greg;
  std::uint64_t Registers::*member;
};
constexpr GregOf kGregs[] = {
    {REG_R8, &Registers::r8},   {REG_R9, &Registers::r9},      {REG_R10, &Registers::r10}, {REG_R11, &Registers::r11},
    {REG_R12, &Registers::r12}, {REG_R13, &Registers::r13},    {REG_R14, &Registers::r14}, {REG_R15, &Registers::r15},
    {REG_RDI, &Registers::rdi}, {REG_RSI, &Registers::rsi},    {REG_RBP, &Registers::rbp}, {REG_RBX, &Registers::rbx},
    {REG_RDX, &Registers::rdx}, {REG_RAX, &Registers::rax},    {REG_RCX, &Registers::rcx}, {REG_RSP, &Registers::rsp},
    {REG_RIP, &Registers::rip}, {REG_EFL, &Registers::eflags},
};

// What must survive a visit to the sandbox.
struct Home {
  gregset_t gregs;
  std::array<std::uint8_t, kMaxFrameState> fpu;
};

Sandbox* g_active = nullptr;  // the one sandbox; signal handlers have no other way to find it
Home g_home;
struct sigaction g_previous[NSIG];
std::array<std::uint8_t, 1 << 18> g_signal_stack;
stack_t g_previous_stack;

ucontext_t& frame(void* context) { return *static_cast<ucontext_t*>(context); }

std::uint8_t* fpu_area(ucontext_t& context) { return reinterpret_cast<std::uint8_t*>(context.uc_mcontext.fpregs); }

std::uint8_t* at(std::uint64_t address) { return reinterpret_cast<std::uint8_t*>(address); }

void map(std::uint64_t address, int protection, int flags, int fd) {
  void* got = mmap(at(address), kPage, protection, flags | MAP_FIXED_NOREPLACE, fd, 0);
  PROBED_CHECK(got == at(address), "the sandbox's addresses are free");
}

void set_bases(std::uint64_t fs, std::uint64_t gs) {
  probed_sandbox_door.next_fs = fs;
  probed_sandbox_door.next_gs = gs;
}

void set_home_bases() {
  probed_sandbox_door.has_bases = Sandbox::has_segment_bases() ? 1 : 0;
  if (probed_sandbox_door.has_bases == 0) return;
  asm volatile("rdfsbase %0" : "=r"(probed_sandbox_door.home_fs));
  asm volatile("rdgsbase %0" : "=r"(probed_sandbox_door.home_gs));
  set_bases(probed_sandbox_door.home_fs, probed_sandbox_door.home_gs);
}

}  // namespace

bool Sandbox::has_segment_bases() {
  constexpr unsigned long kHwcap2Fsgsbase = 2;  // arch/x86/include/uapi/asm/hwcap2.h
  static const bool allowed = (getauxval(AT_HWCAP2) & kHwcap2Fsgsbase) != 0;
  return allowed;
}

bool Sandbox::has_wide_state() { return wide_state_in_frames(); }

Sandbox::Sandbox(std::uint64_t base, std::uint64_t far_base) : base_(base), far_base_(far_base) {
  PROBED_CHECK(g_active == nullptr, "one sandbox at a time");
  map_code(base_, original_alias_);
  map_code(base_ + 0x10000, near_alias_);
  map_code(landing(), landing_alias_);
  map_code(far_base_, far_alias_);
  map(data(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  map(stack(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);

  set_home_bases();
  const stack_t stack{.ss_sp = g_signal_stack.data(), .ss_flags = 0, .ss_size = g_signal_stack.size()};
  sigaltstack(&stack, &g_previous_stack);
  struct sigaction action {};
  action.sa_sigaction = probed_sandbox_entry;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigfillset(&action.sa_mask);
  for (const int signal : kSignals) sigaction(signal, &action, &g_previous[signal]);
  g_active = this;
}

Sandbox::~Sandbox() {
  g_active = nullptr;
  for (const int signal : kSignals) sigaction(signal, &g_previous[signal], nullptr);
  sigaltstack(&g_previous_stack, nullptr);
  for (const std::uint64_t page : {base_, base_ + 0x10000, landing(), data(), this->stack(), far_base_})
    munmap(at(page), kPage);
  for (std::uint8_t* alias : {original_alias_, near_alias_, landing_alias_, far_alias_}) munmap(alias, kPage);
}

// One page, executable at `address` and writable at `alias`, full of int3.
void Sandbox::map_code(std::uint64_t address, std::uint8_t*& alias) {
  const int fd = memfd_create("sandbox", MFD_CLOEXEC);
  PROBED_CHECK(fd >= 0 && ftruncate(fd, kPage) == 0, "a page of shared memory can be had");
  map(address, PROT_READ | PROT_EXEC, MAP_SHARED, fd);
  void* got = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  PROBED_CHECK(got != MAP_FAILED, "a page of shared memory can be mapped twice");
  close(fd);
  alias = static_cast<std::uint8_t*>(got);
  std::memset(alias, 0xcc, kPage);
}

std::uint8_t* Sandbox::writable(std::uint64_t code_address) {
  const std::uint64_t page = code_address & ~(kPage - 1);
  std::uint8_t* alias = page == base_ ? original_alias_ : page == far_base_ ? far_alias_ : near_alias_;
  return alias + code_address % kPage;
}

void Sandbox::write(std::uint64_t address, std::span<const std::uint8_t> code) {
  std::memcpy(writable(address), code.data(), code.size());
}

void Sandbox::erase(std::uint64_t address, std::size_t size) { std::memset(writable(address), 0xcc, size); }

void Sandbox::run(const Machine& start, Outcome& outcome) {
  start_ = &start;
  outcome_ = &outcome;
  syscall(SYS_tgkill, getpid(), gettid(), SIGUSR1);
  PROBED_CHECK(start_ == nullptr, "the sandbox has been visited");
}

void Sandbox::run_stepped(const Machine& start, const std::function<bool(std::uint64_t)>& stop_at, Outcome& outcome) {
  stop_at_ = &stop_at;
  run(start, outcome);
  stop_at_ = nullptr;
}

void Sandbox::enter(void* context) {
  ucontext_t& uc = frame(context);
  std::memcpy(g_home.gregs, uc.uc_mcontext.gregs, sizeof g_home.gregs);
  const std::uint8_t* area = fpu_area(uc);
  std::memcpy(g_home.fpu.data(), area, frame_state_size(area));

  for (const GregOf& row : kGregs) uc.uc_mcontext.gregs[row.greg] = static_cast<greg_t>(start_->regs.*row.member);
  if (stop_at_ != nullptr) uc.uc_mcontext.gregs[REG_EFL] |= kTrapFlag;
  load_vectors(*start_, fpu_area(uc));
  set_bases(start_->regs.fs_base, start_->regs.gs_base);
  std::memcpy(at(data()), start_->data.data(), kPage);
  std::memcpy(at(stack()), start_->stack.data(), kPage);
}

void Sandbox::leave(int signal, const siginfo_t& info, void* context) {
  greg_t(&gregs)[NGREG] = frame(context).uc_mcontext.gregs;
  const bool step = signal == SIGTRAP && gregs[REG_TRAPNO] == kDebugTrap && stop_at_ != nullptr;
  if (step && !(*stop_at_)(static_cast<std::uint64_t>(gregs[REG_RIP]))) {
    set_bases(probed_sandbox_door.left_fs, probed_sandbox_door.left_gs);
    return;
  }
  save_outcome(signal, info, context, step);
  std::memcpy(gregs, g_home.gregs, sizeof g_home.gregs);
  std::uint8_t* area = fpu_area(frame(context));
  std::memcpy(area, g_home.fpu.data(), frame_state_size(area));
  set_bases(probed_sandbox_door.home_fs, probed_sandbox_door.home_gs);
  start_ = nullptr;
}

void Sandbox::save_outcome(int signal, const siginfo_t& info, void* context, bool step) {
  const greg_t(&gregs)[NGREG] = frame(context).uc_mcontext.gregs;
  Outcome& out = *outcome_;
  out.signal = signal;
  out.code = info.si_code;
  out.stepped = step;
  out.fault_address = signal == SIGTRAP ? 0 : reinterpret_cast<std::uint64_t>(info.si_addr);
  out.trap = static_cast<std::uint64_t>(gregs[REG_TRAPNO]);
  out.error = static_cast<std::uint64_t>(gregs[REG_ERR]);
  Registers& regs = out.machine.regs;
  for (const GregOf& row : kGregs) regs.*row.member = static_cast<std::uint64_t>(gregs[row.greg]);
  regs.eflags &= ~(kResumeFlag | (stop_at_ != nullptr ? kTrapFlag : 0));
  if (signal == SIGTRAP && gregs[REG_TRAPNO] == kBreakpointTrap) --regs.rip;
  const ProbedSandboxDoor& door = probed_sandbox_door;
  if (door.has_bases != 0) {
    regs.fs_base = door.left_fs;
    regs.gs_base = door.left_gs;
    regs.ds = door.ds;
    regs.es = door.es;
    regs.fs = door.fs;
    regs.gs = door.gs;
  }
  save_vectors(fpu_area(frame(context)), out.machine);
  std::memcpy(out.machine.data.data(), at(data()), kPage);
  std::memcpy(out.machine.stack.data(), at(stack()), kPage);
}

void Sandbox::on_signal(int signal, const siginfo_t& info, void* context) {
  if (start_ != nullptr && signal == SIGUSR1 && info.si_code == SI_TKILL) {
    enter(context);
  } else if (start_ != nullptr && signal != SIGUSR1) {
    leave(signal, info, context);
  } else {
    sigaction(signal, &g_previous[signal], nullptr);  // a fault of the test's own: let it happen again, for real
  }
}

}  // namespace probed::test

void probed_sandbox_signal(int signal, siginfo_t* info, void* context) {
  probed::test::g_active->on_signal(signal, *info, context);
}
