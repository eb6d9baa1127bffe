// The canonical frame address (CFA) at a place in the code, by the call frame information of .eh_frame or .debug_frame:
// what most variables on the stack are placed by.
//
// Pure; any thread. Format: LSB core, "Exception Frames"; DWARF 5 section 6.4.
#pragma once

#include <cstdint>
#include <optional>

#include "daemon/dwarf/cursor.hpp"

namespace probed::dwarf {

struct FrameSection {
  Bytes bytes;
  std::uint64_t address = 0;  // of .eh_frame, as loaded
  bool is_eh_frame = true;    // else .debug_frame
};

// reg + offset, or an expression.
struct Cfa {
  unsigned reg = 0;
  std::uint64_t offset = 0;
  Bytes expression;  // not empty: this instead
};

// nullopt: the section says nothing of this address.
std::optional<Cfa> find_cfa(const FrameSection& section, std::uint64_t pc);

}  // namespace probed::dwarf
