// New threads and processes, programs that are executed, and ends.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"

namespace probed::tracer {

class Family : public Room {
 public:
  using Room::Room;

  // The thread whose stop this is. null: none that we know, or a new task whose creator's event hasn't come.
  Tracee* tracee_of(const Stop& stop);
  // At the parent's clone, fork or vfork event.
  Act on_new_task(Tracee& parent);
  // A forked child at its first stop, before its first instruction: it is followed, or let go without our breakpoints.
  Act adopt_child(Tracee& child, Process& process);
  // At an exec event.
  Act on_exec(Tracee& tracee);
  // The thread has ended. With the last thread of a process, the end of the process is told.
  void bury(Tracee& tracee, const WaitStatus& status);
  // Lets go a new task whose creator died before its event could say whose it is.
  void release_orphan(pid_t tid);

 private:
  void claim(Tracee& child, Process& parent);
  void inherit_slot(Tracee& child, const Tracee& creator);
  void leave_birth_place(Tracee& child);
  bool forget_detours(Tracee& child, const AddressSpace& parent_space);
  Act release_copy(Tracee& child, AddressSpace& parent_space);
};

}  // namespace probed::tracer
