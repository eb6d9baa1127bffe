// Types as the source code has them, reduced to what it takes to read and to show a value.
//
// The thread of whoever owns the file. Chains of qualifiers, of bases and of anonymous members are followed so far
// only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "daemon/dwarf/die.hpp"

namespace probed::dwarf {

enum class TypeKind : std::uint8_t {
  none,  // void, or one that isn't understood
  integer,
  character,  // "char": text
  boolean,
  floating,
  pointer,
  reference,
  enumeration,
  structure,  // and class and union
  array,
  function,
  fixed_text,  // Fortran's character(len=N): `size` bytes, no end that is marked
};

struct Type {
  TypeKind kind = TypeKind::none;
  bool is_signed = false;
  std::uint64_t size = 0;  // bytes; 0: not known
  // Of an array.
  std::optional<std::uint64_t> count;  // elements; absent: not known
  std::optional<std::int64_t> lower;   // the number of the first one; absent: not known
  std::uint64_t stride = 0;            // bytes from one to the next; 0: not known
  std::uint8_t bit_stride = 0;         // not 0: bits from one to the next, of 1 to 63, in place of `stride`
  unsigned dimension = 0;              // of the dimensions, which its one entry may have several of, the first
  std::string_view absent;             // why its elements can't be read; empty: they can
  Die die;                             // without qualifiers and typedefs
  Die element;                         // what a pointer points to, an array holds; as written; none: void

  bool is_number() const { return kind >= TypeKind::integer && kind <= TypeKind::enumeration; }
};

// The type an entry has (AT_type), or is.
Type type_of(Die die);
Type type_itself(Die type);
// "struct client *", "const char *", "int [4]". dimension: of an array's entry, the first one that counts.
std::string type_name(Die type, unsigned dimension = 0);
// "a char", "an int".
std::string with_article(const std::string& type);

struct Member {
  std::string_view name;
  Die die;
  Type type;
  std::uint64_t offset = 0;  // bytes, in the outermost structure
  // Of a bit field: the bits of the `type.size` bytes at offset.
  std::optional<std::uint8_t> bit_offset;
  std::uint8_t bit_size = 0;
  std::string_view absent;  // why it can't be read; empty: it can
};
// By name, in it, in its anonymous members and in its bases.
std::optional<Member> find_member(const Type& structure, std::string_view name);
// Those it has itself, in order; bases are members with their type's name, anonymous ones have none.
std::vector<Member> members_of(const Type& structure);

// The elements of an array whose type is `array`; of several dimensions they are arrays themselves, those whose
// elements are the furthest apart first.
Type element_of(const Type& array);
// One of an array with a bit stride, as a member of it.
Member packed_element(const Type& array, std::uint64_t index);
// Of an array whose first subscript counts what lies closest together (Fortran's), how many subscripts are still to
// come; 0: of any other.
unsigned subscripts_by_column(const Type& array);

}  // namespace probed::dwarf
