// A daemon for the life time of one trace, when none is there to be asked.
//
// It listens in a fresh directory that only this user may enter. It ends with us in every case: stop() asks it to; if
// we are killed, its --lifetime-fd reads end of file and it takes its probes out by itself. It is never killed by
// force: that could leave breakpoints in a target. Main thread; the destructor stops it.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <optional>
#include <string>

#include "client/connection.hpp"
#include "client/probectl/signals.hpp"
#include "proto/base/fd.hpp"

namespace probed::client {

// $PROBED_DAEMON, else beside this program: ../daemon/probed in a build tree, ../sbin/probed installed, or in
// the same directory. Errors: internal.
Result<std::string> find_daemon();

class PrivateDaemon {
 public:
  // Returns once its socket listens. Errors: internal, with the last line of its log; a signal ends the wait.
  static Result<PrivateDaemon> start(const std::string& program, const Signals& signals);
  PrivateDaemon(PrivateDaemon&& other) noexcept;
  PrivateDaemon& operator=(PrivateDaemon&&) = delete;
  ~PrivateDaemon() { stop(); }

  const std::string& socket() const { return socket_; }
  pid_t pid() const { return pid_; }
  // Ends it and removes its directory; says so on stderr when it takes too long and is left to end by itself.
  void stop();
  // The log's last line that is more than information; empty when there is none.
  std::string last_words() const;
  // How it ended, when it has, before its time: "killed by signal 9", "ended with status 1". Empty: it runs, or its end
  // was asked for.
  std::string sudden_end();
  // When it has ended: whether all that it had put into its targets has been taken out again. After a sudden end that
  // is its guard's work, which is waited for, 10 s.
  bool left_nothing();

 private:
  PrivateDaemon() = default;
  Result<void> make_directory();
  Result<void> spawn(const std::string& program, const Signals& signals);
  Result<void> wait_until_ready(const Signals& signals);
  std::string state_directory() const { return socket_ + ".state"; }
  std::optional<siginfo_t> end() const;  // how it ended; it is not reaped
  bool ended_in_order() const;

  std::string directory_, socket_;
  UniqueFd lifetime_, ready_, pidfd_;
  UniqueFd log_;  // in memory: nothing is left of it however we end
  pid_t pid_ = -1;
  std::optional<bool> left_nothing_;
};

}  // namespace probed::client
