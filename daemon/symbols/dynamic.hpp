// What a module tells the dynamic loader: its soname, exported symbols with their versions, and the places that the
// loader fills in. Read through PT_DYNAMIC alone, so that it works for files without section headers and for the vdso.
// Pure; the input is hostile.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "daemon/elf/image.hpp"
#include "daemon/symbols/symbol_table.hpp"

namespace probed::symbols {

// Of one of its tables that is read; chromium has 30 MB before RELR.
inline constexpr std::uint64_t kMaxRelocationBytes = 256u << 20;

// The entries of PT_DYNAMIC, d_tag to d_val; of several with one tag the first. Empty when there is none.
using DynamicTags = std::map<std::int64_t, std::uint64_t>;
DynamicTags read_dynamic_tags(const elf::Image& image);

// A word of the module that the loader stores an address into.
struct LoaderSlot {
  ElfAddr where;
  ElfAddr resolver;    // of an IRELATIVE relocation; meaningless with a name
  std::string symbol;  // what it is looked up by; empty for IRELATIVE
};

// A word by which a module finds its own thread-local variables.
struct ThreadSlot {
  ElfAddr where;
  enum class Kind : std::uint8_t {
    module_number,
    offset,      // of a variable from the thread pointer
    descriptor,  // the same, or the address of a module's number
  };
  Kind kind = Kind::offset;
  std::uint64_t addend = 0;  // but of a number: the variable's offset in the module's block
  bool by_symbol = false;    // which another module may define as well, and the loader then mean
};

// A word by which a module finds a variable that it defines itself: the loader stores the address of the one that all
// modules use, which may be another's - a program's copy of it, a preloaded library's.
struct DataSlot {
  ElfAddr variable;  // its own
  ElfAddr where;
};

struct DynamicInfo {
  std::string soname;
  std::optional<RawSymbols> symbols;
  RawVersions versions;
};

// Empty when the module has no dynamic section.
DynamicInfo read_dynamic(const elf::Image& image);

// Every slot of an IRELATIVE relocation, and those that get the address of a symbol by name. For programs without a
// dynamic section (static ones) the IRELATIVE ones are found through section .rela.plt.
std::vector<LoaderSlot> read_loader_slots(const elf::Image& image);

// At most one of each kind, by no symbol if there is such a one.
std::vector<ThreadSlot> read_thread_slots(const elf::Image& image);

// Sorted by variable.
std::vector<DataSlot> read_data_slots(const elf::Image& image);

}  // namespace probed::symbols
