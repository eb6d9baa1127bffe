// See lines.hpp.
#include "daemon/dwarf/lines.hpp"

#include <algorithm>
#include <array>

#include "daemon/names/match.hpp"

namespace probed::dwarf {
namespace {

constexpr std::size_t kMaxFiles = 1u << 18, kMaxRows = 16u << 20;

enum ContentType : std::uint16_t { LNCT_path = 1, LNCT_directory_index = 2 };

constexpr std::size_t kMaxPath = 4096;  // PATH_MAX

std::string joined(std::string_view folder, std::string_view name) {
  folder = folder.substr(0, kMaxPath);
  name = name.substr(0, kMaxPath);
  if (name.starts_with('/') || folder.empty()) return std::string(name);
  return std::string(folder) + "/" + std::string(name);
}

class Reader {
 public:
  Reader(const Unit& unit, std::uint64_t at) : unit_(unit), c_(unit.file().sections()[Section::line], at) {}

  LineTable read(bool with_rows) {
    if (!header()) return {};
    if (with_rows) {
      c_.seek(program_);
      run();
    }
    return std::move(table_);
  }

 private:
  bool header() {
    std::uint64_t length = c_.take<std::uint32_t>();
    if (length == 0xffffffff) {
      length = c_.take<std::uint64_t>();
      offset_size_ = 8;
    }
    if (!c_.good() || length > c_.left()) return false;
    end_ = c_.at() + length;
    version_ = c_.take<std::uint16_t>();
    if (version_ < 2 || version_ > 5) return false;
    if (version_ >= 5) c_.skip(2);  // sizes of addresses and segments
    const std::uint64_t header_length = c_.number(offset_size_);
    if (!c_.good() || header_length > end_ - c_.at()) return false;
    program_ = c_.at() + header_length;
    minimum_ = c_.take<std::uint8_t>();
    if (version_ >= 4) c_.skip(1);  // operations of one instruction: VLIW only
    default_statement_ = c_.take<std::uint8_t>() != 0;
    line_base_ = c_.take<std::int8_t>();
    line_range_ = c_.take<std::uint8_t>();
    opcode_base_ = c_.take<std::uint8_t>();
    if (!c_.good() || line_range_ == 0 || opcode_base_ == 0) return false;
    for (unsigned i = 1; i < opcode_base_; ++i) lengths_[i] = c_.take<std::uint8_t>();
    version_ >= 5 ? new_names() : old_names();
    return c_.good();
  }

  std::string_view comp_dir() const {
    const auto value = unit_.attribute(0, AT_comp_dir);
    return value ? text_of(unit_.root(), *value) : std::string_view();
  }

  void old_names() {
    std::vector<std::string> folders{std::string(comp_dir())};
    while (c_.good() && folders.size() < kMaxFiles) {
      const std::string_view folder = c_.string();
      if (folder.empty()) break;
      folders.push_back(joined(folders[0], folder));
    }
    table_.files.emplace_back();  // numbers begin at 1
    while (c_.good() && table_.files.size() < kMaxFiles) {
      const std::string_view name = c_.string();
      if (name.empty()) break;
      const std::uint64_t folder = c_.uleb();
      c_.uleb();
      c_.uleb();
      table_.files.push_back(joined(folder < folders.size() ? folders[folder] : std::string(), name));
    }
  }

  struct Format {
    std::uint64_t content = 0, form = 0;
  };
  std::vector<Format> formats() {
    std::vector<Format> out(c_.take<std::uint8_t>());
    for (Format& format : out) {
      format.content = c_.uleb();
      format.form = c_.uleb();
    }
    return out;
  }

  // A path or an index; 0 and empty for what isn't of interest. Fails at forms that may not stand here.
  std::pair<std::string_view, std::uint64_t> value(std::uint64_t form) {
    const Sections& sections = unit_.file().sections();
    switch (form) {
      case FORM_string: return {c_.string(), 0};
      case FORM_line_strp: return {string_at(sections[Section::line_str], c_.number(offset_size_)), 0};
      case FORM_strp: return {string_at(sections[Section::str], c_.number(offset_size_)), 0};
      case FORM_udata: return {{}, c_.uleb()};
      case FORM_data1: return {{}, c_.number(1)};
      case FORM_data2: return {{}, c_.number(2)};
      case FORM_data4: return {{}, c_.number(4)};
      case FORM_data8: return {{}, c_.number(8)};
      case FORM_data16: c_.skip(16); return {};
      case FORM_block: c_.skip(c_.uleb()); return {};
      default: c_.fail(); return {};
    }
  }

  struct Name {
    std::string_view path;
    std::uint64_t folder = 0;
  };
  std::vector<Name> names() {
    const std::vector<Format> format = formats();
    const std::uint64_t count = c_.uleb();
    std::vector<Name> out;
    while (c_.good() && out.size() < count && out.size() < kMaxFiles && !format.empty()) {
      Name name;
      for (const Format& f : format) {
        const auto [text, number] = value(f.form);
        if (f.content == LNCT_path) name.path = text;
        if (f.content == LNCT_directory_index) name.folder = number;
      }
      out.push_back(name);
    }
    return out;
  }

  void new_names() {
    std::vector<std::string> folders;
    for (const Name& folder : names())
      folders.push_back(joined(folders.empty() ? comp_dir() : std::string_view(folders[0]), folder.path));
    for (const Name& file : names())
      table_.files.push_back(joined(file.folder < folders.size() ? folders[file.folder] : std::string(), file.path));
  }

  // ---- the program ----

  struct State {
    std::uint64_t address = 0;
    std::uint64_t file = 1, line = 1;
    bool is_statement = false, prologue_end = false;
  };

  void append(const State& s, bool end_sequence) {
    if (table_.rows.size() >= kMaxRows) return c_.fail();
    table_.rows.push_back({s.address, static_cast<std::uint32_t>(s.file), static_cast<std::uint32_t>(s.line),
                           s.is_statement, s.prologue_end, end_sequence});
  }

  void run() {
    State s;
    s.is_statement = default_statement_;
    while (c_.good() && c_.at() < end_) {
      const auto op = c_.take<std::uint8_t>();
      if (op >= opcode_base_) {
        const unsigned adjusted = op - opcode_base_;
        s.address += std::uint64_t{adjusted / line_range_} * minimum_;
        s.line += static_cast<std::uint64_t>(line_base_ + static_cast<std::int64_t>(adjusted % line_range_));
        append(s, false);
        s.prologue_end = false;
        continue;
      }
      op == 0 ? extended(s) : standard(op, s);
    }
  }

  void extended(State& s) {
    const std::uint64_t length = c_.uleb();
    if (!c_.good() || length > c_.left() || length == 0) return;
    const std::uint64_t next = c_.at() + length;
    switch (c_.take<std::uint8_t>()) {
      case 1:  // LNE_end_sequence
        append(s, true);
        s = {};
        s.is_statement = default_statement_;
        break;
      case 2: s.address = c_.number(static_cast<unsigned>(length > 9 ? 9 : length - 1)); break;  // LNE_set_address
      default: break;
    }
    c_.seek(next);
  }

  void standard(unsigned op, State& s) {
    switch (op) {
      case 1:  // LNS_copy
        append(s, false);
        s.prologue_end = false;
        break;
      case 2: s.address += c_.uleb() * minimum_; break;                                           // LNS_advance_pc
      case 3: s.line += static_cast<std::uint64_t>(c_.sleb()); break;                             // LNS_advance_line
      case 4: s.file = c_.uleb(); break;                                                          // LNS_set_file
      case 5: c_.uleb(); break;                                                                   // LNS_set_column
      case 6: s.is_statement = !s.is_statement; break;                                            // LNS_negate_stmt
      case 7: break;                                                                              // LNS_set_basic_block
      case 8: s.address += std::uint64_t{(255u - opcode_base_) / line_range_} * minimum_; break;  // LNS_const_add_pc
      case 9: s.address += c_.number(2); break;  // LNS_fixed_advance_pc
      case 10: s.prologue_end = true; break;     // LNS_set_prologue_end
      default:
        for (unsigned i = 0; i < lengths_[op]; ++i) c_.uleb();
    }
  }

  const Unit& unit_;
  Cursor c_;
  LineTable table_;
  std::uint64_t end_ = 0, program_ = 0;
  unsigned offset_size_ = 4, version_ = 0, minimum_ = 1, line_range_ = 1, opcode_base_ = 1;
  std::int64_t line_base_ = 0;
  bool default_statement_ = false;
  std::array<std::uint8_t, 256> lengths_{};
};

}  // namespace

std::string normalised_path(std::string_view path) {
  std::vector<std::string_view> parts;
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t slash = std::min(path.find('/', at), path.size());
    const std::string_view part = path.substr(at, slash - at);
    at = slash + 1;
    if (part == "." || part.empty()) continue;
    if (part == ".." && !parts.empty() && parts.back() != "..")
      parts.pop_back();
    else
      parts.push_back(part);
  }
  std::string out;
  for (const std::string_view part : parts) out.append("/").append(part);
  return out;
}

LineTable read_line_table(const Unit& unit, bool with_rows) {
  const auto at = unit.attribute(0, AT_stmt_list);
  if (unit.is_split()) return Reader(unit, (at ? at->number : 0) + unit.contribution().line).read(false);
  return at ? Reader(unit, at->number).read(with_rows) : LineTable{};
}

WantedFile::WantedFile(std::string_view wanted)
    : last_(wanted.substr(wanted.rfind('/') + 1)),
      asked_(normalised_path(wanted)),
      is_glob_(names::has_glob(wanted)),
      is_absolute_(wanted.starts_with('/')) {}

// A glob's components are compared with the path's last ones, each for itself.
bool WantedFile::is(std::string_view in_table) const {
  if (!is_glob_ && !in_table.ends_with(last_)) return false;
  const std::string known = normalised_path(in_table);  // begins with '/', as asked_ does
  if (is_absolute_ && std::ranges::count(known, '/') != std::ranges::count(asked_, '/')) return false;
  if (!is_glob_) return known.ends_with(asked_);
  std::string_view path = known, pattern = asked_;
  while (!pattern.empty()) {
    const std::size_t slash = path.rfind('/'), in_pattern = pattern.rfind('/');
    if (path.empty() || !names::glob_match(pattern.substr(in_pattern + 1), path.substr(slash + 1))) return false;
    path = path.substr(0, slash);
    pattern = pattern.substr(0, in_pattern);
  }
  return true;
}

}  // namespace probed::dwarf
