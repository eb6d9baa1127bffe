// TYPE, TYPE[N] and bitfields. Pure.
#include <algorithm>
#include <array>
#include <utility>

#include "daemon/lang/number.hpp"
#include "daemon/lang/parse.hpp"

namespace probed::lang {
namespace {

constexpr std::array<std::pair<std::string_view, BaseType>, 16> kTypes = {{{"u8", BaseType::u8},
                                                                           {"u16", BaseType::u16},
                                                                           {"u32", BaseType::u32},
                                                                           {"u64", BaseType::u64},
                                                                           {"s8", BaseType::s8},
                                                                           {"s16", BaseType::s16},
                                                                           {"s32", BaseType::s32},
                                                                           {"s64", BaseType::s64},
                                                                           {"x8", BaseType::x8},
                                                                           {"x16", BaseType::x16},
                                                                           {"x32", BaseType::x32},
                                                                           {"x64", BaseType::x64},
                                                                           {"char", BaseType::chr},
                                                                           {"string", BaseType::string},
                                                                           {"ustring", BaseType::ustring},
                                                                           {"symbol", BaseType::symbol}}};
// Of variables: shown, but not to be written.
constexpr std::array<std::pair<std::string_view, BaseType>, 3> kShownTypes = {
    {{"bool", BaseType::boolean}, {"f32", BaseType::f32}, {"f64", BaseType::f64}}};
constexpr const char* kTypeHint =
    "types: u8 u16 u32 u64 s8 s16 s32 s64 x8 x16 x32 x64 char string ustring symbol b<width>@<offset>/<container>, "
    "each also as TYPE[N]";

std::optional<BaseType> container_type(std::string_view text) {
  const auto bits = parse_unsigned(text);
  if (!bits) return std::nullopt;
  switch (*bits) {
    case 8: return BaseType::u8;
    case 16: return BaseType::u16;
    case 32: return BaseType::u32;
    case 64: return BaseType::u64;
    default: return std::nullopt;
  }
}

std::optional<BaseType> base_type(std::string_view name) {
  if (name.starts_with('b')) {
    const std::size_t slash = name.find('/');
    return slash == name.npos ? std::nullopt : container_type(name.substr(slash + 1));
  }
  for (const auto& [word, type] : kTypes)
    if (word == name) return type;
  return std::nullopt;
}

// text: from the '[' on; at: its column.
Result<std::uint16_t> parse_array(std::string_view text, std::size_t at) {
  const std::size_t close = text.find(']');
  if (close == text.npos) return bad_definition(at + text.size(), "the array's '[' is not closed: expected ']'");
  if (close + 1 != text.size())
    return bad_definition(at + close + 1, "text after the array's ']': " + quoted(text.substr(close + 1)));
  const std::string_view digits = text.substr(1, close - 1);
  const auto count = parse_unsigned(digits);
  if (!count || *count == 0 || *count > 0xffffffff)
    return bad_definition(at + 1, "bad array size " + quoted(digits) + ": a number from 1 to 64 is expected");
  if (*count > kMaxArray) return bad_definition(at + 1, "array size " + quoted(digits) + " is too big: at most 64");
  return static_cast<std::uint16_t>(*count);
}

}  // namespace

Result<ParsedType> parse_type(Word word) {
  ParsedType parsed;
  parsed.column = word.column;
  const std::size_t bracket = word.text.find('[');
  const std::string_view name = word.text.substr(0, bracket);
  if (bracket != word.text.npos) {
    auto count = parse_array(word.text.substr(bracket), word.column + bracket);
    if (!count) return std::move(count).error();
    parsed.type.array = *count;
  }
  const auto base = base_type(name);
  if (!base) return bad_definition(word.column, "unknown type " + quoted(name), kTypeHint);
  parsed.type.base = *base;
  if (name.starts_with('b')) parsed.bitfield = name;
  return parsed;
}

Result<Bitfield> parse_bitfield(std::string_view text, std::size_t column) {
  const auto wrong = [&](const char* why) {
    return bad_definition(
        column, "bad bitfield " + quoted(text) + ": " + why,
        "write b<width>@<offset>/<container> with width + offset <= container; container 8, 16, 32 or 64");
  };
  const std::size_t at = text.find('@'), slash = text.find('/');
  if (at == text.npos || slash == text.npos || at > slash) return wrong("'@' and '/' are expected");
  const auto width = parse_unsigned(text.substr(1, at - 1));
  const auto offset = parse_unsigned(text.substr(at + 1, slash - at - 1));
  const auto container = parse_unsigned(text.substr(slash + 1));
  if (!width || *width == 0) return wrong("the width is no number above 0");
  if (!offset) return wrong("the offset is no number");
  if (*width > 64 || *offset > 64 || *width + *offset > *container) return wrong("it doesn't fit its container");
  return Bitfield{static_cast<std::uint8_t>(*width), static_cast<std::uint8_t>(*offset),
                  static_cast<std::uint8_t>(*container)};
}

const std::string* Enumeration::name_of(std::int64_t value) const {
  const auto found = std::ranges::lower_bound(names, value, {}, &std::pair<std::int64_t, std::string>::first);
  return found != names.end() && found->first == value ? &found->second : nullptr;
}

std::string to_string(const Type& type) {
  std::string text;
  const auto add = [&](char before, unsigned number) { text.append(1, before).append(std::to_string(number)); };
  if (type.bitfield) {
    add('b', type.bitfield->width);
    add('@', type.bitfield->offset);
    add('/', type.bitfield->container);
  } else {
    for (const auto& [word, base] : kTypes)
      if (base == type.base) text = word;
    for (const auto& [word, base] : kShownTypes)
      if (base == type.base) text = word;
  }
  if (type.array) {
    add('[', *type.array);
    text.push_back(']');
  }
  return text;
}

}  // namespace probed::lang
