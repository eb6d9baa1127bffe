// Every thread of a process that a dead daemon has left, seized, brought to a stop in which nothing of ours is on its
// way to it, and let go.
//
// Owning thread: recovery's.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "daemon/tracer/kernel/wait.hpp"
#include "daemon/tracer/text/journal.hpp"

namespace probed::tracer {

class StoppedThreads {
 public:
  using Kind = WaitStatus::Kind;

  // landings: the addresses of our handlers of SIGTRAP, or their pages'; 0: there is none.
  StoppedThreads(Waiter& waiter, pid_t pid, std::vector<std::uint64_t> landings)
      : waiter_(waiter), pid_(pid), landings_(std::move(landings)) {}

  // False: another tracer has it, or it may not be traced; nothing has been stopped.
  bool seize();
  // False: some are in an uninterruptible wait, or get no processor at all.
  bool stop();
  void let_go();

  // By thread, with the stop that it stands in.
  const std::map<pid_t, Kind>& stopped() const { return stopped_; }
  pid_t pid() const { return pid_; }
  std::set<std::uint64_t> places() const;
  // nullopt: it has ended, or has been borrowed.
  void now_stands_in(pid_t tid, std::optional<Kind> stop);

  // The daemon had told a thread to make a call, which it has not come to: made later, it would be behind our back.
  void skip_calls(const std::set<std::uint64_t>& to_come) const;
  // What is noted of a thread whose mask is as it was noted; the signal once.
  void give_back(HeldSignals& held);

 private:
  void send_back(const HeldSignals& held, Kind stop);
  void inject(const HeldSignals& held);
  bool seize_others();
  void gather();
  void handle(const Stop& stop);
  bool is_ours(pid_t tid) const;
  bool is_landing(pid_t tid) const;
  bool forget_replaced_leader();
  void forget(pid_t tid);

  Waiter& waiter_;
  pid_t pid_;
  std::vector<std::uint64_t> landings_;
  std::set<pid_t> running_;
  bool refused_ = false;  // some thread belongs to another tracer
  std::map<pid_t, Kind> stopped_;
};

}  // namespace probed::tracer
