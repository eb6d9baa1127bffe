// One run of a complete processor state through a detour, on the arm64 processor that the test runs on, with the
// tracer's part played: a load that faults in the capture part goes on at its fix-up. One at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tests/arch/aarch64/native_cases.hpp"
#include "tests/arch/detour/rig.hpp"

namespace probed::test {

class Trial {
 public:
  static constexpr std::uint64_t kCode = kFarText + 0x20'0000;
  static constexpr std::int64_t kDeepest = 192, kLeftAlone = 16;  // bytes below sp that a detour may use, and not

  explicit Trial(RigOptions options = {});

  Rig& rig() { return rig_; }
  const arch::Detour& detour() const { return rig_.last(); }
  // Gives this thread a lane, or takes it away again.
  void own_lane(bool owned);

  // Puts the region at kOriginal and builds its detour, somewhere.
  arch::DetourResult prepare(std::span<const std::uint32_t> region, std::span<const arch::CapturedProbe> probes);

  // From the state (its pc doesn't matter), without and with the detour. Codes faults: fixups() counts them.
  CpuTrial run_native(CpuState start, const std::vector<std::uint8_t>& data);
  CpuTrial run_detour(CpuState start, const std::vector<std::uint8_t>& data);
  unsigned fixups() const { return fixups_; }

  // Makes an outcome with a pc in the tail look as the tracer would make it look. False: no boundary of the tail, or in
  // the middle of an instruction.
  bool translate(CpuTrial& trial) const;
  // Takes over from `expected` what a detour may change: the stack below sp, down to its depth, but for what it leaves
  // alone.
  static void forget_frame(const CpuState& start, const CpuTrial& expected, CpuTrial& got);

  struct Record {
    std::uint32_t probe = 0;
    std::uint64_t owner = 0, thread_pointer = 0, time = 0;
    std::uint32_t cpu = 0;
    std::vector<std::uint64_t> words;
  };
  std::vector<Record> drain();

 private:
  Rig rig_;
  NativeCpu cpu_;
  std::vector<std::uint8_t> region_;
  unsigned fixups_ = 0;
  bool owned_ = false;
};

}  // namespace probed::test
