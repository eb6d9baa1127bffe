// Threads in detours: what they may not run into there, and how they get out early.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/places/detours.hpp"
#include "daemon/tracer/room.hpp"

namespace probed::tracer {

class DetourThreads : public Room {
 public:
  using Room::Room;

  // The next four: at a signal's stop. nullopt: the signal comes from nothing of the kind.
  // A load of an argument that can't be read: the thread goes on behind it, and the argument is absent.
  std::optional<Act> skip_absent_load(Tracee& tracee, int signal);
  // The process may not read the clock of the records: this record gets its time, and there are no more jumps.
  std::optional<Act> stand_in_for_clock(Tracee& tracee, int signal);
  // The thread may not use memory of protection key 0, as ours is: it may until give_keys_back(), and there are no more
  // jumps.
  std::optional<Act> pass_key(Tracee& tracee, int signal);
  // The thread has just come by a jump and can't go on: it goes back, and runs into the breakpoint.
  std::optional<Act> turn_back(Tracee& tracee, int signal);

  // As the thread is let go on: puts its rights by protection key back if it is outside of generated code.
  static void give_keys_back(Tracee& tracee);

  // A signal of the program's own for a thread at that place in a detour.
  Act deliver_in_detour(Tracee& tracee, int signal, ptrace::Registers& regs, const DetourPlace& place);
  // With a signal that an instruction of the program has raised: a thread that is leaving a detour has the program's
  // mask for it.
  Act go_on_with_own_mask(Tracee& tracee, int signal, const char* why);

  // Gets a thread out of generated code, all other signals blocked; then the signal is delivered (0: none).
  Act start_leaving(Tracee& tracee, int signal);
  // Of a thread that is leaving, at a stop that our interrupt has made. nullopt: it isn't leaving, or has left, and
  // nothing has been held back.
  std::optional<Act> waits_to_leave(Tracee& tracee);
  // At its next system call.
  Act call_while_leaving(Tracee& tracee);
  // At a signal's stop: makes of the mark the first signal that was held back, which the thread gets now. An act: it
  // gets none.
  std::optional<Act> unmark(Tracee& tracee, int& signal);
  // Translates a pc in the tail, or at a detour's very beginning, to the original program; any other stays. `fault`: of
  // the program's own, there.
  void leave_tail(Tracee& tracee, ptrace::Registers& regs, const DetourPlace& place, bool fault = false);
  // The program is about to go on in the middle of what a jump there replaces, or may do so: a breakpoint has to be
  // enough for a while, and for good when that has happened some times.
  void keep_from_jump(AddressSpace& space, Site& site);

  // When threads are looked at next that may be in the middle of a load that waits for its memory.
  Waiter::Clock::time_point look_for_loads_at() const { return look_for_loads_at_; }
  // Not later than at that time.
  void will_look_for_loads(Waiter::Clock::time_point at) { look_for_loads_at_ = std::min(look_for_loads_at_, at); }
  // If it is time: asks those to stop that have not run since the last look.
  void look_for_blocked_loads();
  // At a stop that isn't a signal's: a thread that waits for too long in a load goes on behind it.
  void give_up_load(Tracee& tracee);

 private:
  void note_absent_load(AddressSpace& space, RemoteAddr address);
  Act let_leave(Tracee& tracee, const char* why);
  int send_mark(const Tracee& tracee);
  bool has_loads() const;

  Waiter::Clock::time_point look_for_loads_at_ = Waiter::Clock::time_point::max();
};

}  // namespace probed::tracer
