// What a thread needs to go on by itself when its tracer has died: the vocabulary of both architectures.
//
// When a tracer dies the kernel lets its tracees go (kernel/ptrace.c, exit_ptrace) and delivers what they were stopped
// for: a thread that runs into one of our breakpoints gets a SIGTRAP that nobody takes away. The *landing* is code in
// the target that handles that signal there: it looks the breakpoint up in a table that the tracer has written before
// the breakpoint, and sends the thread to the relocated copy. While a tracer lives no SIGTRAP of ours gets that far.
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace probed::arch {

// The table, in the target: open addressing from the place that landing_hash() says, entries one behind the other, and
// behind the last place kLandingOverrun more, so that nothing ever wraps around; one that is all zeros ends a search.
// Nobody reads it while a tracer writes it.
struct LandingEntry {
  std::uint64_t trapped = 0;  // the pc of the trap, as native::breakpoint_address() gives it
  std::uint64_t landing = 0;  // where to go on; `trapped` itself: the breakpoint has been taken out
};
inline constexpr std::uint64_t kLandingOverrun = 64;
inline constexpr std::uint64_t kLandingFactor = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio
constexpr std::uint64_t landing_hash(std::uint64_t trapped, std::uint64_t capacity) {
  return ((trapped * kLandingFactor) >> 32) & (capacity - 1);
}

// What the code finds at kLandingData behind its beginning, in the target.
struct LandingData {
  std::uint64_t table = 0;  // address; 0: none
  std::uint64_t mask = 0;   // capacity, a power of two, minus 1
};
inline constexpr std::size_t kLandingData = 512;
inline constexpr std::size_t kLandingSize = kLandingData + sizeof(LandingData);

// The code: a handler for SIGTRAP with SA_SIGINFO, and the restorer that its action names.
struct LandingCode {
  std::vector<std::uint8_t> code;  // empty: this architecture's port has none yet
  std::uint32_t handler = 0, restorer = 0;
};

// A place for system calls that a borrowed thread makes for its tracer: the instruction for it, and behind that the way
// back into the program, by what the tracer has recorded there before it changed the thread. A thread whose tracer dies
// takes that way by itself; while one lives it is stopped in front of it. A pad has native::kCallPadSize bytes; at
// native::kCallPadData it holds a CallRecord of the architecture's; who borrows a thread marks it busy. The signal of
// the stop that a thread was borrowed in may come when the way back unblocks it, at native::kUnblocked, or at its
// beginning, where the tracer does: there it is to be taken for one of ours.
struct CallPadHead {
  static constexpr std::uint64_t kMark = 0x6461706c6c616370;  // "pcallpad"
  std::uint64_t mark = kMark, busy = 0;
};

}  // namespace probed::arch
