// See types.hpp.
#include "daemon/dwarf/types.hpp"

#include <algorithm>
#include <array>

namespace probed::dwarf {
namespace {

constexpr unsigned kMaxChain = 32;
constexpr unsigned kMaxNesting = 8;
constexpr std::size_t kMaxDimensions = 32;
constexpr unsigned kMaxLooked = 1u << 16;  // members that are looked at for one
constexpr std::size_t kMaxMembers = 4096;

bool is_qualifier(std::uint16_t t) {
  return t == TAG_typedef || t == TAG_const_type || t == TAG_volatile_type || t == TAG_restrict_type ||
         t == TAG_atomic_type || t == TAG_immutable_type;
}

// Whose bytes are in the other order than the machine's.
bool is_swapped(Die die) {
  constexpr std::uint64_t kBig = 1;  // DW_END_big
  return number_of(die, AT_endianity) == kBig;
}

TypeKind kind_of_base(Die die) {
  if (is_swapped(die)) return TypeKind::none;
  switch (number_of(die, AT_encoding).value_or(0)) {
    case ATE_boolean: return TypeKind::boolean;
    case ATE_float: return TypeKind::floating;
    case ATE_address:
    case ATE_signed:
    case ATE_unsigned: return TypeKind::integer;
    case ATE_signed_char:
    case ATE_unsigned_char: {
      const std::string_view name = name_of(die);
      return name == "char" || name == "char8_t" ? TypeKind::character : TypeKind::integer;
    }
    case ATE_UTF: return name_of(die) == "char8_t" ? TypeKind::character : TypeKind::integer;
    default: return TypeKind::none;
  }
}

bool is_signed_base(Die die) {
  const std::uint64_t encoding = number_of(die, AT_encoding).value_or(0);
  return encoding == ATE_signed || encoding == ATE_signed_char;
}

// DWARF 5 table 7.17, and what was added since (dwarfstd.org/languages.html): where arrays begin that don't say it.
// nullopt: a language that isn't known here.
std::optional<std::int64_t> first_index_in(std::uint64_t language) {
  // Ada, COBOL, Fortran, Pascal, Modula, PL/I, Julia.
  constexpr std::uint64_t kOne[] = {0x03, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0d, 0x0e,
                                    0x0f, 0x17, 0x1f, 0x22, 0x23, 0x2d, 0x2e, 0x2f, 0x3f};
  constexpr std::uint64_t kLastKnown = 0x3f;
  if (std::ranges::find(kOne, language) != std::end(kOne)) return 1;
  return language <= kLastKnown || language == LANG_Assembler ? std::optional<std::int64_t>(0) : std::nullopt;
}

bool is_fortran(Die die) {
  constexpr std::uint64_t kFortran[] = {0x07, 0x08, 0x0e, 0x22, 0x23, 0x2d, 0x3f};
  return std::ranges::find(kFortran, language_of(die)) != std::end(kFortran);
}

struct Bounds {
  std::optional<std::int64_t> lower;
  std::optional<std::uint64_t> count;  // absent: the array's end isn't known
};

// A bound that is a block or refers to a variable is none that is known here.
std::optional<std::int64_t> constant_of(Die subrange, std::uint16_t name) {
  const auto number = number_of(subrange, name);
  return number ? std::optional(static_cast<std::int64_t>(*number)) : std::nullopt;
}

// Of one dimension. Ada's may be those of the type that counts it.
Bounds bounds_of(Die subrange) {
  for (unsigned i = 0; i < kMaxChain; ++i) {
    const Die counted_by = referenced(subrange, AT_type);
    const bool says_nothing = !attribute(subrange, AT_upper_bound) && !attribute(subrange, AT_count);
    if (!says_nothing || !counted_by || tag(counted_by) != TAG_subrange_type) break;
    subrange = counted_by;
  }
  Bounds bounds;
  bounds.lower = attribute(subrange, AT_lower_bound) ? constant_of(subrange, AT_lower_bound)
                                                     : first_index_in(language_of(subrange));
  if (const auto count = number_of(subrange, AT_count)) bounds.count = *count;
  const auto upper = constant_of(subrange, AT_upper_bound);
  if (bounds.count || !upper || !bounds.lower) return bounds;
  const std::int64_t lower = *bounds.lower;
  if (*upper >= lower)
    bounds.count = static_cast<std::uint64_t>(*upper) - static_cast<std::uint64_t>(lower) + 1;
  else if (lower != 0)  // C's T[] may be said to end at -1
    bounds.count = 0;
  constexpr std::uint64_t kEndless = 1ull << 32;  // T[] that ends at 0xffffffff
  if (bounds.count == kEndless && lower == 0) bounds.count.reset();
  return bounds;
}

constexpr std::string_view kDescribed = "where its elements are, only the running program knows: that isn't read yet";
constexpr std::string_view kApart = "how far apart its elements are, only the running program knows";

// Of the array's or a dimension's elements, bits; 0: nothing is said, nullopt: only the running program knows.
std::optional<std::uint64_t> bit_stride_of(Die die) {
  for (const auto& [name, bits] : {std::pair{AT_byte_stride, 8u}, std::pair{AT_bit_stride, 1u}}) {
    if (!attribute(die, name)) continue;
    const auto number = number_of(die, name);
    std::uint64_t stride = 0;
    if (!number || __builtin_mul_overflow(*number, bits, &stride)) return std::nullopt;
    return stride;
  }
  return 0;
}

bool is_by_column(Die array) {
  constexpr std::uint64_t kByColumns = 1;  // DW_ORD_col_major
  const auto ordering = number_of(array, AT_ordering);
  return ordering ? *ordering == kByColumns : is_fortran(array);
}

// The one whose elements are the furthest apart first.
std::vector<Die> dimensions_of(Die array) {
  std::vector<Die> out;
  each_child(array, [&](Die child) {
    if (tag(child) == TAG_subrange_type) out.push_back(child);
    return out.size() < kMaxDimensions;
  });
  if (is_by_column(array)) std::ranges::reverse(out);
  return out;
}

// DWARF 2 doesn't say what an enumeration's values are; only negative ones tell.
bool has_negative(Die enumeration) {
  bool found = false;
  each_child(enumeration, [&](Die child) {
    const auto value = attribute(child, AT_const_value);
    found = value && value->form == FORM_sdata && static_cast<std::int64_t>(value->number) < 0;
    return !found;
  });
  return found;
}

// Arrays of arrays, enumerations of enumerations: a type that is its own part must end somewhere.
Type type_at(Die written, unsigned depth);

Type array_type(Die die, unsigned dimension, unsigned depth) {
  Type type;
  type.kind = TypeKind::array;
  type.die = die;
  type.dimension = dimension;
  type.element = referenced(die, AT_type);
  for (const auto name : {AT_data_location, AT_allocated, AT_associated})
    if (attribute(die, name)) type.absent = kDescribed;
  const std::vector<Die> dimensions = dimensions_of(die);
  if (dimension >= dimensions.size()) return type;
  // From the inside outwards: bits that what is in the next dimension takes.
  auto bits = bit_stride_of(die);
  if (bits == 0 && __builtin_mul_overflow(type_at(type.element, depth + 1).size, 8u, &*bits)) bits = 0;
  for (std::size_t i = dimensions.size(); i-- > dimension;) {
    const Bounds bounds = bounds_of(dimensions[i]);
    const auto own = bit_stride_of(dimensions[i]);
    const auto apart = own == 0 ? bits : own;
    if (!apart && type.absent.empty()) type.absent = kApart;
    type.lower = bounds.lower;
    type.count = bounds.count;
    const std::uint64_t step = apart.value_or(0);
    const bool is_packed = step % 8 != 0;
    type.stride = is_packed ? 0 : step / 8;
    type.bit_stride = is_packed && step < 64 ? static_cast<std::uint8_t>(step) : 0;
    bits = apart;
    if (!bounds.count || !bits || __builtin_mul_overflow(*bits, *bounds.count, &*bits)) bits = 0;
  }
  type.size = bits.value_or(0) / 8 + (bits.value_or(0) % 8 != 0 ? 1 : 0);
  return type;
}

// To where it is defined, too, if that is a type unit and the entry says no more than which one.
Die without_qualifiers(Die die) {
  for (unsigned i = 0; i < kMaxChain; ++i) {
    if (is_qualifier(tag(die)))
      die = referenced(die, AT_type);
    else if (const Die defined_in_unit = referenced(die, AT_signature))
      die = defined_in_unit;
    else
      break;
  }
  return die;
}

// A structure that is only declared here may be defined elsewhere in the unit.
Die defined(Die die) {
  if (!attribute(die, AT_declaration)) return die;
  if (const auto value = attribute(die, AT_specification)) return origin(die);
  const std::string_view name = name_of(die);
  if (name.empty()) return die;
  const std::uint16_t wanted = tag(die);
  Die found;
  each_child(parent_of(die), [&](Die other) {
    if (tag(other) == wanted && !attribute(other, AT_declaration) && name_of(other) == name) found = other;
    return !found;
  });
  return found ? found : die;
}

}  // namespace

Type type_of(Die die) { return type_itself(referenced(die, AT_type)); }
Type type_itself(Die written) { return type_at(written, 0); }

namespace {

Type type_at(Die written, unsigned depth) {
  Type type;
  const Die die = without_qualifiers(written);
  if (!die || depth > kMaxNesting) return type;
  type.die = die;
  type.size = number_of(die, AT_byte_size).value_or(0);
  switch (tag(die)) {
    case TAG_base_type:
      type.kind = kind_of_base(die);
      type.is_signed = is_signed_base(die);
      break;
    case TAG_pointer_type:
      type.kind = TypeKind::pointer;
      type.element = referenced(die, AT_type);
      type.size = die.unit->address_size();
      break;
    case TAG_reference_type:
    case TAG_rvalue_reference_type:
      type.kind = TypeKind::reference;
      type.element = referenced(die, AT_type);
      type.size = die.unit->address_size();
      break;
    case TAG_enumeration_type: {
      type.kind = TypeKind::enumeration;
      const Type underlying = attribute(die, AT_type) ? type_at(referenced(die, AT_type), depth + 1) : Type{};
      type.is_signed = attribute(die, AT_type) ? underlying.is_signed : has_negative(die);
      if (type.size == 0) type.size = underlying.size;
      break;
    }
    case TAG_structure_type:
    case TAG_class_type:
    case TAG_union_type:
      type.kind = TypeKind::structure;
      type.die = defined(die);
      type.size = number_of(type.die, AT_byte_size).value_or(0);
      break;
    case TAG_array_type: return array_type(die, 0, depth);
    case TAG_string_type:
      if (attribute(die, AT_string_length)) type.size = 0;
      type.kind = TypeKind::fixed_text;
      break;
    case TAG_subrange_type: {  // a number that is known to lie in a range
      if (attribute(die, AT_GNU_bias)) break;
      const Type counted = type_at(referenced(die, AT_type), depth + 1);
      type.kind = counted.is_number() ? counted.kind : TypeKind::none;
      type.is_signed = counted.is_signed;
      type.die = counted.die ? counted.die : die;
      if (type.size == 0) type.size = counted.size;
      break;
    }
    case TAG_subroutine_type: type.kind = TypeKind::function; break;
    case TAG_unspecified_type:  // decltype(nullptr)
      if (name_of(die) != "decltype(nullptr)") break;
      type.kind = TypeKind::pointer;
      type.size = die.unit->address_size();
      break;
    default: break;
  }
  return type;
}

}  // namespace

unsigned subscripts_by_column(const Type& array) {
  if (array.kind != TypeKind::array || !is_by_column(array.die)) return 0;
  const auto count = static_cast<unsigned>(dimensions_of(array.die).size());
  return count > 1 ? count - std::min(array.dimension, count) : 0;
}

Type element_of(const Type& array) {
  if (array.dimension + 1 >= dimensions_of(array.die).size()) return type_itself(array.element);
  return array_type(array.die, array.dimension + 1, 0);
}

// ---- names ----

namespace {

std::string name_of_type(Die type, unsigned depth);

std::string_view keyword_of(std::uint16_t t) {
  switch (t) {
    case TAG_structure_type: return "struct ";
    case TAG_union_type: return "union ";
    case TAG_enumeration_type: return "enum ";
    default: return "";
  }
}

bool says_keywords(Die type) {
  const std::uint64_t l = language_of(type);
  return l == LANG_C89 || l == LANG_C || l == 0x0c || l == 0x1d || l == 0x2c;  // C89, C, C99, C11, C17
}

std::string with_suffix(Die type, std::string_view suffix, unsigned depth) {
  const Die inner = referenced(type, AT_type);
  std::string name = inner ? name_of_type(inner, depth + 1) : "void";
  if (suffix == "*" && name.ends_with('*')) return name + "*";
  return name.append(" ").append(suffix);
}

// As the source has them: "[4]", "[2:9]" where the first isn't the language's usual one.
std::string name_of_dimensions(Die array, std::size_t first) {
  std::vector<std::string> names;
  const std::vector<Die> dimensions = dimensions_of(array);
  for (std::size_t i = first; i < dimensions.size(); ++i) {
    const auto [lower, count] = bounds_of(dimensions[i]);
    std::string name = count ? std::to_string(*count) : "";
    if (lower && count && lower != first_index_in(language_of(array)))
      name = std::to_string(*lower) + ":" + std::to_string(*lower + static_cast<std::int64_t>(*count) - 1);
    names.push_back("[" + name + "]");
  }
  if (is_by_column(array)) std::ranges::reverse(names);
  std::string out;
  for (const std::string& name : names) out += name;
  return out;
}

std::string name_of_type(Die type, unsigned depth) {
  if (depth > kMaxNesting) return "...";
  const std::uint16_t t = tag(type);
  const std::string_view name = name_of(type);
  switch (t) {
    case TAG_pointer_type: return name.empty() ? with_suffix(type, "*", depth) : std::string(name);
    case TAG_reference_type: return with_suffix(type, "&", depth);
    case TAG_rvalue_reference_type: return with_suffix(type, "&&", depth);
    case TAG_const_type: {
      const Die inner = referenced(type, AT_type);
      const bool behind = tag(inner) == TAG_pointer_type;
      if (behind) return name_of_type(inner, depth + 1) + " const";
      return "const " + (inner ? name_of_type(inner, depth + 1) : std::string("void"));
    }
    case TAG_volatile_type:
    case TAG_restrict_type:
    case TAG_atomic_type: {
      const Die inner = referenced(type, AT_type);
      return inner ? name_of_type(inner, depth + 1) : "void";
    }
    case TAG_array_type: {
      if (!name.empty()) return std::string(name);
      std::string out = name_of_type(referenced(type, AT_type), depth + 1) + " ";
      return out.append(name_of_dimensions(type, 0));
    }
    case TAG_string_type:
      if (!name.empty()) return std::string(name);
      return "character(" + (attribute(type, AT_string_length) ? "*" : std::to_string(type_itself(type).size)) + ")";
    case TAG_subroutine_type: return "function";
    case 0: return "void";
    default: break;
  }
  if (name.empty()) return std::string(keyword_of(t)) + "(anonymous)";
  return (says_keywords(type) ? std::string(keyword_of(t)) : std::string()) + std::string(name);
}

}  // namespace

std::string type_name(Die type, unsigned dimension) {
  if (type && dimension > 0)
    return type_name(referenced(type, AT_type)).append(" ").append(name_of_dimensions(type, dimension));
  return type ? name_of_type(type, 0) : "void";
}

std::string with_article(const std::string& type) {
  const bool is_vowel = !type.empty() && std::string_view("aeio").find(type.front()) != std::string_view::npos;
  return (is_vowel || type.starts_with("unsigned") ? "an " : "a ") + type;
}

// ---- members ----

namespace {

// Of a bit field that begins at bit `first` of the structure: a container of its type, where it lies in an aligned one;
// else (it is packed) the least that holds it and doesn't end behind the structure.
void place_bits(Member& m, std::uint64_t first, std::uint64_t structure_size) {
  std::uint64_t size = m.type.size == 0 || m.type.size > 8 ? 8 : m.type.size;
  m.offset = first / (size * 8) * size;
  const bool in_structure = structure_size == 0 || m.offset + size <= structure_size;
  if (first - m.offset * 8 + m.bit_size > size * 8 || !in_structure) {
    m.offset = first / 8;
    for (size = 1; size < 8 && first % 8 + m.bit_size > size * 8;) size *= 2;
    if (m.offset + size > structure_size && size <= structure_size) m.offset = structure_size - size;
    m.type.size = size;
  }
  if (m.type.kind == TypeKind::character) m.type.kind = TypeKind::integer;
  if (const std::uint64_t before = first - m.offset * 8; before > 64 || before + m.bit_size > 64)
    m.absent = "its bits lie in nine bytes or more";
  else
    m.bit_offset = static_cast<std::uint8_t>(before);
}

// False: its place isn't a constant (a virtual base).
bool place_member(Member& m, std::uint64_t structure_size) {
  if (const auto location = attribute(m.die, AT_data_member_location)) {
    if (!location->is_block()) {
      m.offset = location->number;
    } else {
      Cursor c(location->block);  // DWARF 2: DW_OP_plus_uconst N
      if (c.take<std::uint8_t>() != OP_plus_uconst) return false;
      m.offset = c.uleb();
      if (!c.good() || c.left() > 0) return false;
    }
  }
  const auto bits = number_of(m.die, AT_bit_size);
  if (!bits) return true;
  if (*bits == 0) return false;
  m.bit_size = static_cast<std::uint8_t>(std::min<std::uint64_t>(*bits, 255));
  std::uint64_t first = 0;  // bit of the structure
  if (const auto at = number_of(m.die, AT_data_bit_offset)) {
    first = *at;
  } else if (const auto old = number_of(m.die, AT_bit_offset)) {
    // Counted from the most significant bit of a container of AT_byte_size bytes.
    const std::uint64_t container = number_of(m.die, AT_byte_size).value_or(m.type.size) * 8;
    first = m.offset * 8 + container - *old - *bits;
  } else {
    first = m.offset * 8;
  }
  return place_bits(m, first, structure_size), true;
}

std::optional<Member> in_virtual_base(const Type& structure, std::string_view name, unsigned depth, unsigned& looked);

std::optional<Member> find_member_in(const Type& structure, std::string_view name, unsigned depth, unsigned& looked) {
  if (depth > kMaxNesting || looked > kMaxLooked) return std::nullopt;
  const std::vector<Member> all = members_of(structure);
  looked += static_cast<unsigned>(all.size()) + 1;
  for (const Member& m : all)
    if (m.name == name && tag(m.die) == TAG_member) return m;
  for (const Member& outer : all) {
    const bool is_base = tag(outer.die) == TAG_inheritance;
    if ((!is_base && !outer.name.empty()) || outer.type.kind != TypeKind::structure) continue;
    if (auto inner = find_member_in(outer.type, name, depth + 1, looked)) {
      inner->offset += outer.offset;
      return inner;
    }
  }
  return in_virtual_base(structure, name, depth, looked);
}

// Its place is no constant: it is known to be there, so that no other is taken for it.
std::optional<Member> in_virtual_base(const Type& structure, std::string_view name, unsigned depth, unsigned& looked) {
  std::optional<Member> found;
  each_child(structure.die, [&](Die child) {
    if (tag(child) != TAG_inheritance) return true;
    Member base{{}, child, type_of(child), 0, {}, 0, {}};
    if (place_member(base, structure.size)) return true;
    found = find_member_in(base.type, name, depth + 1, looked);
    if (found) found->absent = "it is in a virtual base class, whose place only the running program knows";
    return !found;
  });
  return found;
}

}  // namespace

std::vector<Member> members_of(const Type& structure) {
  std::vector<Member> out;
  if (structure.kind != TypeKind::structure) return out;
  each_child(structure.die, [&](Die child) {
    const std::uint16_t t = tag(child);
    const bool is_static = attribute(child, AT_declaration) || attribute(child, AT_external);
    if ((t != TAG_member && t != TAG_inheritance) || is_static) return true;
    Member m{name_of(child), child, type_of(child), 0, {}, 0, {}};
    if (t == TAG_inheritance) m.name = name_of(m.type.die);
    if (place_member(m, structure.size)) out.push_back(std::move(m));
    return out.size() < kMaxMembers;
  });
  return out;
}

Member packed_element(const Type& array, std::uint64_t index) {
  Member m{{}, {}, element_of(array), 0, {}, array.bit_stride, {}};
  std::uint64_t first = 0;
  if (!m.type.is_number() || __builtin_mul_overflow(array.bit_stride, index, &first))
    m.absent = "it doesn't begin at a byte";
  else
    place_bits(m, first, array.size);
  return m;
}

std::optional<Member> find_member(const Type& structure, std::string_view name) {
  unsigned looked = 0;
  return find_member_in(structure, name, 0, looked);
}

}  // namespace probed::dwarf
