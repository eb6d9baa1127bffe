// The signal frame as a door in and out; see sandbox.hpp.
#include "tests/arch/differential/sandbox.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "daemon/base/check.hpp"

namespace probed::test {
namespace {

using arch::x86_64::Registers;

constexpr int kSignals[] = {SIGTRAP, SIGSEGV, SIGBUS, SIGILL, SIGFPE};
constexpr std::uint64_t kTrapFlag = 0x100;
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

// The signal frame's FPU area: FXSAVE's 512 bytes, then XSAVE's header and, in the standard format, the upper halves of
// the ymm registers (SDM volume 1, 13.4).
constexpr std::size_t kFcw = 0, kFsw = 2, kFtw = 4, kMxcsr = 24, kSt = 32, kXmm = 160, kXstateBv = 512, kYmmHigh = 576;
constexpr std::size_t kSwReserved = 464;  // struct _fpx_sw_bytes: magic1, extended_size, xfeatures, ...
constexpr std::uint32_t kXstateMagic = 0x46505853;
constexpr std::uint64_t kX87 = 1, kSse = 2, kAvx = 4;

std::uint8_t* fpu_area(ucontext_t& context) {
  return reinterpret_cast<std::uint8_t*>(context.uc_mcontext.fpregs);
}

template <typename T>
T get(const std::uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

bool has_xstate(const std::uint8_t* area) {
  return get<std::uint32_t>(area + kSwReserved) == kXstateMagic;
}

std::size_t fpu_area_size(const std::uint8_t* area) {
  return has_xstate(area) ? get<std::uint32_t>(area + kSwReserved + 4) : 512;
}

void load_vectors(const Machine& machine, std::uint8_t* area) {
  std::memcpy(area + kFcw, &machine.fpu_control, 2);
  std::memcpy(area + kFsw, &machine.fpu_status, 2);
  area[kFtw] = machine.fpu_tags;
  std::memcpy(area + kMxcsr, &machine.mxcsr, 4);
  for (std::size_t i = 0; i < 8; ++i) std::memcpy(area + kSt + 16 * i, machine.st[i].data(), 10);
  for (std::size_t i = 0; i < 16; ++i) std::memcpy(area + kXmm + 16 * i, machine.ymm[i].data(), 16);
  if (!has_xstate(area)) return;
  const std::uint64_t supported = get<std::uint64_t>(area + kSwReserved + 8);
  const std::uint64_t present = supported & (kX87 | kSse | kAvx);
  std::memcpy(area + kXstateBv, &present, 8);  // the rest goes to its initial state
  if ((supported & kAvx) == 0) return;
  for (std::size_t i = 0; i < 16; ++i) std::memcpy(area + kYmmHigh + 16 * i, machine.ymm[i].data() + 16, 16);
}

// A component whose bit is clear is in its initial state whatever the bytes are.
void save_vectors(const std::uint8_t* area, Machine& machine) {
  const std::uint64_t present = has_xstate(area) ? get<std::uint64_t>(area + kXstateBv) : kX87 | kSse;
  machine.mxcsr = get<std::uint32_t>(area + kMxcsr);
  if ((present & kX87) != 0) {
    machine.fpu_control = get<std::uint16_t>(area + kFcw);
    machine.fpu_status = get<std::uint16_t>(area + kFsw);
    machine.fpu_tags = area[kFtw];
    for (std::size_t i = 0; i < 8; ++i) std::memcpy(machine.st[i].data(), area + kSt + 16 * i, 10);
  }
  for (std::size_t i = 0; i < 16; ++i) {
    if ((present & kSse) != 0) std::memcpy(machine.ymm[i].data(), area + kXmm + 16 * i, 16);
    if ((present & kAvx) != 0) std::memcpy(machine.ymm[i].data() + 16, area + kYmmHigh + 16 * i, 16);
  }
}

// What must survive a visit to the sandbox.
struct Home {
  gregset_t gregs;
  std::vector<std::uint8_t> fpu;
};

Sandbox* g_active = nullptr;  // the one sandbox; signal handlers have no other way to find it
Home g_home;
struct sigaction g_previous[NSIG];
std::array<std::uint8_t, 1 << 16> g_signal_stack;
stack_t g_previous_stack;

}  // namespace

Sandbox::Sandbox(std::uint64_t base) : base_(base) {
  PROBED_CHECK(g_active == nullptr, "one sandbox at a time");
  constexpr int kCode = PROT_READ | PROT_WRITE | PROT_EXEC;
  map(base_, kPage, kCode);
  map(base_ + 0x10000, kPage, kCode);
  map(landing(), kPage, kCode);
  map(data(), kPage, PROT_READ | PROT_WRITE);
  map(stack(), kPage, PROT_READ | PROT_WRITE);
  map(far_copy() - 0x400, kPage, kCode);
  for (const std::uint64_t page : {base_, base_ + 0x10000, landing(), far_copy() - 0x400}) erase(page, kPage);
  PROBED_CHECK(mprotect(at(landing()), kPage, PROT_READ | PROT_EXEC) == 0, "mprotect of our own page");

  const stack_t stack{.ss_sp = g_signal_stack.data(), .ss_flags = 0, .ss_size = g_signal_stack.size()};
  sigaltstack(&stack, &g_previous_stack);
  struct sigaction action {};
  action.sa_sigaction = &Sandbox::on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigfillset(&action.sa_mask);
  for (const int signal : kSignals) sigaction(signal, &action, &g_previous[signal]);
  sigaction(SIGUSR1, &action, &g_previous[SIGUSR1]);
  g_active = this;
}

Sandbox::~Sandbox() {
  g_active = nullptr;
  for (const int signal : kSignals) sigaction(signal, &g_previous[signal], nullptr);
  sigaction(SIGUSR1, &g_previous[SIGUSR1], nullptr);
  sigaltstack(&g_previous_stack, nullptr);
  for (const std::uint64_t page : {base_, base_ + 0x10000, landing(), data(), this->stack(), far_copy() - 0x400})
    munmap(at(page), kPage);
}

void Sandbox::map(std::uint64_t address, std::size_t size, int protection) {
  void* got = mmap(at(address), size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  PROBED_CHECK(got == at(address), "the sandbox's addresses are free");
}

std::uint8_t* Sandbox::at(std::uint64_t address) {
  return reinterpret_cast<std::uint8_t*>(address);
}

void Sandbox::write(std::uint64_t address, std::span<const std::uint8_t> code) {
  std::memcpy(at(address), code.data(), code.size());
}

void Sandbox::erase(std::uint64_t address, std::size_t size) {
  std::memset(at(address), 0xcc, size);
}

Outcome Sandbox::run(const Machine& start) {
  start_ = &start;
  stop_at_ = nullptr;
  raise(SIGUSR1);
  return outcome_;
}

Outcome Sandbox::run_stepped(const Machine& start, const std::function<bool(std::uint64_t)>& stop_at) {
  start_ = &start;
  stop_at_ = &stop_at;
  raise(SIGUSR1);
  return outcome_;
}

void Sandbox::enter(ucontext_t& context) {
  std::memcpy(g_home.gregs, context.uc_mcontext.gregs, sizeof g_home.gregs);
  const std::uint8_t* area = fpu_area(context);
  g_home.fpu.assign(area, area + fpu_area_size(area));

  for (const GregOf& row : kGregs) context.uc_mcontext.gregs[row.greg] = static_cast<greg_t>(start_->regs.*row.member);
  if (stop_at_ != nullptr) context.uc_mcontext.gregs[REG_EFL] |= kTrapFlag;
  load_vectors(*start_, fpu_area(context));
  std::memcpy(at(data()), start_->data.data(), kPage);
  std::memcpy(at(stack()), start_->stack.data(), kPage);
}

// False: a step that nobody wants to stop after.
bool Sandbox::leave(int signal, const siginfo_t& info, ucontext_t& context) {
  greg_t(&gregs)[NGREG] = context.uc_mcontext.gregs;
  const bool step = signal == SIGTRAP && gregs[REG_TRAPNO] == kDebugTrap && stop_at_ != nullptr;
  if (step && !(*stop_at_)(static_cast<std::uint64_t>(gregs[REG_RIP]))) return false;
  outcome_ = Outcome{};
  outcome_.signal = signal;
  outcome_.stepped = step;
  outcome_.fault_address = reinterpret_cast<std::uint64_t>(info.si_addr);
  Machine& machine = outcome_.machine;
  for (const GregOf& row : kGregs) machine.regs.*row.member = static_cast<std::uint64_t>(gregs[row.greg]);
  machine.regs.eflags &= ~(kResumeFlag | (stop_at_ != nullptr ? kTrapFlag : 0));
  if (signal == SIGTRAP && gregs[REG_TRAPNO] == kBreakpointTrap) --machine.regs.rip;
  save_vectors(fpu_area(context), machine);
  std::memcpy(machine.data.data(), at(data()), kPage);
  std::memcpy(machine.stack.data(), at(stack()), kPage);

  std::memcpy(gregs, g_home.gregs, sizeof g_home.gregs);
  std::memcpy(fpu_area(context), g_home.fpu.data(), g_home.fpu.size());
  start_ = nullptr;
  return true;
}

void Sandbox::on_signal(int signal, siginfo_t* info, void* context) {
  // AC survives signal delivery, and our own code is not written for it.
  asm volatile("leaq -128(%%rsp), %%rsp; pushfq; andq $~0x40000, (%%rsp); popfq; leaq 128(%%rsp), %%rsp" ::
                   : "cc", "memory");
  auto& frame = *static_cast<ucontext_t*>(context);
  if (signal == SIGUSR1) {
    g_active->enter(frame);
  } else if (g_active != nullptr && g_active->start_ != nullptr) {
    g_active->leave(signal, *info, frame);
  } else {
    sigaction(signal, &g_previous[signal], nullptr);  // a fault of the test's own: let it happen again, for real
  }
}

}  // namespace probed::test
