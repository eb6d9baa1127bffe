// Proving that no thread is between the first byte and the end of a jump that is about to be written, nor can come back
// there.
//
// Owning thread: the tracer thread. Front doors are closed before (a breakpoint at the first byte, and who runs into it
// goes on elsewhere), so it is enough to see every thread once outside. A thread that waits in the kernel is seen
// without being stopped: /proc/TID/syscall gives its pc and stack pointer, /proc/TID/schedstat tells that it hasn't run
// since. One that runs is interrupted.
//
// A thread may come back from a signal handler that it is in: what its stack holds is looked through for addresses of
// that kind (Places). Not seen: frames on a stack that a handler has switched away from.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "daemon/base/types.hpp"
#include "daemon/symbols/maps.hpp"
#include "daemon/tracer/kernel/memory.hpp"
#include "daemon/tracer/kernel/wait.hpp"

namespace probed::tracer {

// A thread, looked at from outside.
struct Glance {
  enum class Kind : std::uint8_t { gone, running, blocked };
  Kind kind = Kind::gone;
  std::uint64_t pc = 0, sp = 0;       // when blocked
  std::uint64_t times_scheduled = 0;  // when blocked
};
// Reads /proc. A kernel without CONFIG_SCHED_INFO has no schedstat: everybody is running then.
Glance glance(pid_t tid);

// The places nobody may come back to, and the site each belongs to.
class Places {
 public:
  void add(RemoteAddr place, RemoteAddr site);
  bool empty() const { return sites_.empty(); }
  // nullopt: any thread may stand there.
  std::optional<RemoteAddr> site_of(std::uint64_t address) const;
  // Adds the sites of all that these words may refer to.
  void find_in(std::span<const std::uint64_t> words, std::set<RemoteAddr>& sites) const;

 private:
  std::uint64_t lowest_ = ~0ull, highest_ = 0;
  std::unordered_map<std::uint64_t, RemoteAddr> sites_;
};

// Looks through a thread's stack: from sp up to the end of the mapping, at most 8 MiB; and, when that isn't the mapping
// that holds its thread pointer (a signal stack, say), through the whole of that one, too. thread_pointer: 0: not
// known. False: not all that there is was looked at.
bool scan_stack(const Places& places, std::span<const symbols::Mapping> maps, TargetMemory& memory, std::uint64_t sp,
                std::uint64_t thread_pointer, bool main_thread, std::set<RemoteAddr>& sites);

// One look at every thread of an address space.
struct Round {
  std::uint64_t number = 0;
  bool scan = false;  // their stacks, too
  std::deque<pid_t> to_look_at;
  std::set<pid_t> awaited;             // interrupted; their stops are on their way
  std::vector<symbols::Mapping> maps;  // when scanning
  std::set<RemoteAddr> pinned;         // sites whose middle somebody may come back to
  Waiter::Clock::time_point deadline;
};

}  // namespace probed::tracer
