// What both architectures say about instructions, in one vocabulary. Pure: no ptrace, no system calls, any host.
//
// Each arch folder declares the same functions in its own namespace (arch::x86_64, arch::aarch64) with the same file
// names; arch/arch.hpp picks the one this build traces. Addresses here are plain 64-bit values of the target.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace probed::arch {

// Why an instruction can't carry a probe. Each has one sentence of reason (describe()).
enum class Refusal : std::uint8_t {
  none,
  undecodable,         // not an instruction of this CPU, or cut off by the end of the mapping
  breakpoint,          // int3/int1/brk: already a breakpoint, or made to be one
  privileged,          // hlt, in, out, cli, ...: faults in user space anyway
  far_transfer,        // far call/jmp/ret, iret, sysexit: leaves this code segment
  software_interrupt,  // int n other than 0x80
  operand_override,    // a 66h branch (CPU vendors disagree on its meaning), a 67h RIP-relative operand
  exclusive,           // aarch64: inside an exclusive load/store sequence
  sequence,            // aarch64: works only directly behind or in front of its neighbours
  position,            // aarch64: signs or checks a return address with its own address
  stack_operand,       // a call whose target is rsp or lies where the call pushes the return address
  out_of_range,        // the copy can't reach what the instruction refers to from where injected memory is
  unsupported,         // this architecture's port doesn't do it yet
};

// How control leaves an instruction.
enum class Flow : std::uint8_t {
  next,       // falls through only (faults aside)
  jump,       // direct, unconditional
  cond_jump,  // direct, conditional: jcc, loop, jrcxz; cbz, tbz, b.cond
  call,       // direct
  indirect_jump,
  indirect_call,
  ret,
  syscall,
  transaction,  // xbegin: falls through, or aborts to its target
};

// Facts about one decoded instruction; made once when a probe is planned, stored, acted on later.
struct Insn {
  std::uint8_t length = 0;  // bytes; 0 when undecodable
  Flow flow = Flow::next;
  Refusal refusal = Refusal::none;
  bool pc_relative = false;             // has a PC-relative memory or address operand
  bool may_block = false;               // a system call: may sleep for ever, restart, or never return
  bool repeats = false;                 // a rep-prefixed string instruction: interruptible in the middle, pc stays
  bool sees_trap_flag = false;          // pushf/popf, syscall (r11), mov to ss: must never be single-stepped
  bool emulable = false;                // emulate() does it exactly from registers alone
  std::optional<std::uint64_t> target;  // of a direct branch, absolute
};

// What an ELF file says about itself in .note.gnu.property: a type, and a bit of its value.
struct FileProperty {
  std::uint32_t type, bit;
};

inline constexpr std::size_t kMaxInsnLength = 16;
// Room for the longest relocated copy of one instruction, any architecture, its data included.
inline constexpr std::size_t kMaxCopySize = 64;

// What a point inside a relocated copy means in terms of the original program. The thread's pc stands at
// copy + offset, i.e. before executing the copy's instruction there.
struct CopyPoint {
  enum class Meaning : std::uint8_t {
    before,  // nothing has happened yet: same as pc == original address
    middle,  // some of it has happened: step on until an `after` point or out of the copy; a synchronous fault here
             // is made to look as if nothing had happened by adding undo_sp to sp and setting pc to the original
             // address
    after,   // all of it has happened: same as pc == original_pc once the link register fix below is applied
  };
  std::uint8_t offset = 0;
  Meaning meaning = Meaning::before;
  std::int8_t undo_sp = 0;        // bytes, for middle
  bool fix_link = false;          // for after: set the syscall-clobbered register (rcx on x86-64) to link
  std::uint64_t original_pc = 0;  // where the original program would stand
  std::uint64_t link = 0;         // also on the `before` point of a system call: relocate.hpp says why
};

// The relocated form of one instruction: position-dependent code for one slot, ending in a jump to where the original
// would go on. One relocator serves the stepped copy, the boosted copy and the detour's tail.
struct Copy {
  std::array<std::uint8_t, kMaxCopySize> code{};
  std::uint8_t size = 0;              // bytes of code and data used
  std::array<CopyPoint, 6> points{};  // every instruction boundary of the copy, ascending offset
  std::uint8_t point_count = 0;

  std::span<const CopyPoint> all_points() const { return {points.data(), point_count}; }
  // The point at exactly this offset; null: not an instruction boundary of the copy.
  const CopyPoint* at(std::uint64_t offset) const {
    for (const CopyPoint& p : all_points())
      if (p.offset == offset) return &p;
    return nullptr;
  }
};

struct RelocateResult {
  Refusal refusal = Refusal::none;
  Copy copy;  // valid when refusal == none
};

// One sentence, no full stop: why such an instruction is refused.
std::string_view describe(Refusal refusal);

}  // namespace probed::arch
