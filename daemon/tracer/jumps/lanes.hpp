// Which thread records into which lane of which line.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"

namespace probed::tracer {

class Lanes : public Room {
 public:
  using Room::Room;

  // Commands: engine.hpp says what they do.
  void find_threads(pid_t pid);

  // A stopped thread that may not have lanes in all the lines yet.
  void meet(Tracee& tracee);
  // Gives it those it lacks. `regs`: its own, at this stop.
  void give_lanes(Tracee& tracee, const ptrace::Registers& regs);
  // The thread is dead, or outside of detours for good.
  void take_lanes(Tracee& tracee);

  // At a vfork event: what is recorded by the creator's thread pointer is the child's until on_vfork_done(). The child
  // has not run yet.
  void lend_lanes(Tracee& parent, pid_t child);
  // At the event of that name.
  Act on_vfork_done(Tracee& parent);

  // Jumps have been written: threads without lanes are looked for in a moment, and again as long as there are such.
  void meet_soon(AddressSpace& space);
  // If it is time for that: asks those that run to stop when somebody has counted without a lane.
  void meet_the_rest(AddressSpace& space);
};

}  // namespace probed::tracer
