// System calls that our stops have interrupted, made again as if nothing had happened.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"

namespace probed::tracer {

class Restarts : public Room {
 public:
  using Room::Room;

  // Waiter::Guardian says what it does.
  void keep_call(pid_t tid);

  // At the stop of our interrupt: if that has made a call fail, make_call_again().
  void put_back_interrupted_call(Tracee& tracee);
  // Puts the thread in front of the call that was interrupted. `regs`: its registers, which are changed.
  void make_call_again(Tracee& tracee, ptrace::Registers& regs);
  // At each stop: whether the call that the thread waits in may be gone on with in another's name (InProgram::Restart).
  void note_restart(Tracee& tracee, const WaitStatus& status);
  // At a call's entry or behind it: the call has its own number again.
  void mend_restart(Tracee& tracee);
};

}  // namespace probed::tracer
