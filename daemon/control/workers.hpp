// The threads that read symbols and plan probes, and whose turn it is.
//
// Every user has a share: so many jobs of his are under way at a time, whatever he asks for, and one of them is kept
// for changes to probes, which look-ups can't hold up. Users take turns. Root, and the daemon's own user, have threads
// that nobody else's jobs ever take. A job that doesn't come back (a network file system whose server is gone) stays
// its user's: it counts in his share, and no longer among those that all users have together.
//
// Thread: any may post; jobs run on threads of their own, one each. Invariants: a job is run once, or dropped at the
// end; late() is called at most once, while the job is still under way.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "daemon/base/memory_share.hpp"

namespace probed::control {

enum class Work : std::uint8_t { look, change };

struct Job {
  uid_t user = 0;
  Work kind = Work::look;
  std::function<void()> run;
  std::function<void()> late;  // it is under way for longer than its limit; may be null
};

// Which job is next; a decision alone, without threads. Not thread-safe.
class Turns {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr unsigned kPrivileged = 4;         // jobs of root's, and of the daemon's own user's, at a time
  static constexpr unsigned kUsers = 4;              // of all others together
  static constexpr unsigned kOfUser = 3;             // of one of them
  static constexpr unsigned kLooks = 2;              // of these, look-ups; of privileged ones kPrivileged - 1
  static constexpr std::chrono::seconds kStuck{10};  // then a job no longer counts among those of all users

  explicit Turns(uid_t own_user) : own_user_(own_user) {}

  struct Running {
    uid_t user = 0;
    Work kind = Work::look;
    Clock::time_point since;
    std::function<void()> late;
  };
  using Handle = std::list<Running>::iterator;

  void put(Job job);
  // The next job that may begin, which is under way from now on; nullopt: none may.
  std::optional<std::pair<Job, Handle>> take(Clock::time_point now);
  void ended(Handle job) { running_.erase(job); }
  void drop_waiting() { waiting_.clear(); }

  bool any_waits() const { return !waiting_.empty(); }
  std::list<Running>& running() { return running_; }
  bool is_privileged(uid_t user) const { return user == 0 || user == own_user_; }

 private:
  struct Waiting {
    std::deque<Job> looks, changes;
  };
  bool may_begin(uid_t user, Work kind, Clock::time_point now) const;

  uid_t own_user_;
  std::map<uid_t, Waiting> waiting_;
  uid_t last_ = 0;  // who had his turn
  std::list<Running> running_;
};

class Workers {
 public:
  static constexpr std::chrono::seconds kUsersLimit{120}, kPrivilegedLimit{900};  // for one job

  Workers();
  ~Workers();  // waits for what is under way
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  void post(Job job);
  // Drops what waits, and gives what is under way that long. How many jobs are left.
  std::size_t stop(std::chrono::milliseconds patience);
  // Of the calling worker's job: it has been at work for too long, and what it has found isn't whole.
  static bool out_of_time();
  // Likewise: what its user's files unfold to is more than the daemon has for them.
  static bool out_of_memory();

 private:
  void start_thread();
  void work();
  void look_for_late_ones();

  std::shared_ptr<MemoryShare> share_of(uid_t user);

  std::mutex mutex_;
  std::map<uid_t, std::weak_ptr<MemoryShare>> shares_;  // of users with a bound
  std::condition_variable more_, fewer_;
  Turns turns_;
  unsigned threads_ = 0, idle_ = 0;
  bool stopping_ = false;
};

}  // namespace probed::control
