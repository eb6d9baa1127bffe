// Processes that are held: at their programs' beginning, and at what the dynamic loader has loaded.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/room.hpp"

namespace probed::tracer {

class Loader : public Room {
 public:
  using Room::Room;

  // Commands: engine.hpp says what they do.
  Result<void> resume_held(pid_t pid);
  void forget_hold(pid_t pid);
  void forget_keep(pid_t pid);
  void loader_may_go_on(pid_t root, std::uint64_t ticket);

  bool plant_entry_breakpoint(Process& process);
  bool loader_has_report(const Tracee& tracee, const ProbeProgram& program);
  Act hold_for_loader(Tracee& tracee);
  void release_late_loaders();
  Act on_entry_breakpoint(Tracee& tracee, ptrace::Registers& regs);

 private:
  void resume_held_threads(const Process& process);
  bool loader_is_at_work(Tracee& tracee, const ptrace::Registers& regs);

  std::uint64_t last_loader_ticket_ = 0;
};

}  // namespace probed::tracer
