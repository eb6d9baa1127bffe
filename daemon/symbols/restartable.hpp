// Restartable sequences (rseq(2)): code that the kernel sends to an abort handler when its thread is interrupted in it.
// Whoever executes such an instruction elsewhere takes that away from it. Pure but for the reading of memory.
//
// Format: struct rseq_cs of linux/rseq.h, 32 bytes each, in section __rseq_cs, where compilers' and libraries' macros
// put them; the addresses in it are relocated, so they are read from the target's memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "daemon/base/types.hpp"

namespace probed::symbols {

struct RestartableSequence {
  RemoteAddr start, end;  // of the sequence itself
  RemoteAddr abort;       // where its thread goes on; the four bytes before are a signature that the kernel checks

  bool covers(RemoteAddr a) const { return (start <= a && a < end) || (abort.value - 4 <= a.value && a < abort); }
};

// section: the whole of __rseq_cs as it is in memory. Damaged entries are left out.
std::vector<RestartableSequence> parse_restartable_sequences(std::span<const std::byte> section);

}  // namespace probed::symbols
