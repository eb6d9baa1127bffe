// One run of a complete processor state through a detour, in the sandbox of the differential tests, with the tracer's
// part played: a load that faults in the capture part goes on at its fix-up. One at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tests/arch/detour/rig.hpp"
#include "tests/arch/detour/rig_cpu.hpp"
#include "tests/arch/differential/random.hpp"
#include "tests/arch/differential/sandbox.hpp"

namespace probed::test {

class Trial {
 public:
  static constexpr std::uint64_t kSandbox = 0x3000'0000, kFar = 0x2345'6789'0000, kCode = 0x3800'0000;
  static constexpr std::size_t kThreadPointer = 0xf00;  // in the data page: a word that holds its own address

  explicit Trial(RigOptions options = {});

  Rig& rig() { return rig_; }
  Sandbox& sandbox() { return sandbox_; }
  std::uint64_t site() const { return sandbox_.original(); }
  std::uint64_t sandbox_landing() const { return sandbox_.landing(); }
  std::uint64_t data() const { return sandbox_.data(); }
  std::uint64_t stack() const { return sandbox_.stack(); }

  // In the data page; the thread's own where the kernel lets nobody set segment bases.
  std::uint64_t thread_pointer() const {
    return Sandbox::has_segment_bases() ? data() + kThreadPointer : test::thread_pointer();
  }
  // A state with random registers, flags, vectors and memory; rsp in the middle of the stack page, the thread pointer
  // as the psABI has it.
  Machine random_state(Random& random) const;
  // Gives the state's thread a lane, or takes it away again.
  void own_lane(bool owned);

  // Puts the region at site() and builds its detour, somewhere; the site keeps its bytes.
  arch::DetourResult prepare(std::span<const std::uint8_t> region, std::span<const arch::CapturedProbe> probes);
  const arch::Detour& detour() const { return rig_.last(); }

  // From the state (its rip doesn't matter), without and with the detour. Codes faults: fixups() counts them.
  void run_native(const Machine& start, Outcome& outcome);
  void run_detour(const Machine& start, Outcome& outcome);
  unsigned fixups() const { return fixups_; }

  // Makes an outcome with a pc in the tail look as the tracer would make it look. False: no boundary of the tail.
  bool translate(Outcome& outcome) const;
  // Takes over from `expected` what a detour may change: the stack behind the red zone, down to its depth. Anything
  // below must be untouched, and stays in `got`.
  void forget_frame(const Machine& start, const Outcome& expected, Outcome& got) const;

  struct Record {
    std::uint32_t probe = 0;
    std::uint64_t owner = 0, thread_pointer = 0, time = 0;
    std::uint32_t cpu = 0;
    std::vector<std::uint64_t> words;
  };
  std::vector<Record> drain();

 private:
  Rig rig_;
  Sandbox sandbox_;
  std::vector<std::uint8_t> region_;
  unsigned fixups_ = 0;
  std::optional<events::LaneId> lane_;
};

}  // namespace probed::test
