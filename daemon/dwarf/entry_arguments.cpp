// See entry_arguments.hpp. System V psABI (x86-64) 3.2.3, AAPCS64 6.8; what both have in common.
#include "daemon/dwarf/entry_arguments.hpp"

#include <algorithm>
#include <array>

#include "arch/arch.hpp"
#include "daemon/dwarf/types.hpp"

namespace probed::dwarf {
namespace {

namespace native = arch::native;
using Step = lang::PlaceStep::Code;

constexpr std::uint64_t kPassByReference = 4;  // DW_CC_pass_by_reference: a class that isn't copied byte by byte

// DWARF 5 table 7.17: C, C++, Objective-C, their newer standards.
constexpr std::array<std::uint64_t, 12> kLikeC = {0x01, 0x02, 0x04, 0x0c, 0x10, 0x11,
                                                  0x1a, 0x1d, 0x21, 0x2b, 0x2c, 0x8001};

bool calls_like_c(Die function) {
  const auto language = function.unit->attribute(0, AT_language);
  return language && std::ranges::find(kLikeC, language->number) != kLikeC.end();
}

// ---- classes that aren't copied byte by byte are handed over by their address (Itanium C++ ABI 3.1.2.3) ----

enum class Passing : std::uint8_t { value, reference, unknown };

bool is_copying(Die constructor, const Type& type) {
  std::vector<Die> parameters;
  each_child(constructor, [&](Die child) {
    if (tag(child) == TAG_formal_parameter) parameters.push_back(child);
    return parameters.size() < 3;
  });
  if (parameters.size() != 2) return false;
  const Type other = type_of(parameters[1]);
  return other.kind == TypeKind::reference && type_itself(other.element).die == type.die;
}

// By what the class itself declares. Only GCC, which says nothing in AT_calling_convention, is known to mark what is
// defaulted; and of copying constructors it isn't said which of them are deleted.
Passing declared_passing(const Type& type) {
  constexpr std::uint64_t kInClass = 1;  // DW_DEFAULTED_in_class
  const Die root = type.die.unit->root();
  const auto producer = attribute(root, AT_producer);
  const bool is_gcc = producer && text_of(root, *producer).starts_with("GNU ");
  const std::string_view whole = name_of(type.die);
  const std::string_view name = whole.substr(0, whole.find('<'));
  Passing passing = Passing::value;
  each_child(type.die, [&](Die child) {
    const std::string_view own = name_of(child);
    if (tag(child) == TAG_member && own.starts_with("_vptr")) passing = Passing::reference;
    if (tag(child) != TAG_subprogram || attribute(child, AT_artificial) || number_of(child, AT_defaulted) == kInClass)
      return passing != Passing::reference;
    if (own.starts_with('~'))
      passing = is_gcc ? Passing::reference : Passing::unknown;
    else if (own == name && is_copying(child, type))
      passing = Passing::unknown;
    return passing != Passing::reference;
  });
  return passing;
}

Passing passing_of(const Type& type, unsigned& budget) {
  if (type.kind != TypeKind::structure && type.kind != TypeKind::array) return Passing::value;
  if (budget == 0 || attribute(type.die, AT_declaration)) return Passing::unknown;
  --budget;
  if (type.kind == TypeKind::array) return passing_of(element_of(type), budget);
  if (const auto said = number_of(type.die, AT_calling_convention))
    return *said == kPassByReference ? Passing::reference : Passing::value;
  Passing passing = declared_passing(type);
  if (passing == Passing::reference) return passing;
  for (const Member& m : members_of(type)) {
    const Passing inner = passing_of(m.type, budget);
    if (inner != Passing::value) passing = inner;
    if (passing == Passing::reference) break;
  }
  return passing;
}

// C++ hands over nothing at all for those.
bool is_empty(const Type& type, unsigned& budget) {
  if (type.kind != TypeKind::structure || budget == 0) return false;
  --budget;
  return std::ranges::all_of(members_of(type), [&](const Member& m) { return is_empty(m.type, budget); });
}

// Of 16 bytes there can't be many members: who has more is damaged, and not known.
bool has_floating(const Type& type, unsigned depth) {
  constexpr std::size_t kMaxMembers = 32;
  if (type.kind == TypeKind::floating || type.kind == TypeKind::none || depth > 4) return true;
  if (type.kind == TypeKind::array) return has_floating(element_of(type), depth + 1);
  const std::vector<Member> members = members_of(type);
  return members.size() > kMaxMembers ||
         std::ranges::any_of(members, [&](const Member& m) { return has_floating(m.type, depth + 1); });
}

class Assigner {
 public:
  explicit Assigner(Die function) {
    const Type result = type_of(function);
    const Passing passing = passing_of(result, budget_);
    unknown_ = result.kind == TypeKind::structure && passing == Passing::unknown && result.size <= 16;
    const bool in_memory = result.kind == TypeKind::structure && (result.size > 16 || passing == Passing::reference);
    if (in_memory && native::kResultAddressIsArgument) integers_ = 1;
  }

  Location next(const Type& type) {
    if (unknown_) return unknown();
    const bool scalar = type.is_number() || type.kind == TypeKind::pointer || type.kind == TypeKind::reference;
    if (type.kind == TypeKind::floating && (type.size == 4 || type.size == 8)) return floating();
    if (scalar && type.size > 0 && type.size <= 8) return integer(8);
    const Passing passing = passing_of(type, budget_);
    if (passing == Passing::reference) return behind(integer(8));
    const bool is_small = type.kind == TypeKind::structure && type.size > 0 && type.size <= 16 && !is_empty(type, budget_);
    if (is_small && passing == Passing::value && !has_floating(type, 0))
      return integer(type.size);
    unknown_ = true;
    return unknown();
  }

 private:
  static Location unknown() { return absent("how it is passed isn't known; probe a line behind the function's entry"); }

  static Piece piece(lang::PlaceStep step, bool in_memory, std::uint64_t offset, std::uint64_t size) {
    Piece out;
    out.place = {{step}, offset, in_memory, {}};
    out.size = size;
    return out;
  }

  // In one or two registers, or none of it in one.
  Location integer(std::uint64_t size) {
    const unsigned words = size > 8 ? 2 : 1;
    if (integers_ + words > native::kRegisterArguments) return on_stack(words);
    Location out;
    for (unsigned i = 0; i < words; ++i)
      out.push_back(piece({Step::load_register, 8, 0, native::argument_place(++integers_).offset}, false, 0,
                          words == 1 ? ~0ull : 8));
    return out;
  }

  Location floating() {
    if (vectors_ >= native::kVectorArguments) return on_stack(1);
    return {piece({Step::load_vector, 8, 0, vectors_++}, false, 0, ~0ull)};
  }

  Location on_stack(unsigned words) {
    const auto place = native::argument_place(native::kRegisterArguments + 1 + stack_);
    stack_ += words;
    return {piece({Step::load_register, 8, 0, *native::register_offset("sp")}, true, place.offset, ~0ull)};
  }

  static Location behind(Location pointer) {
    lang::Placement& place = pointer.front().place;
    if (place.in_memory) {
      place.steps.push_back({Step::dereference, 8, 0, place.offset});
      place.offset = 0;
    }
    place.in_memory = true;
    return pointer;
  }

  unsigned integers_ = 0, vectors_ = 0, stack_ = 0;
  bool unknown_ = false;
  unsigned budget_ = 256;  // classes that are looked at: damaged ones may hold themselves
};

}  // namespace

Die abstract_instance(Die function) {
  constexpr unsigned kMaxChain = 8;
  for (unsigned i = 0; i < kMaxChain && attribute(function, AT_abstract_origin); ++i) {
    const Die next = referenced(function, AT_abstract_origin);
    if (!next) break;
    function = next;
  }
  return function;
}

std::vector<Die> parameters_of(Die function) {
  // Go marks so what a function returns.
  const auto language = function.unit->attribute(0, AT_language);
  const bool is_go = language && language->number == LANG_Go;
  std::vector<Die> out;
  each_child(function, [&](Die child) {
    const bool is_result = is_go && number_of(child, AT_variable_parameter).value_or(0) != 0;
    if (tag(child) == TAG_formal_parameter && !is_result) out.push_back(child);
    return true;
  });
  // An instance may leave out those that have been optimised away: the order is the original's.
  const Die original = abstract_instance(function);
  if (original == function) return out;
  std::vector<Die> all;
  each_child(original, [&](Die child) {
    if (tag(child) != TAG_formal_parameter) return true;
    const auto instance = std::ranges::find_if(out, [&](Die d) { return origin(d) == child; });
    all.push_back(instance == out.end() ? child : *instance);
    return true;
  });
  return all.size() >= out.size() ? all : out;
}

std::vector<Location> arguments_at_entry(Die function) {
  std::vector<Location> out;
  if (!calls_like_c(function)) return out;
  Assigner assigner(function);
  for (const Die parameter : parameters_of(function)) out.push_back(assigner.next(type_of(parameter)));
  return out;
}

}  // namespace probed::dwarf
