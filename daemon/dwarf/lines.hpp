// The line table of a unit: which source line each instruction belongs to.
//
// Pure; any thread. Format: DWARF 2 to 5, section 6.2.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/dwarf/die.hpp"

namespace probed::dwarf {

struct LineRow {
  std::uint64_t address = 0;
  std::uint32_t file = 0;  // index into LineTable::files
  std::uint32_t line = 0;  // 0: code of no line
  bool is_statement = false;
  bool prologue_end = false;
  bool end_sequence = false;  // no instruction: the first address behind
};

struct LineTable {
  std::vector<std::string> files;  // with their folders; what the numbers in the table and in AT_decl_file mean
  std::vector<LineRow> rows;       // by sequences, in each by address
};

// The files alone, or all of it. Empty when the unit has none, or it is damaged.
LineTable read_line_table(const Unit& unit, bool with_rows);

// a/./b//../c as /a/c.
std::string normalised_path(std::string_view path);

// The file that a user means, by its last components; each may be a glob.
class WantedFile {
 public:
  explicit WantedFile(std::string_view wanted);
  // in_table: a file as the compiler wrote it.
  bool is(std::string_view in_table) const;

 private:
  std::string last_, asked_;  // the last component, and all of them, each behind a '/'
  bool is_glob_, is_absolute_;
};

}  // namespace probed::dwarf
