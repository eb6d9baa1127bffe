// What detours and the routines of detour_runtime.cpp agree upon: which registers they use, and where the frame keeps
// the program's. Internal to arch/aarch64.
//
// Bytes from sp as it stands in the capture part, which a detour's first instruction lowers by all of it at once:
//
//   0   x9 x10 x11 x12 x13 x14 x15 x16
//   64  x30; nzcv, and tco where there are memory tags
//   80  x8 x17, with strings
//       for filters: u8 fetched bits, u8 absent bits, padding, then a word for each value that was fetched
//       16 bytes that stay as they are: AAPCS64 has no red zone, but Go keeps a frame pointer in the word below sp
//
// Arguments of functions are in x0 to x7, which nothing here uses. x16 and x17 are the linker's, between functions
// only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "arch/aarch64/assembler.hpp"

namespace probed::arch::aarch64 {

// Behind a reservation these hold what it has made; in front of it, and the others always, they are scratch.
inline constexpr Reg kValue = Reg::x9;
inline constexpr Reg kRecord = Reg::x10;  // or the call; 0: there is nothing to be filled in
inline constexpr Reg kCommit = Reg::x11;  // its commit word
inline constexpr Reg kLane = Reg::x12;
inline constexpr Reg kArray = Reg::x13;  // address of the elements
inline constexpr Reg kEnd = Reg::x14;    // behind the last string's copy
inline constexpr Reg kScratch = Reg::x15;

struct DetourFrame {
  std::int32_t size = 0;  // up to the program's sp
  bool has_strings = false;
  std::int32_t compared = 0;

  static constexpr std::int32_t kFirst = 0, kLinkAndFlags = 64, kForStrings = 80;
  static constexpr std::int32_t kFixed = 80, kFixedWithStrings = 96, kAlignment = 16;
  static constexpr std::int32_t kLeftAlone = 16;

  static constexpr DetourFrame make(bool has_strings, std::size_t compared_words) {
    DetourFrame frame;
    frame.has_strings = has_strings;
    frame.compared = has_strings ? kFixedWithStrings : kFixed;
    const auto words = static_cast<std::int32_t>(compared_words == 0 ? 0 : 1 + compared_words);
    frame.size = (frame.compared + 8 * words + kAlignment - 1) / kAlignment * kAlignment + kLeftAlone;
    return frame;
  }

  // Where register x<number> of the program is; nullopt: still in it.
  constexpr std::optional<std::int32_t> slot(unsigned number) const {
    constexpr unsigned kFirstSaved = 9, kLastSaved = 16, kLink = 30;
    if (number >= kFirstSaved && number <= kLastSaved)
      return kFirst + 8 * static_cast<std::int32_t>(number - kFirstSaved);
    if (number == kLink) return kLinkAndFlags;
    if (has_strings && number == 8) return kForStrings;
    if (has_strings && number == 17) return kForStrings + 8;
    return std::nullopt;
  }
};

// In what `enter` gets in x9, from this bit on: the words from the call to the next one.
inline constexpr unsigned kEnterWords = 32 + 21;

inline constexpr std::uint64_t kConditionFlags = 0xf000'0000, kTagCheckOverride = 0x0200'0000;

}  // namespace probed::arch::aarch64
