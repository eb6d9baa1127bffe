// New threads and processes, programs that are executed, and ends.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"

namespace probed::tracer {

class Family : public Room {
 public:
  using Room::Room;

  Tracee* tracee_of(const Stop& stop);
  Act on_new_task(Tracee& parent);
  Act adopt_child(Tracee& child, Process& parent);
  Act on_exec(Tracee& tracee);
  void bury(Tracee& tracee, const WaitStatus& status);
  void release_orphan(pid_t tid);

 private:
  void claim(Tracee& child, Process& parent);
  void inherit_slot(Tracee& child, const Tracee& creator);
  void leave_birth_place(Tracee& child);
  bool forget_detours(Tracee& child, const AddressSpace& parent_space);
  Act release_copy(Tracee& child, AddressSpace& parent_space);
};

}  // namespace probed::tracer
