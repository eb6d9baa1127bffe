// What is done to a living daemon. An action that its daemon's death interrupts throws, or returns early; what it
// reports as wrong is wrong nevertheless.
//
// Thread: the soak's own.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "tests/soak/fleet.hpp"
#include "tests/soak/ledger.hpp"
#include "tests/soak/life.hpp"

namespace probed::soak {

struct Scene {
  Daemon& daemon;
  Fleet& fleet;
  Ledger& ledger;
  Dice& dice;
  std::vector<std::unique_ptr<live::RpcClient>> kept;  // clients that never read; they end with the daemon's life
};

struct Action {
  const char* name;
  void (*run)(Scene&);
  // False: LIMITS.md says that a daemon's death in the middle of this is not survived, or there would be nothing to
  // see.
  bool may_be_killed;
};
std::span<const Action> actions();

// account.cpp: calls = hits + filtered, hits = delivered + missed, and every event right, for a probe of a random tier.
void account(Scene& scene);
// hostile.cpp
void misbehave(Scene& scene);     // a client that sends what is no message, or half of one
void never_read(Scene& scene);    // a client that subscribes and goes to sleep
void kill_victim(Scene& scene);   // a target that is killed at its probes
void scribble(Scene& scene);      // a target whose memory of ours is overwritten
void unmap_code(Scene& scene);    // a target that moves and unmaps its code
void bad_pointers(Scene& scene);  // a target whose arguments lead nowhere, and which handles such faults itself
void storm_of_signals(Scene& scene);
void odd_children(Scene& scene);  // clone(2) and clone3(2) with flags that nobody uses

}  // namespace probed::soak
