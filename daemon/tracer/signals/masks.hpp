// Which threads block the signals that we raise (trap_action.hpp), as far as it has to be known.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"

namespace probed::tracer {

class Masks : public Room {
 public:
  using Room::Room;

  std::optional<std::uint64_t> known_mask(const Tracee& tracee) const;
  void note_mask(Tracee& tracee, const WaitStatus& status);
  bool watches(Tracee& tracee);
  void watch_at_first(Process& process);
  void watch_first_faults(Process& process);
  void watch_everybody(const Tracee& tracee);
  bool anybody_to_watch(const Process& process) const;
  void stop_to_watch(const Tracee& tracee);
  void remember_watch(const Process& process);

 private:
  bool has_just_raised(const Tracee& tracee) const;
  bool must_watch(const Tracee& tracee);

  std::deque<TargetId> watched_before_;  // processes with threads that were seen to block SIGTRAP, the latest of them
};

}  // namespace probed::tracer
