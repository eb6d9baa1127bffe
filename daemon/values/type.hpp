// What a value is: the types of the definition language and of variables. Values only; pure.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace probed::values {

// clang-format off
enum class BaseType : std::uint8_t {
  u8, u16, u32, u64, s8, s16, s32, s64, x8, x16, x32, x64, chr, string, ustring, symbol,
  boolean, f32, f64  // of variables only: no definition can name them
};
// clang-format on

struct Bitfield {  // b<width>@<offset>/<container>
  std::uint8_t width = 0, offset = 0, container = 0;
  bool is_signed = false;  // of a variable's only
};

// The names of an enumeration's values, of debug information.
struct Enumeration {
  std::vector<std::pair<std::int64_t, std::string>> names;  // by value

  const std::string* name_of(std::int64_t value) const;  // null: it has none
};

struct Type {
  BaseType base = BaseType::x64;
  std::optional<Bitfield> bitfield;          // base is then the container's unsigned type
  std::optional<std::uint16_t> array;        // TYPE[N]
  std::shared_ptr<const Enumeration> names;  // values that have one are shown by it; null: none
  std::uint16_t text_limit = 0;              // of a string in an array of characters: its bytes; 0: none
};

// "u8", "x64[4]", "b3@1/8", "string": the type as it would be written in a definition.
std::string to_string(const Type& type);
// The type of that word, one that a definition can name: no bitfield, no array.
std::optional<BaseType> type_named(std::string_view word);

constexpr bool is_string(BaseType type) { return type == BaseType::string || type == BaseType::ustring; }
// Printed as a signed number: s8 to s64.
constexpr bool is_signed(BaseType type) { return type >= BaseType::s8 && type <= BaseType::s64; }
constexpr bool is_hexadecimal(BaseType type) { return type >= BaseType::x8 && type <= BaseType::x64; }
constexpr bool is_floating(BaseType type) { return type == BaseType::f32 || type == BaseType::f64; }
// Bytes a value of this type takes in the target's memory; strings have none.
constexpr std::uint8_t size_of(BaseType type) {
  switch (type) {
    case BaseType::u8:
    case BaseType::s8:
    case BaseType::x8:
    case BaseType::boolean:
    case BaseType::chr: return 1;
    case BaseType::u16:
    case BaseType::s16:
    case BaseType::x16: return 2;
    case BaseType::u32:
    case BaseType::s32:
    case BaseType::f32:
    case BaseType::x32: return 4;
    default: return 8;
  }
}

}  // namespace probed::values
