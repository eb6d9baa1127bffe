// ^C and its like as something to wait for: SIGINT, SIGTERM and SIGHUP are blocked and read from a descriptor; SIGPIPE
// is ignored, so that a closed pipe is an error of write(2). One instance, on the main thread, before any child is
// started.
#pragma once

#include <csignal>

#include "proto/base/fd.hpp"
#include "proto/base/result.hpp"

namespace probed::client {

class Signals {
 public:
  // SIGHUP stays ignored where it was (nohup). SIGINT does not: shells start background jobs with it ignored, and
  // `kill -INT` must end a trace there too.
  static Result<Signals> install();
  Signals(Signals&&) = default;
  Signals& operator=(Signals&&) = delete;
  ~Signals();

  int fd() const { return fd_.get(); }  // readable while a signal is pending
  // Takes the pending signals. True: there were some. With `hangup`, SIGHUP is none of them, but told there.
  bool take(bool* hangup = nullptr);
  // In a child before exec: what we were started with. Async-signal-safe.
  void restore() const;

 private:
  Signals() = default;
  UniqueFd fd_;
  sigset_t old_mask_{};
  struct sigaction old_pipe_ {};
};

}  // namespace probed::client
