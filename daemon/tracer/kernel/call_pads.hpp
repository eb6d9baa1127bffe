// Where in a target borrowed threads make system calls for us (remote_syscall.hpp), so that one whose tracer dies in
// the middle finds its way back (arch/orphan.hpp).
//
// There must be such a place before anything can be mapped: what nothing uses of the last page of executable memory,
// behind the end of what was mapped, that of the vdso before all. (Where that has no room, native::kPadsInFiles, they
// are in the landing's page, and there is none before that.) Pads are found again by their marks, also by whoever comes
// after a killed daemon, and in copies of the memory. When the last thread is let go there are zeros again.
//
// Owning thread: the tracer thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <span>

#include "arch/arch.hpp"
#include "daemon/base/types.hpp"
#include "daemon/symbols/maps.hpp"
#include "daemon/tracer/kernel/memory.hpp"

namespace probed::tracer {

struct CallPad {
  TargetMemory* memory = nullptr;
  RemoteAddr at;          // 0: there is none
  RemoteAddr plain_call;  // then: any `syscall` instruction of the target's

  // A thread with these registers and this mask is about to be borrowed. False: the pad can't be written.
  bool begin(const arch::native::Registers& regs, std::uint64_t mask, std::span<const std::byte> vectors) const;
  // It is back.
  void end() const;
};

// A pad that no thread is on its way back through; at == 0: none can be had.
CallPad find_call_pad(TargetMemory& memory, pid_t pid);

// All that are there, whoever has made them, as far as there was room in the best place.
std::set<RemoteAddr> call_pads(TargetMemory& memory, pid_t pid);

// Where threads stand that a tracer has sent to a pad and that have not made its call yet.
std::set<std::uint64_t> calls_to_come(TargetMemory& memory, pid_t pid);

// Every pad that nobody stands in is as good as new: for who has every thread of an orphaned process stopped, at these
// places.
void free_call_pads(TargetMemory& memory, pid_t pid, const std::set<std::uint64_t>& occupied);

// Zeros in place of what was written at `pad`, if that is a pad in a file's memory, and `anyway` or free.
enum class Erase : std::uint8_t { free, anyway };
void erase_call_pad(TargetMemory& memory, RemoteAddr pad, Erase which);
// All that are free; for who has every thread stopped.
void erase_call_pads(TargetMemory& memory, pid_t pid);
bool in_call_pad(RemoteAddr pad, RemoteAddr pc);

// Those of `pads` that a thread may come back to from a handler: its stack refers to them; all of them where not all of
// that can be read. The thread is stopped. `maps`: of its process.
std::set<RemoteAddr> pads_in_stack(TargetMemory& memory, std::span<const symbols::Mapping> maps,
                                   const std::set<RemoteAddr>& pads, pid_t pid, pid_t tid,
                                   const arch::native::Registers& regs);

}  // namespace probed::tracer
