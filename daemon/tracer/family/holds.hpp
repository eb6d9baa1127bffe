// Processes that are held: at their programs' beginning, and at what the dynamic loader has loaded.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"

namespace probed::tracer {

class Holds : public Room {
 public:
  using Room::Room;

  // Commands: engine.hpp says what they do.
  Result<void> resume_held(pid_t pid);
  void forget_hold(pid_t pid);
  void forget_keep(pid_t pid);
  void loader_may_go_on(pid_t root, std::uint64_t ticket);

  // A breakpoint for the one thread of a program that has just been started: where its libraries are in place and no
  // constructor has run; at its entry point when its loader can't be asked. False: neither can be had.
  bool plant_entry_breakpoint(Process& process);
  // At that breakpoint, which comes out. `regs`: behind it.
  Act on_entry_breakpoint(Tracee& tracee, ptrace::Registers& regs);

  // At a hit of a program that watches the loader: whether its report is worth a look; the listener is told then.
  bool loader_has_report(const Tracee& tracee, const ProbeProgram& program);
  // Keeps the thread whose report has just been told of stopped until loader_may_go_on(), or for some seconds.
  Act hold_for_loader(Tracee& tracee);
  // Threads that have been kept so for too long go on.
  void release_late_loaders();

 private:
  void resume_held_threads(const Process& process);
  bool loader_is_at_work(Tracee& tracee, const ptrace::Registers& regs);

  std::uint64_t last_loader_ticket_ = 0;
};

}  // namespace probed::tracer
