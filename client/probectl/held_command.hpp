// `-- CMD ARG...`: a child that waits before its exec, so that the daemon is attached when the program begins. Main
// thread. If we end before release(), the child ends without having run anything of CMD.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>

#include "client/connection.hpp"
#include "client/probectl/signals.hpp"
#include "proto/base/fd.hpp"

namespace probed::client {

class HeldCommand {
 public:
  // tracer: the private daemon's pid, which may then trace the child even where Yama allows a parent only; 0: none.
  // Errors: internal.
  static Result<HeldCommand> fork(std::span<const std::string> command_line, const Signals& signals, pid_t tracer);
  HeldCommand(HeldCommand&& other) noexcept;
  HeldCommand& operator=(HeldCommand&&) = delete;
  ~HeldCommand();

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }
  // Lets it exec. Errors: bad_params, CMD cannot be executed; internal when a signal came first.
  Result<void> release(const WaitLimit& limit);
  // Ends it; for a program that has not begun to run.
  void kill();
  // How it has ended: " (exit code 3)", " (killed by signal 9)", or nothing where that isn't known any more. nullopt:
  // it still runs `patience` ms later.
  std::optional<std::string> reap(int patience = 0);

 private:
  HeldCommand() = default;

  std::string name_;
  UniqueFd go_;           // a byte lets the child go on
  UniqueFd exec_status_;  // end of file: exec succeeded; else its errno
  UniqueFd pidfd_;
  pid_t pid_ = -1;
};

}  // namespace probed::client
