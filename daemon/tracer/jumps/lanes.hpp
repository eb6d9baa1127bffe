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

  void meet(Tracee& tracee);
  void give_lanes(Tracee& tracee, const ptrace::Registers& regs);
  void lend_lanes(Tracee& parent, pid_t child);
  Act on_vfork_done(Tracee& parent);
  void take_lanes(Tracee& tracee);
  void meet_soon(AddressSpace& space);
  void meet_the_rest(AddressSpace& space);
};

}  // namespace probed::tracer
