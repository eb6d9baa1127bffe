// The state directory, and who puts targets right when this daemon is killed.
//
// The guard is a process of its own and in its own session, started before there is anything to put right, and again
// should it end: it waits for the end of a pipe that only the daemon and its tracer hold, and wakes a tracer that is
// stopped when its daemon has died. Whatever the daemon has taken out of its targets by then has no journal any more;
// the rest is recovered (tracer/recovery/recover.hpp). A lock keeps the next daemon off until that is done, and the
// guard off while a daemon works there.
#pragma once

#include <chrono>
#include <string>

#include "daemon/options.hpp"
#include "proto/base/fd.hpp"
#include "proto/base/result.hpp"

namespace probed {

// That the system refused something to do with a file or directory: "cannot WHAT PATH: why". code: an errno.
Error cannot(const char* what, const std::string& path, int code, std::string hint);

// Where the journals are: --state-dir, or beside the socket.
std::string state_directory(const Options& options);

class StateDirectory {
 public:
  // What is there is somebody else's, or no directory: a daemon that goes on without one doesn't then. What was written
  // there by others would be done to targets.
  static constexpr Reason kRefused = Reason::unsupported;

  // Makes the directory, or sees that it is this user's alone (base/own_files.hpp). Nothing in it is touched.
  static Result<StateDirectory> open(std::string path);
  // Waits while a guard, or another daemon, is at work there. Before anything in it is believed.
  Result<void> lock();
  const std::string& path() const { return path_; }
  // Empty as it is, it goes.
  void remove();
  // As above, when it isn't locked and was made by open().
  void unmake();

 private:
  std::string path_;
  bool made_ = false;
  UniqueFd lock_;
};

// The daemon may have any threads and descriptors by then: all of these are closed by the guard's exec. The answer is
// to be kept open; without one there is no guard, which the log says. Its other end is closed when the guard ends.
UniqueFd start_guard(const std::string& state_directory, const std::string& log_level);

// The guard's life; `lifetime`: its end of the pipe; `daemon`: a pidfd, or -1. An exit status.
int run_guard(int lifetime, int daemon, const std::string& state_directory);

// probed --recover.
int recover_by_hand(const std::string& state_directory);

}  // namespace probed
