// From a process that runs by itself to one whose every thread is traced.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"

namespace probed::tracer {

class Attacher : public Room {
 public:
  using Room::Room;

  // Commands: engine.hpp says what they do.
  Result<AttachResult> attach(pid_t pid, const AttachParams& params);

 private:
  Result<void> check_attachable(pid_t pid) const;
  Result<std::size_t> seize_threads(Process& process);
  bool forget_replaced_leader(Process& process);
  void settle(pid_t pid);
  std::optional<pid_t> handle_next(Waiter::Clock::duration at_most);
  Result<void> seize_sharers(Process& process);
  Result<AttachResult> try_attach(pid_t pid, const AttachParams& params);
};

}  // namespace probed::tracer
