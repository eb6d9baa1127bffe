// See info.hpp.
#include "daemon/dwarf/info.hpp"

#include <algorithm>
#include <map>
#include <set>

namespace probed::dwarf {
namespace {

constexpr unsigned kMaxScopes = 64;

bool is_scope(std::uint16_t t) { return t == TAG_lexical_block || t == TAG_inlined_subroutine; }
bool is_namespace(std::uint16_t t) {
  return t == TAG_namespace || t == TAG_structure_type || t == TAG_class_type || t == TAG_union_type;
}
bool is_outermost(std::uint16_t t) {
  return t == TAG_compile_unit || t == TAG_partial_unit || t == TAG_namespace || t == TAG_skeleton_unit;
}

}  // namespace

std::string qualified_name(Die die) {
  std::string name(name_of(die));
  Die outer = parent_of(origin(die));
  for (unsigned i = 0; outer && i < kMaxScopes && is_namespace(tag(outer)); ++i, outer = parent_of(outer)) {
    const std::string_view part = name_of(outer);
    name.insert(0, std::string(part.empty() ? "(anonymous)" : part) + "::");
  }
  return name;
}

std::shared_ptr<const DebugInfo> DebugInfo::read(const symbols::ElfImage& image, const symbols::ElfImage* debug,
                                                 const symbols::ElfImage* alternate) {
  auto sections = Sections::read(debug ? *debug : image, false);
  if (!sections) return nullptr;
  std::unique_ptr<File> other;
  if (alternate)
    if (auto more = Sections::read(*alternate, false)) other = std::make_unique<File>(*std::move(more), nullptr);
  std::shared_ptr<DebugInfo> info(new DebugInfo);
  info->file_ = std::make_unique<File>(*std::move(sections), std::move(other));
  // A debug file has no .eh_frame: it is loaded, so it stays behind.
  if (const Elf64_Shdr* section = image.section(".eh_frame"); section && section->sh_type != SHT_NOBITS) {
    info->eh_frame_ = read_section(image, ".eh_frame", Sections::kMaxBytes).value_or(std::vector<std::byte>());
    info->eh_frame_address_ = section->sh_addr;
  }
  return info;
}

// ---- units and functions ----

const Unit* DebugInfo::unit_at(std::uint64_t address) const {
  if (!have_units_) {
    have_units_ = true;
    for (const auto& unit : file_->units()) {
      if (unit->is_type_unit()) continue;
      for (const AddressInterval& code : intervals_of(unit->root())) units_.push_back({code, unit.get()});
    }
    std::ranges::sort(units_, {}, [](const UnitInterval& u) { return u.code.begin; });
  }
  const auto after =
      std::ranges::upper_bound(units_, address, {}, [](const UnitInterval& u) { return u.code.begin; });
  // Units don't overlap, but for damaged ones.
  for (auto it = after; it != units_.begin() && after - it < 8;)
    if ((--it)->code.contains(address)) return it->unit;
  return nullptr;
}

const std::vector<DebugInfo::FunctionInterval>& DebugInfo::functions_of(const Unit& unit) const {
  const auto [known, fresh] = functions_.try_emplace(&unit);
  if (!fresh) return known->second;
  std::vector<FunctionInterval>& out = known->second;
  for (std::uint32_t i = 0; i < unit.entries().size(); ++i) {
    if (unit.tag_of(i) != TAG_subprogram) continue;
    for (const AddressInterval& code : intervals_of({&unit, i})) out.push_back({code, i});
  }
  std::ranges::sort(out, {}, [](const FunctionInterval& f) { return f.code.begin; });
  return out;
}

std::optional<Scope> DebugInfo::scope_at(std::uint64_t address) const {
  const Unit* unit = unit_at(address);
  if (!unit) return std::nullopt;
  const auto& functions = functions_of(*unit);
  const auto after =
      std::ranges::upper_bound(functions, address, {}, [](const FunctionInterval& f) { return f.code.begin; });
  Scope scope;
  for (auto it = after; it != functions.begin() && after - it < 8 && !scope.function;)
    if ((--it)->code.contains(address)) scope.function = {unit, it->index};
  if (!scope.function) return std::nullopt;
  scope.blocks.push_back(scope.function);
  for (Die at = scope.function; at && scope.blocks.size() < kMaxScopes;) {
    Die inner;
    each_child(at, [&](Die child) {
      if (is_scope(tag(child)) && covers(child, address)) inner = child;
      return !inner;
    });
    if (inner) scope.blocks.push_back(inner);
    at = inner;
  }
  std::ranges::reverse(scope.blocks);
  return scope;
}

std::uint64_t DebugInfo::prologue_end(Die function) const {
  const auto start = low_pc(function);
  if (!start) return 0;
  std::uint64_t second = ~0ull, marked = ~0ull;
  for (const LineRow& row : read_line_table(*function.unit, true).rows) {
    if (row.end_sequence || row.address <= *start || !covers(function, row.address)) continue;
    second = std::min(second, row.address);
    if (row.prologue_end) marked = std::min(marked, row.address);
  }
  if (marked != ~0ull) return marked;
  return second != ~0ull ? second : *start;
}

Die DebugInfo::global(std::string_view name) const {
  if (!have_globals_) {
    have_globals_ = true;
    for (const auto& unit : file_->units()) {
      if (unit->is_type_unit()) continue;
      const bool was_parsed = unit->is_parsed();
      for (std::uint32_t i = 0; i < unit->entries().size(); ++i) {
        const Die die{unit.get(), i};
        if (unit->tag_of(i) != TAG_variable || !is_outermost(tag(parent_of(die)))) continue;
        if (!attribute(die, AT_location) && !attribute(die, AT_const_value)) continue;
        globals_.try_emplace(std::string(name_of(die)), die);
      }
      if (!was_parsed) unit->forget_entries();
    }
  }
  const auto found = globals_.find(std::string(name));
  return found == globals_.end() ? Die{} : found->second;
}

// ---- lines ----

namespace {

// The names of files in a line table that a user's FILE may mean, by number.
std::map<std::uint32_t, std::string> matching_files(const LineTable& table, std::string_view wanted) {
  std::map<std::uint32_t, std::string> out;
  for (std::uint32_t i = 0; i < table.files.size(); ++i)
    if (is_same_file(table.files[i], wanted)) out.emplace(i, normalised_path(table.files[i]));
  return out;
}

struct FoundRow {
  std::uint64_t address = 0;
  const Unit* unit = nullptr;
};

}  // namespace

LinePlaces DebugInfo::find_line(std::string_view file, unsigned line) const {
  const std::lock_guard lock(mutex_);
  LinePlaces out;
  std::set<std::string> files;
  std::map<unsigned, std::vector<FoundRow>> rows;  // by line, from the wanted one on
  for (const auto& unit : file_->units()) {
    if (unit->is_type_unit()) continue;
    const auto fits = matching_files(read_line_table(*unit, false), file);
    if (fits.empty()) continue;
    for (const LineRow& row : read_line_table(*unit, true).rows) {
      const auto name = fits.find(row.file);
      if (name == fits.end() || row.end_sequence || row.line == 0 || row.address == 0) continue;
      files.insert(name->second);
      if (row.line < line || !row.is_statement) continue;
      if (!rows.empty() && row.line > rows.begin()->first && row.line != line) continue;  // a nearer one is known
      rows[row.line].push_back({row.address, unit.get()});
    }
  }
  out.files.assign(files.begin(), files.end());
  if (!files.empty()) out.file = *files.begin();
  if (rows.empty()) return out;
  out.line = rows.begin()->first;
  // Of each function, and of each place it is inlined at, the first instruction of the line.
  std::map<std::pair<const Unit*, std::uint32_t>, LinePlace> first;
  for (const FoundRow& row : rows.begin()->second) {
    const auto scope = scope_at(row.address);
    if (!scope) continue;
    const auto function = std::ranges::find_if(scope->blocks, [](Die d) { return tag(d) != TAG_lexical_block; });
    const auto [known, fresh] = first.try_emplace({function->unit, function->index});
    if (!fresh && known->second.address <= row.address) continue;
    known->second = {row.address, out.line, qualified_name(*function)};
  }
  for (auto& [key, place] : first) out.places.push_back(std::move(place));
  std::ranges::sort(out.places, {}, &LinePlace::address);
  const auto same = std::ranges::unique(out.places, {}, &LinePlace::address);
  out.places.erase(same.begin(), same.end());
  return out;
}

std::vector<SourceLine> DebugInfo::lines_of(std::string_view file, std::size_t limit) const {
  const std::lock_guard lock(mutex_);
  std::map<std::pair<std::string, unsigned>, std::uint64_t> lowest;
  for (const auto& unit : file_->units()) {
    if (unit->is_type_unit()) continue;
    const auto fits = matching_files(read_line_table(*unit, false), file);
    if (fits.empty()) continue;
    for (const LineRow& row : read_line_table(*unit, true).rows) {
      const auto name = fits.find(row.file);
      if (name == fits.end() || row.end_sequence || row.line == 0 || row.address == 0 || !row.is_statement) continue;
      const auto [known, fresh] = lowest.try_emplace({name->second, row.line}, row.address);
      known->second = std::min(known->second, row.address);
    }
  }
  std::vector<SourceLine> out;
  for (const auto& [key, address] : lowest) {
    if (limit != 0 && out.size() >= limit) break;
    const auto scope = scope_at(address);
    if (!scope) continue;
    const auto function = std::ranges::find_if(scope->blocks, [](Die d) { return tag(d) != TAG_lexical_block; });
    out.push_back({key.first, key.second, address, qualified_name(*function)});
  }
  return out;
}

std::size_t DebugInfo::memory_bytes() const {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock ? file_->memory_bytes() + eh_frame_.capacity() : 0;
}

}  // namespace probed::dwarf
