// See entry_arguments.hpp. System V psABI (x86-64) 3.2.3, AAPCS64 6.8; what both have in common.
#include "daemon/dwarf/entry_arguments.hpp"

#include <algorithm>
#include <array>

#include "arch/arch.hpp"
#include "daemon/dwarf/types.hpp"
#include "daemon/symbols/demangle.hpp"

namespace probed::dwarf {
namespace {

namespace native = arch::native;
using Step = lang::PlaceStep::Code;

constexpr std::uint64_t kPassByReference = 4;  // DW_CC_pass_by_reference: a class that isn't copied byte by byte

// DWARF 5 table 7.17: C, C++, Objective-C, their newer standards.
constexpr std::array<std::uint64_t, 15> kLikeC = {0x01, 0x02, 0x04, 0x0c, 0x10, 0x11, 0x1a,  0x1d,
                                                  0x21, 0x2a, 0x2b, 0x2c, 0x3a, 0x3e, 0x8001};

std::uint64_t language_of(Die function) {
  const auto language = function.unit->attribute(0, AT_language);
  return language ? language->number : 0;
}

bool calls_like_c(Die function) {
  constexpr std::uint64_t kNormal = 1, kProgram = 2;  // DW_CC_normal, DW_CC_program
  const std::uint64_t convention = number_of(function, AT_calling_convention).value_or(kNormal);
  if (convention != kNormal && convention != kProgram) return false;  // ms_abi, vectorcall
  return std::ranges::find(kLikeC, language_of(function)) != kLikeC.end();
}

bool fits_integer_register(const Type& type) {
  const bool scalar = type.is_number() || type.kind == TypeKind::pointer || type.kind == TypeKind::reference;
  return scalar && type.kind != TypeKind::floating && type.size > 0 && type.size <= 8;
}

// Go marks so what a function returns.
bool is_go_result(Die parameter) { return flag_of(parameter, AT_variable_parameter); }

// ---- classes that aren't copied byte by byte are handed over by their address (Itanium C++ ABI 3.1.2.3) ----

enum class Passing : std::uint8_t { value, reference, unknown };

bool made_by_gcc(Die die) {
  const Die root = die.unit->root();
  const auto producer = attribute(root, AT_producer);
  return producer && text_of(root, *producer).starts_with("GNU ");
}

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

// C++ hands over nothing at all for those. Who is larger has parts without a name.
bool is_empty(const Type& type, unsigned& budget) {
  if (type.kind != TypeKind::structure || budget == 0) return false;
  --budget;
  const std::vector<Member> members = members_of(type);
  if (members.empty()) return type.size <= 1;
  return std::ranges::all_of(members, [&](const Member& m) { return is_empty(m.type, budget); });
}

bool is_complex(const Type& type) {
  return tag(type.die) == TAG_base_type && number_of(type.die, AT_encoding) == ATE_complex_float;
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

// ---- the words of small structures ----

enum class Word : std::uint8_t { none, vector, integer };  // by precedence
using Words = std::array<Word, 2>;

void merge(Words& words, std::uint64_t offset, Word word) { words[offset / 8] = std::max(words[offset / 8], word); }

// Adds what is at byte `offset` of a structure of at most 16 bytes. False: it isn't known how it is handed over, or it
// lies unaligned, so that all of it is in memory.
bool classify(const Type& type, std::uint64_t offset, Words& words, unsigned depth) {
  constexpr std::size_t kMaxMembers = 32;  // who has more in so few bytes is damaged
  constexpr unsigned kMaxDepth = 8;
  if (depth > kMaxDepth || type.size == 0 || offset + type.size > 16) return false;
  if (type.kind == TypeKind::array) {
    if (attribute(type.die, AT_GNU_vector)) return false;
    const Type element = element_of(type);
    for (std::uint64_t i = 0; i < type.count.value_or(0); ++i)
      if (!classify(element, offset + i * element.size, words, depth + 1)) return false;
    return type.count.has_value();
  }
  if (type.kind == TypeKind::structure) {
    const std::vector<Member> members = members_of(type);
    if (members.size() > kMaxMembers) return false;
    return std::ranges::all_of(members, [&](const Member& m) {
      if (m.type.kind == TypeKind::structure && members_of(m.type).empty()) return true;
      if (m.bit_offset)
        return merge(words, std::min<std::uint64_t>(offset + m.offset + *m.bit_offset / 8, 15), Word::integer), true;
      return classify(m.type, offset + m.offset, words, depth + 1);
    });
  }
  const bool is_floating = type.kind == TypeKind::floating;
  const bool is_word = type.is_number() || type.kind == TypeKind::pointer || type.kind == TypeKind::reference;
  if (!is_word || type.size > 8 || offset % type.size != 0) return false;
  merge(words, offset, is_floating ? Word::vector : Word::integer);
  return true;
}

// Those of a structure of at most 16 bytes; nullopt: it isn't known.
std::optional<Words> words_of(const Type& type) {
  Words words{};
  if (!native::kClassifiesWords) {
    if (has_floating(type, 0)) return std::nullopt;
    return Words{Word::integer, type.size > 8 ? Word::integer : Word::none};
  }
  if (!classify(type, 0, words, 0)) return std::nullopt;
  // Padding only: of no class, and what would be handed over for it isn't worth knowing.
  if (words[0] == Word::none || (type.size > 8 && words[1] == Word::none)) return std::nullopt;
  return words;
}

// Whether it may begin at every word of the stack.
bool has_plain_alignment(const Type& type, unsigned depth) {
  constexpr unsigned kMaxDepth = 8;
  if (depth > kMaxDepth || number_of(type.die, AT_alignment).value_or(1) > 8 || attribute(type.die, AT_GNU_vector))
    return false;
  if (type.kind == TypeKind::array) return has_plain_alignment(element_of(type), depth + 1);
  if (type.kind != TypeKind::structure) return type.size <= 8;
  return std::ranges::all_of(members_of(type), [&](const Member& m) {
    return number_of(m.die, AT_alignment).value_or(1) <= 8 && has_plain_alignment(m.type, depth + 1);
  });
}

Piece piece_of(lang::PlaceStep step, bool in_memory, std::uint64_t offset, std::uint64_t size) {
  Piece out;
  out.place = {{step}, offset, in_memory, {}};
  out.size = size;
  return out;
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
    if (type.kind == TypeKind::floating && type.size <= 8) return floating();
    if (native::kClassifiesWords)
      if (auto found = wide(type)) return *std::move(found);
    if (scalar && type.size > 0 && type.size <= 8) return integer();
    const Passing passing = passing_of(type, budget_);
    if (passing == Passing::reference) return behind(integer());
    if (type.kind == TypeKind::structure && passing == Passing::value && type.size > 0 && !is_empty(type, budget_)) {
      const bool plain = has_plain_alignment(type, 0);
      if (type.size > 16 && native::kClassifiesWords && plain) return in_memory(type);
      if (type.size <= 16 && plain)
        if (const auto words = words_of(type)) return structure(*words);
    }
    unknown_ = true;
    return unknown();
  }

 private:
  // What is handed over as structures are, though it is none, and what isn't handed over at all (System V psABI 3.2.3).
  std::optional<Location> wide(const Type& type) {
    if (type.kind == TypeKind::floating && type.size == 16 && name_of(type.die) == "long double") return aligned(2);
    if (type.kind == TypeKind::integer && type.size == 16) {
      if (integers_ + 2 <= native::kRegisterArguments) return structure({Word::integer, Word::integer});
      // LLVM didn't align it there until version 18, and put a half of it into the last register.
      return made_by_gcc(type.die) ? std::optional(aligned(2)) : std::nullopt;
    }
    if (is_complex(type) && type.size == 8) return floating();
    if (is_complex(type) && type.size == 16) return structure({Word::vector, Word::vector});
    if (is_complex(type) && type.size == 32) return aligned(4);
    if (tag(type.die) == TAG_ptr_to_member_type) {
      const bool is_function = type_of(type.die).kind == TypeKind::function;
      return structure({Word::integer, is_function ? Word::integer : Word::none});
    }
    const bool is_nothing = type.kind == TypeKind::structure && !attribute(type.die, AT_declaration) &&
                            is_empty(type, budget_) && passing_of(type, budget_) == Passing::value;
    return is_nothing ? std::optional(absent("nothing is handed over for an empty class")) : std::nullopt;
  }

  Location aligned(unsigned words) {
    stack_ += stack_ % 2;
    return on_stack(words);
  }

  static Location unknown() { return absent("how it is passed isn't known; probe a later line: FILE:LINE"); }

  Location integer() { return structure({Word::integer, Word::none}); }

  // In registers, or none of it in one.
  Location structure(const Words& words) {
    const auto integers = static_cast<unsigned>(std::ranges::count(words, Word::integer));
    const auto vectors = static_cast<unsigned>(std::ranges::count(words, Word::vector));
    if (integers_ + integers > native::kRegisterArguments || vectors_ + vectors > native::kVectorArguments) {
      if (!native::kClassifiesWords)
        integers_ = native::kRegisterArguments;  // AAPCS64 6.8.2, C.13: no later one goes there
      return on_stack(integers + vectors);
    }
    Location out;
    for (const Word word : words) {
      if (word == Word::none) continue;
      const lang::PlaceStep step =
          word == Word::vector ? lang::PlaceStep{Step::load_vector, 8, 0, vectors_++}
                               : lang::PlaceStep{Step::load_register, 8, 0, native::argument_place(++integers_).offset};
      out.push_back(piece_of(step, false, 0, integers + vectors == 1 ? ~0ull : 8));
    }
    return out;
  }

  // What is larger lies among the arguments on the stack, in whole words.
  Location in_memory(const Type& type) {
    return on_stack(static_cast<unsigned>(std::min<std::uint64_t>((type.size + 7) / 8, 1u << 20)));
  }

  Location floating() {
    if (vectors_ >= native::kVectorArguments) return on_stack(1);
    return {piece_of({Step::load_vector, 8, 0, vectors_++}, false, 0, ~0ull)};
  }

  Location on_stack(unsigned words) {
    const auto place = native::argument_place(native::kRegisterArguments + 1 + stack_);
    stack_ += words;
    return {piece_of({Step::load_register, 8, 0, *native::register_offset("sp")}, true, place.offset, ~0ull)};
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

namespace {

// Those of a parameter pack, too, which GCC gathers in an entry of their own.
template <class F>
void each_parameter(Die function, F&& call) {
  each_child(function, [&](Die child) {
    if (tag(child) == TAG_formal_parameter) call(child);
    if (tag(child) != TAG_GNU_formal_parameter_pack) return true;
    each_child(child, [&](Die one) {
      if (tag(one) == TAG_formal_parameter) call(one);
      return true;
    });
    return true;
  });
}

}  // namespace

std::vector<Die> parameters_of(Die function) {
  const bool is_go = language_of(function) == LANG_Go;
  std::vector<Die> out;
  each_parameter(function, [&](Die child) {
    if (!is_go || !is_go_result(child)) out.push_back(child);
  });
  // An instance may leave out those that have been optimised away: the order is the original's. Of the compiler's own
  // it has those there are: of two constructors of a class with virtual bases, made from one, only one gets __vtt_parm.
  const Die original = abstract_instance(function);
  if (original == function) return out;
  std::vector<Die> all;
  each_parameter(original, [&](Die child) {
    const auto instance = std::ranges::find_if(out, [&](Die d) { return origin(d) == child; });
    const bool is_left_out = instance == out.end() && !all.empty() && flag_of(child, AT_artificial);
    if (!is_left_out) all.push_back(instance == out.end() ? child : *instance);
  });
  return all.size() >= out.size() ? all : out;
}

namespace {

constexpr const char* kUnknownResult = "how its function returns it isn't known";

Location result_in_registers(const Words& words) {
  unsigned integers = 0, vectors = 0;
  const bool whole = words[1] == Word::none;
  Location out;
  for (const Word word : words) {
    if (word == Word::none) continue;
    const lang::PlaceStep step =
        word == Word::vector ? lang::PlaceStep{Step::load_vector, 8, 0, vectors++}
        : integers++ == 0    ? lang::PlaceStep{Step::load_register, 8, 0, native::kReturnValueOffset}
                             : lang::PlaceStep{Step::load_register, 8, 0, *native::dwarf_register(1)};  // rdx, x1
    out.push_back(piece_of(step, false, 0, whole ? ~0ull : 8));
  }
  return out;
}

}  // namespace

Location result_at_return(Die function) {
  const Type type = type_of(function);
  if (!referenced(function, AT_type) && language_of(function) != LANG_Go) return absent("its function returns nothing");
  if (!calls_like_c(function)) return absent(kUnknownResult);
  if (type.kind == TypeKind::floating && (type.size == 4 || type.size == 8))
    return result_in_registers({Word::vector, Word::none});
  if (fits_integer_register(type)) return result_in_registers({Word::integer, Word::none});
  if (type.kind != TypeKind::structure || type.size == 0) return absent(kUnknownResult);
  unsigned budget = 256;
  const Passing passing = passing_of(type, budget);
  if (passing == Passing::unknown) return absent(kUnknownResult);
  if (passing == Passing::reference || type.size > 16) {
    if (!native::kClassifiesWords) return absent(kUnknownResult);
    return {piece_of({Step::load_register, 8, 0, native::kReturnValueOffset}, true, 0, ~0ull)};
  }
  const auto words = has_plain_alignment(type, 0) ? words_of(type) : std::nullopt;
  return words ? result_in_registers(*words) : absent(kUnknownResult);
}

bool result_is_plain_word(Die function) {
  const std::uint64_t language = language_of(function);
  if (language == 0 || language == LANG_Assembler) return true;
  if (calls_like_c(function)) return false;
  if (language != LANG_Go) return fits_integer_register(type_of(function));
  // The first of its results; of none it isn't known whether it has some: code in assembler is marked as Go's.
  Die first;
  each_child(abstract_instance(function), [&](Die child) {
    if (tag(child) == TAG_formal_parameter && is_go_result(child)) first = child;
    return !first;
  });
  return !first || fits_integer_register(type_of(first));
}

bool is_widened_at_entry(Die function, Die parameter) {
  constexpr std::array<std::uint64_t, 5> kC = {0x01, 0x02, 0x0c, 0x1d, 0x2c};  // C89, C, C99, C11, C17
  if (std::ranges::find(kC, language_of(function)) == kC.end() || flag_of(function, AT_prototyped)) return false;
  const Type type = type_of(parameter);
  return type.kind == TypeKind::floating && type.size == 4;
}

namespace {

// Clang 14 leaves a parameter out that has no name or isn't used: a class with a destructor, in a function without
// optimisation. The function's mangled name has it.
bool lacks_parameters(Die function, const std::vector<Die>& parameters) {
  const Die linked = holder_of(function, AT_linkage_name);
  if (!linked) return false;
  const auto all = symbols::parameters_in(symbols::demangle(text_of(linked, *attribute(linked, AT_linkage_name))));
  return all && std::ranges::count_if(parameters, [](Die p) { return !flag_of(p, AT_artificial); }) <
                    static_cast<std::ptrdiff_t>(*all);
}

}  // namespace

std::vector<Location> arguments_at_entry(Die function) {
  std::vector<Location> out;
  if (!calls_like_c(function)) return out;
  const std::vector<Die> parameters = parameters_of(function);
  const bool is_lacking = lacks_parameters(function, parameters);
  Assigner assigner(function);
  for (const Die parameter : parameters) {
    const bool is_known = !is_lacking || flag_of(parameter, AT_artificial);  // `this` comes first
    out.push_back(is_known ? assigner.next(type_of(parameter))
                           : absent("debug information lacks one of the parameters; probe a later line: FILE:LINE"));
  }
  return out;
}

}  // namespace probed::dwarf
