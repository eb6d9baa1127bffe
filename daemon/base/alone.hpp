// Whether all that is left of this daemon is its tracer.
//
// The tracer is a process of its own in the daemon's memory (tracer/kernel/apart.hpp). When the daemon is killed, its
// threads vanish in the middle of anything: a lock that one of them held is never given back, malloc's among them, and
// a queue that it read is never read again. The tracer, which has targets to let go, must wait for none of that.
//
// Any thread.
#pragma once

#include <time.h>

#include <atomic>
#include <mutex>

namespace probed {

namespace detail {
inline constinit std::atomic<bool> is_alone{false};
}

// For good, once it is so.
inline bool alone() { return detail::is_alone.load(std::memory_order_relaxed); }
// Every other thread that had this memory has ended; async-signal-safe. From now on memory is allocated elsewhere, and
// never freed.
inline void go_alone() { detail::is_alone.store(true); }

// A lock for the tracer, which doesn't wait any more once it is alone: the owner is dead. What is guarded is as that
// has left it then, and whoever asks must be content with that. Others hardly ever have it.
template <class Mutex>
[[nodiscard]] std::unique_lock<Mutex> lock_unless_alone(Mutex& mutex) {
  constexpr timespec kBlink{0, 20'000};
  std::unique_lock lock(mutex, std::try_to_lock);
  while (!lock.owns_lock() && !alone()) {
    ::nanosleep(&kBlink, nullptr);
    [[maybe_unused]] const bool has_it = lock.try_lock();
  }
  return lock;
}

}  // namespace probed
