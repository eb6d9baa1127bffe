// x86-64 general registers: layout, names, argument and system call conventions. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace probed::arch::x86_64 {

// struct user_regs_struct (sys/user.h), which is also NT_PRSTATUS's layout; asserted where ptrace is.
struct Registers {
  std::uint64_t r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi;
  std::uint64_t orig_rax;
  std::uint64_t rip, cs, eflags, rsp, ss, fs_base, gs_base, ds, es, fs, gs;

  bool operator==(const Registers&) const = default;
  std::uint64_t pc() const { return rip; }
  void set_pc(std::uint64_t value) { rip = value; }
  std::uint64_t sp() const { return rsp; }
  void set_sp(std::uint64_t value) { rsp = value; }
  // What the thread's own data is found by; 0: not known.
  std::uint64_t thread_pointer() const { return fs_base; }
  // The register a system call instruction leaves its return address in.
  std::uint64_t link() const { return rcx; }
  void set_link(std::uint64_t value) { rcx = value; }
};

inline constexpr unsigned kWordSize = 8;
inline constexpr unsigned kRegisterArguments = 6;
// At a function's first instruction and where it is left the return address is at sp, or in a register.
inline constexpr bool kCallPushesReturnAddress = true;
inline std::uint64_t return_address_register(const Registers&) { return 0; }

// The offset in Registers of a register by the kernel's name (ax, di, ip, sp, flags, r8, orig_ax, ...) or the
// assembler's 64-bit name (rax, rdi, ...); nullopt: no such register.
std::optional<std::size_t> register_offset(std::string_view name);
// Every register once, by the kernel's name.
std::vector<std::string_view> register_names();

// The same by the number that debug information gives it (System V psABI, figure 3.36). The other one: of a register
// for floating-point numbers, xmm0 to xmm15, counted from 0.
std::optional<std::size_t> dwarf_register(unsigned number);
std::optional<unsigned> dwarf_vector_register(unsigned number);

// What $argN (1-based) reads at a function's entry: a register's offset in Registers, or the stack word at
// sp + offset when memory is set.
struct ArgumentPlace {
  bool memory = false;
  std::size_t offset = 0;
};
ArgumentPlace argument_place(unsigned number);
// The register in which the address for a result in memory is passed, if no argument can be there; nullopt: it is a
// first argument of its own (System V psABI 3.2.3).
inline constexpr std::optional<std::size_t> kResultAddressRegister = std::nullopt;
// Whether small structures are handed over by the class of each of their words (System V psABI 3.2.3), and what returns
// one that is in memory leaves its address where a number would be returned.
inline constexpr bool kClassifiesWords = true;
// Where NT_PRFPREG has vector register N: 16 bytes each (struct user_fpregs_struct, xmm_space).
inline constexpr std::size_t kVectorsInRegisterSet = 160;
inline constexpr unsigned kVectorArguments = 8;  // floating-point arguments that come in vector registers
inline constexpr std::size_t kReturnValueOffset = offsetof(Registers, rax);
// The register set that has what thread-local variables are counted from; nullopt: these registers have it, fs_base.
inline constexpr std::optional<int> kThreadPointerSet = std::nullopt;
// Rights to memory by protection key (PKRU; pkeys(7), Intel SDM 3A 4.6.2): two bits a key, no access and no writing.
// The register set that has them among others (linux/elf.h, NT_X86_XSTATE); nullopt: the architecture has none.
inline constexpr std::optional<int> kKeyRightsSet = 0x202;
// Gives all rights to key 0, which is all memory's that has been given no other, in such a set. What they were;
// nullopt: the processor has no such keys, or the set is too short to have them. Pure, but for asking the processor.
std::optional<std::uint32_t> lift_key_rights(std::span<std::byte> set);
// Puts them back into another one. False: there other rights have been set since.
bool put_key_rights(std::span<std::byte> set, std::uint32_t rights);
// Where PTRACE_POKEUSER finds the pc; nullopt: the architecture has no such request.
inline constexpr std::optional<std::size_t> kPcInUserArea = offsetof(Registers, rip);

// PTRACE_GETREGS and PTRACE_SETREGS (asm/ptrace-abi.h): a 64-bit tracer always gets the layout above. PTRACE_GETREGSET
// chooses the layout by the thread's code segment (arch/x86/kernel/ptrace.c, task_user_regset_view): in 32-bit code it
// answers with 17 words of 4 bytes, and PTRACE_SETREGSET takes these.
struct RegisterRequests {
  int get, set;
};
inline constexpr std::optional<RegisterRequests> kRegisterRequests = RegisterRequests{12, 13};

// 32-bit code has its addresses in 32 bits.
inline constexpr std::uint64_t kOtherCodeBelow = 1ULL << 32;
// A 64-bit process may go to 32-bit code and back by a far transfer (Wine, DOSEMU). The code segment tells the mode
// (user_64bit_mode, asm/ptrace.h): Linux gives 64-bit code one selector, and lets no LDT entry be 64-bit
// (arch/x86/kernel/ldt.c, fill_ldt).
bool executes_native_code(const Registers& r);
// Whether the pc is an address. In a segment of the LDT (16-bit code) it counts from the segment's base, which only the
// program and the kernel know.
bool pc_is_address(const Registers& r);

// ---- system calls ----

// Whether the registers of a thread that is stopped on its way out of a call still tell which it was, and whether the
// kernel looks at its result only after that stop.
inline constexpr bool kRegistersTellCall = true;

// Whether the thread is stopped inside a system call that will be restarted or returns an error from interruption.
inline bool in_syscall(const Registers& r) { return static_cast<std::int64_t>(r.orig_rax) >= 0; }
inline std::uint64_t syscall_number(const Registers& r) { return r.orig_rax; }
inline std::int64_t syscall_result(const Registers& r) { return static_cast<std::int64_t>(r.rax); }
// In a stop on the way out of a call: it is made again, unless a signal handler runs first; then it returns EINTR. That
// is what the kernel does with a result of -ERESTARTNOHAND (arch/x86/kernel/signal.c), which its headers keep to
// itself.
inline void restart_unless_handled(Registers& r) { r.rax = static_cast<std::uint64_t>(-514LL); }
// Where the kernel doesn't keep the first argument of an interrupted call in these registers.
inline void set_first_argument(Registers& r, std::uint64_t value) { r.rdi = value; }
inline constexpr std::optional<int> kSetLostInCalls = std::nullopt;
inline constexpr std::size_t kLostSetHeader = 0;
inline std::size_t lost_set_size(std::span<const std::byte, kLostSetHeader>) { return 0; }
inline constexpr int kSystemCallSet = 0;  // no such register set
// Puts the thread back in front of the system call instruction it has just been interrupted in, its number restored.
// It is 2 bytes long in every form (syscall, sysenter, int 0x80).
inline void rewind_syscall(Registers& r) {
  r.rax = r.orig_rax;
  r.rip -= 2;
}
// At the stop at a call's entry: the kernel makes none (arch/x86/entry/common.c, do_syscall_64).
inline void skip_syscall(Registers& r) { r.orig_rax = ~0ULL; }
// The reverse, with the result the program is to see.
inline void undo_rewind_syscall(Registers& r, std::int64_t result) {
  r.rax = static_cast<std::uint64_t>(result);
  r.rip += 2;
}
// Whether two register states are the same moment of a thread's execution. orig_rax and the resume flag say how the
// thread last entered the kernel, not what the program did.
inline bool same_execution(Registers a, Registers b) {
  constexpr std::uint64_t kResumeFlag = 1u << 16;
  a.orig_rax = b.orig_rax = 0;
  a.eflags &= ~kResumeFlag;
  b.eflags &= ~kResumeFlag;
  return a == b;
}
inline std::uint64_t syscall_argument(const Registers& r, unsigned n) {
  const std::uint64_t args[] = {r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9};
  return args[n];
}
// What the kernel has changed of `regs` so that the call that they are in front of is gone on with.
inline void take_restart(Registers&, const Registers&) {}
// The number that such a call leaves in a register; nullopt: its result takes that one's place.
inline constexpr std::optional<std::uint64_t> kRestartNumber = std::nullopt;
inline void set_syscall_number(Registers& r, std::uint64_t number) { r.rax = number; }
// Prepares registers so that resuming at a `syscall` instruction at `insn` performs call `nr`.
inline void prepare_syscall(Registers& r, std::uint64_t insn, std::uint64_t nr, const std::uint64_t (&args)[6]) {
  r.rip = insn;
  r.rax = nr;
  r.orig_rax = ~0ULL;  // no restart logic for the call we displace: arch/x86/kernel/signal.c
  r.rdi = args[0];
  r.rsi = args[1];
  r.rdx = args[2];
  r.r10 = args[3];
  r.r8 = args[4];
  r.r9 = args[5];
}
// Does what the instruction that reads the records' clock would have done, where the process has switched that off
// (prctl PR_SET_TSC, seccomp's strict mode: arch/x86/kernel/process.c, disable_TSC). False: it is another instruction.
inline bool stand_in_for_clock(Registers& r, std::span<const std::uint8_t> code, std::uint64_t time) {
  if (code.size() < 2 || code[0] != 0x0f || code[1] != 0x31) return false;  // rdtsc
  r.rax = time & 0xffff'ffff;
  r.rdx = time >> 32;
  r.rip += 2;
  return true;
}
// The bytes of the system call instruction.
inline constexpr std::uint8_t kSyscallInsn[] = {0x0f, 0x05};

}  // namespace probed::arch::x86_64
