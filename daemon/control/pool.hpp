// Work on symbols and plans that would keep the Asio thread, and what is said when it takes too much.
//
// Asio thread.
#pragma once

#include "daemon/control/part.hpp"

namespace probed::control {

class Pool : public Part {
 public:
  using Part::Part;

  // Runs make() on a worker, and done() here with the Result that it gives. A job that takes too long is answered for;
  // what it gives later is dropped. Nothing that make() changes may be seen from here before done().
  template <class Make, class Done>
  void at_work(uid_t user, Work kind, Make make, Done done);
  // An error: that user's target would be one too many for the daemon's descriptors. An attached one never is, nor one
  // that root or the daemon's own user asks for.
  Result<void> check_descriptors(uid_t user, pid_t pid) const;

 private:
  static Error took_too_long();
  static Error takes_too_much();
  static Error no_memory();
};

}  // namespace probed::control
