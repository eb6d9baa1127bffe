// Where functions begin and end according to the unwind tables, which stripped programs still have.
// Format: LSB core, "Exception Frames"; DWARF 5 section 6.4. And where exceptions arrive in them: the language-specific
// data of GCC and LLVM (Itanium C++ ABI, "Exception Handling Tables"). Pure; the input is hostile.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "daemon/elf/image.hpp"

namespace probed::symbols {

struct FrameRange {
  ElfAddr start;
  std::uint64_t size = 0;  // bytes, never 0
};

// Sorted by start, one for each start. Found through PT_GNU_EH_FRAME: its search table, or, where the linker wrote
// none, by walking .eh_frame. Empty when there is nothing usable.
std::vector<FrameRange> read_frame_ranges(const elf::Image& image);

// Whether one of them, sorted as above, has the address in it.
bool is_covered(std::span<const FrameRange> ranges, ElfAddr address);

struct LandingPads {
  std::vector<ElfAddr> addresses;  // unordered, with repetitions
  bool complete = true;            // false: some function has a table that can't be read
};
// The code that an exception on its way through a function continues at.
LandingPads read_landing_pads(const elf::Image& image);

}  // namespace probed::symbols
