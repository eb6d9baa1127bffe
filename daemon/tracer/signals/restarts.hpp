// System calls that our stops have interrupted, made again as if nothing had happened.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"

namespace probed::tracer {

class Restarts : public Room {
 public:
  using Room::Room;

  // Commands: engine.hpp says what they do.
  void keep_call(pid_t tid);

  void put_back_interrupted_call(Tracee& tracee);
  void make_call_again(Tracee& tracee, ptrace::Registers& regs);
  void note_restart(Tracee& tracee, const WaitStatus& status);
  void mend_restart(Tracee& tracee);
};

}  // namespace probed::tracer
