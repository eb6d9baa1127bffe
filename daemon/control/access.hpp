// Whether a client may still do to a process what it was once allowed to.
//
// Asio thread.
#pragma once

#include "daemon/control/part.hpp"

namespace probed::control {

class Access : public Part {
 public:
  using Part::Part;

  // An error says what the process has become: one that has ended, or that the client may not trace.
  Result<void> check_still_allowed(ClientId who, pid_t pid) const;
  // The same, and it is of the program that the process still runs what has been read of it.
  Result<void> check_same_program(ClientId who, pid_t pid, const symbols::TargetSymbols& read) const;
  static Error client_has_gone();
  // The target runs a program now that these clients may not trace: nothing of it is for them any more.
  void forget_denied(Target& target, const std::set<ClientId>& denied);
};

}  // namespace probed::control
