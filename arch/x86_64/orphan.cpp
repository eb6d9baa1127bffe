// The handler is called as the kernel calls one with SA_SIGINFO: rdi signal, rsi siginfo_t, rdx ucontext_t (struct
// ucontext and sigcontext_64, arch/x86/include/uapi/asm). Everything but rsp is its own: sigreturn restores the rest.
#include "arch/x86_64/orphan.hpp"

#include <array>
#include <cstddef>

#include "arch/x86_64/assembler.hpp"
#include "proto/base/check.hpp"

namespace probed::arch::x86_64 {
namespace {

// Numbers of the kernel's that are the same for ever; this file is built on hosts that have others.
constexpr std::int32_t kSigTrap = 5, kSiKernel = 0x80, kTrapTrace = 2, kSigBlock = 0;
constexpr std::uint64_t kRtSigaction = 13, kRtSigprocmask = 14, kRtSigreturn = 15, kGetpid = 39, kGettid = 186,
                        kRtTgsigqueueinfo = 297, kSigsetSize = 8;
constexpr std::int32_t kSiCode = 8;                             // in siginfo_t
constexpr std::int32_t kContextRip = 168, kContextFlags = 176;  // in ucontext
constexpr std::int32_t kTrapFlag = 1 << 8, kResumeFlag = 1 << 16;

void syscall(Assembler& a, std::uint64_t number) {
  a.mov_imm(Reg::rax, number);
  a.bytes({0x0f, 0x05});
}

// What the program would have met is the default action, where it was: blocked until the return from here, the same
// signal again.
void raise_again(Assembler& a) {
  a.push(Reg::rsi);
  a.alu(Alu::sub, Reg::rsp, 40);
  for (std::int32_t at = 0; at < 32; at += 8) a.store_imm(Reg::rsp + at, 0);
  a.mov_imm(Reg::rdi, kSigTrap);
  a.mov(Reg::rsi, Reg::rsp);
  a.mov_imm(Reg::rdx, 0);
  a.mov_imm(Reg::r10, kSigsetSize);
  a.store_imm(Reg::rsp + 32, 1 << (kSigTrap - 1));
  syscall(a, kRtSigaction);
  a.mov_imm(Reg::rdi, kSigBlock);
  a.lea(Reg::rsi, Reg::rsp + 32);
  a.mov_imm(Reg::rdx, 0);
  a.mov_imm(Reg::r10, kSigsetSize);
  syscall(a, kRtSigprocmask);
  syscall(a, kGettid);
  a.push(Reg::rax);
  syscall(a, kGetpid);
  a.mov(Reg::rdi, Reg::rax);
  a.pop(Reg::rsi);
  a.mov_imm(Reg::rdx, kSigTrap);
  a.load(Reg::r10, Reg::rsp + 40);
  syscall(a, kRtTgsigqueueinfo);
  a.alu(Alu::add, Reg::rsp, 48);
  a.ret();
}

}  // namespace

LandingCode build_landing(std::uint64_t address) {
  std::array<std::uint8_t, kLandingData> room{};
  Assembler a(room, address, false);
  const auto entry = a.label(), next = a.label(), found = a.label(), done = a.label(), foreign = a.label(),
             no_breakpoint = a.label();
  const auto data = [&](std::size_t member) { return Mem::at(address + kLandingData + member); };
  const std::uint32_t handler = a.size();
  a.load(Reg::rax, Reg::rsi + kSiCode, 4);
  a.load(Reg::r8, Reg::rdx + kContextRip);
  a.load(Reg::r9, Reg::rdx + kContextFlags);
  a.alu(Alu::cmp, Reg::rax, kSiKernel, 4);
  a.jcc(Cond::not_equal, no_breakpoint);
  a.test_imm(Reg::r9, kResumeFlag, 4);
  a.jcc(Cond::not_equal, done);
  a.alu(Alu::sub, Reg::r8, 1);
  a.load(Reg::rcx, data(offsetof(LandingData, table)));
  a.test(Reg::rcx, Reg::rcx);
  a.jcc(Cond::equal, foreign);
  a.mov_imm(Reg::rax, kLandingFactor);
  a.bytes({0x49, 0x0f, 0xaf, 0xc0});  // imul rax, r8
  a.shift(Shift::right, Reg::rax, 32);
  a.alu(Alu::bit_and, Reg::rax, data(offsetof(LandingData, mask)));
  a.shift(Shift::left, Reg::rax, 4);
  static_assert(sizeof(LandingEntry) == 1 << 4);
  a.alu(Alu::add, Reg::rcx, Reg::rax);

  a.bind(entry);
  a.load(Reg::r10, Reg::rcx + static_cast<std::int32_t>(offsetof(LandingEntry, trapped)));
  a.alu(Alu::cmp, Reg::r10, Reg::r8);
  a.jcc(Cond::equal, found);
  a.test(Reg::r10, Reg::r10);
  a.jcc(Cond::equal, foreign);
  a.alu(Alu::add, Reg::rcx, static_cast<std::int32_t>(sizeof(LandingEntry)));
  a.jmp(entry);

  a.bind(found);
  a.load(Reg::r10, Reg::rcx + static_cast<std::int32_t>(offsetof(LandingEntry, landing)));
  a.alu(Alu::cmp, Reg::r10, Reg::r8);
  a.jcc(Cond::not_equal, next);
  // Taken out since. One that stands there nevertheless is the program's own.
  a.load(Reg::rax, Reg::r8 + 0, 1);
  a.alu(Alu::cmp, Reg::rax, 0xcc, 4);
  a.jcc(Cond::equal, foreign);
  a.bind(next);
  a.store(Reg::rdx + kContextRip, Reg::r10);
  a.bind(done);
  a.ret();

  // The kernel has taken the trap flag that a tracer has set out of the context (arch/x86/kernel/signal.c,
  // handle_signal); one that is still there is the program's.
  a.bind(no_breakpoint);
  a.alu(Alu::cmp, Reg::rax, kTrapTrace, 4);
  a.jcc(Cond::not_equal, foreign);
  a.test_imm(Reg::r9, kTrapFlag, 4);
  a.jcc(Cond::equal, done);

  a.bind(foreign);
  raise_again(a);

  const std::uint32_t restorer = a.size();
  syscall(a, kRtSigreturn);
  PROBED_CHECK(!a.full() && !a.stretched(), "the landing fits in front of its data");
  return {{room.begin(), room.begin() + a.size()}, handler, restorer};
}

// The mask first: what comes in then finds a stack that is the program's, as it is all the time.
std::vector<std::uint8_t> build_call_pad(std::uint64_t address) {
  std::array<std::uint8_t, kCallPadData> room{};
  Assembler a(room, address, false);
  const auto data = [&](std::size_t member) { return Mem::at(address + kCallPadData + member); };
  constexpr std::int32_t kSigSetmask = 2, kRedZone = 128;
  a.bytes({0x0f, 0x05});
  PROBED_CHECK(a.size() == kAfterCall, "the way back follows the call");
  a.mov_imm(Reg::rdi, kSigSetmask);
  a.lea(Reg::rsi, data(offsetof(CallRecord, mask)));
  a.mov_imm(Reg::rdx, 0);
  a.mov_imm(Reg::r10, kSigsetSize);
  syscall(a, kRtSigprocmask);
  PROBED_CHECK(a.size() == kUnblocked, "what is pending comes right behind that call");
  a.lea(Reg::rsp, Reg::rsp + -kRedZone);
  a.load(Reg::rax, data(offsetof(CallRecord, flags)));
  a.push(Reg::rax);
  a.bytes({0x9d});  // popfq; no instruction behind it changes flags
  a.lea(Reg::rsp, Reg::rsp + kRedZone);
  for (std::uint8_t number = 0; number < 16; ++number) {
    const auto reg = static_cast<Reg>(number);
    if (reg != Reg::rsp) a.load(reg, data(offsetof(CallRecord, registers) + 8 * number));
  }
  a.bytes({0xff, 0x25});  // jmp [rip + distance]
  const auto distance = static_cast<std::uint32_t>(address + kCallPadData + offsetof(CallRecord, rip) - (a.here() + 4));
  for (unsigned i = 0; i < 4; ++i) a.bytes({static_cast<std::uint8_t>(distance >> (8 * i))});
  PROBED_CHECK(!a.full() && !a.stretched(), "a pad's code fits in front of its data");
  return {room.begin(), room.begin() + a.size()};
}

CallRecord call_record(const Registers& regs, std::uint64_t mask, std::span<const std::byte>) {
  constexpr std::int64_t kRestartSys = -512, kRestartNoIntr = -513, kRestartNoHand = -514, kRestartBlock = -516;
  constexpr std::uint64_t kRestartSyscall = 219;
  Registers r = regs;
  const std::int64_t result = syscall_result(r);
  if (in_syscall(r) && (result == kRestartSys || result == kRestartNoIntr || result == kRestartNoHand)) {
    rewind_syscall(r);
  } else if (in_syscall(r) && result == kRestartBlock) {
    rewind_syscall(r);
    r.rax = kRestartSyscall;
  }
  CallRecord record;
  record.mask = mask;
  record.flags = r.eflags;
  record.rip = r.rip;
  record.registers = {r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi,
                      r.r8,  r.r9,  r.r10, r.r11, r.r12, r.r13, r.r14, r.r15};
  return record;
}

}  // namespace probed::arch::x86_64
