// Rounds: every thread of an address space seen outside of what is to be overwritten or forgotten.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"

namespace probed::tracer {

class Rounds : public Room {
 public:
  using Room::Room;

  // Commands: engine.hpp says what they do.
  bool awaits_interrupted();

  bool looked_at(Tracee& tracee);
  void note_pause(const Tracee& tracee);
  void start_round(AddressSpace& space, bool scan);
  void go_on_with_round(AddressSpace& space);
  void answer_waiting(AddressSpace& space, std::uint64_t over);
  void when_unused(std::vector<Process*> touched, std::function<void()> done);

 private:
  using Phase = Optimisation::Phase;
  bool passes(AddressSpace& space, const Tracee& tracee, std::uint64_t pc, std::uint64_t sp);
  void look_at(AddressSpace& space, pid_t tid);
  void round_is_over(AddressSpace& space);
};

}  // namespace probed::tracer
