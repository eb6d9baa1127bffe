// FXSAVE's 512 bytes, then XSAVE's header and, in the standard format, the other components (SDM volume 1, 13.4).
#include "tests/arch/differential/sandbox_state.hpp"

#include <cpuid.h>

#include <cstring>
#include <span>

#include "proto/base/check.hpp"

namespace probed::test {
namespace {

constexpr std::size_t kFcw = 0, kFsw = 2, kFtw = 4, kMxcsr = 24, kSt = 32, kXmm = 160, kXstateBv = 512, kYmmHigh = 576;
constexpr std::size_t kSwReserved = 464;  // struct _fpx_sw_bytes: magic1, extended_size, xfeatures, xstate_size
constexpr std::uint32_t kXstateMagic = 0x46505853;
constexpr std::uint64_t kX87 = 1, kSse = 2, kAvx = 4, kAvx512 = 0xe0;

template <typename T>
T get(const std::uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

bool has_xstate(const std::uint8_t* area) { return get<std::uint32_t>(area + kSwReserved) == kXstateMagic; }

std::uint64_t enabled_components() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kOsxsave = 1u << 27;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & kOsxsave) == 0) return kX87 | kSse;
  asm volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
  return eax | std::uint64_t{edx} << 32;
}

// Where the standard format has a component.
std::size_t component_offset(unsigned component) {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  __get_cpuid_count(0xd, component, &eax, &ebx, &ecx, &edx);
  return ebx;
}

struct WideComponent {
  std::uint64_t bit;
  std::size_t offset;
};

// In WideState's order.
const std::array<WideComponent, 3>& wide_components() {
  static const std::array<WideComponent, 3> rows{
      {{0x20, component_offset(5)}, {0x40, component_offset(6)}, {0x80, component_offset(7)}}};
  return rows;
}

template <typename Wide, typename Each>
void for_each_wide(Wide& wide, const Each& each) {
  const auto& rows = wide_components();
  each(rows[0], std::span(wide.opmask));
  each(rows[1], std::span(wide.zmm_high));
  each(rows[2], std::span(wide.more_zmm));
}

}  // namespace

bool wide_state_in_frames() {
  wide_components();  // asks the processor now, not in a signal handler
  static const bool enabled = (enabled_components() & kAvx512) == kAvx512;
  return enabled;
}

std::size_t frame_state_size(const std::uint8_t* area) {
  // xstate_size, behind which the kernel keeps a second magic number.
  const std::size_t size = has_xstate(area) ? get<std::uint32_t>(area + kSwReserved + 16) : 512;
  PROBED_CHECK(size <= kMaxFrameState, "signal frames hold no AMX tiles here");
  return size;
}

void load_vectors(const Machine& machine, std::uint8_t* area) {
  std::memcpy(area + kFcw, &machine.fpu_control, 2);
  std::memcpy(area + kFsw, &machine.fpu_status, 2);
  area[kFtw] = machine.fpu_tags;
  std::memcpy(area + kMxcsr, &machine.mxcsr, 4);
  for (std::size_t i = 0; i < 8; ++i) std::memcpy(area + kSt + 16 * i, machine.st[i].data(), 10);
  for (std::size_t i = 0; i < 16; ++i) std::memcpy(area + kXmm + 16 * i, machine.ymm[i].data(), 16);
  if (!has_xstate(area)) return;
  const std::uint64_t supported = get<std::uint64_t>(area + kSwReserved + 8);
  const std::uint64_t wanted = kX87 | kSse | kAvx | (wide_state_in_frames() ? kAvx512 : 0);
  const std::uint64_t present = supported & wanted;
  std::memcpy(area + kXstateBv, &present, 8);  // the rest goes to its initial state
  if ((present & kAvx) != 0)
    for (std::size_t i = 0; i < 16; ++i) std::memcpy(area + kYmmHigh + 16 * i, machine.ymm[i].data() + 16, 16);
  for_each_wide(machine.wide, [&](const WideComponent& row, auto bytes) {
    if ((present & row.bit) != 0) std::memcpy(area + row.offset, bytes.data(), bytes.size());
  });
}

// A component whose bit is clear is in its initial state whatever the bytes are.
void save_vectors(const std::uint8_t* area, Machine& machine) {
  static constexpr Machine kInitial{};
  const std::uint64_t present = has_xstate(area) ? get<std::uint64_t>(area + kXstateBv) : kX87 | kSse;
  machine.mxcsr = get<std::uint32_t>(area + kMxcsr);
  const bool x87 = (present & kX87) != 0, sse = (present & kSse) != 0, avx = (present & kAvx) != 0;
  machine.fpu_control = x87 ? get<std::uint16_t>(area + kFcw) : kInitial.fpu_control;
  machine.fpu_status = x87 ? get<std::uint16_t>(area + kFsw) : kInitial.fpu_status;
  machine.fpu_tags = x87 ? area[kFtw] : kInitial.fpu_tags;
  for (std::size_t i = 0; i < 8; ++i)
    std::memcpy(machine.st[i].data(), x87 ? area + kSt + 16 * i : kInitial.st[i].data(), 10);
  for (std::size_t i = 0; i < 16; ++i) {
    std::memcpy(machine.ymm[i].data(), sse ? area + kXmm + 16 * i : kInitial.ymm[i].data(), 16);
    std::memcpy(machine.ymm[i].data() + 16, avx ? area + kYmmHigh + 16 * i : kInitial.ymm[i].data(), 16);
  }
  for_each_wide(machine.wide, [&](const WideComponent& row, auto bytes) {
    if ((present & row.bit) != 0)
      std::memcpy(bytes.data(), area + row.offset, bytes.size());
    else
      std::memset(bytes.data(), 0, bytes.size());
  });
}

}  // namespace probed::test
