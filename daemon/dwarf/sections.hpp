// The DWARF sections of one file, in memory, decompressed.
//
// Pure but for reading the file; any thread. Invariants: what one file may take is bounded (kMaxSections), whatever its
// headers claim; no descriptor is kept.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "daemon/base/memory_share.hpp"
#include "daemon/dwarf/cursor.hpp"
#include "daemon/elf/image.hpp"

namespace probed::dwarf {

enum class Section : std::uint8_t {
  info,
  types,
  abbrev,
  str,
  line_str,
  str_offsets,
  addr,
  ranges,
  rnglists,
  loc,
  loclists,
  line,
  frame,
  cu_index,  // of a package of split files
  tu_index,
  count_
};

class Sections {
 public:
  // Of all sections of a file together, decompressed: the largest programs have some gigabytes, which nobody wants in a
  // daemon's memory.
  static constexpr std::uint64_t kMaxBytes = 1ull << 30;

  // split: they are named .debug_info.dwo and so on. nullopt: the file has no DWARF, or too much of it.
  static std::optional<Sections> read(const elf::Image& image, bool split);

  Bytes operator[](Section section) const { return bytes_[static_cast<std::size_t>(section)]; }
  std::size_t memory_bytes() const;

 private:
  std::array<std::vector<std::byte>, static_cast<std::size_t>(Section::count_)> bytes_;
  MemoryCharge charge_;
};

// The bytes of a section, decompressed (SHF_COMPRESSED, or .zdebug_NAME for .debug_NAME); nullopt: there is none, it is
// damaged, or it has more than `limit` bytes. `charge`: takes what it has; null: nobody is charged.
std::optional<std::vector<std::byte>> read_section(const elf::Image& image, std::string_view name, std::uint64_t limit,
                                                   MemoryCharge* charge = nullptr);

}  // namespace probed::dwarf
