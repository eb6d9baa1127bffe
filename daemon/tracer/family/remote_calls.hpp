// Jobs::with_remote_calls, for the rooms that make such calls.
#pragma once

#include "daemon/tracer/kernel/remote_syscall.hpp"
#include "daemon/tracer/rooms.hpp"

namespace probed::tracer {

template <class F>
bool Jobs::with_remote_calls(Tracee& tracee, AddressSpace& space, F f, int put_back, RemoteAddr trapped_at) {
  RemoteSyscalls remote(waiter_, tracee.tid, space.call_pad(tracee.tid), put_back, trapped_at);
  f(remote);
  const bool alive = remote.finish();
  if (alive && remote.ran()) {
    tracee.stop = remote.final_stop();
    tracee.group_stopped = remote.final_stop() == WaitStatus::Kind::group_stop;
  } else if (remote.late()) {
    const Held* held = std::get_if<Held>(&tracee.left);
    tracee.left =
        Away{*remote.late(), tracee.listens(), held ? std::optional(held->until) : std::nullopt};  // Loop::give_back()
  } else if (remote.exit_status()) {
    targets_.ended_meanwhile.push_back({tracee.tid, *remote.exit_status()});
  }
  return alive;
}

}  // namespace probed::tracer
