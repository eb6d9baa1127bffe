// Each stop, handed to one room after the other, and what becomes of the thread (act.hpp); and what is due by time.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"

namespace probed::tracer {

class Loop : public Room {
 public:
  using Room::Room;

  // Commands: engine.hpp says what they do.
  void handle(const Stop& stop);
  std::optional<Waiter::Clock::time_point> next_deadline() const;
  void check_deadlines();

  // Does what the act says, and logs it. Nothing but Act::none can be done to a thread that isn't known.
  // `facts`: of the stop that the act answers, for the log; empty: it answers none, or nobody wants to read them.
  void carry_out(pid_t tid, Act act, std::string_view facts = {});

 private:
  Act on_stop(Tracee& tracee, const WaitStatus& status);
  Act on_call(Tracee& tracee);
  bool give_back(Tracee& tracee, const WaitStatus& status);
  void let_go_on(Tracee& tracee, int signal);
  Act on_signal(Tracee& tracee, int signal);
  Act on_interrupt(Tracee& tracee, bool group_stop);
};

}  // namespace probed::tracer
