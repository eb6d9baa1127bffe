// Executes single instructions with registers that a test chooses, on the arm64 processor that it runs on, and says
// what they did. In this process: a breakpoint's signal handler puts the registers in, the next signal takes them out.
//
// One thread. Everywhere in the text but where something has been put there are breakpoints, whose numbers serve as
// data for literal loads; outside of it nothing is mapped for 128 MiB.
#pragma once

#include <signal.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "arch/aarch64/regs.hpp"

namespace probed::test {

struct CpuState {
  arch::aarch64::Registers regs{};
  std::array<std::array<std::uint64_t, 2>, 32> vectors{};
  std::uint32_t fpsr = 0, fpcr = 0;

  bool operator==(const CpuState&) const = default;
};

struct CpuOutcome {
  CpuState state;
  int signal = 0;
  std::uint64_t address = 0;  // si_addr of a SIGSEGV or SIGBUS
};

inline constexpr std::uint64_t kTextMiddle = 0x10'4000'0000, kTextReach = 0x12'0000;  // more than a literal's reach
inline constexpr std::uint64_t kFarText = 0x10'4400'0000, kFarTextSize = 0x1'0000;
inline constexpr std::uint64_t kDataBegin = 0x5000'0000'0000, kDataSize = 0x4000;

// While it exists, the memory is mapped and the handlers are in place; one at a time.
class NativeCpu {
 public:
  NativeCpu();
  ~NativeCpu();
  NativeCpu(const NativeCpu&) = delete;
  NativeCpu& operator=(const NativeCpu&) = delete;

  // Replaces text; breakpoints come back when the Patch goes.
  class Patch {
   public:
    Patch(std::uint64_t address, std::span<const std::uint8_t> code);
    ~Patch();
    Patch(const Patch&) = delete;
    Patch& operator=(const Patch&) = delete;

   private:
    std::uint64_t address_;
    std::vector<std::uint8_t> before_;
  };

  // Until the first signal: SIGALRM, when it doesn't end, as a branch to itself. The pc is `in`'s.
  static CpuOutcome run(const CpuState& in);
  static std::span<std::uint8_t> data();
  // From now on indirect branches within the text have to arrive at landing pads. False: not on this kernel.
  static bool guard_text();

 private:
  std::vector<std::uint8_t> stack_;
  stack_t stack_before_{};
  std::array<struct sigaction, 6> actions_before_{};
};

}  // namespace probed::test
