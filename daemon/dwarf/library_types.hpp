// Types of common libraries that people know by what they hold, not by what they are made of: strings, smart pointers,
// optional values.
// Internal to daemon/dwarf.
//
// The thread of whoever owns the file. A type is known by its name and by having the members that are expected of it;
// one that has others, of another version of the library, is shown as any structure is.
#pragma once

#include <optional>
#include <vector>

#include "daemon/dwarf/variable_finder.hpp"

namespace probed::dwarf {

struct LibraryText {
  Object pointer;  // to its first byte
  Object length;   // in bytes
};
// std::string and its views, Rust's &str and String, Go's string.
std::optional<LibraryText> as_text(const Object& object);

// The pointer that std::unique_ptr and std::shared_ptr are shown as, and followed as.
std::optional<Object> as_smart_pointer(const Object& object);
// What holds elements that lie one behind the other.
struct LibraryElements {
  Object first;               // of std::array: the array; of std::vector: a pointer to its first element
  std::optional<Object> end;  // of std::vector: a pointer behind its last
};
std::optional<LibraryElements> as_elements(const Object& object);

struct LibraryVariant {
  Object index;                // of the alternative that it holds; below 0: none
  std::vector<Object> values;  // each guarded by it
};
std::optional<LibraryVariant> as_variant(const Object& object);

struct LibraryOptional {
  Object has_value, value;  // the value is guarded by has_value
};
std::optional<LibraryOptional> as_optional(const Object& object);

}  // namespace probed::dwarf
