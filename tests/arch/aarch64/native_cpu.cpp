#include "tests/arch/aarch64/native_cpu.hpp"

#include <asm/sigcontext.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "arch/aarch64/trap.hpp"

namespace probed::test {
namespace {

constexpr std::uint64_t kTextBegin = kTextMiddle - kTextReach, kTextSize = 2 * kTextReach;
constexpr int kText = PROT_READ | PROT_WRITE | PROT_EXEC, kData = PROT_READ | PROT_WRITE;
constexpr int kGuardedPage = 0x10;  // PROT_BTI, asm/mman.h
constexpr std::size_t kHandlerStack = 1 << 16;
constexpr std::array kSignals = {SIGTRAP, SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGALRM};

// What the handler and run() share.
enum class Phase { idle, entering, running };
volatile Phase phase = Phase::idle;
CpuState input;
CpuOutcome output;
CpuState home;

[[noreturn]] void give_up(const char* what) {
  std::perror(what);
  std::abort();
}

fpsimd_context& vectors_of(ucontext_t& context) {
  auto* at = reinterpret_cast<std::uint8_t*>(context.uc_mcontext.__reserved);
  for (;;) {
    auto* const head = reinterpret_cast<_aarch64_ctx*>(at);
    if (head->magic == FPSIMD_MAGIC) return *reinterpret_cast<fpsimd_context*>(head);
    if (head->magic == 0) give_up("a signal frame without vector registers");
    at += head->size;
  }
}

CpuState state_of(ucontext_t& context) {
  CpuState state;
  const mcontext_t& m = context.uc_mcontext;
  std::copy_n(m.regs, state.regs.x.size(), state.regs.x.begin());
  state.regs.stack_pointer = m.sp;
  state.regs.program_counter = m.pc;
  state.regs.pstate = m.pstate;
  const fpsimd_context& fp = vectors_of(context);
  std::memcpy(state.vectors.data(), fp.vregs, sizeof state.vectors);
  state.fpsr = fp.fpsr;
  state.fpcr = fp.fpcr;
  return state;
}

void set_state(ucontext_t& context, const CpuState& state) {
  mcontext_t& m = context.uc_mcontext;
  std::copy(state.regs.x.begin(), state.regs.x.end(), m.regs);
  m.sp = state.regs.stack_pointer;
  m.pc = state.regs.program_counter;
  m.pstate = state.regs.pstate;
  fpsimd_context& fp = vectors_of(context);
  std::memcpy(fp.vregs, state.vectors.data(), sizeof state.vectors);
  fp.fpsr = state.fpsr;
  fp.fpcr = state.fpcr;
}

void on_signal(int signal, siginfo_t* info, void* raw) {
  ucontext_t& context = *static_cast<ucontext_t*>(raw);
  if (signal == SIGALRM && phase != Phase::running) return;  // it has ended after all
  switch (phase) {
    case Phase::idle: give_up("a signal that isn't the instruction's");
    case Phase::entering:
      phase = Phase::running;
      home = state_of(context);
      set_state(context, input);
      break;
    case Phase::running:
      phase = Phase::idle;
      output = {state_of(context), signal, 0};
      if (signal == SIGSEGV || signal == SIGBUS) output.address = reinterpret_cast<std::uint64_t>(info->si_addr);
      home.regs.program_counter += 4;
      set_state(context, home);
      break;
  }
}

void map(std::uint64_t address, std::size_t size, int protection) {
  void* const wanted = reinterpret_cast<void*>(address);
  if (mmap(wanted, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != wanted)
    give_up("mmap");
}

void fill_with_breakpoints(std::uint64_t address, std::size_t size) {
  auto* const words = reinterpret_cast<std::uint32_t*>(address);
  for (std::uint32_t i = 0; i < size / 4; ++i) words[i] = 0xd4200000 | ((i * 0x9e3779b1u) >> 16) << 5;
}

void clear_cache(std::uint64_t address, std::size_t size) {
  char* const begin = reinterpret_cast<char*>(address);
  __builtin___clear_cache(begin, begin + size);
}

}  // namespace

NativeCpu::NativeCpu() : stack_(kHandlerStack) {
  map(kTextBegin, kTextSize, kText);
  map(kFarText, kFarTextSize, kText);
  map(kDataBegin, kDataSize, kData);
  fill_with_breakpoints(kTextBegin, kTextSize);
  fill_with_breakpoints(kFarText, kFarTextSize);
  clear_cache(kTextBegin, kTextSize);
  clear_cache(kFarText, kFarTextSize);
  // The instruction's sp may be anything.
  const stack_t stack{.ss_sp = stack_.data(), .ss_flags = 0, .ss_size = stack_.size()};
  if (sigaltstack(&stack, &stack_before_) != 0) give_up("sigaltstack");
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigfillset(&action.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i)
    if (sigaction(kSignals[i], &action, &actions_before_[i]) != 0) give_up("sigaction");
}

NativeCpu::~NativeCpu() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &actions_before_[i], nullptr);
  sigaltstack(&stack_before_, nullptr);
  munmap(reinterpret_cast<void*>(kTextBegin), kTextSize);
  munmap(reinterpret_cast<void*>(kFarText), kFarTextSize);
  munmap(reinterpret_cast<void*>(kDataBegin), kDataSize);
}

NativeCpu::Patch::Patch(std::uint64_t address, std::span<const std::uint8_t> code) : address_(address) {
  auto* const text = reinterpret_cast<std::uint8_t*>(address);
  before_.assign(text, text + code.size());
  std::ranges::copy(code, text);
  clear_cache(address, code.size());
}

NativeCpu::Patch::~Patch() {
  std::ranges::copy(before_, reinterpret_cast<std::uint8_t*>(address_));
  clear_cache(address_, before_.size());
}

CpuOutcome NativeCpu::run(const CpuState& in) {
  const itimerval limit{{0, 0}, {0, 300'000}}, none{};
  input = in;
  setitimer(ITIMER_REAL, &limit, nullptr);
  phase = Phase::entering;
  asm volatile("brk #0x7001" ::: "memory");
  setitimer(ITIMER_REAL, &none, nullptr);
  return output;
}

std::span<std::uint8_t> NativeCpu::data() { return {reinterpret_cast<std::uint8_t*>(kDataBegin), kDataSize}; }

bool NativeCpu::guard_text() {
  return mprotect(reinterpret_cast<void*>(kTextBegin), kTextSize, kText | kGuardedPage) == 0;
}

}  // namespace probed::test
