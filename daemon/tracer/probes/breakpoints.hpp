// SIGTRAP: whose it is, and hits.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"
#include "daemon/tracer/signals/actions.hpp"

namespace probed::tracer {

class Breakpoints : public Room {
 public:
  using Room::Room;

  // Waiter::Guardian says what it does.
  bool secure(pid_t tid, int signal);

  // At the stop of a SIGTRAP. nullopt: the trap isn't ours.
  std::optional<Act> on_trap(Tracee& tracee);

 private:
  static bool take_trapped(Tracee& tracee, Tracee::Trapped& trapped);
  std::optional<Act> deal_with_trap(Tracee& tracee, const Tracee::Trapped& trapped);
  std::optional<Act> pass_step_of_copy(Tracee& tracee, const ptrace::Registers& regs);
  bool ran_into(const Tracee& tracee, const ptrace::Registers& regs, const SitePlan& plan, bool armed) const;
  void give_up_other_code(AddressSpace& space, RemoteAddr address);
  Act on_hit(Tracee& tracee, Site& site, ptrace::Registers& regs, const AfterTrap& after);
};

}  // namespace probed::tracer
