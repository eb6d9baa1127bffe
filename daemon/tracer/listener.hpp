// What the rest of the daemon learns from the tracer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/types.hpp"
#include "daemon/events/feed.hpp"
#include "daemon/tracer/kernel/wait.hpp"
#include "daemon/tracer/program.hpp"

namespace probed::tracer {

// Called on the tracer thread; implementations hand over and
// return.
class Listener {
 public:
  virtual ~Listener() = default;
  // A process of root's family ended or was released after an exec. `how`: its exit, if it ended.
  virtual void process_gone(pid_t root, pid_t pid, std::optional<WaitStatus> how) = 0;
  // The process runs a new program, of that name: its probes are gone. `kept`: it is still attached.
  virtual void process_execed(pid_t root, pid_t pid, bool kept, std::string comm) = 0;
  // A held process stands at the entry point of its new program.
  virtual void process_ready(pid_t pid) = 0;
  // A followed child, which is to carry root's probes. Told before anything else of it, and before its creator's end.
  virtual void process_forked(pid_t root, pid_t child) = 0;
  // A child of root's family that isn't followed was let go.
  virtual void child_let_go(pid_t root) = 0;
  // A batch has used up its hit limit.
  virtual void limit_reached(std::vector<ProbeId> probes) = 0;
  // These probes are about to record into a feed, by index; Engine::names_known(pid, ticket) when the feed's reader
  // knows.
  struct Tap {
    std::uint32_t index;
    ProgramPtr program;
  };
  virtual void taps_added(events::FeedPtr feed, std::vector<Tap> taps, pid_t pid, std::uint64_t ticket) = 0;
  // Nobody can record under these indices any more; Engine::indices_free(pid, feed, ...) when what they have recorded
  // has been taken.
  virtual void taps_unused(events::FeedPtr feed, std::vector<std::uint32_t> indices, pid_t pid) = 0;
  // Nobody writes into it any more.
  virtual void feed_closed(events::FeedPtr feed) = 0;
  // Some thread was kept stopped by the optimiser for so long, which is longer than any before.
  virtual void longest_pause(pid_t root, std::uint64_t nanoseconds) = 0;
  // The code of these probes of root has gone or been rewritten: nothing of them is left in the target. `why`, of
  // static life time: it is no code for probes, and they don't come back; null otherwise.
  virtual void code_gone(pid_t root, std::vector<ProbeId> probes, const char* why) = 0;
  // The dynamic loader of root has loaded or unloaded something (ProbeProgram::watches_loader). The thread waits for
  // Engine::loader_may_go_on(root, ticket); tickets ascend.
  virtual void libraries_changed(pid_t root, std::uint64_t ticket) = 0;
};

}  // namespace probed::tracer
