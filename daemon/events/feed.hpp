// One address space's channel as the two sides of the daemon share it: the tracer thread fills in who its threads are,
// the Asio thread drains it.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/base/alone.hpp"
#include "daemon/events/channel.hpp"

namespace probed::events {

// Which thread has which thread pointer: the records of the shared lane carry nothing else. Any thread; locked, and
// only asked for threads that have no lane of their own. What the tracer thread tells waits for nobody who is dead.
class ThreadDirectory {
 public:
  // since: the records' clock. A thread pointer is used again as soon as its thread has ended: records that are older
  // belong to the one before.
  void born(std::uint64_t thread_pointer, pid_t tid, std::uint64_t since) {
    const auto lock = lock_unless_alone(mutex_);
    Entry& entry = entries_[thread_pointer];
    if (entry.tid == tid) return;
    entry = {tid, entry.tid, since};
  }
  void died(std::uint64_t thread_pointer) {
    const auto lock = lock_unless_alone(mutex_);
    dead_.push_back(thread_pointer);
  }
  // nullopt: nobody has seen that thread stand still yet.
  std::optional<pid_t> find(std::uint64_t thread_pointer, std::uint64_t time) const {
    const std::lock_guard lock(mutex_);
    const auto it = entries_.find(thread_pointer);
    if (it == entries_.end()) return std::nullopt;
    const Entry& entry = it->second;
    return time < entry.since && entry.before != 0 ? entry.before : entry.tid;
  }
  // From `since` on `owner` sleeps, and `borrower`, a vfork child, runs on its thread pointer. Loans may be nested.
  void lend(pid_t owner, pid_t borrower, std::uint64_t since) {
    const auto lock = lock_unless_alone(mutex_);
    if (loans_.size() == kMostLoans) loans_.pop_front();
    loans_.push_back({owner, borrower, since, UINT64_MAX});
    lent_until_ = UINT64_MAX;
  }
  // The last one of `owner` that hasn't ended.
  void give_back(pid_t owner, std::uint64_t until) {
    const auto lock = lock_unless_alone(mutex_);
    const auto last = std::find_if(loans_.rbegin(), loans_.rend(),
                                   [&](const Loan& l) { return l.owner == owner && l.until == UINT64_MAX; });
    if (last != loans_.rend()) last->until = until;
    std::uint64_t latest = 0;
    for (const Loan& loan : loans_) latest = std::max(latest, loan.until);
    lent_until_ = latest;
  }
  // Who made a record that says it is `owner`'s: nullopt when it is.
  std::optional<pid_t> borrower(pid_t owner, std::uint64_t time) const {
    if (time >= lent_until_.load(std::memory_order_acquire)) return std::nullopt;
    const std::lock_guard lock(mutex_);
    const auto loan = std::find_if(loans_.rbegin(), loans_.rend(), [&](const Loan& l) {
      return l.owner == owner && l.since <= time && time < l.until;
    });
    return loan == loans_.rend() ? std::nullopt : std::optional(loan->borrower);
  }
  // The thread pointers of those that have died since the last time.
  std::vector<std::uint64_t> take_dead() {
    const std::lock_guard lock(mutex_);
    return std::exchange(dead_, {});
  }

 private:
  struct Entry {
    pid_t tid = 0, before = 0;
    std::uint64_t since = 0;
  };
  struct Loan {
    pid_t owner = 0, borrower = 0;
    std::uint64_t since = 0, until = 0;
  };
  // The oldest is forgotten; its records have been read long before so many children were made.
  static constexpr std::size_t kMostLoans = 4096;

  mutable std::mutex mutex_;
  std::deque<Loan> loans_;
  std::atomic<std::uint64_t> lent_until_ = 0;  // no record from then on is a borrower's
  std::unordered_map<std::uint64_t, Entry> entries_;
  std::vector<std::uint64_t> dead_;
};

struct Feed {
  Feed(std::unique_ptr<Channel> c, pid_t p) : channel(std::move(c)), pid(p) {}

  const std::unique_ptr<Channel> channel;
  const pid_t pid;  // of the process whose memory it is
  ThreadDirectory threads;
};
using FeedPtr = std::shared_ptr<Feed>;

}  // namespace probed::events
