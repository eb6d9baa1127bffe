// Finds the entry that a name stands for at one place, and the object it describes. Internal to daemon/dwarf: used by
// variables.cpp.
//
// Holds the debug information's lock for its life.
#pragma once

#include <mutex>
#include <string_view>
#include <vector>

#include "daemon/dwarf/info.hpp"
#include "daemon/dwarf/scope_names.hpp"
#include "daemon/dwarf/types.hpp"
#include "daemon/dwarf/variables.hpp"

namespace probed::dwarf {

// Something with a type, somewhere.
struct Object {
  Location location;
  Type type;
  Die written;  // the type as the source has it
  std::optional<std::uint8_t> bit_offset;
  std::uint8_t bit_size = 0;
};

// The object a pointer leads to, from byte `offset` on.
Location behind(const Location& pointer, std::uint64_t offset);
// A number of 8 bytes that no debug information speaks of.
Object word_at(values::Placement place);
// What a reference refers to; anything else is itself.
Object without_reference(Object object);
Object member_of(const Object& structure, const Member& member);
Object element_at(const Object& array, std::uint64_t index);

class VariableFinder {
 public:
  VariableFinder(const DebugInfo& info, std::uint64_t address, std::uint64_t bias, const Outside& outside,
                 const std::string& inlined);

  // name: an identifier with its scopes or without, "::" before all of them, or $argN. Errors: bad_definition,
  // unsupported.
  Result<Object> find(std::string_view name) const;
  // A type by its name; none: unknown. And a pointer to it, which must be there, too.
  Die type_named(std::string_view name) const;
  Die pointer_to(Die type) const;
  // A structure that this unit only declares, where another one defines it, and no two define it differently; any other
  // type is itself.
  Die defined_anywhere(Die type) const;
  // Whether $retval is to be taken as a word of no type.
  bool result_is_plain_word() const;
  // The names of the parameters, in order; $argN of one that has none, or not one of its own.
  Result<std::vector<std::string>> parameters() const;
  Result<std::vector<VisibleVariable>> visible() const;

 private:
  void choose_level(const std::string& inlined);
  Error no_scope() const;
  Error no_such_variable(std::string_view name) const;
  std::vector<const Unit*> units_around() const;
  // One function's own blocks among the scopes around the place, in their order.
  struct Level {
    Die function;  // inlined or not
    std::vector<Die> blocks;
  };
  static std::vector<Level> levels_of(const std::vector<Die>& blocks);
  static Die declared_in(const Level& level, std::string_view name);
  static Die in_level(const Level& level, std::string_view name);
  // Variables and enumerators of one last name outside of functions, by unit (outer_names.cpp).
  using OuterNames = std::vector<std::vector<Die>>;
  OuterNames outer_names(std::string_view last) const;
  const OuterNames& outer_names_of_types(std::string_view last) const;
  static Die called(const OuterNames& names, const ScopedName& name);
  Die in_class(const OuterNames& names, Die scope, const ScopedName& name, unsigned& looked) const;
  static Die imported_into(const OuterNames& names, Die scope, const ScopedName& name);
  std::optional<Object> in_scopes(const OuterNames& names, const ScopedName& name) const;
  Object of_outer_function(Die variable) const;
  bool is_one(Die a, Die b) const;
  Result<Die> only_one(std::vector<Die> found, std::string_view name) const;
  Result<Die> anywhere(const OuterNames& names, std::string_view written, bool is_exact) const;
  Object object_of(Die variable) const;
  Location location_of(Die variable) const;
  Location as_loaded(Location location) const;
  std::optional<Piece> thread_local_by_symbol(Die variable, bool is_outer) const;
  Location of_fixed(Die variable, const Attribute& value) const;
  Location at_entry(Die parameter) const;
  bool is_own_parameter(Die variable) const;
  std::optional<Object> member_of_this(const OuterNames& names, std::string_view name) const;
  std::optional<Object> member_behind(const Object& pointer, const OuterNames& names, std::string_view name,
                                      unsigned depth) const;
  Die function_around() const;  // the innermost one, inlined or not

  const std::lock_guard<std::mutex> lock_;
  const DebugInfo& info_;
  const Outside& outside_;
  Surroundings around_;
  std::optional<Scope> scope_;
  std::vector<Level> levels_;  // the function that is meant, whom it is inlined into, ...
  mutable std::optional<std::uint64_t> prologue_end_;
  mutable bool is_listing_ = false;  // the values themselves aren't asked for: nor is whether they are set
};

}  // namespace probed::dwarf
