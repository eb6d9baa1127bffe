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

  // Runs f(RemoteSyscalls&) in a thread that stands in an event stop or a signal's. False: it has died meanwhile, or is
  // late (Away). `put_back`, `trapped_at`: see RemoteSyscalls. Defined in remote_calls.hpp.
  template <class F>
  bool with_remote_calls(Tracee& tracee, AddressSpace& space, F f, int put_back = 0, RemoteAddr trapped_at = {});

  // Has some thread of the process run the job in an event stop: at once when one is held. Job::fail() is called
  // instead when none has come in time, or the process goes.
  void request_job(Process& process, Job job);
  // Runs what jobs there are in a thread that stands in an event stop; it may be away, or gone, afterwards.
  void run_jobs(Tracee& tracee);
  // When more threads are asked to stop for the job than have been; once all have been, when it is given up, or whether
  // to do so is looked at.
  static Waiter::Clock::time_point widens_at(const Process& process, const Job& job);
  // All are in uninterruptible waits: frozen, say, or for a file server that is gone.
  static bool none_can_stop(const Process& process);
  // Asks more threads to stop, or gives jobs up, as it is due. `late`: gets the calls that tell of those.
  void look_after_jobs(Process& process, Waiter::Clock::time_point now, std::vector<std::function<void()>>& late);

  // Stops every other thread with this thread's memory. False: some have not stopped in time. What they have stopped
  // for is handled after the current stop.
  bool others_stopped(const Tracee& tracee, Sleepers sleepers = Sleepers::stop);
  // The same for the other threads of its process, with more patience.
  bool stop_others(const Tracee& tracee, Sleepers sleepers = Sleepers::stop);
  // The same but for sleepers, and only where there are at most kMostLookedAt threads.
  void stop_few_others(const Tracee& tracee);

 private:
  using Ask = Process::Ask;
  void interrupt_some(Process& process, Ask whom);
};

}  // namespace probed::tracer
