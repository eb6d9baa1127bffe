// Debug files from the debuginfod servers that DEBUGINFOD_URLS names, through elfutils' client library, which keeps
// them on disk (DEBUGINFOD_CACHE_PATH).
//
// Thread: any; several at once. A fetch blocks its thread, which is why it is only made in the worker pool. Invariants:
// no fetch lasts longer than kLongest, or than a moment once stop() was called; what couldn't be had isn't asked for
// again for a while, and a server that doesn't answer makes nobody else wait for it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <map>
#include <mutex>
#include <span>
#include <string>

#include "proto/base/fd.hpp"

namespace probed::symbols {

class Debuginfod {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kLongest{20};     // one file
  static constexpr std::chrono::seconds kAskAgain{300};   // what a server doesn't have
  static constexpr std::chrono::seconds kServerRest{60};  // after a server hasn't answered in time

  // False: no servers are named, or this build lacks the library.
  static bool available();

  // The debug file of this build-id; empty: there is none to be had now. The caller compares its build-id.
  UniqueFd fetch(std::span<const std::byte> build_id);
  // Ends the fetches under way, and makes later ones do nothing.
  void stop() { stopped_ = true; }

 private:
  bool refused(const std::string& id);
  void note_failure(const std::string& id, bool late);

  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;
  std::map<std::string, Clock::time_point> ask_again_;  // by build-id, in hexadecimal digits
  Clock::time_point servers_rest_until_{};
};

}  // namespace probed::symbols
