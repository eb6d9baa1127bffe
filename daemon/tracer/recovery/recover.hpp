// Takes what a killed daemon has left in its targets out of them, going by its journals (journal.hpp).
//
// Done by the guard as soon as its daemon has died, by the next daemon with the same state directory, or by hand
// (probed --recover). Until then the targets go on by themselves (landing.hpp).
//
// What is put back: the text, the semaphores of static probes, SIGTRAP's action. What stays: the memory that was mapped
// for copies, detours and the landing, as a thread's stack may still refer to it; nothing leads there any more.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace probed::tracer {

struct Recovered {
  pid_t pid = 0;           // 0: a journal that isn't believed, or can't be read
  bool gone = false;       // the process has ended, or runs another program: there is nothing to put back
  std::size_t places = 0;  // of the text that were put back
  std::string problem;     // not empty: its journal stays, and why
  bool in_doubt = false;   // trying again is of no use
};

// Blocks, on a thread of its own that ptraces nothing else; Waiter::block_signals() has been called. A process that
// another tracer holds is tried again for `patience`, and so is one whose dying daemon the kernel hasn't taken off yet.
std::vector<Recovered> recover_all(const std::string& state_directory, std::chrono::milliseconds patience);

// The same for one process, by what its own memory tells (left_landings.hpp); nullopt: there was nothing of ours to be
// found, or somebody traces it. Semaphores of static probes stay as they are, as nothing there tells of them.
std::optional<Recovered> recover_process(pid_t pid);

}  // namespace probed::tracer
