// Where a variable is at one place in the code: location expressions and location lists, followed with the registers as
// unknowns, so that what comes out are steps for a fetch program.
//
// Pure; the thread of whoever owns the file. Expressions are bounded in length and in nesting.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "daemon/dwarf/die.hpp"
#include "daemon/dwarf/frame.hpp"
#include "daemon/values/place.hpp"

namespace probed::dwarf {

// A part of an object. Objects that are in one place have one part.
struct Piece {
  values::Placement place;
  std::uint64_t size = ~0ull;       // bytes of the object
  std::vector<std::byte> constant;  // not empty: its bytes themselves; `place` isn't used
};
using Location = std::vector<Piece>;

Location absent(std::string why);
Location constant(std::uint64_t value);

// The part of an object from byte `offset` on, as an object of its own of `size` bytes.
Location part_of(const Location& whole, std::uint64_t offset, std::uint64_t size);
// The one place of an object of this many bytes, or absent.
values::Placement place_of(const Location& location, std::uint64_t size);

// An object that has a value only when the `size` bytes of another one are this number. What guards that one guards it.
Location guarded(Location location, const Location& by, std::uint8_t size, std::uint64_t value);
// An object that is there only when the pointer `end` is `bytes` or more behind the pointer `begin`. What guards `end`
// guards it.
Location guarded_by_room(Location location, const Location& begin, const Location& end, std::uint64_t bytes);

// What expressions refer to.
struct Surroundings {
  std::uint64_t pc = 0;    // in the file's addresses
  std::uint64_t bias = 0;  // what to add to the file's addresses to get the target's
  bool at_entry = false;   // pc is its function's first instruction: registers are as the caller left them
  Die function;            // the code's function, the one with AT_frame_base
  FrameSection eh_frame, debug_frame;
  const std::function<values::Placement()>* thread_block = nullptr;  // see Outside (variables.hpp); null: unknown
};

// Of AT_location (or AT_frame_base) `value` of an entry.
Location locate(const Unit& unit, const Attribute& value, const Surroundings& around);

// Whether the location is the same in all of its scope: an expression, not a list.
bool is_fixed(const Attribute& location);

}  // namespace probed::dwarf
