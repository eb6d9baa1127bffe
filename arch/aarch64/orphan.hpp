// The landing for orphaned threads (arch/orphan.hpp), aarch64. Not done yet. Any thread; pure.
//
// Seam for the port: the pc of a brk's trap is the brk's, so a thread that has been dealt with already is known by a pc
// that the table doesn't have; mark_dealt_with() has nothing to do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "arch/aarch64/regs.hpp"
#include "arch/orphan.hpp"

namespace probed::arch::aarch64 {

inline constexpr bool kHasLanding = false;

inline LandingCode build_landing(std::uint64_t) { return {}; }
inline void mark_dealt_with(Registers&) {}

struct CallRecord {
  CallPadHead head;
};
inline constexpr std::size_t kCallPadSize = 512, kCallPadData = 256;
inline constexpr std::size_t kAfterCall = 4, kUnblocked = 4;
inline constexpr bool kRecordsVectors = false;

inline std::vector<std::uint8_t> build_call_pad(std::uint64_t) { return {}; }
inline CallRecord call_record(const Registers&, std::uint64_t, std::span<const std::byte>) { return {}; }

}  // namespace probed::arch::aarch64
