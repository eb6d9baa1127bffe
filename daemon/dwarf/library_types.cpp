// See library_types.hpp.
#include "daemon/dwarf/library_types.hpp"

#include <array>

namespace probed::dwarf {
namespace {

struct Row {
  std::string_view type;  // that its name begins with
  std::string_view pointer, length;
};

// libstdc++ (GCC 5 and later), libc++, Rust (the standard library has moved its parts about), Go.
constexpr std::array<Row, 9> kTexts = {{
    {"basic_string<char,", "_M_dataplus._M_p", "_M_string_length"},
    {"basic_string_view<char,", "_M_str", "_M_len"},
    {"basic_string_view<char,", "__data_", "__size_"},
    {"&str", "data_ptr", "length"},
    {"&mut str", "data_ptr", "length"},
    {"String", "vec.buf.inner.ptr.pointer.pointer", "vec.len"},
    {"String", "vec.buf.ptr.pointer.pointer", "vec.len"},
    {"String", "vec.buf.ptr.pointer", "vec.len"},
    {"string", "str", "len"},
}};

constexpr std::array<Row, 4> kPointers = {{
    {"unique_ptr<", "_M_t._M_t._M_head_impl", ""},
    {"shared_ptr<", "_M_ptr", ""},
    {"unique_ptr<", "__ptr_", ""},
    {"shared_ptr<", "__ptr_", ""},
}};

// Of what libstdc++ puts between a unique_ptr and its pointer only the innermost name is unique.
std::optional<Object> inside(Object object, std::string_view path) {
  if (path.empty()) return std::nullopt;
  while (!path.empty()) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    const auto member = find_member(object.type, path.substr(0, dot));
    if (!member) return std::nullopt;
    object = member_of(object, *member);
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return object;
}

bool is_named(const Object& object, std::string_view name) {
  if (object.type.kind != TypeKind::structure) return false;
  const std::string_view own = name_of(object.type.die);
  return name.ends_with('<') || name.ends_with(',') ? own.starts_with(name) : own == name;
}

}  // namespace

std::optional<LibraryText> as_text(const Object& object) {
  for (const Row& row : kTexts) {
    if (!is_named(object, row.type)) continue;
    auto pointer = inside(object, row.pointer), length = inside(object, row.length);
    if (!pointer || !length || pointer->type.kind != TypeKind::pointer) continue;
    if (length->type.kind != TypeKind::integer && length->type.kind != TypeKind::structure) continue;
    return LibraryText{*std::move(pointer), *std::move(length)};
  }
  return std::nullopt;
}

std::optional<Object> as_pointer(const Object& object) {
  for (const Row& row : kPointers) {
    if (!is_named(object, row.type)) continue;
    auto pointer = inside(object, row.pointer);
    if (pointer && pointer->type.kind == TypeKind::pointer) return pointer;
  }
  return std::nullopt;
}

}  // namespace probed::dwarf
