// How far the optimiser is with one address space: plain data, see jumps/optimiser.cpp.
//
// Owning thread: the tracer thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/base/types.hpp"
#include "daemon/tracer/kernel/quiesce.hpp"
#include "daemon/tracer/kernel/wait.hpp"
#include "daemon/tracer/text/layout.hpp"

namespace probed::tracer {

struct Optimisation {
  using Clock = Waiter::Clock;
  enum class Phase : std::uint8_t {
    idle,
    mapping,  // a thread has been asked to map memory for code, or a channel
    building,
    looking,  // for threads in the middle of what is to be overwritten
    syncing,  // the tails are written; every processor is to have seen them
    naming,   // the controller is to know who records
  };
  Phase phase = Phase::idle;
  bool has_other_code = false;      // some thread has been seen in other than native code
  std::set<RemoteAddr> other_code;  // executed there: no place for a probe
  std::deque<RemoteAddr> queue;
  // Those that are hit often while they wait for their jumps: their turn is before everybody's. Since when there are
  // any.
  std::deque<RemoteAddr> hot;
  Clock::time_point hot_since{};
  bool batch_is_hot = false;
  std::size_t portion = 0;                                      // sites of the next batch from the queue
  std::vector<std::pair<Clock::time_point, RemoteAddr>> later;  // sites to be queued again
  struct Job {
    RemoteAddr site, detour;
  };
  std::vector<RemoteAddr> batch;  // being built
  std::size_t next = 0;
  std::vector<Job> built;
  std::optional<Layout> layout;  // of not long ago, while building
  Clock::time_point layout_read;
  std::size_t line = 0;  // that the batch records into
  Places places;         // that nobody may be at, of the batch
  std::optional<Round> round;
  std::uint64_t round_waited_for = 0;  // by the phase
  std::uint64_t names_sent = 0, names_known = 0;
  struct Waiting {
    std::uint64_t round = 0;  // when this one, or a later one, is over
    Clock::time_point until;  // or at this time
    std::function<void()> done;
  };
  std::vector<Waiting> after_round;
  // Who waits until nobody is hot any more: not before the first time, and until the second at most.
  struct WaitingForJumps {
    Clock::time_point from, until;
    std::function<void()> done;
  };
  std::vector<WaitingForJumps> after_hot;
  std::unordered_map<std::uint64_t, pid_t> thread_pointers;
  // The stacks that threads began on, as far as they are known (Tracee::own_stack), by their ends. No two overlap.
  struct OwnStack {
    std::uint64_t begin = 0;
    pid_t tid = 0;
  };
  std::map<std::uint64_t, OwnStack> own_stacks;
  // When to look for threads that count without a lane of their own, and how long to wait after that.
  Clock::time_point meet_at = Clock::time_point::max();
  Clock::duration meet_again{};
  Clock::duration map_again{};                      // how long the last try to map memory was waited with, if it failed
  const char* refused = nullptr;                    // nothing is optimised here any more, and why
  Clock::time_point at = Clock::time_point::max();  // when to go on
};

}  // namespace probed::tracer
