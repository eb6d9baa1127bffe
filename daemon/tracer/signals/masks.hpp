// Which threads block the signals that we raise (trap_action.hpp), as far as it has to be known.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"

namespace probed::tracer {

class Masks : public Room {
 public:
  using Room::Room;

  // What the thread blocks, or blocked before the forced signal that it stands in. nullopt: nobody has seen it.
  std::optional<std::uint64_t> known_mask(const Tracee& tracee) const;
  // At each stop, before anything is done about it.
  void note_mask(Tracee& tracee, const WaitStatus& status);
  // As the thread is let go on: whether it is to be stopped at its system calls.
  bool watches(Tracee& tracee);

  // The actions of the process have just been learnt: if SIGTRAP has one, several threads are all watched for a moment.
  void watch_at_first(Process& process);
  // Jumps are about to be written, or there is a new thread: where faults have an action, all threads are watched for a
  // moment, once.
  void watch_first_faults(Process& process);
  // Some thread of that process blocks one of the signals and not everything. From now on it will be known which.
  void watch_everybody(const Tracee& tracee);
  // Whether some thread blocks one of the signals alone and isn't watched. False also where there are many threads.
  bool anybody_to_watch(const Process& process) const;
  // Before breakpoints are written, from a job in `tracee`: who is to be watched stands still, so that it will be.
  void stop_to_watch(const Tracee& tracee);
  // They have been. Until then who is watched stays so, also if the job is over before.
  void note_armed(Process& process);
  // The process is let go: if all of its threads are watched, they will be when it is attached again.
  void remember_watch(const Process& process);

 private:
  bool has_just_raised(const Tracee& tracee) const;
  bool must_watch(const Tracee& tracee);

  std::deque<TargetId> watched_before_;  // processes with threads that were seen to block SIGTRAP, the latest of them
};

}  // namespace probed::tracer
