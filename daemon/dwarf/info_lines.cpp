// The part of DebugInfo that line tables tell. See info.hpp.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "daemon/dwarf/entry_arguments.hpp"
#include "daemon/dwarf/info.hpp"

namespace probed::dwarf {
namespace {

// The names of files in a line table that a user's FILE may mean, by number.
std::map<std::uint32_t, std::string> matching_files(const LineTable& table, const WantedFile& wanted) {
  std::map<std::uint32_t, std::string> out;
  for (std::uint32_t i = 0; i < table.files.size(); ++i)
    if (wanted.is(table.files[i])) out.emplace(i, normalised_path(table.files[i]));
  return out;
}

// Calls for each row of the lines of a file, or of those of that name, with the file's name.
template <class F>
void each_row(const File& debug, std::string_view file, F&& call) {
  const WantedFile wanted(file);
  for (const auto& unit : debug.units()) {
    if (unit->is_type_unit()) continue;
    const auto fits = matching_files(read_line_table(*unit, false), wanted);
    if (fits.empty()) continue;
    for (const LineRow& row : read_line_table(*unit, true).rows) {
      const auto name = fits.find(row.file);
      if (name != fits.end() && !row.end_sequence && row.line != 0 && row.address != 0) call(name->second, row);
    }
  }
}

// Tells in which function a row of a line belongs to the source's: optimised code has rows of a calling line in the
// middle of what has been inlined there.
class LineOwner {
 public:
  explicit LineOwner(std::string_view file) : file_(file) {}

  // scopes: innermost first, the last one a function.
  Die of(std::span<const Die> scopes, unsigned line) {
    std::optional<Die> inner;
    for (const Die scope : scopes) {
      if (tag(scope) == TAG_lexical_block) continue;
      if (inner && !is_callers(*inner, scope, line)) break;
      inner = scope;
    }
    return *inner;
  }

 private:
  // A line of a function that is written in another file, or that is called in this very line by another function, is
  // its caller's.
  bool is_callers(Die function, Die caller, unsigned line) {
    if (tag(function) != TAG_inlined_subroutine) return false;
    const Die written = holder_of(function, AT_decl_file);
    if (written && !fits(*written.unit, attribute(written, AT_decl_file)->number)) return true;
    const auto call_line = attribute(function, AT_call_line), call_file = attribute(function, AT_call_file);
    return call_line && call_file && call_line->number == line && fits(*function.unit, call_file->number) &&
           !(abstract_instance(function) == abstract_instance(caller));
  }

  bool fits(const Unit& unit, std::uint64_t number) {
    const auto [known, fresh] = files_.try_emplace(&unit);
    if (fresh) known->second = matching_files(read_line_table(unit, false), file_);
    return number <= UINT32_MAX && known->second.contains(static_cast<std::uint32_t>(number));
  }

  WantedFile file_;
  std::map<const Unit*, std::map<std::uint32_t, std::string>> files_;
};

}  // namespace

LinePlaces DebugInfo::find_line(std::string_view file, unsigned line) const {
  const std::lock_guard lock(mutex_);
  LinePlaces out;
  std::set<std::string> files;
  std::map<unsigned, std::vector<std::uint64_t>> rows;  // addresses by line, from the wanted one on
  each_row(*file_, file, [&](const std::string& name, const LineRow& row) {
    files.insert(name);
    if (row.line < line || !row.is_statement) return;
    if (!rows.empty() && row.line > rows.begin()->first && row.line != line) return;  // a nearer one is known
    rows[row.line].push_back(row.address);
  });
  out.files.assign(files.begin(), files.end());
  if (!files.empty()) out.file = *files.begin();
  if (rows.empty()) return out;
  out.line = rows.begin()->first;
  // Of each function, and of each place it is inlined at, the first instruction of the line.
  std::map<std::pair<const Unit*, std::uint32_t>, LinePlace> first;
  LineOwner owner(file);
  for (const std::uint64_t address : rows.begin()->second) {
    const auto scope = scope_at(address);
    if (!scope) continue;
    const Die function = owner.of(scope->blocks, out.line);
    const auto [known, fresh] = first.try_emplace({function.unit, function.index});
    if (!fresh && known->second.address <= address) continue;
    known->second = {address, out.line, qualified_name(function)};
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
  each_row(*file_, file, [&](const std::string& name, const LineRow& row) {
    if (!row.is_statement) return;
    const auto [known, fresh] = lowest.try_emplace({name, row.line}, row.address);
    known->second = std::min(known->second, row.address);
  });
  std::vector<SourceLine> out;
  LineOwner owner(file);
  for (const auto& [key, address] : lowest) {
    if (limit != 0 && out.size() >= limit) break;
    const auto scope = scope_at(address);
    if (!scope) continue;
    out.push_back({key.first, key.second, address, qualified_name(owner.of(scope->blocks, key.second))});
  }
  return out;
}

std::uint64_t DebugInfo::prologue_end(Die function) const {
  const auto start = low_pc(function);
  if (!start) return 0;
  std::uint64_t second = ~0ull, marked = ~0ull;
  for (const LineRow& row : read_line_table(function.unit->home(), true).rows) {
    if (row.end_sequence || row.address <= *start || !covers(function, row.address)) continue;
    second = std::min(second, row.address);
    if (row.prologue_end) marked = std::min(marked, row.address);
  }
  if (marked != ~0ull) return marked;
  return second != ~0ull ? second : *start;
}

// The file that an entry says it is written in, and its line; "" when it doesn't.
std::pair<std::string, std::uint64_t> DebugInfo::written_at(Die die) {
  const Die file = holder_of(die, AT_decl_file), line = holder_of(die, AT_decl_line);
  if (!file || !line) return {};
  const LineTable table = read_line_table(*file.unit, false);
  const std::uint64_t number = attribute(file, AT_decl_file)->number;
  if (number >= table.files.size()) return {};
  return {normalised_path(table.files[number]), attribute(line, AT_decl_line)->number};
}

std::uint64_t DebugInfo::line_to_come(Die variable, Die function, std::uint64_t pc) const {
  const auto [file, line] = written_at(variable);
  if (file.empty()) return 0;
  const Die scope = parent_of(variable);
  const std::uint64_t start = prologue_end(function);
  const LineTable table = read_line_table(function.unit->home(), true);
  std::uint64_t first = ~0ull;
  for (const LineRow& row : table.rows) {
    const bool is_of_line = row.line == line && row.is_statement && !row.end_sequence;
    if (!is_of_line || row.address < start || row.address >= first) continue;
    if (covers(scope, row.address) && row.file < table.files.size() && normalised_path(table.files[row.file]) == file)
      first = row.address;
  }
  return first != ~0ull && pc <= first ? line : 0;
}

std::string DebugInfo::file_of(std::uint64_t entry) const {
  const std::lock_guard lock(mutex_);
  const auto scope = scope_at(entry);
  return scope && low_pc(scope->function) == entry ? written_at(scope->function).first : std::string();
}

}  // namespace probed::dwarf
