// See variable_finder.hpp.
#include "daemon/dwarf/variable_finder.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "arch/arch.hpp"
#include "daemon/dwarf/entry_arguments.hpp"
#include "daemon/names/match.hpp"

namespace probed::dwarf {
namespace {

using Step = values::PlaceStep::Code;

constexpr const char* kNoPlace = "it has been optimised out at this place";
constexpr std::size_t kMaxListed = 10000;

bool is_inline(Die die) { return tag(die) == TAG_inlined_subroutine; }

std::optional<unsigned> argument_number(std::string_view name) {
  if (!name.starts_with("$arg")) return std::nullopt;
  name.remove_prefix(4);
  unsigned number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size() || number == 0) return std::nullopt;
  return number;
}

bool is_for_arguments(std::size_t register_offset) {
  for (unsigned n = 1; n <= arch::native::kRegisterArguments; ++n)
    if (const auto place = arch::native::argument_place(n); !place.memory && place.offset == register_offset)
      return true;
  return false;
}

// Whether a place is counted from the function's frame, or is in or counted from a register that no argument comes in
// (where it aligns its stack, and GCC's -fsanitize=address), so that it stands only once the prologue has run.
bool is_on_frame(const Attribute& value) {
  if (!value.is_block() || value.block.empty()) return false;
  const auto operation = std::to_integer<unsigned>(value.block[0]);
  if (operation == OP_fbreg) return true;
  const bool is_in = operation >= OP_reg0 && operation < OP_breg0;
  if (!is_in && (operation < OP_breg0 || operation > OP_breg31)) return false;
  const auto offset = arch::native::dwarf_register(operation - (is_in ? OP_reg0 : OP_breg0));
  return offset && !is_for_arguments(*offset);
}

// Whether it is so many bytes from where a register points that arguments come in, all through the function. GCC says
// so of arguments in a frame of -fsanitize=address on arm64, whose address that register has only in the prologue.
bool is_counted_from_argument(const Attribute& value) {
  if (!value.is_block() || value.block.size() < 2) return false;
  const auto operation = std::to_integer<unsigned>(value.block[0]);
  if (operation < OP_breg0 || operation > OP_breg31 || value.block[1] == std::byte{0}) return false;
  const auto offset = arch::native::dwarf_register(operation - OP_breg0);
  return offset && is_for_arguments(*offset);
}

bool same_register(const Location& a, const Location& b) {
  const values::Placement x = place_of(a, 1), y = place_of(b, 1);
  if (!x.absent.empty() || !y.absent.empty() || x.in_memory || y.in_memory) return true;  // nothing to compare
  if (x.steps.empty() || y.steps.empty()) return false;
  // It may be a part of the register.
  const bool is_cut =
      std::all_of(x.steps.begin() + 1, x.steps.end(), [](const auto& s) { return s.code == Step::cut; });
  return is_cut && x.steps[0].code == y.steps[0].code && x.steps[0].operand == y.steps[0].operand;
}

}  // namespace

Location behind(const Location& pointer, std::uint64_t offset) {
  values::Placement place = place_of(pointer, 8);
  if (!place.absent.empty()) return absent(place.absent);
  if (place.in_memory) {
    if (place.steps.empty()) place.steps.push_back({Step::load_immediate, 8, 0, 0});
    place.steps.push_back({Step::dereference, 8, 0, place.offset});
    place.offset = 0;
  }
  place.offset += offset;
  place.in_memory = true;
  Piece piece;
  piece.place = std::move(place);
  return {std::move(piece)};
}

Object word_at(values::Placement place) {
  Piece piece;
  piece.place = std::move(place);
  Type word;
  word.kind = TypeKind::integer;
  word.size = 8;
  return {{std::move(piece)}, word, {}, {}, 0};
}

Object without_reference(Object object) {
  if (object.type.kind != TypeKind::reference) return object;
  const Die target = object.type.element;
  return {behind(object.location, 0), type_itself(target), target, {}, 0};
}

Object member_of(const Object& structure, const Member& m) {
  Object part;
  part.type = m.type;
  if (m.die) part.written = tag(m.die) == TAG_inheritance ? m.type.die : referenced(m.die, AT_type);
  part.location = part_of(structure.location, m.offset, std::max<std::uint64_t>(1, m.type.size));
  part.bit_offset = m.bit_offset;
  part.bit_size = m.bit_size;
  if (!m.absent.empty()) part.location = absent(std::string(m.absent));
  return part;
}

Object element_at(const Object& array, std::uint64_t index) {
  Object part;
  part.type = element_of(array.type);
  part.written = part.type.kind == TypeKind::array ? part.type.die : array.type.element;
  if (array.type.bit_stride > 0 && array.type.absent.empty()) {
    const Die written = part.written;
    part = member_of(array, packed_element(array.type, index));
    part.written = written;
    return part;
  }
  std::uint64_t offset = 0;
  if (!array.type.absent.empty())
    part.location = absent(std::string(array.type.absent));
  else if (array.type.stride == 0 && index > 0)
    part.location = absent("how far apart its elements are isn't known here");
  else if (__builtin_mul_overflow(array.type.stride, index, &offset))
    part.location = absent("it lies outside of memory");
  else
    part.location = part_of(array.location, offset, std::max<std::uint64_t>(1, part.type.size));
  return part;
}

VariableFinder::VariableFinder(const DebugInfo& info, std::uint64_t address, std::uint64_t bias, const Outside& outside,
                               const std::string& inlined)
    : lock_(info.mutex_), info_(info), outside_(outside) {
  around_.pc = address;
  around_.bias = bias;
  around_.thread_block = &outside.thread_block;
  around_.eh_frame = {info.eh_frame_, info.eh_frame_address_, true};
  around_.debug_frame = {info.file_->sections()[Section::frame], 0, false};
  scope_ = info.scope_at(address);
  if (!scope_) return;
  around_.function = scope_->function;
  around_.at_entry = low_pc(scope_->function) == address;
  levels_ = levels_of(scope_->blocks);
  choose_level(inlined);
}

void VariableFinder::choose_level(const std::string& inlined) {
  const auto is_meant = [&](const Level& level) {
    return is_inline(level.function) && low_pc(level.function) == around_.pc &&
           qualified_name(level.function) == inlined;
  };
  // What else begins here isn't in sight of the one that is meant.
  if (const auto meant = std::ranges::find_if(levels_, is_meant); !inlined.empty() && meant != levels_.end()) {
    levels_.erase(levels_.begin(), meant);
  } else if (around_.at_entry) {
    // The first instruction may be one of an inlined function's: who probes the entry means the function.
    std::ranges::reverse(scope_->blocks);
    std::ranges::reverse(levels_);
  }
}

// ---- names ----

Error VariableFinder::no_scope() const {
  if (const std::string missing = info_.missing_split(around_.pc); !missing.empty())
    return {Reason::unsupported,
            "what variables there are at this place stands in " + missing,
            "keep it where it was compiled, or beside the program; a package PROGRAM.dwp will do, too",
            {}};
  return {Reason::unsupported,
          "no debug information says what variables there are at this place",
          "install the debug symbols of this file, or build it with -g; %REG and $argN need none",
          {}};
}

Die VariableFinder::function_around() const { return levels_.front().function; }

std::vector<VariableFinder::Level> VariableFinder::levels_of(const std::vector<Die>& blocks) {
  std::vector<Level> levels;
  Level level;
  for (const Die block : blocks) {
    level.blocks.push_back(block);
    if (tag(block) == TAG_lexical_block) continue;
    level.function = block;
    levels.push_back(std::exchange(level, {}));
  }
  return levels;
}

// What the source declares there, whether this instance still has it or not. Out of sight of what is around the
// function: that doesn't mean the same thing, even where it has the same name.
Die VariableFinder::in_level(const Level& level, std::string_view name) {
  for (const Die block : level.blocks) {
    Die found;
    each_child(block, [&](Die child) {
      if (const Die declared = declared_by(child, name)) found = declared;
      return true;  // of several, the one declared last
    });
    if (found) return found;
  }
  return declared_in(level, name);
}

// In what the instance has been made from: outside of blocks that it has elsewhere, and of functions and classes in it.
Die VariableFinder::declared_in(const Level& level, std::string_view name) {
  const Die original = abstract_instance(level.function);
  if (original == level.function) return {};
  const auto is_same = [](Die a) { return [a](Die b) { return abstract_instance(b) == a; }; };
  std::vector<Die> kept;  // this instance's own blocks, wherever they are
  std::vector<Die> to_walk{level.function};
  while (!to_walk.empty()) {
    const Die at = to_walk.back();
    to_walk.pop_back();
    each_child(at, [&](Die child) {
      if (tag(child) == TAG_lexical_block) to_walk.push_back(child), kept.push_back(child);
      return true;
    });
  }
  Die found;
  to_walk = {original};
  while (!to_walk.empty() && !found) {
    const Die at = to_walk.back();
    to_walk.pop_back();
    each_child(at, [&](Die child) {
      if (const Die declared = declared_by(child, name)) found = declared;
      if (tag(child) != TAG_lexical_block) return true;
      const bool is_elsewhere =
          std::ranges::any_of(kept, is_same(child)) && std::ranges::none_of(level.blocks, is_same(child));
      if (!is_elsewhere) to_walk.push_back(child);
      return true;
    });
  }
  return found;
}

Error VariableFinder::no_such_variable(std::string_view name) const {
  names::NearNames near(name);
  std::string parameters;
  for (const Die block : scope_->blocks)
    each_child(block, [&](Die child) {
      if (is_variable(tag(child)) && !name_of(child).empty()) near.consider(name_of(child));
      return true;
    });
  const auto names = near.best();
  const std::string where(name_of(function_around()));
  return {Reason::bad_definition,
          "no variable \"" + std::string(name) + "\" is known " + (where.empty() ? "" : "in " + where + " ") +
              "at this place",
          !info_.lacking_.empty() ? info_.lacking()
          : names.empty()         ? "probectl vars lists those there are"
                                  : "did you mean " + names.front() + "?",
          {}};
}

Result<Object> VariableFinder::find(std::string_view text) const {
  const bool is_exact = text.starts_with("::");
  const std::string_view name = is_exact ? text.substr(2) : text;
  const auto number = argument_number(name);
  if (number && outside_.static_argument) {
    auto place = outside_.static_argument(*number);
    if (!place) return std::move(place).error();
    return word_at(std::move(*place));
  }
  if (!scope_ && name.starts_with('$')) return no_scope();
  if (!scope_) {
    const auto global = anywhere({}, name, is_exact);
    if (!global) return global.error();
    return *global ? Result<Object>(object_of(*global)) : no_scope();
  }
  if (number) {
    const std::vector<Die> all = parameters_of(function_around());
    if (*number <= all.size()) return object_of(all[*number - 1]);
    return Error{Reason::bad_definition,
                 std::string(name_of(function_around())) + " has no " + std::string(name),
                 "it has " + std::to_string(all.size()) + " parameters",
                 {}};
  }
  if (name == "$retval") {
    const Die written = referenced(scope_->function, AT_type);
    return Object{result_at_return(scope_->function), type_itself(written), written, {}, 0};
  }
  if (!is_exact)
    if (const Die local = in_level(levels_.front(), name)) return object_of(local);
  const ScopedName parts = parts_of(name);
  const OuterNames names = outer_names(parts.back());
  if (is_exact) {
    if (const Die file_wide = called(names, parts)) return object_of(file_wide);
  } else {
    if (auto own = member_of_this(names, name)) return *std::move(own);
    if (auto outer = in_scopes(names, parts)) return *std::move(outer);
    // A line of the caller's may begin with an inlined function's code.
    for (std::size_t i = 1; i < levels_.size(); ++i)
      if (const Die outer = in_level(levels_[i], name)) return object_of(outer);
  }
  const auto global = anywhere(names, name, is_exact);
  if (!global) return global.error();
  if (*global) return object_of(*global);
  return no_such_variable(text);
}

// Of the object that a method is called for, as in the source.
std::optional<Object> VariableFinder::member_of_this(const OuterNames& names, std::string_view name) const {
  const Die self = name.find(':') == name.npos ? in_level(levels_.front(), "this") : Die{};
  if (!self) return std::nullopt;
  return member_behind(object_of(self), names, name, 0);
}

// A closure that holds another object's `this` means that object's members as well; Clang's are closures in closures.
std::optional<Object> VariableFinder::member_behind(const Object& pointer, const OuterNames& names,
                                                    std::string_view name, unsigned depth) const {
  constexpr unsigned kMostClosures = 4;
  if (depth > kMostClosures || pointer.type.kind != TypeKind::pointer) return std::nullopt;
  const Die target = defined_anywhere(pointer.type.element);
  const Type type = type_itself(target);
  // A static one hides those that it is derived with.
  const bool is_local = std::ranges::any_of(enclosing(type.die), [](Die scope) { return is_code(tag(scope)); });
  ScopedName full = scope_name(type.die);
  full.push_back(name);
  if (const Die own = !is_local && !name_of(type.die).empty() ? called(names, full) : Die{}) return object_of(own);
  const Object object{behind(pointer.location, 0), type, target, {}, 0};
  if (const auto member = find_member(type, name)) return member_of(object, *member);
  for (const std::string_view captured : {"this", "__this"})
    if (const auto outer = find_member(type, captured))
      return member_behind(member_of(object, *outer), names, name, depth + 1);
  return std::nullopt;
}

// Optimised across units, a function is in another one than the source it was made from, which many sources share: what
// its own source means by a name comes first.
std::vector<const Unit*> VariableFinder::units_around() const {
  std::vector<const Unit*> units;
  for (const Unit* unit : {origin(function_around()).unit, origin(scope_->function).unit, scope_->function.unit})
    if (std::ranges::find(units, unit) == units.end()) units.push_back(unit);
  return units;
}

Die VariableFinder::type_named(std::string_view name) const {
  return info_.type_named(name, scope_ ? units_around().front() : nullptr);
}

Die VariableFinder::defined_anywhere(Die type) const {
  const Type own = type_itself(type);
  if (own.kind != TypeKind::structure || own.size != 0 || !attribute(own.die, AT_declaration)) return type;
  const Die found = info_.type_defined_as(own.die);
  return found ? found : type;
}

Die VariableFinder::pointer_to(Die type) const {
  for (std::uint32_t i = 0; type && i < type.unit->entries().size(); ++i)
    if (const Die die{type.unit, i}; tag(die) == TAG_pointer_type && referenced(die, AT_type) == type) return die;
  return {};
}

bool VariableFinder::result_is_plain_word() const { return !scope_ || dwarf::result_is_plain_word(scope_->function); }

Result<std::vector<std::string>> VariableFinder::parameters() const {
  if (!scope_) return no_scope();
  const std::vector<Die> all = parameters_of(function_around());
  std::vector<std::string> out;
  std::map<std::string_view, std::size_t> times;
  for (const Die parameter : all) ++times[name_of(parameter)];
  for (const Die parameter : all) {
    const std::string_view name = name_of(parameter);
    // A parameter pack's have one name (Clang), or one that no source can have (GCC: args#0).
    const bool is_own = !name.empty() && name.find('#') == name.npos && times[name] == 1;
    out.push_back(is_own ? std::string(name) : "$arg" + std::to_string(out.size() + 1));
  }
  return out;
}

Result<std::vector<VisibleVariable>> VariableFinder::visible() const {
  if (!scope_) return no_scope();
  is_listing_ = true;
  std::vector<VisibleVariable> out;
  std::set<std::string_view> seen;
  const auto add = [&](Die die, std::string_view kind) {
    const std::string_view name = name_of(die);
    if (name.empty() || out.size() >= kMaxListed || !seen.insert(name).second) return;
    const Object object = object_of(die);
    const values::Placement place = place_of(object.location, 1);
    out.push_back({std::string(name), type_name(object.written), std::string(kind), place.absent});
  };
  for (const Die block : scope_->blocks)
    each_child(block, [&](Die child) {
      if (is_variable(tag(child))) add(child, tag(child) == TAG_formal_parameter ? "parameter" : "local");
      return true;
    });
  for (const Unit* unit : units_around())
    each_child(unit->root(), [&](Die child) {
      if (tag(child) == TAG_variable) add(child, "static");
      return true;
    });
  return out;
}

// ---- places ----

Object VariableFinder::object_of(Die variable) const {
  const Die written = tag(variable) == TAG_enumerator ? parent_of(variable) : referenced(variable, AT_type);
  return {location_of(variable), type_itself(written), written, {}, 0};
}

namespace {

// Declared in a function, it is the namespace's that is around that.
ScopedName declared_name(Die variable) {
  ScopedName full = scope_name(parent_of(origin(variable)));
  full.push_back(name_of(variable));
  return full;
}

}  // namespace

Location VariableFinder::location_of(Die variable) const {
  if (around_.at_entry && tag(variable) == TAG_formal_parameter && is_own_parameter(variable) &&
      is_widened_at_entry(scope_->function, variable))
    return absent("it is handed over as a double; probe a later line: FILE:LINE");
  if (const auto value = attribute(variable, AT_location)) {
    if (is_fixed(*value)) return of_fixed(variable, *value);
    Location found = locate(*variable.unit, *value, around_);
    // It may be handed over elsewhere, and have places from the prologue's end on.
    if (around_.at_entry && tag(variable) == TAG_formal_parameter && place_of(found, 1).absent == kNoPlace)
      return absent(
          "debug information has no place of it at the function's first instruction; a later line may: FILE:LINE");
    return found;
  }
  if (const auto value = inherited(variable, AT_const_value)) {
    if (!value->is_block()) return constant(value->number);
    Piece piece;
    piece.constant.assign(value->block.begin(), value->block.end());
    return {std::move(piece)};
  }
  if (const Die definition = info_.completed(variable))
    if (const auto value = attribute(definition, AT_location))
      return as_loaded(locate(*definition.unit, *value, around_));
  const bool is_outer = !is_variable(tag(variable)) || flag_of(variable, AT_external);
  if (is_outer && tag(variable) == TAG_variable) {
    const ScopedName full = declared_name(variable);
    for (const Die definition : info_.globals(full.back()))
      if (definition != variable && flag_of(definition, AT_external) && is_called(definition, full))
        if (const auto value = attribute(definition, AT_location))
          return as_loaded(locate(*definition.unit, *value, around_));
    const Die linked = holder_of(variable, AT_linkage_name);
    const std::string_view symbol = linked ? text_of(linked, *attribute(linked, AT_linkage_name)) : full.back();
    if (linked || full.size() == 1)
      if (const auto address = outside_.object(symbol)) return behind(constant(*address), 0);
  }
  if (auto found = thread_local_by_symbol(variable, is_outer)) return {std::move(*found)};
  return absent(kNoPlace);
}

// GCC tells no place of thread-local variables on arm64. Their symbols do: of those that are no function's own, and of
// static ones only where the file has one variable of that name.
std::optional<Piece> VariableFinder::thread_local_by_symbol(Die variable, bool is_outer) const {
  if (tag(variable) != TAG_variable || !outside_.thread_object) return std::nullopt;
  const Die holder = parent_of(origin(variable));
  const Die linked = holder_of(variable, AT_linkage_name);
  const std::string_view name = name_of(variable);
  const bool is_alone = info_.globals(name).empty() && info_.placeless_globals(name) == 1;
  if (!is_outer && (tag(holder) != TAG_compile_unit || !is_alone)) return std::nullopt;
  const std::string_view symbol = linked ? text_of(linked, *attribute(linked, AT_linkage_name)) : name;
  auto place = outside_.thread_object(symbol, type_of(variable).size, is_outer);
  if (!place) return std::nullopt;
  Piece piece;
  piece.place = *std::move(place);
  return piece;
}

// Of a shared library's variable others may mean another one of that name, which the loader makes it mean as well (the
// System V ABI's "Dynamic Linking", preemption): then it is found as its own code finds it, through the loader's word.
Location VariableFinder::as_loaded(Location location) const {
  if (location.size() != 1 || !outside_.loaders_word) return location;
  const values::Placement& place = location.front().place;
  if (!place.absent.empty() || !place.in_memory || place.steps.size() > 1) return location;
  if (!place.steps.empty() && place.steps.front().code != Step::load_immediate) return location;
  const std::uint64_t address = place.offset + (place.steps.empty() ? 0 : place.steps.front().operand);
  const auto word = outside_.loaders_word(address - around_.bias);
  return word ? behind(behind(constant(*word), 0), 0) : std::move(location);
}

bool VariableFinder::is_own_parameter(Die variable) const {
  Die holder = parent_of(variable);
  if (tag(holder) == TAG_GNU_formal_parameter_pack) holder = parent_of(holder);
  return holder == scope_->function;
}

Location VariableFinder::of_fixed(Die variable, const Attribute& value) const {
  const bool in_function = scope_ && is_own_parameter(variable);
  const bool is_own = in_function && tag(variable) == TAG_formal_parameter && !is_inline(function_around());
  if (is_own && is_counted_from_argument(value))
    return around_.at_entry ? at_entry(variable)
                            : absent("debug information has it in a register that the function has changed since");
  if (is_on_frame(value) && scope_ && !is_inline(function_around())) {
    if (around_.at_entry && in_function && tag(variable) == TAG_formal_parameter) return at_entry(variable);
    if (around_.at_entry)
      return absent("it isn't set yet at the function's first instruction; probe a later line: FILE:LINE");
    if (!prologue_end_) prologue_end_ = info_.prologue_end(scope_->function);
    if (around_.pc < *prologue_end_)
      return absent(
          "the function's first instructions, which store it, are still running; probe a later line: FILE:LINE");
  }
  Location found = as_loaded(locate(*variable.unit, value, around_));
  if (is_listing_ || !scope_ || tag(variable) != TAG_variable || !is_on_frame(value)) return found;
  if (const std::uint64_t line = info_.line_to_come(variable, scope_->function, around_.pc))
    for (Piece& piece : found)
      piece.place.doubt = "line " + std::to_string(line) + ", which sets it, is still to be executed there";
  return found;
}

// By the calling convention, if nothing that is known of the others contradicts it: a function that only this unit
// calls may have a convention of its own.
Location VariableFinder::at_entry(Die parameter) const {
  const auto& [function, all, places] = info_.entry_arguments(scope_->function);
  if (places.size() != all.size()) return absent("how it is passed isn't known; probe a later line: FILE:LINE");
  Location found = absent(kNoPlace);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] == parameter) found = places[i];
    const auto value = attribute(all[i], AT_location);
    if (!value || is_fixed(*value)) continue;
    if (!same_register(locate(*all[i].unit, *value, around_), places[i]))
      return absent("this function isn't called in the usual way; probe a later line: FILE:LINE");
  }
  return found;
}

}  // namespace probed::dwarf
