// Where functions begin and end according to the unwind tables, which stripped programs still have.
// Format: LSB core, "Exception Frames"; DWARF 5 section 6.4. Pure; the input is hostile.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/symbols/elf_image.hpp"

namespace probed::symbols {

struct FrameRange {
  ElfAddr start;
  std::uint64_t size = 0;  // bytes, never 0
};

// Sorted by start, one for each start. Found through PT_GNU_EH_FRAME: its search table, or, where the linker wrote
// none, by walking .eh_frame. Empty when there is nothing usable.
std::vector<FrameRange> read_frame_ranges(const ElfImage& image);

}  // namespace probed::symbols
