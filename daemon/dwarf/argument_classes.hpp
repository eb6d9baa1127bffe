// What the psABIs say of a type: whether it is handed over itself or by its address, and in what kind of registers.
// System V psABI (x86-64) 3.2.3, AAPCS64 6.8, Itanium C++ ABI 3.1.2.3. Internal to daemon/dwarf.
//
// The thread of whoever owns the file. Damaged types may hold themselves: all is bounded, and not known then.
#pragma once

#include <array>
#include <cstdint>

#include "daemon/dwarf/types.hpp"

namespace probed::dwarf {

// A class that isn't copied byte by byte is handed over by its address.
enum class Passing : std::uint8_t { value, reference, unknown };
// budget: classes that may still be looked at.
Passing passing_of(const Type& type, unsigned& budget);
// C++ hands over nothing at all for those. Who is larger has parts without a name.
bool is_empty(const Type& type, unsigned& budget);

// What a word of 8 bytes goes into. upper: what is behind the first 8 bytes of a vector register.
enum class Word : std::uint8_t { none, vector, integer, x87, upper };
using Words = std::array<Word, 2>;

enum class Held : std::uint8_t {
  unknown,
  registers,
  memory,
  x87,  // a result in a register of the x87, an argument in memory
};
struct Holding {
  Held held = Held::unknown;
  Words words{};
};
// Of an object of at most 16 bytes that is handed over itself, where words are classed (native::kClassifiesWords).
Holding holding_of(const Type& type);

// Where they aren't: what consists of up to four floating-point numbers, or vectors, of one size has a vector register
// for each (AAPCS64 5.9.5); whatever else there is has general registers, or is in memory.
struct Homogeneous {
  bool known = false;      // else how it is handed over isn't
  unsigned count = 0;      // 0: it is something else
  std::uint64_t size = 0;  // bytes of each
};
Homogeneous homogeneous_of(const Type& type);

// What its address on the stack is a multiple of: 8, 16; 0: not known.
unsigned stack_alignment(const Type& type);
// Whether the source asks for an alignment of it, or of a part of it.
bool says_alignment(const Type& type);
// Bytes, also of a pointer to a member, of which debug information says none.
std::uint64_t size_of(const Type& type);

bool is_complex(const Type& type);
bool made_by_gcc(Die die);
// The major version of the clang that has made it; 0: another compiler has.
unsigned clang_version(Die die);

}  // namespace probed::dwarf
