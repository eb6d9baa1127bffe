// What this host's processor and kernel allow generated code. Any thread.
#include <sys/auxv.h>

#include "arch/aarch64/detour.hpp"

namespace probed::arch::aarch64 {

#if defined(__aarch64__)

DetourFeatures detour_features() {
  constexpr unsigned long kAtomics = 1ul << 8, kTags = 1ul << 18;  // arch/arm64/include/uapi/asm/hwcap.h
  DetourFeatures features;
  features.atomics = (getauxval(AT_HWCAP) & kAtomics) != 0;
  features.memory_tags = (getauxval(AT_HWCAP2) & kTags) != 0;
  return features;
}

// The isb keeps it from being read before what precedes it (Arm ARM, D11.2.2).
std::uint64_t record_clock() {
  std::uint64_t now = 0;
  asm volatile("isb\n\tmrs %0, cntvct_el0" : "=r"(now)::"memory");
  return now;
}

#else

// Nothing of this architecture runs here.
DetourFeatures detour_features() { return {}; }
std::uint64_t record_clock() { return 0; }

#endif

}  // namespace probed::arch::aarch64
