// Lets the tracer thread go first, and doesn't let it take the machine.
//
// A thread that the kernel has stopped for us stands still until the tracer thread has had a processor. On a full
// machine that is a wait of many milliseconds for each stop, and a probe that is added may take thousands of stops. The
// tracer thread must have its priority before it is woken: the kernel wakes it for a stop. So it has it all the time,
// as the first of these that is allowed:
//
//   realtime   SCHED_RR, the lowest real-time priority (CAP_SYS_NICE, or RLIMIT_RTPRIO)
//   nice       a nice value of -10 (CAP_SYS_NICE, or RLIMIT_NICE)
//   slice      a short time slice, which makes it wait less and run no more than others; everybody may have that (Linux
//              6.12, sched_setattr(2): sched_runtime of SCHED_OTHER; kernel/sched/fair.c, PREEMPT_SHORT)
//
// Against taking the machine: a storm of hits keeps the tracer thread busy without end, and a machine may have one
// processor. So the keeper, a thread that sleeps while nothing goes on, looks every few milliseconds at what the tracer
// thread has used. When that is more than its allowance, the tracer thread waits in line like everybody until some of
// it is back, for some 20 ms at a time. The keeper's priority is one higher, so that it has its turn even where the
// tracer thread would take the only processor. (The kernel's own limits come later or kill: sched_rt_runtime_us leaves
// others 5
// %, RLIMIT_RTTIME sends SIGXCPU.) Nothing inherits any of it: SCHED_RESET_ON_FORK.
//
// While a stopped thread waits for the answer of others here (the Asio thread, workers), or a target is let go, these
// go first, too, by an allowance of their own.
//
// A daemon that somebody has started with a real-time policy keeps it: nothing is changed then.
//
// Threads: any, except where said.
#pragma once

#include <sys/types.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <thread>

#include "daemon/tracer/kernel/allowance.hpp"
#include "proto/base/fd.hpp"

namespace probed::tracer {

class Urgency {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Means : std::uint8_t { realtime, nice, slice, none };

  Urgency() = default;
  Urgency(const Urgency&) = delete;
  Urgency& operator=(const Urgency&) = delete;
  ~Urgency();

  // On the tracer thread, once, before begin().
  void bind_to_this_thread();
  // On another thread, whose process the keeper is to belong to: the tracer thread goes first from now on.
  void begin();
  // On the tracer thread, when its daemon is being killed, and the keeper with it: it goes first for as long as it
  // lives, and so do the daemon's threads, which are in its way until they have ended.
  void hurry_to_the_end() const;
  // The tracer thread begins to do something after a rest. Cheap.
  void note_activity();
  // The other threads of this process go first, too, for so long.
  void hurry_others(Clock::duration how_long);

  Means means() const { return means_.load(); }
  // What the tracer thread has waited for a processor: the longest time, and the sum of those that are worth telling.
  std::uint64_t longest_wait_ns() const { return longest_wait_.load(); }
  std::uint64_t starved_ns() const { return starved_.load(); }

 private:
  static constexpr Allowance::Limits kTracer{std::chrono::milliseconds(300), 30, std::chrono::milliseconds(6)};
  static constexpr Allowance::Limits kOthers{std::chrono::milliseconds(200), 20, std::chrono::milliseconds(6)};

  void choose_means();
  void keep();
  void look();
  void look_at_others(Clock::time_point now, Allowance::Time used);
  void look_for_starvation(Clock::time_point now);
  void tell_starved(std::chrono::nanoseconds wait, Clock::time_point now);
  bool may_rest(Clock::time_point now);
  void rest(bool until_woken);
  bool put_first(pid_t tid) const;
  void put_back(pid_t tid) const;
  std::set<pid_t> other_threads() const;
  void wake();

  std::atomic<Means> means_{Means::none};
  std::atomic<std::uint64_t> longest_wait_{0}, starved_{0};
  std::atomic<bool> active_{false}, asleep_{false}, stopping_{false};
  std::atomic<Clock::rep> others_until_{0};
  UniqueFd bell_;
  std::thread keeper_;

  // Set before the keeper begins.
  int policy_ = 0, nice_ = 0;  // as they were
  pid_t tracer_ = 0;
  clockid_t tracer_clock_{};
  bool is_apart_ = false;  // the tracer thread is a process of its own
  // The keeper's.
  std::atomic<pid_t> keeper_tid_{0};  // 0: it hasn't begun
  bool tracer_first_ = true;
  std::set<pid_t> hurried_;
  Allowance tracer_allowance_{kTracer}, others_allowance_{kOthers};
  UniqueFd schedstat_;
  std::uint64_t waited_ = 0, times_run_ = 0;  // by schedstat
  Allowance::Time last_used_{};
  Clock::time_point last_active_{}, told_{};
};

constexpr const char* to_string(Urgency::Means means) {
  switch (means) {
    case Urgency::Means::realtime: return "realtime";
    case Urgency::Means::nice: return "nice";
    case Urgency::Means::slice: return "slice";
    case Urgency::Means::none: break;
  }
  return "none";
}

}  // namespace probed::tracer
