// What every event has besides its arguments. Values only.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace probed::values {

// A value that a return probe's arguments need from the function's entry.
struct EntryWord {
  std::uint64_t value = 0;
  bool present = false;  // it could be read
};

// The fields every event has, and what a return probe has kept.
struct CommonFields {
  std::int32_t pid = 0, tid = 0;
  std::uint32_t cpu = 0;
  std::string_view comm;
  std::span<const EntryWord> entry_words{};
  std::uint64_t duration = 0;  // of a return: ns
  bool tail_call = false;      // the function was left by one: what it returns isn't there yet
};

}  // namespace probed::values
