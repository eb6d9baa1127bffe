// Rights by protection key in the register set of all that xsave saves. Pure, but for asking the processor.
#include <cstring>

#include "arch/x86_64/regs.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace probed::arch::x86_64 {
namespace {

// Intel SDM 1, 13.4: the header's first word says which components are there; one that isn't has its initial value, 0.
// In the form that ptrace(2) has, the standard one, CPUID tells where each begins.
constexpr unsigned kKeyComponent = 9;
constexpr std::size_t kPresentAt = 512;
constexpr std::uint32_t kKeyZero = 3;

#if defined(__x86_64__)
std::optional<std::size_t> key_rights_at(std::size_t set_size) {
  unsigned size = 0, offset = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(0xd, kKeyComponent, &size, &offset, &ecx, &edx) == 0 || size < sizeof(std::uint32_t))
    return std::nullopt;
  if (offset < kPresentAt + sizeof(std::uint64_t) || offset + sizeof(std::uint32_t) > set_size) return std::nullopt;
  return offset;
}
#else
std::optional<std::size_t> key_rights_at(std::size_t) {
  return std::nullopt;
}  // nothing of this architecture runs here
#endif

std::optional<std::uint32_t> key_rights(std::span<const std::byte> set, std::size_t at) {
  std::uint64_t present = 0;
  std::uint32_t rights = 0;
  std::memcpy(&present, set.data() + kPresentAt, sizeof present);
  if ((present >> kKeyComponent & 1) == 0) return std::nullopt;
  std::memcpy(&rights, set.data() + at, sizeof rights);
  return rights;
}

}  // namespace

std::optional<std::uint32_t> lift_key_rights(std::span<std::byte> set) {
  const auto at = key_rights_at(set.size());
  const auto rights = at ? key_rights(set, *at) : std::nullopt;
  if (!rights || (*rights & kKeyZero) == 0) return std::nullopt;
  const std::uint32_t lifted = *rights & ~kKeyZero;
  std::memcpy(set.data() + *at, &lifted, sizeof lifted);
  return rights;
}

bool put_key_rights(std::span<std::byte> set, std::uint32_t rights) {
  const auto at = key_rights_at(set.size());
  // Lifted, they may be all zero, which the processor may tell as not being there.
  if (!at || key_rights(set, *at).value_or(0) != (rights & ~kKeyZero)) return false;
  std::uint64_t present = 0;
  std::memcpy(&present, set.data() + kPresentAt, sizeof present);
  present |= std::uint64_t{1} << kKeyComponent;
  std::memcpy(set.data() + kPresentAt, &present, sizeof present);
  std::memcpy(set.data() + *at, &rights, sizeof rights);
  return true;
}

}  // namespace probed::arch::x86_64
