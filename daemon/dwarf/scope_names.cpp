// See scope_names.hpp.
#include "daemon/dwarf/scope_names.hpp"

#include <algorithm>

namespace probed::dwarf {
namespace {

constexpr std::size_t kMaxScopes = 64;

// DWARF before version 5 says so by importing it into what is around it.
bool is_transparent(Die scope) {
  if (tag(scope) != TAG_namespace) return false;
  if (name_of(scope).empty() || attribute(scope, AT_export_symbols)) return true;
  if (scope.unit->version() >= 5) return false;
  bool is_imported = false;
  each_child(parent_of(scope), [&](Die child) {
    is_imported = tag(child) == TAG_imported_module && referenced(child, AT_import) == scope;
    return !is_imported;
  });
  return is_imported;
}

bool fits(Die die, const ScopedName& name, bool may_begin_inside) {
  std::size_t left = name.size();
  if (left == 0 || name_of(die) != name[--left]) return false;
  for (const Die scope : enclosing(die)) {
    if (left == 0 && may_begin_inside) return true;
    const std::uint16_t t = tag(scope);
    if (t != TAG_namespace && !is_class(t)) continue;
    if (left > 0 && name_of(scope) == name[left - 1]) {
      --left;
    } else if (!is_transparent(scope)) {
      return false;
    }
  }
  return left == 0;
}

}  // namespace

Die declared_by(Die child, std::string_view name) {
  const std::uint16_t t = tag(child);
  if (is_variable(t)) return name_of(child) == name ? child : Die{};
  Die found;
  if (t != TAG_enumeration_type || flag_of(child, AT_enum_class)) return found;
  each_child(child, [&](Die enumerator) {
    if (tag(enumerator) == TAG_enumerator && name_of(enumerator) == name) found = enumerator;
    return !found;
  });
  return found;
}

bool is_variable(std::uint16_t t) { return t == TAG_variable || t == TAG_formal_parameter; }

bool is_class(std::uint16_t t) { return t == TAG_structure_type || t == TAG_class_type || t == TAG_union_type; }

bool is_code(std::uint16_t t) { return t == TAG_lexical_block || t == TAG_subprogram || t == TAG_inlined_subroutine; }

ScopedName parts_of(std::string_view name) {
  ScopedName parts;
  for (std::size_t end; (end = name.find("::")) != name.npos; name.remove_prefix(end + 2))
    parts.push_back(name.substr(0, end));
  parts.push_back(name);
  return parts;
}

std::string joined(const ScopedName& name) {
  std::string out;
  for (const std::string_view part : name) out.append(out.empty() ? "" : "::").append(part);
  return out;
}

std::vector<Die> enclosing(Die die) {
  std::vector<Die> out;
  for (Die at = parent_of(origin(die)); at && out.size() < kMaxScopes; at = parent_of(origin(at))) out.push_back(at);
  return out;
}

ScopedName scope_name(Die scope) {
  ScopedName out;
  unsigned steps = 0;  // damaged origins may lead round in a circle
  for (Die at = origin(scope); at && steps < kMaxScopes; at = parent_of(origin(at)), ++steps)
    if ((tag(at) == TAG_namespace || is_class(tag(at))) && !name_of(at).empty()) out.push_back(name_of(at));
  std::ranges::reverse(out);
  return out;
}

bool is_called(Die die, const ScopedName& name) { return fits(die, name, false); }
bool is_called_somewhere(Die die, const ScopedName& name) { return fits(die, name, true); }

}  // namespace probed::dwarf
