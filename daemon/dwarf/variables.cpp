// See variables.hpp. A path is followed from left to right: an object (its location and its type) at each step.
#include "daemon/dwarf/variables.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>
#include <utility>

#include "arch/arch.hpp"
#include "daemon/dwarf/info.hpp"
#include "daemon/dwarf/library_types.hpp"
#include "daemon/dwarf/types.hpp"
#include "daemon/dwarf/variable_finder.hpp"

namespace probed::dwarf {
namespace {

using Step = values::PlaceStep::Code;
using values::BaseType;

// Of structures in structures that are shown: four levels. Bases, and members without a name, are hardly a level.
constexpr unsigned kLevel = 4, kMaxDepth = 4 * kLevel;
constexpr std::uint64_t kMaxElements = 16;  // of a list of structures or lists

Error wrong(std::string message, std::string hint = {}) {
  return {Reason::bad_definition, std::move(message), std::move(hint), {}};
}

std::string type_name(const Object& object) { return dwarf::type_name(object.written, object.type.dimension); }

// ---- how values are shown ----

BaseType base_of(const Type& type) {
  constexpr BaseType kUnsigned[] = {BaseType::u8, BaseType::u16, BaseType::u32, BaseType::u64};
  constexpr BaseType kSigned[] = {BaseType::s8, BaseType::s16, BaseType::s32, BaseType::s64};
  const std::size_t row = type.size <= 1 ? 0 : type.size <= 2 ? 1 : type.size <= 4 ? 2 : 3;
  switch (type.kind) {
    case TypeKind::boolean: return type.size == 1 ? BaseType::boolean : kUnsigned[row];
    case TypeKind::character: return BaseType::chr;
    case TypeKind::floating: return type.size == 4 ? BaseType::f32 : BaseType::f64;
    case TypeKind::pointer:
    case TypeKind::function: return BaseType::x64;
    default: return type.is_signed ? kSigned[row] : kUnsigned[row];
  }
}

std::shared_ptr<const values::Enumeration> names_of(const Type& type) {
  constexpr std::size_t kMaxNames = 4096;
  if (type.kind != TypeKind::enumeration) return nullptr;
  auto names = std::make_shared<values::Enumeration>();
  each_child(type.die, [&](Die child) {
    if (const auto value = attribute(child, AT_const_value); value && tag(child) == TAG_enumerator)
      names->names.emplace_back(static_cast<std::int64_t>(value->number), name_of(child));
    return names->names.size() < kMaxNames;
  });
  std::ranges::stable_sort(names->names, {}, [](const auto& name) { return name.first; });
  return names;
}

bool is_text(const Type& pointer) {
  return pointer.kind == TypeKind::pointer && type_itself(pointer.element).kind == TypeKind::character;
}

bool has_plain_size(const Type& type) { return type.size == 1 || type.size == 2 || type.size == 4 || type.size == 8; }

// Numbers, pointers and texts; nullopt: it has parts, or can't be shown.
std::optional<values::Type> shown_as(const Type& type) {
  values::Type out;
  if (type.kind == TypeKind::floating && type.size != 4 && type.size != 8) return std::nullopt;  // long double
  if (!type.is_number() && type.kind != TypeKind::pointer && type.kind != TypeKind::function) return std::nullopt;
  if (type.kind != TypeKind::function && !has_plain_size(type)) return std::nullopt;
  out.base = is_text(type) ? BaseType::string : base_of(type);
  out.names = names_of(type);
  return out;
}

// Its elements lie one behind the other, where it is.
bool is_dense(const Type& array) {
  return array.absent.empty() && array.bit_stride == 0 && array.stride == element_of(array).size;
}

Shape shape_of(const Type& type) {
  if (type.kind == TypeKind::array)
    return element_of(type).kind == TypeKind::character && is_dense(type) ? Shape::characters : Shape::array;
  if (type.kind == TypeKind::fixed_text) return type.size > 0 ? Shape::characters : Shape::other;
  if (type.kind == TypeKind::structure) return Shape::structure;
  if (!shown_as(type)) return Shape::other;
  if (is_text(type)) return Shape::text;
  return type.kind == TypeKind::pointer || type.kind == TypeKind::function ? Shape::pointer : Shape::number;
}

// ---- paths ----

// Anonymous members are a part of their holder; so are its bases, whose names are their types'.
bool is_nameless(const Member& m) { return m.name.empty() || tag(m.die) == TAG_inheritance; }

struct PathReader {
  std::string_view text;
  std::size_t at = 0;

  bool done() const { return at >= text.size(); }
  bool take(std::string_view token) {
    if (!text.substr(at).starts_with(token)) return false;
    at += token.size();
    return true;
  }
  std::string_view identifier() {
    const auto is_part = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$';
    };
    const std::size_t start = at;
    while (at < text.size() && is_part(text[at])) ++at;
    return text.substr(start, at - start);
  }
  std::string_view qualified() {
    const std::size_t start = at;
    identifier();
    while (text.substr(at).starts_with("::")) {
      at += 2;
      identifier();
    }
    return text.substr(start, at - start);
  }
  // 0x10, 3, -2
  std::optional<std::int64_t> index() {
    const std::size_t close = text.find(']', at);
    if (close == text.npos) return std::nullopt;
    std::string_view digits = text.substr(at, close - at);
    const bool is_negative = digits.starts_with('-');
    if (is_negative) digits.remove_prefix(1);
    const int base = digits.starts_with("0x") ? 16 : 10;
    if (base == 16) digits.remove_prefix(2);
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    if (error != std::errc() || end != digits.data() + digits.size() || value >> 63 != 0) return std::nullopt;
    at = close + 1;
    return is_negative ? -static_cast<std::int64_t>(value) : static_cast<std::int64_t>(value);
  }
};

class Follower {
 public:
  explicit Follower(const VariableFinder& finder) : finder_(finder) {}

  Result<Object> follow(std::string_view path) {
    PathReader reader{path};
    auto object = unary(reader, 0);
    if (object && !reader.done()) return wrong("\"" + std::string(path) + "\": expected ->, . or [N]");
    return object;
  }

 private:
  static constexpr unsigned kMostNested = 20;  // casts and parentheses; the language allows fewer
  static constexpr unsigned kMostSmart = 4;

  Result<Object> unary(PathReader& reader, unsigned depth) {
    const std::string_view path = reader.text;
    if (depth > kMostNested) return wrong("\"" + std::string(path) + "\": too many parentheses");
    std::size_t stars = 0;
    while (reader.take("*")) ++stars;
    const bool wants_address = stars == 0 && reader.take("&");
    auto object = operand(reader, depth);
    for (; object && stars > 0; --stars) object = dereference(std::move(*object), path);
    if (object && wants_address) return address_of(std::move(*object), path);
    return object;
  }

  // A cast takes all that follows, as in C.
  Result<Object> operand(PathReader& reader, unsigned depth) {
    if (const std::size_t end = lang::cast_end(reader.text, reader.at); end != std::string_view::npos) {
      const std::string_view type = reader.text.substr(reader.at + 1, end - reader.at - 2);
      reader.at = end;
      auto object = unary(reader, depth + 1);
      return object ? cast(std::move(*object), type, reader.text) : std::move(object);
    }
    auto object = base(reader, depth);
    const auto is_step = [&] {
      return !reader.done() && std::string_view("-.[").find(reader.text[reader.at]) != std::string_view::npos;
    };
    while (object && is_step()) object = step(std::move(*object), reader);
    return object;
  }

  Result<Object> base(PathReader& reader, unsigned depth) {
    if (reader.take("(")) {
      auto inner = unary(reader, depth + 1);
      if (inner && !reader.take(")")) return wrong("\"" + std::string(reader.text) + "\": expected ')'");
      return inner;
    }
    if (reader.take("%")) return machine_register(reader.identifier());
    const std::string_view name = reader.qualified();
    auto object = finder_.find(name);
    return object ? without_reference(std::move(*object)) : std::move(object);
  }

  static Result<Object> machine_register(std::string_view name) {
    const auto offset = arch::native::register_offset(name);
    if (!offset) return wrong("unknown register \"%" + std::string(name) + "\"");
    values::Placement place;
    place.steps.push_back({Step::load_register, 8, 0, *offset});
    return word_at(std::move(place));
  }

  // To a pointer, or to a number. What an object in memory holds may be looked at as anything by its address: *(T*)&x.
  Result<Object> cast(Object object, std::string_view written, std::string_view path) const {
    const std::size_t first_star = std::min(written.find('*'), written.size());
    std::string name(written.substr(0, first_star));
    name.erase(name.find_last_not_of(" \t") + 1);
    name.erase(0, name.find_first_not_of(" \t"));
    const auto stars = static_cast<std::size_t>(std::ranges::count(written, '*'));
    if (object.type.kind == TypeKind::array) {
      auto address = address_of(std::move(object), path);
      if (!address) return address;
      object = std::move(*address);
    }
    const bool is_word = object.type.is_number() || object.type.kind == TypeKind::pointer;
    if (!is_word || object.type.kind == TypeKind::floating)
      return wrong("\"" + std::string(path) + "\": " + with_article(type_name(object)) + " can't be cast",
                   "cast its address: *(TYPE*)&x");
    const Die target = finder_.type_named(name);
    if (!target && !(name == "void" && stars > 0))
      return wrong("no type \"" + name + "\" is known in the debug information here",
                   "write it as the source does: (struct client*)x, (ns::Client*)x");
    if (stars > 0) return as_pointer(std::move(object), target, stars, path);
    const Type type = type_itself(target);
    if (!type.is_number() || type.kind == TypeKind::floating)
      return wrong("\"" + std::string(path) + "\": only numbers and pointers can be cast to", "write (" + name + "*)");
    if (object.type.size < type.size) object.location = widened(object);
    object.type = type;
    object.written = target;
    object.bit_offset.reset();
    return object;
  }

  // The number as 8 bytes.
  static Location widened(const Object& object) {
    values::Placement place = place_of(object.location, object.type.size);
    if (!place.absent.empty()) return absent(place.absent);
    const auto size = static_cast<std::uint8_t>(object.type.size);
    if (place.in_memory) {
      if (place.steps.empty()) place.steps.push_back({Step::load_immediate, 8, 0, 0});
      place.steps.push_back({Step::dereference, size, 0, place.offset});
    } else if (place.offset != 0) {
      place.steps.push_back({Step::add, 8, 0, place.offset});
    }
    place.steps.push_back({Step::cut, size, 0, 0, object.type.is_signed});
    place.offset = 0;
    place.in_memory = false;
    Piece piece;
    piece.place = std::move(place);
    return {std::move(piece)};
  }

  Result<Object> as_pointer(Object object, Die target, std::size_t stars, std::string_view path) const {
    for (; stars > 1; --stars) {
      target = finder_.pointer_to(target);
      if (!target)
        return wrong("\"" + std::string(path) + "\": no pointer to such a pointer is known here", "cast to (TYPE*)");
    }
    if (object.type.size < 8) object.location = widened(object);
    object.type = {};
    object.type.kind = TypeKind::pointer;
    object.type.size = 8;
    object.type.element = target;
    object.written = {};
    object.bit_offset.reset();
    return object;
  }

  Result<Object> dereference(Object object, std::string_view path) const {
    if (auto pointer = as_smart_pointer(object)) return dereference(*std::move(pointer), path);
    if (object.type.kind == TypeKind::array) {
      const std::int64_t first = object.type.lower.value_or(0);
      return element(std::move(object), first, path);
    }
    if (object.type.kind != TypeKind::pointer)
      return wrong("\"" + std::string(path) + "\": " + with_article(type_name(object)) + " is no pointer");
    const Die target = finder_.defined_anywhere(object.type.element);
    if (!target) return wrong("\"" + std::string(path) + "\": what a void pointer leads to has no type");
    return without_reference({behind(object.location, 0), type_itself(target), target, {}, 0});
  }

  Result<Object> step(Object object, PathReader& reader) const {
    if (reader.take("->") || reader.take(".")) return member(std::move(object), reader.identifier(), reader.text);
    if (!reader.take("[")) return wrong("\"" + std::string(reader.text) + "\": expected ->, . or [N]");
    const auto index = reader.index();
    if (!index) return wrong("\"" + std::string(reader.text) + "\": expected a number in [ ]");
    if (const unsigned count = subscripts_by_column(object.type))
      return by_column(std::move(object), *index, count, reader);
    return element(std::move(object), *index, reader.text);
  }

  // As the source has them: the last subscript is of what lies the furthest apart.
  Result<Object> by_column(Object object, std::int64_t first, unsigned count, PathReader& reader) const {
    std::vector<std::int64_t> subscripts{first};
    while (subscripts.size() < count && reader.take("["))
      if (const auto index = reader.index())
        subscripts.push_back(*index);
      else
        return wrong("\"" + std::string(reader.text) + "\": expected a number in [ ]");
    if (subscripts.size() < count)
      return wrong("\"" + std::string(reader.text) + "\": " + with_article(type_name(object)) + " takes " +
                   std::to_string(count) + " subscripts");
    Result<Object> found(std::move(object));
    for (; found && !subscripts.empty(); subscripts.pop_back())
      found = element(std::move(*found), subscripts.back(), reader.text);
    return found;
  }

  // smart: how many smart pointers have been followed to get here; damaged ones may hold themselves.
  Result<Object> member(Object object, std::string_view name, std::string_view path, unsigned smart = 0) const {
    if (object.type.kind == TypeKind::pointer) {
      auto target = dereference(std::move(object), path);
      if (!target) return target;
      object = std::move(*target);
    }
    const std::string owner = type_name(object);
    if (object.type.kind != TypeKind::structure)
      return wrong("\"" + std::string(path) + "\": " + with_article(owner) + " has no members");
    const auto found = find_member(object.type, name);
    if (!found) {
      if (auto pointer = as_smart_pointer(object); pointer && smart < kMostSmart)
        return member(*std::move(pointer), name, path, smart + 1);
      if (auto optional = as_optional(object)) {
        if (name == "has_value") return std::move(optional->has_value);
        if (name == "value") return without_reference(std::move(optional->value));
      }
      if (auto variant = as_variant(object)) {
        if (name == "index") return std::move(variant->index);
        if (name == "value") return wrong(owner + " has no one \"value\"", "its alternatives are [0], [1], ...");
      }
      return no_member(object, owner, name);
    }
    return without_reference(member_of(object, *found));
  }

  static Error no_member(const Object& object, const std::string& owner, std::string_view name) {
    if (object.type.size == 0 && attribute(object.type.die, AT_declaration))
      return wrong("the members of " + owner + " aren't known here: this part of the program only declares it",
                   "no other part defines just one of that name; with what it is write ((struct NAME*)x)->member");
    const std::string list = parts_that_have_names(object);
    return wrong(owner + " has no member \"" + std::string(name) + "\"", list.empty() ? "" : "it has " + list);
  }

  // What can be written behind the object, as it is shown: library types by what they hold, bases by their members.
  static std::string parts_that_have_names(const Object& object) {
    if (as_optional(object)) return "has_value, value";
    if (as_variant(object)) return "index, and its alternatives [0], [1], ...";
    if (as_elements(object)) return "elements: [0], [1], ...";
    std::string list;
    std::size_t looked = 0;
    add_names_of_members(object.type, 0, looked, list);
    return list;
  }

  static void add_names_of_members(const Type& type, unsigned depth, std::size_t& looked, std::string& list) {
    constexpr std::size_t kLongest = 200, kMostLooked = 2000;
    constexpr unsigned kMostBases = 8;  // one above the other
    for (const Member& m : members_of(type)) {
      if (list.size() >= kLongest || depth > kMostBases || ++looked > kMostLooked) return;
      if (is_nameless(m))
        add_names_of_members(m.type, depth + 1, looked, list);
      else
        list.append(list.empty() ? "" : ", ").append(m.name);
    }
  }

  Result<Object> element(Object object, std::int64_t number, std::string_view path) const {
    if (object.type.kind == TypeKind::array) return element_of_array(std::move(object), number, path);
    if (number < 0 && object.type.kind != TypeKind::pointer)
      return wrong("\"" + std::string(path) + "\": the first element is [0]");
    const auto index = static_cast<std::uint64_t>(number);
    if (auto elements = as_elements(object)) {
      if (elements->end) return element_of_vector(*std::move(elements), index, path);
      return element(std::move(elements->first), number, path);
    }
    if (auto variant = as_variant(object)) {
      if (index < variant->values.size()) return without_reference(std::move(variant->values[index]));
      const std::size_t count = variant->values.size();
      return wrong("\"" + std::string(path) + "\": " +
                   (count == 0 ? "of its alternatives only the index can be shown"
                               : "its last alternative is [" + std::to_string(count - 1) + "]"));
    }
    if (object.type.kind != TypeKind::pointer) {
      const bool is_structure = object.type.kind == TypeKind::structure;
      const std::string list = is_structure ? parts_that_have_names(object) : "";
      return wrong("\"" + std::string(path) + "\": " + with_article(type_name(object)) + " has no elements",
                   list.empty() ? "" : "it has " + list);
    }
    const Die target = finder_.defined_anywhere(object.type.element);
    const Type type = type_itself(target);
    std::int64_t offset = 0;
    if (type.size == 0 || __builtin_mul_overflow(type.size, number, &offset))
      return wrong("\"" + std::string(path) + "\": the size of what it points to isn't known");
    return without_reference({behind(object.location, static_cast<std::uint64_t>(offset)), type, target, {}, 0});
  }

  // number: as the source counts them.
  Result<Object> element_of_array(Object object, std::int64_t number, std::string_view path) const {
    const auto refused = [&](const std::string& why) { return wrong("\"" + std::string(path) + "\": " + why); };
    if (!object.type.absent.empty()) return without_reference(element_at(object, 0));
    if (!object.type.lower) return refused("the number of the first element is only known to the running program");
    std::int64_t lower = *object.type.lower, index = 0;
    if (number < lower || __builtin_sub_overflow(number, lower, &index))
      return refused("the first element is [" + std::to_string(lower) + "]");
    if (const auto count = object.type.count.value_or(0); count > 0 && static_cast<std::uint64_t>(index) >= count)
      return refused("the last element is [" + std::to_string(lower + static_cast<std::int64_t>(count) - 1) + "]");
    return without_reference(element_at(object, static_cast<std::uint64_t>(index)));
  }

  // Null where the vector has fewer elements.
  Result<Object> element_of_vector(LibraryElements elements, std::uint64_t index, std::string_view path) const {
    const std::uint64_t size = type_itself(finder_.defined_anywhere(elements.first.type.element)).size;
    std::uint64_t bytes = 0;  // up to the element's end
    const bool is_too_far = index == ~0ull || __builtin_mul_overflow(size, index + 1, &bytes);
    if (is_too_far || bytes > std::uint64_t{std::numeric_limits<std::int64_t>::max()})
      return wrong("\"" + std::string(path) + "\": no vector has so many elements");
    Location& begin = elements.first.location;
    begin = guarded_by_room(begin, begin, elements.end->location, bytes);
    return element(std::move(elements.first), index, path);
  }

  static Result<Object> address_of(Object object, std::string_view path) {
    values::Placement place = place_of(object.location, 1);
    if (place.absent.empty() && !place.in_memory)
      return wrong("\"" + std::string(path) + "\": it is in a register here and has no address");
    place.in_memory = false;
    const auto leads_on = [](const values::PlaceStep& step) {
      return step.code == values::PlaceStep::Code::dereference;
    };
    if (std::ranges::none_of(place.steps, leads_on)) place.doubt.clear();  // where it is is no doubt
    Piece piece;
    piece.place = std::move(place);
    Type pointer;
    pointer.kind = TypeKind::pointer;
    pointer.size = 8;
    return Object{{std::move(piece)}, pointer, {}, {}, 0};
  }

  const VariableFinder& finder_;
};

// ---- values ----

std::optional<CountedText> counted_text(const Object& object) {
  const auto text = as_text(object);
  if (!text) return std::nullopt;
  CountedText out{place_of(text->pointer.location, 8), place_of(text->length.location, text->length.type.size),
                  static_cast<std::uint8_t>(text->length.type.size)};
  if (out.pointer.absent.empty()) out.pointer.absent = out.length.absent;
  return out;
}

Value plain(const Object& object) {
  Value value;
  value.shape = shape_of(object.type);
  value.size = object.type.kind == TypeKind::function ? 8 : object.type.size;
  value.is_signed = object.type.is_signed;
  value.declared = type_name(object);
  value.place = place_of(object.location, std::max<std::uint64_t>(1, value.size));
  if (const auto type = shown_as(object.type)) value.type = *type;
  value.text = counted_text(object);
  if (object.bit_offset)
    value.type.bitfield = values::Bitfield{object.bit_size, *object.bit_offset,
                                           static_cast<std::uint8_t>(object.type.size * 8), object.type.is_signed};
  // Code has no value but its address.
  if (object.type.kind == TypeKind::function && value.place.in_memory) value.place.in_memory = false;
  return value;
}

// char[N] and lists of what is shown at once.
Value list(const Object& object, Value value) {
  if (value.shape == Shape::characters) {
    const bool is_fixed = object.type.kind == TypeKind::fixed_text;
    value.type.base = BaseType::string;
    const std::uint64_t count = is_fixed ? object.type.size : object.type.count.value_or(0);
    value.type.text_limit = static_cast<std::uint16_t>(std::min<std::uint64_t>(count, 0xffff));
    return value;
  }
  const Type element = element_of(object.type);
  value.type = *shown_as(element);
  const std::uint64_t count = object.type.count.value_or(0);
  value.type.array = static_cast<std::uint16_t>(std::min<std::uint64_t>(count, lang::kMaxArray));
  value.is_signed = element.is_signed;
  return value;
}

// Of an array whose length only the running program knows.
Value only_where(Value value) {
  value.shape = Shape::pointer;
  value.type = {};
  value.size = 8;
  value.is_signed = false;
  if (value.place.absent.empty() && !value.place.in_memory) value.place.absent = "it is in registers here";
  value.place.in_memory = false;
  value.note =
      "its address: how many elements " + with_article(value.declared) + " has isn't known here; name them: [0], [1]";
  return value;
}

Value empty_list(Value value) {
  value.type = {};
  value.type.base = BaseType::u8;
  value.type.array = 0;
  return value;
}

class Expander {
 public:
  explicit Expander(std::size_t limit) : limit_(limit) {}

  std::vector<Value> expand(const Object& object) {
    add(object, {}, 0);
    return std::move(out_);
  }

 private:
  void add(const Object& object, const std::vector<std::string>& path, unsigned depth) {
    if (out_.size() >= limit_ || ++looked_ > kMaxLooked) return;
    if (const auto pointer = as_smart_pointer(object)) return add(*pointer, path, depth);
    if (const auto list = as_elements(object); list && list->first.type.kind == TypeKind::array)
      return add(list->first, path, depth);
    const std::size_t before = out_.size();
    const Type& type = object.type;
    const bool is_structure = type.kind == TypeKind::structure && !as_text(object);
    if (is_structure && depth < kMaxDepth) return add_members(object, path, depth, before);
    const bool has_elements = type.kind == TypeKind::array && type.count.value_or(0) > 0;
    if (has_elements && shape_of(type) == Shape::array && depth < kMaxDepth &&
        (!shown_as(element_of(type)) || !is_dense(type) || !is_one_memory(object.location)) && type.absent.empty())
      return add_elements(object, path, depth);
    Value value = value_of(object);
    value.path = path;
    if (is_structure && value.place.absent.empty())
      value.place.absent = "structures are shown to a depth of four; name what is in it, as in x->a.b.c.d.e";
    out_.push_back(std::move(value));
  }

  // What is in registers has to be read one by one.
  static bool is_one_memory(const Location& location) {
    const values::Placement& first = location.front().place;
    return location.size() == 1 && location.front().constant.empty() && (first.in_memory || !first.absent.empty());
  }

  static Value value_of(const Object& object) {
    Value value = plain(object);
    if (value.shape == Shape::characters) return list(object, std::move(value));
    if (value.shape != Shape::array) return value;
    if (!object.type.absent.empty()) {
      value.shape = Shape::other;
      value.place.absent = object.type.absent;
      return value;
    }
    if (!object.type.count) return only_where(std::move(value));
    if (*object.type.count == 0) return empty_list(std::move(value));
    if (shown_as(element_of(object.type))) return list(object, std::move(value));
    value.shape = Shape::other;
    return value;
  }

  void add_optional(const LibraryOptional& optional, const std::vector<std::string>& path, unsigned depth) {
    std::vector<std::string> inner = path;
    inner.emplace_back("has_value");
    add(optional.has_value, inner, depth + kLevel);
    inner.back() = "value";
    add(optional.value, inner, depth + kLevel);
  }

  // Of one inside of another's alternative only the index: what is there depends on two numbers.
  void add_variant(const LibraryVariant& variant, const std::vector<std::string>& path, unsigned depth) {
    std::vector<std::string> inner = path;
    inner.emplace_back("index");
    const std::size_t index = out_.size();
    add(variant.index, inner, depth + kLevel);
    if (std::exchange(in_alternative_, true)) return;
    inner.back() = "value";
    for (std::size_t i = 0; i < variant.values.size(); ++i) {
      const Object& value = variant.values[i];
      const bool is_nothing = value.type.kind == TypeKind::structure && members_of(value.type).empty() &&
                              !attribute(value.type.die, AT_declaration);
      const std::size_t first = out_.size();
      if (!is_nothing) add(value, inner, depth + kLevel);
      if (!is_nothing && out_.size() == first) add_left_out(value, inner);
      for (std::size_t part = first; part < out_.size(); ++part) {
        out_[part].chooser = part - index;
        out_[part].choice = i;
      }
    }
    in_alternative_ = false;
  }

  // No part of it fits: a null that is said to be one.
  void add_left_out(const Object& object, const std::vector<std::string>& path) {
    Value value;
    value.path = path;
    value.declared = type_name(object);
    value.place.absent = "the variable has too many parts; name this one: VARIANT[N]";
    out_.push_back(std::move(value));
  }

  void add_members(const Object& object, const std::vector<std::string>& path, unsigned depth, std::size_t before) {
    if (const auto optional = as_optional(object)) return add_optional(*optional, path, depth);
    if (const auto variant = as_variant(object)) return add_variant(*variant, path, depth);
    const auto members = members_of(object.type);
    looked_ += members.size();
    std::set<std::string> names;
    for (const Member& m : members)
      if (!is_nameless(m)) names.emplace(m.name);
    for (const Member& m : members) {
      std::vector<std::string> inner = path;
      if (!is_nameless(m)) inner.emplace_back(m.name);
      Object part = member_of(object, m);
      if (part.type.kind == TypeKind::reference) part.type.kind = TypeKind::pointer;
      const std::size_t first = out_.size();
      add(part, inner, depth + (is_nameless(m) ? 1 : kLevel));
      if (is_nameless(m)) settle(first, path.size(), members.size() == 1, dwarf::type_name(part.written), names);
    }
    if (out_.size() == before) add_nothing(object, path);
  }

  // What a part without a name has added, from `first` on, is its holder's, whose path has `depth` names: no name may
  // be there twice, nor a value in place of all of them. Where one would be, the part gets its type's name.
  void settle(std::size_t first, std::size_t depth, bool alone, const std::string& type, std::set<std::string>& names) {
    const auto from = out_.begin() + static_cast<std::ptrdiff_t>(first);
    const auto is_whole = [=](const Value& v) { return v.path.size() == depth; };
    out_.erase(std::remove_if(from, out_.end(),
                              [&](const Value& v) {
                                const bool has_value = v.shape != Shape::structure && v.shape != Shape::other;
                                return is_whole(v) && (!v.place.absent.empty() || !has_value);
                              }),
               out_.end());
    const bool clashes = std::any_of(
        from, out_.end(), [&](const Value& v) { return is_whole(v) ? !alone : names.contains(v.path[depth]); });
    if (clashes && names.contains(type)) return void(out_.erase(from, out_.end()));
    for (auto v = from; v != out_.end(); ++v) {
      if (clashes) v->path.insert(v->path.begin() + static_cast<std::ptrdiff_t>(depth), type);
      if (v->path.size() > depth) names.insert(v->path[depth]);
    }
  }

  void add_elements(const Object& object, const std::vector<std::string>& path, unsigned depth) {
    for (std::uint64_t i = 0; i < std::min(*object.type.count, kMaxElements); ++i) {
      std::vector<std::string> inner = path;
      inner.push_back("[" + std::to_string(i) + "]");
      add(element_at(object, i), inner, depth + kLevel);
    }
  }

  void add_nothing(const Object& object, const std::vector<std::string>& path) {
    if (out_.size() >= limit_) return;
    Value value;
    value.path = path;
    value.declared = type_name(object);
    value.place.absent = "it has no members that can be shown";
    out_.push_back(std::move(value));
  }

  // Bases that have each other for bases, many times (damaged debug information), have no parts that end the search.
  static constexpr std::size_t kMaxLooked = 50'000;

  const std::size_t limit_;
  std::size_t looked_ = 0;
  bool in_alternative_ = false;
  std::vector<Value> out_;
};

}  // namespace

Variables::Variables(std::shared_ptr<const DebugInfo> info, std::uint64_t address, std::uint64_t bias, Outside outside,
                     std::string inlined)
    : info_(std::move(info)),
      address_(address),
      bias_(bias),
      outside_(std::move(outside)),
      inlined_(std::move(inlined)) {}

Result<Value> Variables::find(std::string_view path) const {
  const VariableFinder finder(*info_, address_, bias_, outside_, inlined_);
  auto object = Follower(finder).follow(path);
  if (!object) return std::move(object).error();
  return plain(*object);
}

Result<std::vector<Value>> Variables::parts(std::string_view path, std::size_t limit) const {
  const VariableFinder finder(*info_, address_, bias_, outside_, inlined_);
  auto object = Follower(finder).follow(path);
  if (!object) return std::move(object).error();
  return Expander(limit).expand(*object);
}

bool Variables::result_is_plain_word() const {
  return VariableFinder(*info_, address_, bias_, outside_, inlined_).result_is_plain_word();
}

std::string Variables::lacking() const { return info_->lacking_at(address_); }

Result<std::vector<std::string>> Variables::parameters() const {
  const VariableFinder finder(*info_, address_, bias_, outside_, inlined_);
  return finder.parameters();
}

Result<std::vector<VisibleVariable>> Variables::visible() const {
  const VariableFinder finder(*info_, address_, bias_, outside_, inlined_);
  return finder.visible();
}

}  // namespace probed::dwarf
