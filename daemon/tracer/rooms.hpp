// All rooms of the tracer (room.hpp), and what they share.
//
//   attacher.hpp        from a process that runs by itself to one whose every thread is traced
//   detacher.hpp        threads and processes that are let go
//   family.hpp          new threads and processes, programs that are executed, ends
//   jobs.hpp            work that takes a stopped thread of a process
//   loader.hpp          processes held at their programs' beginning, and when the dynamic loader has loaded something
//   actions.hpp         the program's actions of the signals that we raise; the landing
//   masks.hpp           which threads block those signals
//   delivery.hpp        signals of the program's own on their way to it
//   restarts.hpp        system calls that our stops have interrupted
//   breakpoints.hpp     SIGTRAP: whose it is, and hits
//   probes.hpp          commands on probes
//   code.hpp            code that goes away, moves or changes under a probe
//   slots.hpp           threads in the copies of probed instructions
//   detour_threads.hpp  threads in detours
//   lanes.hpp           which thread records into which lane
//   optimiser.hpp       from breakpoints to jumps and back
//   rounds.hpp          every thread seen outside of what is to be overwritten
//   puns.hpp            jumps that share bytes with the instructions behind them
//   channels.hpp        memory that jumps take in the target
//   calls.hpp           calls that return probes have seen entered
//   loop.hpp            each stop, handed to one room after the other, and what becomes of the thread
#pragma once

#include <string>

#include "daemon/tracer/calls/calls.hpp"
#include "daemon/tracer/family/attacher.hpp"
#include "daemon/tracer/family/detacher.hpp"
#include "daemon/tracer/family/family.hpp"
#include "daemon/tracer/family/jobs.hpp"
#include "daemon/tracer/family/loader.hpp"
#include "daemon/tracer/jumps/channels.hpp"
#include "daemon/tracer/jumps/lanes.hpp"
#include "daemon/tracer/jumps/optimiser.hpp"
#include "daemon/tracer/jumps/puns.hpp"
#include "daemon/tracer/jumps/rounds.hpp"
#include "daemon/tracer/jumps/tick_rate.hpp"
#include "daemon/tracer/loop.hpp"
#include "daemon/tracer/places/detour_threads.hpp"
#include "daemon/tracer/places/slots.hpp"
#include "daemon/tracer/probes/breakpoints.hpp"
#include "daemon/tracer/probes/code.hpp"
#include "daemon/tracer/probes/probes.hpp"
#include "daemon/tracer/signals/actions.hpp"
#include "daemon/tracer/signals/delivery.hpp"
#include "daemon/tracer/signals/masks.hpp"
#include "daemon/tracer/signals/restarts.hpp"
#include "daemon/tracer/targets.hpp"

namespace probed::tracer {

struct Rooms {
  Rooms(Waiter& w, HitSink sink, Listener& l) : waiter(w), listener(l), recorder(sink) {}

  Waiter& waiter;
  Listener& listener;
  Targets targets;
  HitRecorder recorder;
  TickRate ticks;
  const arch::DetourFeatures features = arch::native::detour_features();
  std::string state_directory;  // where journals are kept; empty: nowhere
  bool armed = true;            // the global switch
  bool optimize = true;         // breakpoints become jumps

  Attacher attacher{*this};
  Detacher detacher{*this};
  Family family{*this};
  Jobs jobs{*this};
  Loader loader{*this};
  Actions actions{*this};
  Masks masks{*this};
  Delivery delivery{*this};
  Restarts restarts{*this};
  Breakpoints breakpoints{*this};
  Probes probes{*this};
  Code code{*this};
  Slots slots{*this};
  DetourThreads detour_threads{*this};
  Lanes lanes{*this};
  Optimiser optimiser{*this};
  Rounds rounds{*this};
  Puns puns{*this};
  Channels channels{*this};
  Calls calls{*this};
  Loop loop{*this};
};

inline Room::Room(Rooms& rooms)
    : rooms_(rooms), targets_(rooms.targets), waiter_(rooms.waiter), listener_(rooms.listener) {}

}  // namespace probed::tracer
