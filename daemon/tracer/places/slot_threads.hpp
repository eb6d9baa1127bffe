// Threads in slots, the copies of probed instructions: in, stepped, out.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"

namespace probed::tracer {

class SlotThreads : public Room {
 public:
  using Room::Room;

  // At a hit: sends the thread on, to the jump's tail or the slot, or behind an emulated instruction. `regs`: at the
  // site. `step`: the copy is to be stepped. `hold`: as Holds::hold_for_loader(), unless there is a signal to take.
  Act continue_past(Tracee& tracee, Site& site, ptrace::Registers& regs, bool step, int signal, bool hold = false);
  // At a signal's stop while the thread is being stepped.
  Act on_step(Tracee& tracee, int signal);
  // A signal for a thread whose pc is in a slot: the handler must see the original program. `base`: the slot's.
  Act deliver_in_slot(Tracee& tracee, int signal, ptrace::Registers& regs, const Slot& slot, RemoteAddr base);
  // At the entry or exit of a system call that is made in a slot: a seccomp filter sees it where the program makes it.
  void show_filtered_call(Tracee& tracee);

  // The thread is in that slot from now on; it is in none any more.
  void enter_slot(Tracee& tracee, RemoteAddr slot);
  void leave_slot(Tracee& tracee);
  // The same, and translates a pc inside a slot to the original program, whose breakpoint is out, by undoing what is
  // half done. True: regs have changed; they are the caller's to set.
  bool move_out_of_slot(Tracee& tracee, ptrace::Registers& regs);

 private:
  struct InCopy;

  static bool has_filter(const Tracee& tracee);
  Act end_step(Tracee& tracee, ptrace::Registers& regs, siginfo_t& info, const InCopy& where);
  Act break_step(Tracee& tracee, int signal, ptrace::Registers& regs, const siginfo_t& info, const InCopy& where);
  Act finish_step(Tracee& tracee, ptrace::Registers& regs);
};

}  // namespace probed::tracer
