// Work that takes a stopped thread of a process: system calls made by it, and others that stand still meanwhile.
//
// Owning thread: the tracer thread.
#pragma once

#include "daemon/tracer/kernel/remote_syscall.hpp"
#include "daemon/tracer/room.hpp"

namespace probed::tracer {

// Whether threads are stopped, too, that wait in calls which may fail because of it.
enum class Sleepers : std::uint8_t { stop, leave };

class Jobs : public Room {
 public:
  using Room::Room;

  // Of how many threads each is looked at, or stopped for a moment, to know which of them has done something.
  static constexpr std::size_t kMostLookedAt = 256;

  // Runs f(RemoteSyscalls&) in a thread that stands in an event stop. False: the thread died meanwhile.
  // `put_back`, `trapped_at`: see RemoteSyscalls. Defined in remote_calls.hpp.
  template <class F>
  bool with_remote_calls(Tracee& tracee, AddressSpace& space, F f, int put_back = 0, RemoteAddr trapped_at = {});
  void request_job(Process& process, Job job);
  static Waiter::Clock::time_point widens_at(const Process& process, const Job& job);
  void run_jobs(Tracee& tracee);
  void look_after_jobs(Process& process, Waiter::Clock::time_point now, std::vector<std::function<void()>>& late);
  bool others_stopped(const Tracee& tracee, Sleepers sleepers = Sleepers::stop);
  bool stop_others(const Tracee& tracee, Sleepers sleepers = Sleepers::stop);
  void stop_few_others(const Tracee& tracee);

 private:
  using Ask = Process::Ask;
  void interrupt_some(Process& process, Ask whom);
};

}  // namespace probed::tracer
