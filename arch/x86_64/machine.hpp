// What files and address spaces of this architecture look like. Constant data.
#pragma once

#include <elf.h>
#include <linux/audit.h>

#include <cstdint>
#include <optional>

#include "arch/common.hpp"

namespace probed::arch::x86_64 {

inline constexpr Elf64_Half kElfMachine = EM_X86_64;
// Relocations that the loader writes the address of a function by: what a resolver returns; a symbol's.
inline constexpr std::uint32_t kRelocationByResolver = R_X86_64_IRELATIVE;
// What it writes the address of a variable by, where code of several modules may mean the same one.
inline constexpr std::uint32_t kRelocationOfData = R_X86_64_GLOB_DAT;
// What the loader answers with a module's number, and with a variable's offset from the thread pointer.
inline constexpr std::uint32_t kRelocationOfThreadModule = R_X86_64_DTPMOD64;
inline constexpr std::uint32_t kRelocationOfThreadOffset = R_X86_64_TPOFF64;
// Of a pair of words by which a variable's place is asked for, the second of which tells it; nullopt: the loader fills
// them in when they are used first, and until then the second says something else (glibc, elf_machine_lazy_rel).
inline constexpr std::optional<std::uint32_t> kRelocationOfThreadDescriptor = std::nullopt;
inline constexpr std::uint32_t kRelocationsBySymbol[] = {R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT, R_X86_64_64};

// Where the main program has its thread-local variables, `size` bytes with an alignment of 2^n, from the thread pointer
// on: right below it (ELF Handling For Thread-Local Storage, variant II).
constexpr std::uint64_t main_thread_block(std::uint64_t size, std::uint64_t alignment) {
  return 0 - (size + alignment - 1) / alignment * alignment;
}
// Where it has the address of the vector of all modules' blocks (glibc, sysdeps/x86_64/nptl/tls.h: tcbhead_t).
inline constexpr std::uint64_t kThreadVectorAt = 8;

// What says that indirect branches have to arrive at landing pads. Linux lets no program ask for that here
// (arch/x86/kernel/cet.c, 6.18).
inline constexpr std::optional<FileProperty> kGuardProperty = std::nullopt;

// Every instruction begins at a multiple of this.
inline constexpr std::uint64_t kInsnAlignment = 1;

// Below every program's end of the address space.
inline constexpr std::uint64_t kHighestAddress = 0x7fff'ffff'0000;
// What a pointer leads to: all of its bits count.
constexpr std::uint64_t without_tag(std::uint64_t pointer) { return pointer; }
// How far from an instruction its copy may be, so that relocated operands and jumps within the module still reach
// (±2 GiB).
inline constexpr std::uint64_t kCopyReach = 0x6000'0000;

// A 64-bit program's `int $0x80` makes a call of the 32-bit table (arch/x86/entry/syscalls/syscall_32.tbl).
inline constexpr std::uint32_t kOtherCalls = AUDIT_ARCH_I386;
// Those of them that can be made again when they return EINTR, see tracer/kernel/interrupted_calls.hpp.
inline constexpr std::uint16_t kOtherMadeAgain[] = {
    3,   4,                        // read, write
    82,  142, 308, 413,            // select, _newselect, pselect6, pselect6_time64
    309, 414,                      // ppoll, ppoll_time64
    102, 117,                      // socketcall, ipc
    145, 146,                      // readv, writev
    177, 421,                      // rt_sigtimedwait, rt_sigtimedwait_time64
    180, 181, 333, 334,            // pread64, pwrite64, preadv, pwritev
    240, 422,                      // futex, futex_time64
    247, 426,                      // io_getevents, io_uring_enter
    256, 319, 441,                 // epoll_wait, epoll_pwait, epoll_pwait2
    337, 345, 417,                 // recvmmsg, sendmmsg, recvmmsg_time64
    362, 364, 369, 370, 371, 372,  // connect, accept4, sendto, sendmsg, recvfrom, recvmsg
    400, 401, 420,                 // msgsnd, msgrcv, semtimedop_time64
};

}  // namespace probed::arch::x86_64
