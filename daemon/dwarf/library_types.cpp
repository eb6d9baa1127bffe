// See library_types.hpp.
#include "daemon/dwarf/library_types.hpp"

#include <algorithm>
#include <array>

namespace probed::dwarf {
namespace {

struct Row {
  std::string_view type;  // its name, or up to a ',' what its name begins with
  std::string_view pointer, length;
  std::uint16_t language;  // of the unit it stands in; 0: its name tells enough
};

// libstdc++ (GCC 5 and later; the short ones, too, are behind the pointer), libc++'s view, Rust (the standard library has
// moved its parts about), Go.
constexpr std::array<Row, 9> kTexts = {{
    {"basic_string<char,", "_M_dataplus._M_p", "_M_string_length", 0},
    {"basic_string_view<char,", "_M_str", "_M_len", 0},
    {"basic_string_view<char,", "__data_", "__size_", 0},
    {"&str", "data_ptr", "length", LANG_Rust},
    {"&mut str", "data_ptr", "length", LANG_Rust},
    {"String", "vec.buf.inner.ptr.pointer.pointer", "vec.len", LANG_Rust},
    {"String", "vec.buf.ptr.pointer.pointer", "vec.len", LANG_Rust},
    {"String", "vec.buf.ptr.pointer", "vec.len", LANG_Rust},
    {"string", "str", "len", LANG_Go},
}};

std::optional<Object> inside(Object object, std::string_view path) {
  while (!path.empty()) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    const auto member = find_member(object.type, path.substr(0, dot));
    if (!member) return std::nullopt;
    object = member_of(object, *member);
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return object;
}

bool is_named(const Row& row, const Type& type) {
  const std::string_view name = name_of(type.die);
  if (!(row.type.ends_with(',') ? name.starts_with(row.type) : name == row.type)) return false;
  if (row.language == 0) return true;
  const auto language = type.die.unit->attribute(0, AT_language);
  return language && language->number == row.language;
}

bool points_to_bytes(const Type& type) {
  return type.kind == TypeKind::pointer && type.size == 8 && type_itself(type.element).size == 1;
}

bool is_length(const Object& object) {
  return object.type.kind == TypeKind::integer && (object.type.size == 4 || object.type.size == 8) &&
         !object.bit_offset;
}

}  // namespace

std::optional<LibraryText> as_text(const Object& object) {
  if (object.type.kind != TypeKind::structure) return std::nullopt;
  for (const Row& row : kTexts) {
    if (!is_named(row, object.type)) continue;
    auto pointer = inside(object, row.pointer), length = inside(object, row.length);
    if (pointer && length && points_to_bytes(pointer->type) && is_length(*length))
      return LibraryText{*std::move(pointer), *std::move(length)};
  }
  return std::nullopt;
}

}  // namespace probed::dwarf
