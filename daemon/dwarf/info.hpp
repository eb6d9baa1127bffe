// What the debug information of one module says: which function, scope and line an address belongs to, and where the
// code of a line is. Variables are in variables.hpp.
//
// Thread: any; public functions lock, so that parsed units can be shared by everybody who asks about the module.
// Addresses are the file's own.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "daemon/dwarf/die.hpp"
#include "daemon/dwarf/lines.hpp"
#include "daemon/dwarf/location.hpp"
#include "daemon/symbols/elf_image.hpp"

namespace probed::dwarf {

// An address and what encloses it.
struct Scope {
  Die function;             // with code of its own
  std::vector<Die> blocks;  // innermost first: lexical blocks, inlined functions, at last the function itself
};

// Where the code of one source line begins.
struct LinePlace {
  std::uint64_t address = 0;
  unsigned line = 0;
  std::string function;  // that it is in, or inlined into
};

struct LinePlaces {
  std::string file;                // as the compiler wrote it
  unsigned line = 0;               // the one found: the wanted one, or the next that has code
  std::vector<LinePlace> places;   // one for each function, by address
  std::vector<std::string> files;  // all files that the name fits; more than one: ambiguous
};

// One line of a file that has code.
struct SourceLine {
  std::string file;
  unsigned line = 0;
  std::uint64_t address = 0;
  std::string function;
};

class DebugInfo {
 public:
  // `debug`: the separate debug file, `alternate`: its supplementary file; null: none. Null: no DWARF.
  static std::shared_ptr<const DebugInfo> read(const symbols::ElfImage& image, const symbols::ElfImage* debug,
                                               const symbols::ElfImage* alternate);

  // The places of FILE:LINE. files empty: no such file here. places empty: no code at or behind that line.
  LinePlaces find_line(std::string_view file, unsigned line) const;
  // All lines of FILE with code, in order; at most limit (0: all).
  std::vector<SourceLine> lines_of(std::string_view file, std::size_t limit) const;

  std::size_t memory_bytes() const;

 private:
  friend class VariableFinder;
  DebugInfo() = default;

  struct UnitInterval {
    AddressInterval code;
    const Unit* unit = nullptr;
  };
  struct FunctionInterval {
    AddressInterval code;
    std::uint32_t index = 0;
  };

  // The following are called with the lock held.
  const Unit* unit_at(std::uint64_t address) const;
  const std::vector<FunctionInterval>& functions_of(const Unit& unit) const;
  std::optional<Scope> scope_at(std::uint64_t address) const;
  // Where its code has made its frame and stored its arguments; low_pc when that isn't known.
  std::uint64_t prologue_end(Die function) const;
  // A variable of any unit's outermost scope, by its last name.
  Die global(std::string_view name) const;

  mutable std::mutex mutex_;
  std::unique_ptr<File> file_;
  std::vector<std::byte> eh_frame_;
  std::uint64_t eh_frame_address_ = 0;
  mutable std::vector<UnitInterval> units_;  // by address; made at the first need
  mutable bool have_units_ = false;
  mutable std::unordered_map<const Unit*, std::vector<FunctionInterval>> functions_;
  mutable std::unordered_map<std::string, Die> globals_;
  mutable bool have_globals_ = false;
};

// "ns::Class::function", without parameters.
std::string qualified_name(Die die);

}  // namespace probed::dwarf
