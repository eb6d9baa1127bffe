// See argument_classes.hpp.
#include "daemon/dwarf/argument_classes.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

#include "arch/arch.hpp"

namespace probed::dwarf {
namespace {

constexpr std::uint64_t kPassByReference = 4;  // DW_CC_pass_by_reference: a class that isn't copied byte by byte
constexpr std::size_t kMaxMembers = 32;        // who has more in 16 bytes is damaged
constexpr unsigned kMaxDepth = 8;
constexpr unsigned kMaxParts = 4096;  // of one type, that are looked at

std::string_view producer_of(Die die) {
  const Die root = die.unit->root();
  const auto producer = attribute(root, AT_producer);
  return producer ? text_of(root, *producer) : std::string_view();
}

}  // namespace

bool made_by_gcc(Die die) { return producer_of(die).starts_with("GNU "); }

unsigned clang_version(Die die) {
  constexpr std::string_view kName = "clang version ";  // "Debian clang version 14.0.6"
  const std::string_view producer = producer_of(die);
  const std::size_t at = producer.find(kName);
  unsigned version = 0;
  if (at != producer.npos)
    std::from_chars(producer.data() + at + kName.size(), producer.data() + producer.size(), version);
  return version;
}

// ---- by its address or itself ----

namespace {

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
  const bool is_gcc = made_by_gcc(type.die);
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

}  // namespace

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

bool is_empty(const Type& type, unsigned& budget) {
  if (type.kind != TypeKind::structure || budget == 0) return false;
  --budget;
  const std::vector<Member> members = members_of(type);
  if (members.empty()) return type.size <= 1 && !attribute(type.die, AT_declaration);
  return std::ranges::all_of(members, [&](const Member& m) { return is_empty(m.type, budget); });
}

bool is_complex(const Type& type) {
  return tag(type.die) == TAG_base_type && number_of(type.die, AT_encoding) == ATE_complex_float;
}

// ---- the words of small objects ----

namespace {

// How the words of one object of at most 16 bytes are classed, one part after the other.
class Classifier {
 public:
  Holding classify(const Type& type) {
    if (type.size > 16 || !add(type, 0, 0)) return {};
    // What follows an x87's number belongs to it, unless something else lies in the same place.
    const bool is_x87 = words_[0] == Word::x87 && words_[1] == Word::x87;
    if (in_memory_ || (!is_x87 && std::ranges::find(words_, Word::x87) != words_.end())) return {Held::memory, {}};
    if (is_x87) return {Held::x87, {}};
    // Beside an integer it has a register of its own.
    if (words_[1] == Word::upper && words_[0] != Word::vector) words_[1] = Word::vector;
    // Padding only: of no class, and what would be handed over for it isn't worth knowing.
    if (words_[0] == Word::none || (type.size > 8 && words_[1] == Word::none)) return {};
    return {Held::registers, words_};
  }

 private:
  // False: it isn't known how it is handed over.
  bool add(const Type& type, std::uint64_t offset, unsigned depth) {
    if (depth > kMaxDepth || offset > 16 || left_ == 0) return false;
    --left_;
    if (type.kind == TypeKind::structure) return add_members(type, offset, depth);
    if (attribute(type.die, AT_GNU_vector)) return add_vector(type, offset);
    if (type.kind == TypeKind::array) return add_elements(type, offset, depth);
    if (tag(type.die) == TAG_ptr_to_member_type) return add_scalar(Word::integer, 8, size_of(type), offset);
    if (type.kind == TypeKind::pointer || type.kind == TypeKind::reference)
      return add_scalar(Word::integer, 8, 8, offset);
    return type.size > 0 && add_number(type, offset);
  }

  bool add_members(const Type& type, std::uint64_t offset, unsigned depth) {
    const std::vector<Member> members = members_of(type);
    if (members.size() > kMaxMembers) return false;
    return std::ranges::all_of(members, [&](const Member& m) {
      // Of one that is only declared here nobody knows what it holds.
      if (m.type.kind == TypeKind::structure && members_of(m.type).empty())
        return !attribute(m.type.die, AT_declaration);
      if (m.bit_size == 0) return add(m.type, offset + m.offset, depth + 1);
      // Bit fields need no alignment.
      const std::uint64_t first = offset + m.offset + m.bit_offset.value_or(0) / 8;
      const std::uint64_t last = first + (m.bit_offset.value_or(0) % 8 + m.bit_size - 1u) / 8;
      return merge(first, Word::integer) && merge(last, Word::integer);
    });
  }

  bool add_elements(const Type& type, std::uint64_t offset, unsigned depth) {
    const Type element = element_of(type);
    if (!type.count || (element.size == 0 && *type.count > 0)) return false;
    for (std::uint64_t i = 0; i < *type.count; ++i)
      if (!add(element, offset + i * element.size, depth + 1)) return false;
    return true;
  }

  // Of smaller ones, and of those of one element, compilers think differently.
  bool add_vector(const Type& type, std::uint64_t offset) {
    const bool is_known = (type.size == 8 || type.size == 16) && element_of(type).size < 8 + type.size / 16;
    return is_known && add_scalar(Word::vector, type.size, type.size, offset);
  }

  // By their encodings: those of the other byte order are of the same class.
  bool add_number(const Type& type, std::uint64_t offset) {
    switch (number_of(type.die, AT_encoding).value_or(type.kind == TypeKind::enumeration ? ATE_unsigned : 0)) {
      case ATE_complex_float: {
        const std::uint64_t half = type.size / 2;
        return half <= 8 && add_scalar(Word::vector, half, half, offset) &&
               add_scalar(Word::vector, half, half, offset + half);
      }
      case ATE_float: {
        const std::string_view name = name_of(type.die);
        const bool is_x87 = type.size == 16 && (name == "long double" || name == "_Float64x");
        if (type.size == 16 && !is_x87 && name != "_Float128" && name != "__float128") return false;
        return add_scalar(is_x87 ? Word::x87 : Word::vector, type.size, type.size, offset);
      }
      case ATE_decimal_float: return add_scalar(Word::vector, type.size, type.size, offset);
      case ATE_address:
      case ATE_boolean:
      case ATE_signed:
      case ATE_signed_char:
      case ATE_unsigned:
      case ATE_unsigned_char:
      case ATE_UTF: return add_scalar(Word::integer, type.size, type.size, offset);
      default: return false;
    }
  }

  bool add_scalar(Word word, std::uint64_t alignment, std::uint64_t size, std::uint64_t offset) {
    if (size == 0 || offset + size > 16) return false;
    if (offset % alignment != 0) in_memory_ = true;
    for (std::uint64_t at = offset; at < offset + size; at += 8)
      if (!merge(at, word == Word::vector && at > offset ? Word::upper : word)) return false;
    return true;
  }

  // Integers win, and an x87's number only suffers itself.
  bool merge(std::uint64_t offset, Word word) {
    if (offset >= 16) return false;
    Word& there = words_[offset / 8];
    if (there == word || there == Word::none)
      there = word;
    else if (there == Word::integer || word == Word::integer)
      there = Word::integer;
    else if (there == Word::x87 || word == Word::x87)
      in_memory_ = true;
    else
      there = Word::vector;  // half of a larger vector beside a number of its own
    return true;
  }

  Words words_{};
  unsigned left_ = kMaxParts;
  bool in_memory_ = false;  // a part of it isn't aligned, or fits none of the others
};

// 0: more than 16, or not known. left: parts that may still be looked at.
unsigned alignment_of(const Type& type, unsigned depth, unsigned& left);

// Of one whose members don't lie as they would by themselves (packed), only what the source says.
unsigned alignment_of_members(const Type& type, unsigned depth, unsigned& left) {
  unsigned out = 8;
  for (const Member& m : members_of(type)) {
    const unsigned own = m.bit_size != 0 ? 8 : alignment_of(m.type, depth + 1, left);
    const auto said = number_of(m.die, AT_alignment).value_or(1);
    if (own == 0 || said > 16) return 0;
    if (own > 8 && m.offset % own != 0) continue;
    out = std::max({out, own, static_cast<unsigned>(said)});
  }
  return out;
}

unsigned alignment_of(const Type& type, unsigned depth, unsigned& left) {
  const auto said = number_of(type.die, AT_alignment).value_or(1);
  if (depth > kMaxDepth || left == 0 || said > 16) return 0;
  --left;
  const auto at_least = std::max(8u, static_cast<unsigned>(said));
  if (attribute(type.die, AT_GNU_vector)) return type.size > 16 ? 0 : type.size > 8 ? 16 : at_least;
  if (type.kind == TypeKind::array) return alignment_of(element_of(type), depth + 1, left);
  if (type.kind == TypeKind::structure) {
    const unsigned own = alignment_of_members(type, depth, left);
    return own == 0 ? 0 : type.size % own != 0 ? at_least : std::max(own, at_least);
  }
  if (tag(type.die) == TAG_ptr_to_member_type) return at_least;
  if (number_of(type.die, AT_encoding).value_or(0) >= ATE_lo_user) return 0;  // GCC's _Complex long
  const std::uint64_t number = is_complex(type) ? type.size / 2 : type.size;
  return number > 16 ? 0 : number > 8 ? 16 : at_least;
}

}  // namespace

Holding holding_of(const Type& type) { return Classifier().classify(type); }

unsigned stack_alignment(const Type& type) {
  unsigned left = kMaxParts;
  return alignment_of(type, 0, left);
}

namespace {

bool says_alignment_at(const Type& type, unsigned depth, unsigned& left) {
  if (depth > kMaxDepth || left == 0 || number_of(type.die, AT_alignment)) return true;
  --left;
  if (type.kind == TypeKind::array) return says_alignment_at(element_of(type), depth + 1, left);
  return type.kind == TypeKind::structure && std::ranges::any_of(members_of(type), [&](const Member& m) {
           return number_of(m.die, AT_alignment) || says_alignment_at(m.type, depth + 1, left);
         });
}

}  // namespace

bool says_alignment(const Type& type) {
  unsigned left = kMaxParts;
  return says_alignment_at(type, 0, left);
}

std::uint64_t size_of(const Type& type) {
  if (tag(type.die) != TAG_ptr_to_member_type) return type.size;
  return type_of(type.die).kind == TypeKind::function ? 16 : 8;
}

// ---- numbers of one kind ----

namespace {

class Counter {
 public:
  Homogeneous of(const Type& type) {
    if (type.size > kMost * 16) return {true, 0, 0};
    const std::uint64_t count = add(type, 0);
    if (is_one_ && !known_) return {};
    const bool is_one = is_one_ && count >= 1 && count <= kMost && count * size_ == type.size;
    return is_one ? Homogeneous{true, static_cast<unsigned>(count), size_} : Homogeneous{true, 0, 0};
  }

 private:
  static constexpr std::uint64_t kMost = 4;

  // How many numbers it has.
  std::uint64_t add(const Type& type, unsigned depth) {
    if (depth > kMaxDepth || left_ == 0) return known_ = false, 0;
    --left_;
    if (attribute(type.die, AT_GNU_vector)) {
      if (type.size != 8 && type.size != 16) known_ = false;
      return number(type.size, true);
    }
    if (type.kind == TypeKind::array) {
      if (!type.count || *type.count == 0) known_ = false;  // compilers think differently of those
      return type.count.value_or(0) * add(element_of(type), depth + 1);
    }
    if (type.kind == TypeKind::structure) return add_members(type, depth);
    switch (number_of(type.die, AT_encoding).value_or(0)) {
      case ATE_float: return number(type.size, false);
      case ATE_complex_float: return 2 * number(type.size / 2, false);
      case ATE_decimal_float: known_ = false; return 0;
      default: is_one_ = false; return 0;
    }
  }

  std::uint64_t add_members(const Type& type, unsigned depth) {
    const bool is_union = tag(type.die) == TAG_union_type;
    const std::vector<Member> members = members_of(type);
    // Of one that is only declared nobody knows what it holds; of empty parts compilers think differently.
    if (attribute(type.die, AT_declaration) || members.empty()) known_ = false;
    std::uint64_t count = 0;
    for (const Member& m : members) {
      if (m.bit_size != 0) is_one_ = false;
      // What has something else in it is something else, whatever comes behind.
      if (!is_one_) return 0;
      const std::uint64_t own = add(m.type, depth + 1);
      count = is_union ? std::max(count, own) : count + own;
      if (count > kMaxParts) is_one_ = false;
    }
    if (known_ && count * size_ != type.size) is_one_ = false;  // where there is padding, in a part of it even
    return count;
  }

  std::uint64_t number(std::uint64_t size, bool is_vector) {
    if (size_ == 0) size_ = size, is_vector_ = is_vector;
    if (size_ != size || is_vector_ != is_vector) is_one_ = false;
    return 1;
  }

  std::uint64_t size_ = 0;
  bool is_vector_ = false, known_ = true, is_one_ = true;
  unsigned left_ = kMaxParts;
};

}  // namespace

Homogeneous homogeneous_of(const Type& type) { return Counter().of(type); }

}  // namespace probed::dwarf
