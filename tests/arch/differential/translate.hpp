// What the tracer does to a thread that stops in a relocated copy, in terms of the sandbox's outcomes: the same rules
// as daemon/tracer/places/slot_threads.cpp (move_out_of_slot, deliver_in_slot). Pure.
#pragma once

#include <cstdint>

#include "arch/common.hpp"
#include "tests/arch/differential/sandbox.hpp"

namespace probed::test {

// One copy of an instruction and where it was put.
struct Placed {
  const arch::Copy& copy;
  std::uint64_t address;
  std::uint64_t original;

  bool contains(std::uint64_t pc) const { return pc >= address && pc < address + copy.size; }
  const arch::CopyPoint* point_at(std::uint64_t pc) const { return contains(pc) ? copy.at(pc - address) : nullptr; }
};

// Makes an outcome inside the copy look as it would have without one. False: it stopped at no boundary of the copy.
inline bool translate(const Placed& placed, Outcome& outcome) {
  arch::x86_64::Registers& regs = outcome.machine.regs;
  const std::uint64_t pc = regs.pc();
  if (!placed.contains(pc)) return true;
  const arch::CopyPoint* point = placed.point_at(pc);
  if (point == nullptr) return false;
  if (point->meaning == arch::CopyPoint::Meaning::after) {
    regs.set_pc(point->original_pc);
    if (point->fix_link) regs.set_link(point->link);
  } else {
    regs.set_sp(regs.sp() + static_cast<std::uint64_t>(std::int64_t{point->undo_sp}));
    const bool stale = placed.contains(regs.link());
    if (point->link != 0 && stale) regs.set_link(point->link);
    regs.set_pc(placed.original);
  }
  if (outcome.fault_address == pc) outcome.fault_address = regs.pc();
  return true;
}

}  // namespace probed::test
