// Threads and processes that are let go: asked to stop, led out of our code, their memory and their actions as the
// program had them; and those that have ended.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"

namespace probed::tracer {

class Detacher : public Room {
 public:
  using Room::Room;

  // Commands: engine.hpp says what they do.
  void forget_if_gone(pid_t pid);
  void detach(pid_t pid, Done done);
  void detach_all(std::function<void()> done);

  void forget_tracee(pid_t tid);
  void start_detach(Process& process);
  void forget_vanished(Process& process);
  void leave_if_complete(Process& process);
  void leave_incomplete(Process& process);
  void ask_to_leave(Process& process, std::size_t count);
  void finish_detach_if_empty(Process& process);
  // It has no threads any more: whoever is concerned learns of it, and it is forgotten. how: nullopt: not known.
  void tell_end(Process& process, std::optional<WaitStatus> how);
  Act prepare_to_leave(Tracee& tracee, const Act& wanted);
  static Act go_on_or_leave(const Tracee& tracee, const char* why, int signal = 0);

 private:
  bool some_still_run(const Process& process) const;
  void leave_together(Process& process);
  void forget_process(Process& process);
  bool leave_no_trace(Tracee& tracee, AddressSpace& space);
  std::optional<Act> leave_our_code(Tracee& tracee, ptrace::Registers& regs, int signal);
  int end_step(Tracee& tracee, int signal);

  std::vector<std::function<void()>> all_detached_;
};

}  // namespace probed::tracer
