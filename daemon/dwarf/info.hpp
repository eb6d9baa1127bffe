// What the debug information of one module says: which function, scope and line an address belongs to, and where the
// code of a line is. Variables are in variables.hpp.
//
// Thread: any; public functions lock, so that parsed units can be shared by everybody who asks about the module.
// Addresses are the file's own.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/dwarf/die.hpp"
#include "daemon/dwarf/lines.hpp"
#include "daemon/dwarf/location.hpp"
#include "daemon/elf/image.hpp"

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

// Functions that a file defines.
struct FileFunctions {
  bool file_known = false;
  std::vector<LinePlace> places;  // their entries, by address; line: 0
};

// What else is a function, beside its own code: copies that the compiler has made for some callers, and where it has
// been inlined. Addresses where they are entered, ascending.
struct FurtherInstances {
  std::string name;  // qualified
  std::vector<std::uint64_t> copies, inlined;
};

// One line of a file that has code.
struct SourceLine {
  std::string file;
  unsigned line = 0;
  std::uint64_t address = 0;
  std::string function;
};

// Opens the split files of a program, which may be anywhere.
struct SplitFiles {
  std::string program;  // its path
  // `unfit`: set when there is such a file, to what is wrong with it if it can't be used.
  std::function<std::optional<elf::Image>(const std::string& path, std::string& unfit)> open;
  std::string supplement;  // the path of the supplementary file that it refers to; empty: it doesn't
};

class DebugInfo {
 public:
  // `debug`: the separate debug file, `alternate`: its supplementary file; null: none. Null: no DWARF.
  // split: how to find what -gsplit-dwarf has put elsewhere.
  static std::shared_ptr<const DebugInfo> read(const elf::Image& image, const elf::Image* debug,
                                               const elf::Image* alternate, const SplitFiles& split = {});

  // The places of FILE:LINE. files empty: no such file here. places empty: no code at or behind that line.
  LinePlaces find_line(std::string_view file, unsigned line) const;
  // All lines of FILE with code, in order; at most limit (0: all).
  std::vector<SourceLine> lines_of(std::string_view file, std::size_t limit) const;

  // The functions of FILE, which may be a glob as may be their name. Only those with code of their own.
  FileFunctions functions_of(std::string_view file, std::string_view function) const;
  // The file that the function is written in which is entered there; "": not known.
  std::string file_of(std::uint64_t entry) const;
  // Where a function has been inlined: by its name, as qualified as the user likes, or its linkage name.
  struct Inlined {
    std::vector<LinePlace> places;  // by address
    std::size_t functions = 0;      // that they are of, by their declarations
  };
  Inlined inlined(std::string_view name) const;
  // Qualified names of inlined functions that fit the glob; no more than `most`.
  std::vector<std::string> inlined_names(std::string_view glob, std::size_t most) const;
  // Of the function that is entered at `entry`. everywhere: in all units, as inline functions of C++ are; else in its
  // own, and in others only if optimisation has crossed units.
  FurtherInstances further_instances(std::uint64_t entry, bool everywhere) const;

  std::size_t memory_bytes() const;
  // Whether some of it wasn't read for want of memory in a user's share: what it says may not be all.
  bool was_refused_memory() const;
  // Whether all files that belong to it were there.
  bool is_whole() const { return lacking_.empty() && missing_.empty(); }
  // What isn't known because the supplementary file isn't there, for people; empty: nothing is missing.
  std::string lacking() const;
  // The same of one place: its split file, too.
  std::string lacking_at(std::uint64_t address) const;

 private:
  bool is_own_half(Die inlined, Die source) const;
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
  static std::pair<std::string, std::uint64_t> written_at(Die die);
  // The line that a variable in a function is declared at, if all code of that line in the variable's scope is still to
  // come at `pc`, so that what is in its place may be what was there before; 0: it isn't.
  std::uint64_t line_to_come(Die variable, Die function, std::uint64_t pc) const;
  // The variables of all units outside of functions, by their last name.
  const std::vector<Die>& globals(std::string_view last) const;
  // How many others there are of that name, which have no place or none that is told.
  unsigned placeless_globals(std::string_view last) const;
  // What says where a variable is that `declared` only declares, in whichever unit; none: nothing does.
  Die completed(Die declared) const;
  // What the calling convention says of a function's parameters, in their order; kept of the last one that was asked
  // for.
  struct EntryArguments {
    Die function;
    std::vector<Die> parameters;
    std::vector<Location> places;
  };
  const EntryArguments& entry_arguments(Die function) const;
  void find_globals() const;
  // A type of that name: "struct client", "client", "unsigned long"; of several the one in `near` is preferred.
  Die type_named(std::string_view name, const Unit* near) const;
  // The structure of that kind and qualified name which some unit defines; none: none does, or several do differently.
  Die type_defined_as(Die declared) const;
  void find_types() const;
  void find_inlined() const;
  struct UnitInstance {
    Die source, die;  // what it has been made from, and itself
  };
  // Those of one unit, by source.
  const std::vector<UnitInstance>& instances_of(const Unit& unit) const;
  // Where what a skeleton unit stands for really is; itself when it is none, or that can't be found.
  const Unit& whole(const Unit& unit) const;
  // The split file that is missing at an address, and what is wrong with it; empty: none.
  std::string missing_split(std::uint64_t address) const;
  template <class F>
  void each_unit(F&& call) const;  // whole ones, without type units; what wasn't parsed before is forgotten again
  void attach_split(const SplitFiles& split);

  mutable std::mutex mutex_;
  std::unique_ptr<File> file_;
  std::vector<std::unique_ptr<File>> split_;
  std::unordered_map<const Unit*, const Unit*> whole_;                 // by skeleton
  std::unordered_map<const Unit*, std::string> missing_;               // by skeleton
  mutable std::unordered_map<std::string, std::vector<Die>> inlined_;  // by the function's last name and linkage name
  mutable bool have_inlined_ = false;
  mutable std::unordered_map<std::string, std::vector<Die>> types_;
  mutable bool have_types_ = false;
  std::string lacking_;  // the path of a supplementary file that can't be used
  std::vector<std::byte> eh_frame_;
  std::uint64_t eh_frame_address_ = 0;
  mutable std::vector<UnitInterval> units_;  // by address; made at the first need
  mutable bool have_units_ = false;
  mutable std::unordered_map<const Unit*, std::vector<FunctionInterval>> functions_;
  mutable std::unordered_map<const Unit*, std::vector<UnitInstance>> instances_;
  mutable std::unordered_map<std::string, std::vector<Die>> globals_;
  mutable std::unordered_map<std::string, unsigned> placeless_;
  mutable std::map<std::pair<const Unit*, std::uint32_t>, Die> completed_;  // by its origin
  mutable bool have_globals_ = false;
  mutable EntryArguments entry_arguments_;
  // VariableFinder's: what units of types have outside of functions, by last name, then by unit.
  mutable std::unordered_map<std::string, std::vector<std::vector<Die>>> outer_names_of_types_;
  mutable bool have_outer_names_of_types_ = false;
};

// "ns::Class::function", without parameters.
std::string qualified_name(Die die);

}  // namespace probed::dwarf
