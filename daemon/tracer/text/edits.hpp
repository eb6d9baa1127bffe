// What is written into a target's text, and taken out of it: breakpoints, jumps, second jumps in padding (islands).
// Nothing else writes there. Where a target is traced, books are kept of it, too (ledger.hpp); who cleans a copy of its
// memory, or what a daemon that was killed has left, has none.
//
// What takes out looks first, and leaves alone what isn't as it was put in: that is the program's. Who puts in has
// looked.
//
// Owning thread: the tracer thread; recovery's.
#pragma once

#include <cstddef>
#include <span>

#include "arch/arch.hpp"
#include "daemon/tracer/kernel/memory.hpp"
#include "daemon/tracer/program.hpp"
#include "daemon/tracer/text/layout.hpp"
#include "daemon/tracer/text/text_overlay.hpp"

namespace probed::tracer {

// Of a jump what the breakpoint has stood on, and what is behind that.
constexpr std::size_t kHeadSize = arch::native::kBreakpointSize;
template <class Bytes>
auto head_of(const Bytes& bytes) {
  return bytes.first(kHeadSize);
}
template <class Bytes>
auto tail_of(const Bytes& bytes) {
  return bytes.subspan(kHeadSize);
}

// Whether just these bytes are there; at most 64.
bool holds(const TargetMemory& memory, RemoteAddr at, std::span<const std::uint8_t> bytes);
// Whether the plan's instruction is there as the program has it.
bool holds_original(const TargetMemory& memory, const SitePlan& plan);
// Whether all of a patch's bytes are there.
bool stands(const TargetMemory& memory, const Patch& patch);

// What its breakpoint makes of the text.
Patch trap_patch(const SitePlan& plan);

// False: it can't be written.
bool put_trap(TargetMemory& memory, RemoteAddr at);
// False: it isn't there. What is mapped there now may be something else, with a breakpoint instruction of its own
// (linkers fill gaps with them).
bool take_out_trap(TargetMemory& memory, const SitePlan& plan, const Layout& layout);

// A jump in two steps, which are to be made in this order, with every thread seen outside in between; the breakpoint
// stands at its beginning before. False: it can't be written.
bool put_jump_tail(TargetMemory& memory, const Patch& jump);
bool put_jump_head(TargetMemory& memory, const Patch& jump);
// Its breakpoint over its first bytes, then the original ones behind that. False: it isn't there as it was written,
// whole or not. `whole`: its first bytes have been written; `sure`: whatever is there, it is the code that the jump was
// made for.
bool take_out_jump(TargetMemory& memory, const Patch& jump, bool whole, bool sure);
// The second of these two steps alone.
bool put_back_tail(TargetMemory& memory, const Patch& jump);
// A jump that somebody was killed over, in whatever stage it is: settle(), for the text itself. `running`: threads may
// come by, and get the breakpoint. False: there is nothing of it, or it can't be written.
bool settle_jump(TargetMemory& memory, const Patch& jump, bool running);

// False: it can't be written.
bool put_island(TargetMemory& memory, const Patch& island);
// No-op when it isn't there.
void take_out_island(TargetMemory& memory, const Patch& island);

// Takes what the program has moved out of where it is now. Whoever runs it meanwhile has the breakpoint first. False:
// it can't be written.
bool take_out_stray(TargetMemory& memory, const Stray& stray);

// In a copy of a traced memory that nobody runs in: bytes of a patch, in whatever stage, become the original ones, or
// the breakpoint (keep_trap).
struct Stain {
  Patch patch;
  bool keep_trap = false;
};
// stains: ascending.
void wash(TargetMemory& copy, std::span<const Stain> stains);

}  // namespace probed::tracer
