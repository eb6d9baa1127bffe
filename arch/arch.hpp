// The only arch header that generic code includes. `arch::native` is the architecture this build traces; both folders
// declare the same interface:
//
//   decode.hpp    Insn decode(std::span<const std::uint8_t> bytes, std::uint64_t address);
//                   bytes: from the instruction on, as many as are readable, at most kMaxInsnLength are looked at.
//   context.hpp   Refusal refusal_in_context(std::span<const std::uint8_t> code, std::size_t at): what surrounds the
//                   instruction at offset `at` and forbids a probe; kContextReach bytes on either side are looked at
//   machine.hpp   kElfMachine, the loader's relocations, kInsnAlignment, kHighestAddress, kCopyReach
//   refusals.hpp  refused_forms(): what can't carry a probe, for people: rows of what, example, refusal, why
//   relocate.hpp  RelocateResult relocate(std::span<const std::uint8_t> insn_bytes, const Insn&, std::uint64_t
//   original,
//                                         std::uint64_t copy_address);
//                 std::size_t copy_room(const Insn&): the most bytes of its copy
//   emulate.hpp   bool emulate(std::span<const std::uint8_t> insn_bytes, const Insn&, Registers&);
//                   Registers.pc is the instruction's address; true: registers are as after it. Only when
//                   insn.emulable.
//   exits.hpp     where a function is left, in terms of arch/exits.hpp: plan_exits(), return_slot(), step_out()
//   detour.hpp    code for jump-optimised probes, in terms of arch/detour.hpp: detour_features(), build_runtime(),
//                   build_detour(), detour_jump(), kFindsPointerInMemory. The code's contract with the rest: capture
//                   part and tail as arch::Detour describes them; records, lanes and counters as arch::channel does.
//   region.hpp    which bytes the jump to a detour may replace, in terms of arch/region.hpp: analyse_code(),
//                   plan_region(), plan_pun(), pun_range(), short_jump()
//   orphan.hpp    the code that threads land in when their tracer has died, in terms of arch/orphan.hpp: kHasLanding,
//                 build_landing(), mark_dealt_with(Registers)
//   trap.hpp      kBreakpoint (bytes), breakpoint_address(pc after the trap), kTrapMovesPc, is_breakpoint(bytes),
//                 steps_itself(Registers)
//   regs.hpp      Registers (layout of NT_PRSTATUS), pc/sp/set_pc/..., register_value(Registers, name), argument(n),
//                   return_value, syscall convention, clone flags
//   operand.hpp   what assemblers call registers and memory, for static probes: parse_operand()
#pragma once

#include "arch/common.hpp"
#include "arch/operand.hpp"

#if defined(__x86_64__)
#include "arch/x86_64/blacklist.hpp"
#include "arch/x86_64/context.hpp"
#include "arch/x86_64/decode.hpp"
#include "arch/x86_64/detour.hpp"
#include "arch/x86_64/emulate.hpp"
#include "arch/x86_64/exits.hpp"
#include "arch/x86_64/machine.hpp"
#include "arch/x86_64/orphan.hpp"
#include "arch/x86_64/refusals.hpp"
#include "arch/x86_64/region.hpp"
#include "arch/x86_64/regs.hpp"
#include "arch/x86_64/relocate.hpp"
#include "arch/x86_64/trap.hpp"
namespace probed::arch {
namespace native = x86_64;
}
#elif defined(__aarch64__)
#include "arch/aarch64/blacklist.hpp"
#include "arch/aarch64/context.hpp"
#include "arch/aarch64/decode.hpp"
#include "arch/aarch64/detour.hpp"
#include "arch/aarch64/emulate.hpp"
#include "arch/aarch64/exits.hpp"
#include "arch/aarch64/machine.hpp"
#include "arch/aarch64/orphan.hpp"
#include "arch/aarch64/refusals.hpp"
#include "arch/aarch64/region.hpp"
#include "arch/aarch64/regs.hpp"
#include "arch/aarch64/relocate.hpp"
#include "arch/aarch64/trap.hpp"
namespace probed::arch {
namespace native = aarch64;
}
#else
#error "probed traces x86-64 and aarch64 only"
#endif
