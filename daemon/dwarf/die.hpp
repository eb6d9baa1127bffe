// Units and their entries (DIEs): the tree that DWARF is made of, and the values of its attributes.
//
// Thread: one at a time (units are parsed at the first need; the owner of a File locks). Invariants: every offset is
// checked before it is followed; whatever follows references counts its steps; a unit is parsed without recursion.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "daemon/base/memory_share.hpp"
#include "daemon/dwarf/constants.hpp"
#include "daemon/dwarf/sections.hpp"

namespace probed::dwarf {

class File;
class Unit;

// One entry of a unit. Valid as long as its file.
struct Die {
  const Unit* unit = nullptr;
  std::uint32_t index = 0;  // in the unit's entries

  explicit operator bool() const { return unit != nullptr; }
  bool operator==(const Die&) const = default;
};

struct Attribute {
  std::uint16_t form = 0;
  std::uint64_t number = 0;  // of constants (sign-extended when the form is), offsets, indices, references
  Bytes block;               // of blocks and expressions
  std::string_view text;     // of FORM_string

  bool is_block() const;
};

struct AddressInterval {
  std::uint64_t begin = 0, end = 0;
  bool contains(std::uint64_t address) const { return address >= begin && address < end; }
};

// Where the parts of one unit begin in a package of split files (DWARF 5, 7.3.5; GNU's for DWARF 4 is the same); 0 in
// other files.
struct Contribution {
  std::uint64_t abbrev = 0, line = 0, loc = 0, str_offsets = 0, rnglists = 0;
};

class Unit {
 public:
  struct Entry {
    std::uint32_t offset = 0;  // in the unit
    std::uint32_t abbreviation = 0;
    std::uint32_t parent = 0;  // index; its own for the first
    std::uint32_t end = 0;     // index behind its last descendant
  };

  const File& file() const { return *file_; }
  std::uint64_t offset() const { return offset_; }
  std::uint64_t end() const { return end_; }
  unsigned version() const { return version_; }
  unsigned address_size() const { return address_size_; }
  bool is_type_unit() const { return is_type_; }
  std::uint64_t signature() const { return signature_; }

  Die root() const { return {this, 0}; }
  // Of a split unit: the one in the program that stands for it, with what the linker knows: addresses and lines.
  const Unit* skeleton() const { return skeleton_; }
  const Unit& home() const { return skeleton_ ? *skeleton_ : *this; }
  void set_skeleton(const Unit& skeleton) const { skeleton_ = &skeleton; }
  bool is_split() const { return is_split_; }
  const Contribution& contribution() const { return contribution_; }
  // Parsed at the first need; empty when the unit is damaged.
  const std::vector<Entry>& entries() const;
  bool is_parsed() const { return parsed_; }
  void forget_entries() const;  // they are parsed again at the next need, the same
  // The entry at an offset from the unit's start.
  Die at(std::uint64_t offset) const;

 private:
  friend class File;
  friend class UnitReader;
  struct Specification {
    std::uint16_t name = 0, form = 0;
    std::int64_t constant = 0;  // FORM_implicit_const
  };
  struct Abbreviation {
    std::uint16_t tag = 0;
    bool has_children = false;
    std::uint32_t first = 0, count = 0;  // of specifications_
  };

 public:
  std::uint16_t tag_of(std::uint32_t index) const;
  std::optional<Attribute> attribute(std::uint32_t index, std::uint16_t name) const;

 private:
  void parse_abbreviations() const;
  void read_abbreviations() const;
  const Abbreviation* abbreviation_of_first() const;
  void parse_entries() const;
  std::optional<Attribute> find(const Abbreviation& abbreviation, std::uint64_t at, std::uint16_t name) const;
  Attribute read_value(Cursor& c, std::uint16_t form, std::int64_t constant) const;
  Bytes bytes() const;  // of the section, up to the unit's end

  const File* file_ = nullptr;
  Section section_ = Section::info;
  std::uint64_t offset_ = 0, first_ = 0, end_ = 0;  // of the section: header, first entry, end
  std::uint64_t abbreviations_at_ = 0, signature_ = 0, type_offset_ = 0;
  std::uint8_t version_ = 0, address_size_ = 8, offset_size_ = 4;
  bool is_type_ = false, is_split_ = false;
  Contribution contribution_;

  mutable const Unit* skeleton_ = nullptr;
  mutable bool parsed_ = false, has_abbreviations_ = false;
  mutable std::vector<Specification> specifications_;
  mutable std::vector<Abbreviation> abbreviations_;
  mutable std::unordered_map<std::uint64_t, std::uint32_t> by_code_;
  mutable std::vector<Entry> entries_;
  mutable MemoryCharge abbreviation_charge_, entry_charge_;
};

// What one file says. `alternate`: what dwz(1) has moved out of it.
class File {
 public:
  // split: of a split file, or a package of those.
  File(Sections sections, std::unique_ptr<File> alternate, bool split = false);
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const Sections& sections() const { return sections_; }
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  const Unit* unit_at(std::uint64_t offset) const;  // the one around this offset of .debug_info
  Die type_by_signature(std::uint64_t signature) const;
  const File* alternate() const { return alternate_.get(); }
  // What may still be parsed, in entries and in attributes of abbreviations: a hostile file can make one byte cost
  // much.
  std::size_t& entry_budget() const { return entry_budget_; }
  std::size_t& abbreviation_budget() const { return abbreviation_budget_; }
  std::size_t memory_bytes() const;
  // Something of it wasn't read, for want of memory: what has been gathered from it isn't whole.
  void note_not_whole() const { whole_.store(false); }
  bool is_whole() const { return whole_.load(); }

 private:
  void find_units(Section section);

  Sections sections_;
  std::unique_ptr<File> alternate_;
  bool split_ = false;
  std::vector<std::unique_ptr<Unit>> units_;  // .debug_info's by offset, then .debug_types'
  std::size_t info_units_ = 0;
  MemoryCharge unit_charge_;
  mutable std::atomic<bool> whole_{true};
  std::unordered_map<std::uint64_t, const Unit*> types_;
  mutable std::size_t entry_budget_ = 256u << 20, abbreviation_budget_ = 256u << 20;
};

// ---- of one entry ----

std::uint16_t tag(Die die);
std::optional<Attribute> attribute(Die die, std::uint16_t name);
// Its own, or that of the entry it is an instance or a completion of (AT_abstract_origin, AT_specification).
std::optional<Attribute> inherited(Die die, std::uint16_t name);
// The entry which an inherited attribute of that name refers to.
Die referenced(Die die, std::uint16_t name);
// Where it comes from: the last of AT_abstract_origin and AT_specification, itself when it has none.
Die origin(Die die);

std::string_view name_of(Die die);  // inherited; empty when it has none
std::string_view text_of(Die die, const Attribute& value);
std::optional<std::uint64_t> address_of(Die die, const Attribute& value);
std::optional<std::uint64_t> number_of(Die die, std::uint16_t name);  // a constant; inherited
bool flag_of(Die die, std::uint16_t name);                            // inherited
// Of its unit (DW_LANG_*); 0: not said.
std::uint64_t language_of(Die die);

// The code it stands for (AT_low_pc and AT_high_pc, or AT_ranges), in the file's addresses.
std::vector<AddressInterval> intervals_of(Die die);
bool covers(Die die, std::uint64_t address);
// Where it is entered; nullopt: it has no code.
std::optional<std::uint64_t> low_pc(Die die);

Die parent_of(Die die);  // none of the first
Die first_child(Die die);
Die next_sibling(Die die);

// Calls with every child until it answers false.
template <class F>
void each_child(Die die, F&& call) {
  for (Die child = first_child(die); child; child = next_sibling(child))
    if (!call(child)) return;
}

// ---- of a unit ----

std::uint64_t unit_base(const Unit& unit, std::uint16_t name, std::uint16_t gnu_name, std::uint64_t otherwise);
// Entry `index` of .debug_addr.
std::optional<std::uint64_t> address_by_index(const Unit& unit, std::uint64_t index);
// What its lists of addresses are relative to until they say otherwise.
std::uint64_t base_address(const Unit& unit);
// The entry that has an inherited attribute itself; none: nothing has it.
Die holder_of(Die die, std::uint16_t name);

}  // namespace probed::dwarf
