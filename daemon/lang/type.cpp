// TYPE, TYPE[N] and bitfields. Pure.
#include <utility>

#include "daemon/lang/number.hpp"
#include "daemon/lang/parse.hpp"

namespace probed::lang {
namespace {

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
  return values::type_named(name);
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

}  // namespace probed::lang
