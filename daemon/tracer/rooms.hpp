// All rooms of the tracer (room.hpp), and what they share.
//
//   loop.hpp                    each stop, handed to one room after the other, and what becomes of the thread
// family/: processes and threads
//   attacher.hpp                from a process that runs by itself to one whose every thread is traced
//   detacher.hpp                threads and processes that are let go
//   family.hpp                  new threads and processes, programs that are executed, ends
//   jobs.hpp                    work that takes a stopped thread of a process, such as remote calls
//   holds.hpp                   processes held at their programs' beginning, or until libraries have been loaded
// signals/: the program's own signals, and system calls that stops interrupt
//   actions.hpp                 the program's actions of the signals that we raise; actions_landing.cpp: the landing,
//                               the journal
//   masks.hpp                   which threads block those signals
//   delivery.hpp                signals of the program's own on their way to it
//   restarts.hpp                system calls that our stops have interrupted
// probes/
//   probes.hpp                  what clients order: add, enable, disable, remove
//   breakpoints.hpp             SIGTRAP: whose it is, and hits (hit_recorder.hpp)
//   code_changes.hpp            code that goes away, moves or changes under a probe; copied pages, given back
// places/: threads in code of ours
//   slot_threads.hpp            in the copies of probed instructions
//   detour_threads.hpp          in detours; blocked_loads.cpp: in loads that don't end
// jumps/
//   optimiser.hpp               from breakpoints to jumps and back
//   rounds.hpp                  every thread seen outside of what is to be overwritten
//   puns.hpp                    jumps that share bytes with the instructions behind them
//   jump_memory.hpp             memory that jumps take in the target
//   lanes.hpp                   which thread records into which lane
// calls/
//   calls.hpp                   calls that return probes have seen entered; returns.cpp: their exits. The recorder's
//                               part: return_hits.cpp
#pragma once

#include <string>

#include "daemon/tracer/calls/calls.hpp"
#include "daemon/tracer/family/attacher.hpp"
#include "daemon/tracer/family/detacher.hpp"
#include "daemon/tracer/family/family.hpp"
#include "daemon/tracer/family/holds.hpp"
#include "daemon/tracer/family/jobs.hpp"
#include "daemon/tracer/jumps/jump_memory.hpp"
#include "daemon/tracer/jumps/lanes.hpp"
#include "daemon/tracer/jumps/optimiser.hpp"
#include "daemon/tracer/jumps/puns.hpp"
#include "daemon/tracer/jumps/rounds.hpp"
#include "daemon/tracer/jumps/tick_rate.hpp"
#include "daemon/tracer/loop.hpp"
#include "daemon/tracer/places/detour_threads.hpp"
#include "daemon/tracer/places/slot_threads.hpp"
#include "daemon/tracer/probes/breakpoints.hpp"
#include "daemon/tracer/probes/code_changes.hpp"
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
  Holds holds{*this};
  Actions actions{*this};
  Masks masks{*this};
  Delivery delivery{*this};
  Restarts restarts{*this};
  Breakpoints breakpoints{*this};
  Probes probes{*this};
  CodeChanges code_changes{*this};
  SlotThreads slot_threads{*this};
  DetourThreads detour_threads{*this};
  Lanes lanes{*this};
  Optimiser optimiser{*this};
  Rounds rounds{*this};
  Puns puns{*this};
  JumpMemory jump_memory{*this};
  Calls calls{*this};
  Loop loop{*this};
};

inline Room::Room(Rooms& rooms)
    : rooms_(rooms), targets_(rooms.targets), waiter_(rooms.waiter), listener_(rooms.listener) {}

}  // namespace probed::tracer
