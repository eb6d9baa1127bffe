// The part of VariableFinder that looks outside of functions, as C++ does: in what the function is declared in, and in
// what is around that, each with the names that it takes from elsewhere. See variable_finder.hpp.
#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "daemon/dwarf/variable_finder.hpp"

namespace probed::dwarf {
namespace {

ScopedName in_scope(Die scope, const ScopedName& name) {
  ScopedName full = scope_name(scope);
  full.insert(full.end(), name.begin(), name.end());
  return full;
}

// A variable, a static member that is only a value (DWARF 4), or an enumerator that is known without its enumeration's
// name: outside of functions.
bool is_outer_name(Die die) {
  const std::uint16_t t = tag(die);
  const Die around = t == TAG_enumerator ? parent_of(die) : die;
  if (t == TAG_enumerator ? flag_of(around, AT_enum_class)
                          : t != TAG_variable && (t != TAG_member || !attribute(die, AT_const_value)))
    return false;
  return !is_code(tag(parent_of(around))) && !is_code(tag(parent_of(origin(around))));
}

// What may be one, with its name.
template <class F>
void each_outer_name(const Unit& unit, F&& call) {
  for (std::uint32_t i = 0; i < unit.entries().size(); ++i) {
    const Die die{&unit, i};
    if (const std::uint16_t t = unit.tag_of(i); t == TAG_variable || t == TAG_member || t == TAG_enumerator)
      call(die, name_of(die));
  }
}

bool says_where(Die die) { return attribute(die, AT_location) || attribute(die, AT_const_value); }

// In a file's own variables it is the same one that several units speak of.
bool is_same_variable(Die a, Die b) {
  if (a == b || origin(a) == origin(b)) return true;
  return flag_of(a, AT_external) && flag_of(b, AT_external) && qualified_name(a) == qualified_name(b);
}

}  // namespace

// By unit: those around the place, and the partial units which they import (dwz); then units of types, which GCC's
// -fdebug-types-section puts enumerations into without a reference to them.
VariableFinder::OuterNames VariableFinder::outer_names(std::string_view last) const {
  constexpr std::size_t kMostImported = 4096;
  OuterNames names;
  const auto look_at = [&](const Unit& unit) {
    std::vector<Die> found;
    each_outer_name(unit, [&](Die die, std::string_view name) {
      if (name == last && is_outer_name(die)) found.push_back(die);
    });
    if (!found.empty()) names.push_back(std::move(found));
  };
  std::set<const Unit*> seen;
  for (const Unit* around : units_around()) {
    std::vector<const Unit*> units;
    if (seen.insert(around).second) units.push_back(around);
    for (std::size_t i = 0; i < units.size() && i < kMostImported; ++i) {
      look_at(*units[i]);
      each_child(units[i]->root(), [&](Die child) {
        const Die imported = tag(child) == TAG_imported_unit ? referenced(child, AT_import) : Die{};
        if (imported && seen.insert(imported.unit).second) units.push_back(imported.unit);
        return true;
      });
    }
  }
  std::ranges::copy(outer_names_of_types(last), std::back_inserter(names));
  return names;
}

// There are many of those: they are looked through once.
const VariableFinder::OuterNames& VariableFinder::outer_names_of_types(std::string_view last) const {
  static const OuterNames kNone;
  if (!std::exchange(info_.have_outer_names_of_types_, true))
    for (const auto& unit : info_.file_->units()) {
      if (!unit->is_type_unit()) continue;
      each_outer_name(*unit, [&](Die die, std::string_view name) {
        if (name.empty() || !is_outer_name(die)) return;
        OuterNames& all = info_.outer_names_of_types_[std::string(name)];
        if (all.empty() || all.back().back().unit != die.unit) all.emplace_back();
        all.back().push_back(die);
      });
    }
  const auto found = info_.outer_names_of_types_.find(std::string(last));
  return found == info_.outer_names_of_types_.end() ? kNone : found->second;
}

Die VariableFinder::called(const OuterNames& names, const ScopedName& name) {
  for (const std::vector<Die>& unit : names) {
    Die declared;
    for (const Die die : unit) {
      if (!is_called(die, name)) continue;
      if (says_where(die)) return die;
      declared = die;
    }
    if (declared) return declared;
  }
  return {};
}

// A static member of it, or of what it is derived from.
Die VariableFinder::in_class(const OuterNames& names, Die scope, const ScopedName& name, unsigned& looked) const {
  constexpr unsigned kMostLooked = 256;
  if (++looked > kMostLooked) return {};
  // Those in functions have none themselves, nor have lambdas.
  const bool is_local = std::ranges::any_of(enclosing(scope), [](Die outer) { return is_code(tag(outer)); });
  if (!is_local && !name_of(scope).empty())
    if (const Die own = called(names, in_scope(scope, name))) return own;
  Die found;
  each_child(type_itself(defined_anywhere(scope)).die, [&](Die child) {
    if (tag(child) == TAG_inheritance) found = in_class(names, type_of(child).die, name, looked);
    return !found;
  });
  return found;
}

// What a scope takes from elsewhere: "using ns::g", "using namespace ns".
Die VariableFinder::imported_into(const OuterNames& names, Die scope, const ScopedName& name) {
  Die found;
  each_child(scope, [&](Die child) {
    if (tag(child) == TAG_imported_declaration && name.size() == 1) {
      const Die target = referenced(child, AT_import);
      const std::string_view as = name_of(child).empty() ? name_of(target) : name_of(child);
      if (tag(target) == TAG_variable && as == name[0]) found = target;
      if (found && !says_where(found))
        if (const Die definition = called(names, in_scope(parent_of(origin(found)), {name_of(found)})))
          found = definition;
    } else if (tag(child) == TAG_imported_module) {
      found = called(names, in_scope(referenced(child, AT_import), name));
    }
    return !found;
  });
  return found;
}

// A variable of the function around the one that is meant is in another frame, unless it is in no frame at all.
Object VariableFinder::of_outer_function(Die variable) const {
  const auto value = attribute(variable, AT_location);
  const bool is_static = (value && is_fixed(*value) && value->is_block() && !value->block.empty() &&
                          (value->block[0] == std::byte{OP_addr} || value->block[0] == std::byte{OP_addrx} ||
                           value->block[0] == std::byte{OP_GNU_addr_index})) ||
                         (!value && inherited(variable, AT_const_value));
  if (is_static) return object_of(variable);
  const Die written = referenced(variable, AT_type);
  return {absent("it is the variable of a function around this one"), type_itself(written), written, {}, 0};
}

std::optional<Object> VariableFinder::in_scopes(const OuterNames& names, const ScopedName& name) const {
  for (const Die block : levels_.front().blocks) {
    if (const Die taken = imported_into(names, block, name)) return object_of(taken);
    if (const Die from = origin(block); from != block)
      if (const Die taken = imported_into(names, from, name)) return object_of(taken);
  }
  for (const Die scope : enclosing(function_around())) {
    if (is_code(tag(scope)) && name.size() == 1) {
      Die local;
      each_child(scope, [&](Die child) {
        if (const Die declared = declared_by(child, name[0])) local = declared;
        return true;
      });
      if (local) return of_outer_function(local);
    }
    unsigned looked = 0;
    if (const Die found = is_class(tag(scope))  ? in_class(names, scope, name, looked)
                          : is_code(tag(scope)) ? Die{}
                                                : called(names, in_scope(scope, name)))
      return object_of(found);
    if (const Die taken = imported_into(names, scope, name)) return object_of(taken);
  }
  return std::nullopt;
}

// Whether they are at one place, or of one value.
bool VariableFinder::is_one(Die a, Die b) const {
  if (is_same_variable(a, b)) return true;
  if (!says_where(a) || !says_where(b)) return false;
  const values::Placement x = place_of(location_of(a), 1), y = place_of(location_of(b), 1);
  const auto is_equal = [](const values::PlaceStep& s, const values::PlaceStep& t) {
    return s.code == t.code && s.size == t.size && s.right == t.right && s.operand == t.operand;
  };
  return x.absent.empty() && y.absent.empty() && x.in_memory == y.in_memory && x.offset == y.offset &&
         std::ranges::equal(x.steps, y.steps, is_equal);
}

// Of several variables none is taken for another; but what a whole program knows goes before a file's own.
Result<Die> VariableFinder::only_one(std::vector<Die> found, std::string_view name) const {
  const auto is_known = [](Die die) { return flag_of(die, AT_external); };
  if (std::ranges::any_of(found, is_known)) std::erase_if(found, [&](Die die) { return !is_known(die); });
  std::vector<Die> different;
  for (const Die die : found)
    if (std::ranges::none_of(different, [&](Die other) { return is_one(die, other); })) different.push_back(die);
  if (different.size() == 1) return says_where(different[0]) ? different[0] : found.back();
  std::set<std::string> names;
  for (const Die die : different) names.insert(qualified_name(die));
  const bool by_file = names.size() < different.size();
  std::string list;
  for (std::size_t i = 0; i < different.size() && i < 8; ++i) {
    const std::string_view file = name_of(origin(different[i]).unit->root());
    list.append(i ? ", " : "").append(qualified_name(different[i]));
    if (by_file && !file.empty()) list.append(" of ").append(file);
  }
  if (different.size() > 8) list.append(", and ").append(std::to_string(different.size() - 8)).append(" more");
  return Error{Reason::bad_definition,
               "\"" + std::string(name) + "\" may be one of several variables here: " + list,
               by_file ? "probe a function of that file" : "write which one",
               {}};
}

// In all of the program: by the same scopes, then by its last names alone.
Result<Die> VariableFinder::anywhere(const OuterNames& names, std::string_view written, bool is_exact) const {
  const ScopedName name = parts_of(written);
  const std::vector<Die>& all = info_.globals(name.back());
  std::vector<Die> scopes;
  if (scope_ && !is_exact) scopes = enclosing(function_around());
  std::erase_if(scopes, [](Die scope) { return tag(scope) != TAG_namespace && !is_class(tag(scope)); });
  scopes.push_back({});
  const auto among = [&](auto&& fits) {
    std::vector<Die> found;
    for (const std::vector<Die>& unit : names) std::ranges::copy_if(unit, std::back_inserter(found), fits);
    std::ranges::copy_if(all, std::back_inserter(found), fits);
    return found;
  };
  for (const Die scope : scopes) {
    const ScopedName full = in_scope(scope, name);
    if (auto found = among([&](Die die) { return is_called(die, full); }); !found.empty())
      return only_one(std::move(found), written);
  }
  if (is_exact) return Die{};
  auto found = among([&](Die die) { return is_called_somewhere(die, name); });
  return found.empty() ? Result<Die>(Die{}) : only_one(std::move(found), written);
}

}  // namespace probed::dwarf
