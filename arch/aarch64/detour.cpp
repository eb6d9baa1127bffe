// Placeholder of the port: refuses.
#include "arch/aarch64/detour.hpp"

namespace probed::arch::aarch64 {

DetourFeatures detour_features() { return {}; }

// The virtual counter, which every program can read: Linux leaves CNTKCTL_EL1.EL0VCTEN set. The isb keeps it from being
// read before what precedes it (Arm ARM, D11.2.2).
std::uint64_t record_clock() {
  std::uint64_t now = 0;
#if defined(__aarch64__)
  asm volatile("isb\n\tmrs %0, cntvct_el0" : "=r"(now)::"memory");
#endif
  return now;
}

RuntimeCode build_runtime(std::uint64_t, const ChannelPlaces& places, const DetourFeatures&) {
  RuntimeCode out;
  out.refusal = DetourRefusal::unsupported;
  out.runtime.places = places;
  return out;
}

DetourResult build_detour(const DetourRequest&, const DetourRuntime&, Detour& out) {
  out.clear();
  return {DetourRefusal::unsupported};
}

DetourCall detour_call(const Registers&, std::uint64_t) { return {}; }

Registers program_registers(const Registers& regs, const DetourSaves&, std::uint64_t,
                            const std::function<std::uint64_t(std::uint64_t)>&) {
  return regs;
}

bool is_stack_check(std::span<const std::uint8_t>) { return false; }

// B, ARM ARM C6.2.26.
std::array<std::uint8_t, kDetourJumpSize> detour_jump(std::uint64_t site, std::uint64_t detour) {
  const auto word = static_cast<std::uint32_t>(0x14000000 | ((detour - site) >> 2 & 0x03ff'ffff));
  std::array<std::uint8_t, kDetourJumpSize> jump{};
  for (unsigned i = 0; i < jump.size(); ++i) jump[i] = static_cast<std::uint8_t>(word >> (8 * i));
  return jump;
}

}  // namespace probed::arch::aarch64
