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

  // When threads are looked at next that may be in the middle of a load that waits.
  Waiter::Clock::time_point look_for_loads_at() const { return look_for_loads_at_; }
  void will_look_for_loads(Waiter::Clock::time_point at) { look_for_loads_at_ = std::min(look_for_loads_at_, at); }
  // Of a load that waits for its memory:
  std::optional<Act> skip_absent_load(Tracee& tracee, int signal);
  std::optional<Act> stand_in_for_clock(Tracee& tracee, int signal);
  std::optional<Act> pass_key(Tracee& tracee, int signal);
  static void give_keys_back(Tracee& tracee);
  std::optional<Act> turn_back(Tracee& tracee, int signal);
  Act deliver_in_detour(Tracee& tracee, int signal, ptrace::Registers& regs, const DetourPlace& place);
  Act go_on_with_own_mask(Tracee& tracee, int signal, const char* why);
  void leave_tail(Tracee& tracee, ptrace::Registers& regs, const DetourPlace& place, bool fault = false);
  void keep_from_jump(AddressSpace& space, Site& site);
  Act start_leaving(Tracee& tracee, int signal);
  Act call_while_leaving(Tracee& tracee);
  std::optional<Act> waits_to_leave(Tracee& tracee);
  std::optional<Act> unmark(Tracee& tracee, int& signal);
  void look_for_blocked_loads();
  void give_up_load(Tracee& tracee);

 private:
  void note_absent_load(AddressSpace& space, RemoteAddr address);
  Act let_leave(Tracee& tracee, const char* why);
  int send_mark(const Tracee& tracee);
  bool has_loads() const;

  Waiter::Clock::time_point look_for_loads_at_ = Waiter::Clock::time_point::max();
};

}  // namespace probed::tracer
