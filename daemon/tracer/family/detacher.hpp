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
  void detach(pid_t pid, Done done);
  void detach_all(std::function<void()> done);
  void forget_if_gone(pid_t pid);

  // Restores the process's text and asks its threads to stop. Those that are held leave at once: the process may be
  // forgotten when this returns. No-op while it is being detached already.
  void start_detach(Process& process);
  // Asks so many more threads of a process that is being detached to stop.
  void ask_to_leave(Process& process, std::size_t count);
  // What a stopped thread that is to leave does: it is detached when nothing of ours is in its way any more, or takes
  // the next step to that end. `wanted`: says why, and with which signal.
  Act prepare_to_leave(Tracee& tracee, const Act& wanted);
  // Act::leave when the thread's process is being detached, else Act::go_on.
  static Act go_on_or_leave(const Tracee& tracee, const char* why, int signal = 0);

  // Of threads that are to leave together (LettingGo::together_until): they go when all of them are held.
  void leave_if_complete(Process& process);
  // Not all have come in time: those that are held go, unless others may still run into what is being taken out.
  void leave_incomplete(Process& process);

  // The thread has ended, or is not ours any more. Its process stays, without threads perhaps. No-op when not known.
  void forget_tracee(pid_t tid);
  // Forgets those threads of a process being detached that we don't trace any more; with the last one, the process.
  void forget_vanished(Process& process);
  // Forgets a process that has no threads any more; who has asked for the detach is answered.
  void finish_detach_if_empty(Process& process);
  // The same, and the listener learns of its end, unless somebody has asked for the detach. nullopt: how isn't known.
  void tell_end(Process& process, std::optional<WaitStatus> how);

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
