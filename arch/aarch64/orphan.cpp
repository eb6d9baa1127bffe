// The handler is called as the kernel calls one with SA_SIGINFO: x0 signal, x1 siginfo_t, x2 struct ucontext, x30 the
// restorer. Everything but sp is its own: sigreturn restores the rest.
#include "arch/aarch64/orphan.hpp"

#include <algorithm>
#include <cstring>

#include "arch/aarch64/assembler.hpp"
#include "proto/base/check.hpp"

namespace probed::arch::aarch64 {
namespace {

// Numbers of the kernel's that are the same for ever; this file is built on hosts that have others.
constexpr std::uint64_t kSigTrap = 5, kTrapBreakpoint = 1, kTrapTrace = 2, kSigBlock = 0;
constexpr std::uint64_t kRtSigaction = 134, kRtSigprocmask = 135, kRtSigreturn = 139, kGetpid = 172, kGettid = 178,
                        kRtTgsigqueueinfo = 240, kSigsetSize = 8;
constexpr std::int64_t kSiCode = 8, kSiAddress = 16;  // in siginfo_t
constexpr std::int64_t kContextPc = 440;              // in struct ucontext

void syscall(Assembler& a, std::uint64_t number) {
  a.mov_imm(Reg::x8, number);
  a.word(0xd4000001);  // svc #0
}

void multiply(Assembler& a, Reg to, Reg by) {
  const auto n = [](Reg r) { return static_cast<std::uint32_t>(r); };
  a.word(0x9b007c00 | n(by) << 16 | n(to) << 5 | n(to));
}
void mask_with(Assembler& a, Reg to, Reg by) {
  const auto n = [](Reg r) { return static_cast<std::uint32_t>(r); };
  a.word(0x8a000000 | n(by) << 16 | n(to) << 5 | n(to));
}
void move_stack(Assembler& a, std::int32_t bytes) {
  const std::uint32_t opcode = bytes < 0 ? 0xd10003ff : 0x910003ff;
  a.word(opcode | static_cast<std::uint32_t>(bytes < 0 ? -bytes : bytes) << 10);
}

// What the program would have met is the default action, where it was: blocked until the return from here, the same
// signal again. x1: its siginfo.
void raise_again(Assembler& a) {
  a.mov(Reg::x9, Reg::x1);
  move_stack(a, -48);
  a.mov_imm(Reg::x10, 0);
  a.store_pair(Reg::sp + 0, Reg::x10, Reg::x10);
  a.store_pair(Reg::sp + 16, Reg::x10, Reg::x10);
  a.mov_imm(Reg::x10, 1 << (kSigTrap - 1));
  a.store(Reg::sp + 32, Reg::x10);
  a.mov_imm(Reg::x0, kSigTrap);
  a.add_small(Reg::x1, Reg::sp, 0);
  a.mov_imm(Reg::x2, 0);
  a.mov_imm(Reg::x3, kSigsetSize);
  syscall(a, kRtSigaction);
  a.mov_imm(Reg::x0, kSigBlock);
  a.add_small(Reg::x1, Reg::sp, 32);
  a.mov_imm(Reg::x2, 0);
  a.mov_imm(Reg::x3, kSigsetSize);
  syscall(a, kRtSigprocmask);
  syscall(a, kGettid);
  a.mov(Reg::x1, Reg::x0);
  syscall(a, kGetpid);
  a.mov_imm(Reg::x2, kSigTrap);
  a.mov(Reg::x3, Reg::x9);
  syscall(a, kRtTgsigqueueinfo);
  move_stack(a, 48);
  a.ret();
}

}  // namespace

LandingCode build_landing(std::uint64_t address) {
  std::array<std::uint8_t, kLandingData> room{};
  Assembler a(room, address);
  const auto entry = a.label(), next = a.label(), found = a.label(), done = a.label(), foreign = a.label(),
             no_breakpoint = a.label();
  const auto data = [&](std::size_t member) { return address + kLandingData + member; };
  const std::uint32_t handler = a.size();
  a.load(Reg::x3, Reg::x1 + kSiCode, 4);
  a.load(Reg::x4, Reg::x2 + kContextPc);
  a.cmp(Reg::x3, kTrapBreakpoint, 4, Reg::x9);
  a.b(Cond::ne, no_breakpoint);
  // Its tracer has sent it elsewhere already.
  a.load(Reg::x5, Reg::x1 + kSiAddress);
  a.cmp(Reg::x4, Reg::x5);
  a.b(Cond::ne, done);
  a.load_from(Reg::x6, data(offsetof(LandingData, table)));
  a.cbz(Reg::x6, foreign);
  a.load_from(Reg::x7, data(offsetof(LandingData, mask)));
  a.mov_imm(Reg::x8, kLandingFactor);
  multiply(a, Reg::x8, Reg::x4);
  a.shift_right(Reg::x8, Reg::x8, 32);
  mask_with(a, Reg::x8, Reg::x7);
  static_assert(sizeof(LandingEntry) == 1 << 4);
  a.add(Reg::x6, Reg::x6, Reg::x8, 4);

  a.bind(entry);
  a.load(Reg::x9, Reg::x6 + offsetof(LandingEntry, trapped));
  a.cmp(Reg::x9, Reg::x4);
  a.b(Cond::eq, found);
  a.cbz(Reg::x9, foreign);
  a.add_small(Reg::x6, Reg::x6, sizeof(LandingEntry));
  a.b(entry);

  a.bind(found);
  a.load(Reg::x9, Reg::x6 + offsetof(LandingEntry, landing));
  a.cmp(Reg::x9, Reg::x4);
  a.b(Cond::ne, next);
  // Taken out since. One that stands there nevertheless is the program's own.
  a.load(Reg::x3, Reg::x4 + 0, 4);
  a.mov_imm(Reg::x10, 0xffe0001f);
  mask_with(a, Reg::x3, Reg::x10);
  a.mov_imm(Reg::x10, 0xd4200000);
  a.cmp(Reg::x3, Reg::x10);
  a.b(Cond::eq, foreign);
  a.bind(next);
  a.store(Reg::x2 + kContextPc, Reg::x9);
  a.bind(done);
  a.ret();

  // A program can't step itself: a tracer has.
  a.bind(no_breakpoint);
  a.cmp(Reg::x3, kTrapTrace, 4, Reg::x9);
  a.b(Cond::eq, done);

  a.bind(foreign);
  raise_again(a);

  const std::uint32_t restorer = a.size();
  syscall(a, kRtSigreturn);
  PROBED_CHECK(!a.full(), "the landing fits in front of its data");
  return {{room.begin(), room.begin() + a.size()}, handler, restorer};
}

std::vector<std::uint8_t> build_call_pad(std::uint64_t address) {
  std::array<std::uint8_t, kCallPadData> room{};
  Assembler a(room, address);
  a.word(0xd4000001);  // svc #0
  PROBED_CHECK(a.size() == kAfterCall, "the way back follows the call");
  a.word(0x10ffffe0);                // adr x0, the pad
  a.add_small(Reg::sp, Reg::x0, 0);  // mov sp, x0
  syscall(a, kRtSigreturn);
  PROBED_CHECK(!a.full(), "a pad's code fits in front of its data");
  return {room.begin(), room.begin() + a.size()};
}

// Linux has decided about an interrupted call before a tracer could look: the pc is in front of it.
CallRecord call_record(const Registers& regs, std::uint64_t mask, std::span<const std::byte> vectors) {
  CallRecord record;
  record.mask = mask;
  record.x = regs.x;
  record.sp = regs.sp();
  record.pc = regs.pc();
  record.pstate = regs.pstate;
  // struct user_fpsimd_state: the registers, fpsr, fpcr.
  constexpr std::size_t kVectors = sizeof record.vectors;
  if (vectors.size() < kVectors + sizeof record.status) return record;
  std::memcpy(record.vectors.data(), vectors.data(), kVectors);
  std::memcpy(record.status.data(), vectors.data() + kVectors, sizeof record.status);
  return record;
}

}  // namespace probed::arch::aarch64
