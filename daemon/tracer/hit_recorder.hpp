// Turns a stopped thread into a record: CPU, time, name, arguments, filter, queue.
//
// Owning thread: the tracer thread. No allocation, no locks; the system calls are the unavoidable reads of the target.
// Also lets the tracer follow its tracees' CPU: waking a thread on the same CPU costs a fifth of waking it on another.
#pragma once

#include <array>
#include <cstddef>

#include "daemon/events/hit_queue.hpp"
#include "daemon/events/record.hpp"
#include "daemon/tracer/program.hpp"
#include "daemon/tracer/tracee.hpp"

namespace probed::tracer {

// Moves the calling thread to the CPU its tracees run on, once they have stayed there for a while.
class CpuFollower {
 public:
  void hit_on(std::uint32_t cpu);
  // Nothing has been hit for a while: any CPU will do again.
  void idle();

 private:
  std::uint32_t candidate_ = ~0u;
  std::uint32_t streak_ = 0;
  std::uint32_t pinned_ = ~0u;
};

// Where hits go: a queue, and the eventfd to ring when its consumer sleeps.
struct HitSink {
  events::HitQueue& queue;
  int bell;
};

class HitRecorder {
 public:
  explicit HitRecorder(HitSink sink) : sink_(sink) {}

  // What all programs of one hit share; read once per hit.
  struct Hit {
    Tracee& tracee;
    const ptrace::Registers& regs;  // pc is the probed instruction
    TargetMemory& memory;
    std::uint32_t cpu = 0;
    std::uint64_t time = 0;
  };
  Hit begin(Tracee& tracee, const ptrace::Registers& regs, TargetMemory& memory);
  // Runs one enabled program. True: this hit used up the program's limit.
  bool run(const Hit& hit, ProbeProgram& program);

  CpuFollower& cpu_follower() { return follower_; }

 private:
  bool send(const Hit& hit, ProbeProgram& program, std::span<const std::byte> packed);

  HitSink sink_;
  CpuFollower follower_;
  std::array<std::byte, events::kMaxArgumentBytes> packed_;
};

}  // namespace probed::tracer
