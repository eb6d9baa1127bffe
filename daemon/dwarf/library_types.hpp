// Types of common libraries that people know by what they hold, not by what they are made of: strings.
// Internal to daemon/dwarf.
//
// The thread of whoever owns the file. A type is known by its name and by having the members that are expected of it; one
// that has others, of another version of the library, is shown as any structure is.
#pragma once

#include <optional>

#include "daemon/dwarf/variable_finder.hpp"

namespace probed::dwarf {

struct LibraryText {
  Object pointer;  // to its first byte
  Object length;   // in bytes
};
// std::string and its views, Rust's &str and String, Go's string.
std::optional<LibraryText> as_text(const Object& object);

}  // namespace probed::dwarf
