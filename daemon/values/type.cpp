// See type.hpp.
#include "daemon/values/type.hpp"

#include <algorithm>
#include <array>

namespace probed::values {
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

}  // namespace

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

std::optional<BaseType> type_named(std::string_view word) {
  for (const auto& [name, type] : kTypes)
    if (name == word) return type;
  return std::nullopt;
}

}  // namespace probed::values
