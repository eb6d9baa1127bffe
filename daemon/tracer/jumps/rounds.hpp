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

  // Begins a round in place of one that may be under way. `scan`: signal frames are looked for in the threads' stacks.
  // Some process has the space.
  void start_round(AddressSpace& space, bool scan);
  // Looks at some threads more; when the last one has been seen, or it takes too long, the round is over.
  void go_on_with_round(AddressSpace& space);
  // A stopped thread, for which a round may be waiting.
  void looked_at(Tracee& tracee);
  // As a thread is let go on that has been asked to stop (Tracee::interrupted_at): how long that was.
  void note_pause(const Tracee& tracee);

  // Calls `done` when every thread of these processes has been outside of detours since now; after seconds in any case.
  void when_unused(std::vector<Process*> touched, std::function<void()> done);
  // Answers those who wait for a round up to this one (~0ull: for any), or have waited long enough; then answer_fast().
  void answer_waiting(AddressSpace& space, std::uint64_t over);

 private:
  using Phase = Optimisation::Phase;
  bool passes(AddressSpace& space, const Tracee& tracee, std::uint64_t pc, std::uint64_t sp);
  void look_at(AddressSpace& space, pid_t tid);
  void round_is_over(AddressSpace& space);
};

}  // namespace probed::tracer
