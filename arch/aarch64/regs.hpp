// aarch64 general registers: layout, names, argument and system call conventions. Pure; compiles on any host.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace probed::arch::aarch64 {

// struct user_pt_regs (asm/ptrace.h), which is NT_PRSTATUS's layout.
//
// What belongs to an interrupted system call is not in here. The number is a register set of its own
// (NT_ARM_SYSTEM_CALL), which the kernel clears before it lets a tracer look (arch/arm64/kernel/signal.c, do_signal),
// as it has already decided by then that the call is to be made again: the pc is in front of the svc and x0 holds the
// first argument once more. Where it has decided otherwise the argument is kept in orig_x0, which no register set
// shows.
struct Registers {
  std::array<std::uint64_t, 31> x;
  std::uint64_t stack_pointer;
  std::uint64_t program_counter;
  std::uint64_t pstate;

  bool operator==(const Registers&) const = default;
  std::uint64_t pc() const { return program_counter; }
  void set_pc(std::uint64_t value) { program_counter = value; }
  std::uint64_t sp() const { return stack_pointer; }
  void set_sp(std::uint64_t value) { stack_pointer = value; }
  // What the thread's own data is found by; 0: not known, it is in a register set of its own.
  std::uint64_t thread_pointer() const { return 0; }
  // svc keeps its return address in ELR_EL1, out of the program's sight: no register to mend.
  std::uint64_t link() const { return 0; }
  void set_link(std::uint64_t) {}
};
static_assert(sizeof(Registers) == 272, "user_pt_regs is 34 words");
static_assert(offsetof(Registers, stack_pointer) == 248 && offsetof(Registers, pstate) == 264);

inline constexpr unsigned kWordSize = 8;
inline constexpr unsigned kRegisterArguments = 8;
// At a function's first instruction and where it is left the return address is at sp, or in a register.
inline constexpr bool kCallPushesReturnAddress = false;
// Without its signature, which a function may have given it, and retaa checks: in bits that no address of a program's
// has set.
inline std::uint64_t return_address_register(const Registers& r) { return r.x[30] & ((std::uint64_t{1} << 48) - 1); }

// The offset in Registers of a register by the kernel's name (arch/arm64/kernel/ptrace.c: x0..x30, lr, sp, pc, pstate);
// nullopt: no such register.
std::optional<std::size_t> register_offset(std::string_view name);
// Every register once, by the kernel's name.
std::vector<std::string_view> register_names();

// The same by the number that debug information gives it (DWARF for the Arm 64-bit Architecture, section 4.1). The
// other one: of a register for floating-point numbers, v0 to v31.
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
// first argument of its own. AAPCS64 6.9: x8.
inline constexpr std::optional<std::size_t> kResultAddressRegister = offsetof(Registers, x) + 8 * kWordSize;
// Whether small structures are handed over by the class of each of their words, and what returns one that is in memory
// leaves its address where a number would be returned. AAPCS64 6.8.2, 6.9: neither.
inline constexpr bool kClassifiesWords = false;
// Where NT_PRFPREG has vector register N: 16 bytes each (struct user_fpsimd_state, vregs).
inline constexpr std::size_t kVectorsInRegisterSet = 0;
inline constexpr unsigned kVectorArguments = 8;  // floating-point arguments that come in vector registers
inline constexpr std::size_t kReturnValueOffset = offsetof(Registers, x);
// The register set that has what thread-local variables are counted from (linux/elf.h, NT_ARM_TLS), as its first word;
// nullopt: these registers have it.
inline constexpr std::optional<int> kThreadPointerSet = 0x401;
// Rights to memory by protection key: POR_EL0 (FEAT_S1POE), which no processor has yet that this was tried on.
inline constexpr std::optional<int> kKeyRightsSet = std::nullopt;
inline std::optional<std::uint32_t> lift_key_rights(std::span<std::byte>) { return std::nullopt; }
inline bool put_key_rights(std::span<std::byte>, std::uint32_t) { return false; }
// Where PTRACE_POKEUSER finds the pc; nullopt: the architecture has no such request.
inline constexpr std::optional<std::size_t> kPcInUserArea = std::nullopt;

// The architecture has none (PTRACE_GETREGS of x86): register sets do. What a thread has the kernel takes back, too: no
// user mode has a PSTATE that it refuses (arch/arm64/kernel/ptrace.c, valid_native_regs).
struct RegisterRequests {
  int get, set;
};
inline constexpr std::optional<RegisterRequests> kRegisterRequests = std::nullopt;

// A process is of one kind for good.
inline bool executes_native_code(const Registers&) { return true; }
inline constexpr std::uint64_t kOtherCodeBelow = 0;
inline bool pc_is_address(const Registers&) { return true; }

// ---- system calls ----

// Whether the registers of a thread that is stopped on its way out of a call still tell which it was, and whether the
// kernel looks at its result only after that stop.
inline constexpr bool kRegistersTellCall = false;
// The register set that holds the call's number, one int (linux/elf.h, NT_ARM_SYSTEM_CALL).
inline constexpr int kSystemCallSet = 0x404;
// What a thread loses by making a call, unless it is in one already: everything of its vector registers that isn't in
// the register set of floating-point numbers (Documentation/arm64/sve.rst, "System call behaviour"). As that set's
// header says (struct user_sve_header) it may have nothing of the kind; 0: so it has not. Else its size.
inline constexpr std::optional<int> kSetLostInCalls = 0x405;  // NT_ARM_SVE
inline constexpr std::size_t kLostSetHeader = 16;
inline std::size_t lost_set_size(std::span<const std::byte, kLostSetHeader> header) {
  const auto at = [&](std::size_t n) { return static_cast<std::uint32_t>(header[n]); };
  const bool has_vectors = (at(12) & 1) != 0;
  return has_vectors ? at(0) | at(1) << 8 | at(2) << 16 | at(3) << 24 : 0;
}
inline bool in_syscall(const Registers&) { return false; }
// Only of a thread that is known to be right behind a svc: programs may use x8 for what they like.
inline std::uint64_t syscall_number(const Registers& r) { return r.x[8]; }
inline std::int64_t syscall_result(const Registers& r) { return static_cast<std::int64_t>(r.x[0]); }
// Puts the thread back in front of the svc; its first argument is to be put into x0.
inline void rewind_syscall(Registers& r) { r.program_counter -= 4; }
inline void restart_unless_handled(Registers& r) { rewind_syscall(r); }
inline void set_first_argument(Registers& r, std::uint64_t value) { r.x[0] = value; }
// At the stop at a call's entry the number is in its own register set only.
inline void skip_syscall(Registers&) {}
// The reverse, with the result the program is to see.
inline void undo_rewind_syscall(Registers& r, std::int64_t result) {
  r.x[0] = static_cast<std::uint64_t>(result);
  r.program_counter += 4;
}
// Whether two register states are the same moment of a thread's execution.
inline bool same_execution(const Registers& a, const Registers& b) { return a == b; }
// n: 0 to 5.
inline std::uint64_t syscall_argument(const Registers& r, unsigned n) { return r.x[n]; }
// What the kernel has changed of `regs` so that the call that they are in front of is gone on with: it becomes
// restart_syscall (setup_restart_syscall in arch/arm64/include/asm/syscall.h).
inline void take_restart(Registers& regs, const Registers& now) { regs.x[8] = now.x[8]; }
// The number of that call, which stays in x8 behind it, where the program never put it.
inline constexpr std::optional<std::uint64_t> kRestartNumber = 128;
inline void set_syscall_number(Registers& r, std::uint64_t number) { r.x[8] = number; }
// Prepares registers so that resuming at a `svc #0` at `insn` performs call `nr`. Nobody has branched there: what a
// thread that was stopped behind an indirect branch still has of it (PSTATE.BTYPE) would make it a fault.
inline void prepare_syscall(Registers& r, std::uint64_t insn, std::uint64_t nr, const std::uint64_t (&args)[6]) {
  constexpr std::uint64_t kBranchType = 3 << 10;
  r.program_counter = insn;
  r.pstate &= ~kBranchType;
  r.x[8] = nr;
  for (std::size_t i = 0; i < 6; ++i) r.x[i] = args[i];
}
// The generic timer can always be read here.
inline bool stand_in_for_clock(Registers&, std::span<const std::uint8_t>, std::uint64_t) { return false; }
// svc #0
inline constexpr std::uint8_t kSyscallInsn[] = {0x01, 0x00, 0x00, 0xd4};

}  // namespace probed::arch::aarch64
