// A mutex that is waited for no longer than one likes. What std::timed_mutex is, but ThreadSanitizer sees it: that of
// GCC 12 doesn't know pthread_mutex_clocklock(3), and takes each unlock for one of a mutex that nobody holds.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace probed {

// TimedLockable, for std::unique_lock.
class TimedMutex {
 public:
  void lock() {
    std::unique_lock lock(mutex_);
    free_.wait(lock, [this] { return !held_; });
    held_ = true;
  }
  bool try_lock() { return try_lock_for(std::chrono::seconds(0)); }
  template <class Rep, class Period>
  bool try_lock_for(std::chrono::duration<Rep, Period> patience) {
    return try_lock_until(std::chrono::steady_clock::now() + patience);
  }
  template <class Clock, class Duration>
  bool try_lock_until(std::chrono::time_point<Clock, Duration> deadline) {
    std::unique_lock lock(mutex_);
    if (!free_.wait_until(lock, deadline, [this] { return !held_; })) return false;
    return held_ = true;
  }
  void unlock() {
    {
      const std::lock_guard lock(mutex_);
      held_ = false;
    }
    free_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable free_;
  bool held_ = false;
};

}  // namespace probed
