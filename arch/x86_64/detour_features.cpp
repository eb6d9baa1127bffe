// What this host's processor and kernel allow generated code. Any thread.
#include <sys/auxv.h>

#include "arch/x86_64/detour.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace probed::arch::x86_64 {

#if defined(__x86_64__)

DetourFeatures detour_features() {
  constexpr unsigned kLahf = 1u << 0, kRdpid = 1u << 22;
  constexpr unsigned long kFsgsbase = 1ul << 1;  // HWCAP2_FSGSBASE, arch/x86/include/uapi/asm/hwcap2.h
  unsigned a = 0, b = 0, c = 0, d = 0;
  DetourFeatures features;
  if (__get_cpuid(0x80000001, &a, &b, &c, &d) != 0) {
    features.flags_in_ah = (c & kLahf) != 0;
  }
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0) features.cpu_number = (c & kRdpid) != 0;
  features.base_registers = (getauxval(AT_HWCAP2) & kFsgsbase) != 0;
  return features;
}

std::uint64_t record_clock() { return __builtin_ia32_rdtsc(); }

#else

// Nothing of this architecture runs here.
DetourFeatures detour_features() { return {}; }
std::uint64_t record_clock() { return 0; }

#endif

}  // namespace probed::arch::x86_64
