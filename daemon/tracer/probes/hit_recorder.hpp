// Turns a stopped thread into a record: CPU, time, name, arguments, filter, queue.
//
// Owning thread: the tracer thread. No allocation, no locks; the system calls are the unavoidable reads of the target.
// Also lets the tracer follow its tracees' CPU: waking a thread on the same CPU costs a fifth of waking it on another.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <optional>

#include "daemon/events/hit_queue.hpp"
#include "daemon/events/record.hpp"
#include "daemon/tracer/calls/return_stacks.hpp"
#include "daemon/tracer/program.hpp"
#include "daemon/tracer/tracee.hpp"

namespace probed::tracer {

// Moves the calling thread to the CPU its tracees run on, once they have stayed there for a while, and the thread that
// consumes its hits to the others; never to a CPU that they weren't allowed on before.
class CpuFollower {
 public:
  // Before the first hit. The consumer's work (JSON) would be taken from the target's time on its CPU.
  void set_consumer(pid_t tid) { consumer_ = tid; }
  // A hit was seen on this CPU. A sample of the hits will do.
  void hit_on(std::uint32_t cpu);
  // Nothing has been hit for a while: any CPU will do again.
  void idle();

 private:
  bool move_to(std::uint32_t cpu);

  pid_t consumer_ = 0;  // 0: none
  std::uint32_t candidate_ = ~0u;
  std::uint32_t streak_ = 0;
  std::uint32_t pinned_ = ~0u;
  std::optional<cpu_set_t> home_;  // where the thread was allowed before it moved
};

// Where hits go: a queue, and the eventfd to ring when its consumer sleeps.
struct HitSink {
  events::HitQueue& queue;
  int bell;
};

class HitRecorder {
 public:
  explicit HitRecorder(HitSink sink) : sink_(sink) {}

  // What all programs of one hit share; read at most once per hit.
  struct Hit {
    Tracee& tracee;
    const ptrace::Registers& regs;  // pc is the probed instruction
    TargetMemory& memory;
    std::uint64_t time = 0;
    mutable std::optional<std::uint32_t> cpu{};  // read when first wanted: that costs a tenth of the hit
  };
  Hit begin(Tracee& tracee, const ptrace::Registers& regs, TargetMemory& memory);
  // Runs one enabled program. True: this hit used up the program's limit.
  bool run(const Hit& hit, ProbeProgram& program);

  // The same for a return probe: a call begins, or ends. return_hits.cpp
  bool run_entry(const Hit& hit, ProbeProgram& program, ReturnStacks& calls, const StackPlace& place);
  bool run_exit(const Hit& hit, ProbeProgram& program, ReturnStacks& calls, const StackPlace& place);

  CpuFollower& cpu_follower() { return follower_; }

 private:
  static void refresh_comm(Tracee& tracee);
  std::uint32_t cpu_of(const Hit& hit);
  struct Returned {
    std::uint64_t to = 0, duration = 0;  // address; ns
    bool tail_call = false;
  };
  bool send(const Hit& hit, ProbeProgram& program, std::span<const std::byte> packed, const Returned& returned);
  values::CommonFields common_fields(const Hit& hit, bool with_cpu);

  HitSink sink_;
  CpuFollower follower_;
  unsigned hits_since_cpu_ = 0;
  std::array<std::byte, events::kMaxArgumentBytes> packed_, scratch_;
};

}  // namespace probed::tracer
