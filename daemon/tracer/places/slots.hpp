// Threads in slots, the copies of probed instructions: in, stepped, out.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"

namespace probed::tracer {

class Slots : public Room {
 public:
  using Room::Room;

  void enter_slot(Tracee& tracee, RemoteAddr slot);
  void leave_slot(Tracee& tracee);
  void show_filtered_call(Tracee& tracee);
  bool move_out_of_slot(Tracee& tracee, ptrace::Registers& regs);
  Act deliver_in_slot(Tracee& tracee, int signal, ptrace::Registers& regs, const Slot& slot, RemoteAddr base);
  Act continue_past(Tracee& tracee, Site& site, ptrace::Registers& regs, bool step, int signal, bool hold = false);
  Act on_step(Tracee& tracee, int signal);

 private:
  static bool has_filter(const Tracee& tracee);
  Act finish_step(Tracee& tracee, ptrace::Registers& regs);
};

}  // namespace probed::tracer
