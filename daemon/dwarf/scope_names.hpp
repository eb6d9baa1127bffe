// What names mean outside of functions: in namespaces and classes. Internal to daemon/dwarf.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "daemon/dwarf/die.hpp"

namespace probed::dwarf {

using ScopedName = std::vector<std::string_view>;  // outermost first

// The parts of "n1::n2::g".
ScopedName parts_of(std::string_view name);
std::string joined(const ScopedName& name);
// What encloses the source of an entry, innermost first: blocks, functions, classes, namespaces, at last its unit.
std::vector<Die> enclosing(Die die);
// The name of a namespace or a class with those around it; what has no name is left out.
ScopedName scope_name(Die scope);
// Whether what has this entry is called so. Inline namespaces and those without a name may be left out.
bool is_called(Die die, const ScopedName& name);
// The same, and what encloses it may be left out, too.
bool is_called_somewhere(Die die, const ScopedName& name);

// What a child of a scope declares by a name without scopes: itself, as a variable or parameter, or an enumerator of
// its own. None: neither.
Die declared_by(Die child, std::string_view name);

bool is_variable(std::uint16_t tag);  // or a parameter
bool is_class(std::uint16_t tag);
bool is_code(std::uint16_t tag);  // a function, inlined or not, or a block in one

}  // namespace probed::dwarf
