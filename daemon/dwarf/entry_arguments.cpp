// See entry_arguments.hpp. System V psABI (x86-64) 3.2.3, AAPCS64 6.8; what both have in common.
#include "daemon/dwarf/entry_arguments.hpp"

#include <algorithm>
#include <array>

#include "arch/arch.hpp"
#include "daemon/dwarf/argument_classes.hpp"
#include "daemon/dwarf/types.hpp"
#include "daemon/names/demangle.hpp"

namespace probed::dwarf {
namespace {

namespace native = arch::native;
using Step = values::PlaceStep::Code;

// DWARF 5 table 7.17: C, C++, Objective-C, their newer standards.
constexpr std::array<std::uint64_t, 15> kLikeC = {0x01, 0x02, 0x04, 0x0c, 0x10, 0x11, 0x1a,  0x1d,
                                                  0x21, 0x2a, 0x2b, 0x2c, 0x3a, 0x3e, 0x8001};

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

Piece piece_of(values::PlaceStep step, bool in_memory, std::uint64_t offset, std::uint64_t size) {
  Piece out;
  out.place = {{step}, offset, in_memory, {}};
  out.size = size;
  return out;
}

constexpr const char* kUpper = "it is in the upper half of a vector register, which can't be read";

// From vector register `first` on.
Location numbers_in_vectors(const Homogeneous& numbers, unsigned first) {
  const std::uint64_t low = std::min<std::uint64_t>(numbers.size, 8);
  const bool is_whole = numbers.count == 1 && numbers.size <= 8;
  Location out;
  for (unsigned i = first; i < first + numbers.count; ++i) {
    out.push_back(piece_of({Step::load_vector, 8, 0, i}, false, 0, is_whole ? ~0ull : low));
    if (numbers.size <= 8) continue;
    out.push_back(out.back());
    out.back().place.absent = kUpper;
  }
  return out;
}

// A structure around a vector of 32 or 64 bytes is returned in a vector register of that size, if the code has those.
bool may_be_wide_vector(const Type& type) {
  return native::kClassifiesWords && (type.size == 32 || type.size == 64) && stack_alignment(type) == 0;
}

class Assigner {
 public:
  explicit Assigner(Die function) {
    if (native::kResultAddressRegister) return;
    const Type result = type_of(function);
    if (result.kind != TypeKind::structure) return;
    const Passing passing = passing_of(result, budget_);
    const Held held = result.size > 16            ? Held::memory
                      : is_empty(result, budget_) ? Held::registers
                                                  : holding_of(result).held;
    // Where the caller wants it is an argument of its own, in front of the others.
    const bool by_address = passing == Passing::reference || held == Held::memory;
    unknown_ = passing != Passing::reference &&
               (result.size > 16 ? may_be_wide_vector(result) : passing == Passing::unknown || held == Held::unknown);
    if (by_address) integers_ = 1;
  }

  Location next(const Type& type) {
    if (unknown_) return unknown();
    const Passing passing = passing_of(type, budget_);
    std::optional<Location> found;
    if (passing == Passing::reference)
      found = behind(integer());
    else if (passing == Passing::value)
      found = native::kClassifiesWords ? by_class(type) : by_kind(type);
    if (found) return *std::move(found);
    unknown_ = true;
    return unknown();
  }

 private:
  // A structure around one number of 16 bytes. Of others with such a part compilers think differently.
  static bool is_one_number(const Type& type) {
    const std::vector<Member> members = members_of(type);
    return members.size() == 1 && tag(members[0].die) == TAG_member && members[0].bit_size == 0 &&
           members[0].type.kind == TypeKind::integer && members[0].type.size == 16;
  }

  // System V psABI 3.2.3.
  std::optional<Location> by_class(const Type& type) {
    if (!type.die) return std::nullopt;
    if (type.kind == TypeKind::structure && is_empty(type, budget_))
      return absent("nothing is handed over for an empty class");
    const unsigned alignment = stack_alignment(type);
    const auto words = static_cast<unsigned>(std::min<std::uint64_t>((type.size + 7) / 8, 1u << 20));
    const bool is_wide = type.kind == TypeKind::structure || is_complex(type);
    if (type.size > 16) return is_wide ? in_memory(words, alignment) : std::nullopt;
    if (type.kind == TypeKind::integer && type.size == 16) return wide_integer(type);
    const Holding holding = holding_of(type);
    switch (holding.held) {
      case Held::registers: return structure(holding.words, alignment);
      case Held::memory:
      case Held::x87: return in_memory(words, alignment);
      case Held::unknown: break;
    }
    return std::nullopt;
  }

  // LLVM didn't align it on the stack until version 18, and put a half of it into the last register.
  std::optional<Location> wide_integer(const Type& type) {
    const unsigned version = clang_version(type.die);
    if (integers_ + 2 <= native::kRegisterArguments) return structure({Word::integer, Word::integer}, 16);
    if (made_by_gcc(type.die) || version >= 18) return in_memory(2, 16);
    if (version == 0) return std::nullopt;
    const bool is_half = integers_ + 1 == native::kRegisterArguments;
    Location out = is_half ? integer() : on_stack(1);
    Location upper = on_stack(1);
    out.front().size = 8;
    out.push_back(std::move(upper.front()));
    return out;
  }

  // AAPCS64 6.8.2.
  std::optional<Location> by_kind(const Type& type) {
    if (!type.die) return std::nullopt;
    if (type.kind == TypeKind::structure && is_empty(type, budget_)) {
      if (type.size > 8) return std::nullopt;
      if (type.size != 0) integer();  // in C++ it is a byte
      return absent("nothing is handed over for an empty class");
    }
    const std::uint64_t size = size_of(type);
    const Homogeneous numbers = homogeneous_of(type);
    if (!numbers.known || size == 0) return std::nullopt;
    const auto words = static_cast<unsigned>(std::min<std::uint64_t>((size + 7) / 8, 1u << 20));
    if (numbers.count > 0) return in_vectors(type, numbers, words);
    if (size > 16) return type.kind == TypeKind::structure ? std::optional(behind(integer())) : std::nullopt;
    // Of what the source says of its alignment compilers look at different parts.
    const unsigned alignment = words == 1 ? 8 : stack_alignment(type);
    if (words == 2 && (alignment == 0 || says_alignment(type))) return std::nullopt;
    if (alignment == 16 && type.kind == TypeKind::structure && !is_one_number(type)) return std::nullopt;
    if (alignment == 16) integers_ += integers_ % 2;
    return structure({Word::integer, words == 2 ? Word::integer : Word::none}, alignment);
  }

  // Each in a register of its own, or all of them on the stack, as what comes behind.
  std::optional<Location> in_vectors(const Type& type, const Homogeneous& numbers, unsigned words) {
    if (vectors_ + numbers.count > native::kVectorArguments) {
      vectors_ = native::kVectorArguments;
      return says_alignment(type) ? std::nullopt : in_memory(words, stack_alignment(type));
    }
    vectors_ += numbers.count;
    return numbers_in_vectors(numbers, vectors_ - numbers.count);
  }

  static Location unknown() { return absent("how it is passed isn't known; probe a later line: FILE:LINE"); }

  Location integer() { return structure({Word::integer, Word::none}, 8); }

  // In registers, or none of it in one.
  Location structure(const Words& words, unsigned alignment) {
    const auto integers = static_cast<unsigned>(std::ranges::count(words, Word::integer));
    const auto vectors = static_cast<unsigned>(std::ranges::count(words, Word::vector));
    const auto all =
        static_cast<unsigned>(words.size() - static_cast<std::size_t>(std::ranges::count(words, Word::none)));
    if (integers_ + integers > native::kRegisterArguments || vectors_ + vectors > native::kVectorArguments) {
      if (!native::kClassifiesWords)
        integers_ = native::kRegisterArguments;  // AAPCS64 6.8.2, C.13: no later one goes there
      auto place = in_memory(all, alignment);
      unknown_ = !place;
      return place ? *std::move(place) : unknown();
    }
    Location out;
    for (const Word word : words) {
      if (word == Word::none) continue;
      const values::PlaceStep step =
          word == Word::integer
              ? values::PlaceStep{Step::load_register, 8, 0, native::argument_place(++integers_).offset}
              : values::PlaceStep{Step::load_vector, 8, 0, vectors_++};
      out.push_back(piece_of(step, false, 0, all == 1 ? ~0ull : 8));
      if (word == Word::upper) --vectors_, out.back().place.absent = kUpper;
    }
    return out;
  }

  // Among the arguments on the stack, in whole words.
  std::optional<Location> in_memory(unsigned words, unsigned alignment) {
    if (alignment == 0) return std::nullopt;
    if (alignment > 8) stack_ += stack_ % 2;
    return on_stack(words);
  }

  Location on_stack(unsigned words) {
    const auto place = native::argument_place(native::kRegisterArguments + 1 + stack_);
    stack_ += words;
    return {piece_of({Step::load_register, 8, 0, *native::register_offset("sp")}, true, place.offset, ~0ull)};
  }

  static Location behind(Location pointer) {
    values::Placement& place = pointer.front().place;
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
    const bool is_integer = word == Word::integer;
    const values::PlaceStep step =
        !is_integer       ? values::PlaceStep{Step::load_vector, 8, 0, vectors++}
        : integers++ == 0 ? values::PlaceStep{Step::load_register, 8, 0, native::kReturnValueOffset}
                          : values::PlaceStep{Step::load_register, 8, 0, *native::dwarf_register(1)};  // rdx, x1
    out.push_back(piece_of(step, false, 0, whole ? ~0ull : 8));
    if (word == Word::upper) out.back().place.absent = kUpper;
  }
  return out;
}

// AAPCS64 6.9: in the registers that it would have as the first argument, or where the caller has said, which nothing
// tells any more when the function returns.
[[maybe_unused]] Location structure_at_return(const Type& type, Passing passing) {
  const auto in_memory = [] {
    const std::size_t address = native::kResultAddressRegister.value_or(0);
    return Location{piece_of({Step::load_entry_register, 8, 0, address}, true, 0, ~0ull)};
  };
  if (passing == Passing::reference) return in_memory();
  const Homogeneous numbers = homogeneous_of(type);
  unsigned budget = 256;
  if (!numbers.known || is_empty(type, budget)) return absent(kUnknownResult);
  if (numbers.count > 0) return numbers_in_vectors(numbers, 0);
  if (type.size > 16) return in_memory();
  return result_in_registers({Word::integer, type.size > 8 ? Word::integer : Word::none});
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
  if (passing == Passing::unknown || (passing == Passing::value && may_be_wide_vector(type)))
    return absent(kUnknownResult);
  if constexpr (!native::kClassifiesWords) return structure_at_return(type, passing);
  const Holding holding = type.size > 16 ? Holding{Held::memory, {}} : holding_of(type);
  if (passing == Passing::reference || holding.held == Held::memory)
    return {piece_of({Step::load_register, 8, 0, native::kReturnValueOffset}, true, 0, ~0ull)};
  return holding.held == Held::registers ? result_in_registers(holding.words) : absent(kUnknownResult);
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
  const auto all = names::parameters_in(names::demangle(text_of(linked, *attribute(linked, AT_linkage_name))));
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
