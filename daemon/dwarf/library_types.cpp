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

// libstdc++ (GCC 5 and later; the short ones, too, are behind the pointer), libc++'s view, Rust (the standard library
// has moved its parts about), Go.
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

std::optional<Member> base_of(const Type& type, std::string_view begin) {
  for (const Member& m : members_of(type))
    if (tag(m.die) == TAG_inheritance && m.name.starts_with(begin)) return m;
  return std::nullopt;
}

// path: members, divided by '.'; one that begins with ':' is the base whose name begins so.
std::optional<Object> inside(Object object, std::string_view path) {
  while (!path.empty()) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    const std::string_view name = path.substr(0, dot);
    const auto member = name.starts_with(':') ? base_of(object.type, name.substr(1)) : find_member(object.type, name);
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
  return language_of(type.die) == row.language;
}

bool points_to_bytes(const Type& type) {
  return type.kind == TypeKind::pointer && type.size == 8 && type_itself(type.element).size == 1;
}

bool is_length(const Object& object) {
  return object.type.kind == TypeKind::integer && (object.type.size == 4 || object.type.size == 8) &&
         !object.bit_offset;
}

// libstdc++'s std::string, of which Clang leaves out all or parts where the library has them (-fno-standalone-debug):
// its ABI is fixed, a pointer and a length come first.
std::optional<LibraryText> as_string_of_abi(const Object& object) {
  const Die die = object.type.die;
  const bool is_declared = object.type.size == 0 && attribute(die, AT_declaration);
  const bool is_string = name_of(die).starts_with("basic_string<char,") && name_of(parent_of(die)) == "__cxx11";
  if (!is_string || (!is_declared && object.type.size != 32)) return std::nullopt;
  Type word;
  word.kind = TypeKind::integer;
  word.size = 8;
  Type pointer = word;
  pointer.kind = TypeKind::pointer;
  return LibraryText{{part_of(object.location, 0, 8), pointer, {}, {}, 0},
                     {part_of(object.location, 8, 8), word, {}, {}, 0}};
}

bool is_of_std(const Object& object, std::string_view begin) {
  if (object.type.kind != TypeKind::structure || !name_of(object.type.die).starts_with(begin)) return false;
  Die outer = parent_of(object.type.die);
  if (name_of(outer).starts_with("__")) outer = parent_of(outer);  // an inline namespace: __1, __cxx11
  return tag(outer) == TAG_namespace && name_of(outer) == "std";
}

std::optional<Object> pointer_in(const Object& object, std::string_view path) {
  auto found = inside(object, path);
  return found && found->type.kind == TypeKind::pointer ? std::move(found) : std::nullopt;
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
  return as_string_of_abi(object);
}

std::optional<Object> as_smart_pointer(const Object& object) {
  if (is_of_std(object, "unique_ptr<")) {
    // libstdc++, whose tuple would have the deleter's before the pointer; libc++.
    if (auto found = pointer_in(object, "_M_t._M_t.:_Tuple_impl<0.:_Head_base<0._M_head_impl")) return found;
    if (auto found = pointer_in(object, "__ptr_.:__compressed_pair_elem<.__value_")) return found;
    return pointer_in(object, "__ptr_");
  }
  if (!is_of_std(object, "shared_ptr<")) return std::nullopt;
  if (auto found = pointer_in(object, "_M_ptr")) return found;
  return pointer_in(object, "__ptr_");
}

std::optional<LibraryElements> as_elements(const Object& object) {
  if (is_of_std(object, "vector<") && !name_of(object.type.die).starts_with("vector<bool"))
    for (const auto& [begin, end] :
         {std::pair<std::string_view, std::string_view>{"_M_impl._M_start", "_M_impl._M_finish"},
          {"__begin_", "__end_"}}) {
      auto first = pointer_in(object, begin), behind = pointer_in(object, end);
      if (first && behind) return LibraryElements{*std::move(first), std::move(behind)};
    }
  if (is_of_std(object, "array<"))
    for (const std::string_view name : {"_M_elems", "__elems_"})
      if (auto found = inside(object, name); found && found->type.kind == TypeKind::array)
        return LibraryElements{*std::move(found), std::nullopt};
  return std::nullopt;
}

namespace {

// The types that a template was made with, of those gathered in its parameter pack.
std::vector<Die> types_of_pack(Die type) {
  std::vector<Die> out;
  each_child(type, [&](Die child) {
    if (tag(child) != TAG_GNU_template_parameter_pack) return true;
    each_child(child, [&](Die one) {
      if (tag(one) == TAG_template_type_parameter) out.push_back(referenced(one, AT_type));
      return true;
    });
    return false;
  });
  return out;
}

}  // namespace

// All alternatives lie at the beginning of the same union. The index of none has all bits set.
std::optional<LibraryVariant> as_variant(const Object& object) {
  constexpr std::size_t kMost = 16;
  if (!is_of_std(object, "variant<")) return std::nullopt;
  auto index = inside(object, "_M_index");
  const auto storage = inside(object, "_M_u");
  if (!index || !storage || index->type.kind != TypeKind::integer) return std::nullopt;
  if (index->type.size != 1 && index->type.size != 2) return std::nullopt;
  const std::vector<Die> types = types_of_pack(object.type.die);
  if (!types.empty() && types.size() < 128) index->type.is_signed = true;
  LibraryVariant out{*std::move(index), {}};
  for (std::size_t i = 0; i < types.size() && types.size() <= kMost; ++i) {
    const Type type = type_itself(types[i]);
    Location place = part_of(storage->location, 0, std::max<std::uint64_t>(1, type.size));
    place = guarded(std::move(place), out.index.location, static_cast<std::uint8_t>(out.index.type.size), i);
    out.values.push_back({std::move(place), type, types[i], {}, 0});
  }
  return out;
}

std::optional<LibraryOptional> as_optional(const Object& object) {
  if (!is_of_std(object, "optional<")) return std::nullopt;
  for (const auto& [has_value, value] :
       {std::pair<std::string_view, std::string_view>{"_M_payload._M_engaged", "_M_payload._M_payload._M_value"},
        {"__engaged_", "__val_"}}) {
    auto flag = inside(object, has_value), content = inside(object, value);
    if (!flag || !content || flag->type.kind != TypeKind::boolean) continue;
    content->location = guarded(std::move(content->location), flag->location, 1, 1);
    return LibraryOptional{*std::move(flag), *std::move(content)};
  }
  return std::nullopt;
}

}  // namespace probed::dwarf
