// Engine::with_remote_calls, for the engine's own source files.
#pragma once

#include "daemon/tracer/engine.hpp"
#include "daemon/tracer/remote_syscall.hpp"

namespace probed::tracer {

template <class F>
bool Engine::with_remote_calls(Tracee& tracee, AddressSpace& space, F f) {
  RemoteSyscalls remote(waiter_, tracee.tid, space.syscall_insn(tracee.tid));
  f(remote);
  const bool alive = remote.finish();
  if (alive)
    tracee.group_stopped = remote.final_stop() == WaitStatus::Kind::group_stop;
  else if (remote.exit_status())
    ended_meanwhile_.push_back({tracee.tid, *remote.exit_status()});
  return alive;
}

}  // namespace probed::tracer
