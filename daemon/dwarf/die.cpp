// See die.hpp.
#include "daemon/dwarf/die.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace probed::dwarf {
namespace {

constexpr std::size_t kMaxEntries = 32u << 20;  // of a unit: what a compiler makes of the largest ones is a tenth
constexpr std::size_t kMaxUnits = 1u << 20;     // of a file
constexpr unsigned kMaxReferences = 16;         // from an instance to what it is an instance of
constexpr std::size_t kMaxAbbreviations = 1u << 16;
constexpr std::size_t kCodeBytes = 32;         // that an entry of a hash table takes, about
constexpr std::uint32_t kMaxAttributes = 128;  // of one entry; compilers write a third of that

bool is_reference(std::uint16_t form) {
  return (form >= FORM_ref_addr && form <= FORM_ref_udata) || form == FORM_ref_sig8 || form == FORM_GNU_ref_alt ||
         form == FORM_ref_sup4 || form == FORM_ref_sup8;
}
bool is_unit_reference(std::uint16_t form) { return form >= FORM_ref1 && form <= FORM_ref_udata; }

// Its memory, too, which `= {}` would keep.
template <class T>
void give_back(std::vector<T>& vector) {
  std::vector<T>().swap(vector);
}

}  // namespace

bool Attribute::is_block() const {
  return form == FORM_exprloc || form == FORM_block || form == FORM_block1 || form == FORM_block2 ||
         form == FORM_block4 || form == FORM_data16;
}

// ---- units ----

Bytes Unit::bytes() const { return file_->sections()[section_].first(end_); }

void Unit::parse_abbreviations() const {
  if (std::exchange(has_abbreviations_, true)) return;
  read_abbreviations();
  if (!MemoryShare::refused()) return;
  file_->note_not_whole();
  // Not whole: whoever comes next begins anew.
  has_abbreviations_ = false;
  give_back(abbreviations_);
  give_back(specifications_);
  by_code_.clear();
  abbreviation_charge_.reset();
}

void Unit::read_abbreviations() const {
  Cursor c(file_->sections()[Section::abbrev], abbreviations_at_);
  while (abbreviations_.size() < kMaxAbbreviations) {
    const std::uint64_t code = c.uleb();
    if (code == 0 || !c.good()) return;
    Abbreviation a;
    a.tag = static_cast<std::uint16_t>(c.uleb());
    a.has_children = c.take<std::uint8_t>() != 0;
    a.first = static_cast<std::uint32_t>(specifications_.size());
    while (c.good()) {
      std::size_t& budget = file_->abbreviation_budget();
      if (budget == 0 || specifications_.size() - a.first > kMaxAttributes) return;
      --budget;
      Specification s;
      s.name = static_cast<std::uint16_t>(c.uleb());
      s.form = static_cast<std::uint16_t>(c.uleb());
      if (s.form == FORM_implicit_const) s.constant = c.sleb();
      if (s.name == 0 && s.form == 0) break;
      if (!make_room(specifications_, abbreviation_charge_)) return;
      specifications_.push_back(s);
    }
    a.count = static_cast<std::uint32_t>(specifications_.size()) - a.first;
    if (!c.good() || !make_room(abbreviations_, abbreviation_charge_) || !abbreviation_charge_.grow(kCodeBytes)) return;
    by_code_.emplace(code, static_cast<std::uint32_t>(abbreviations_.size()));
    abbreviations_.push_back(a);
  }
}

// The values of one entry, which tell where the next one begins. What is damaged ends the unit there.
void Unit::parse_entries() const {
  Cursor c(bytes(), first_);
  std::vector<std::uint32_t> open;  // entries whose children are being read
  std::size_t& budget = file_->entry_budget();
  while (c.good() && c.left() > 0 && entries_.size() < kMaxEntries && budget > 0) {
    --budget;
    const std::uint64_t at = c.at();
    const std::uint64_t code = c.uleb();
    if (code == 0) {
      if (open.empty()) continue;  // padding
      entries_[open.back()].end = static_cast<std::uint32_t>(entries_.size());
      open.pop_back();
      if (open.empty()) break;
      continue;
    }
    const auto known = by_code_.find(code);
    if (known == by_code_.end() || !c.good()) break;
    const Abbreviation& a = abbreviations_[known->second];
    for (std::uint32_t i = 0; i < a.count && c.good(); ++i)
      read_value(c, specifications_[a.first + i].form, specifications_[a.first + i].constant);
    if (!c.good()) break;
    const auto index = static_cast<std::uint32_t>(entries_.size());
    if (!make_room(entries_, entry_charge_)) break;
    entries_.push_back(
        {static_cast<std::uint32_t>(at - offset_), known->second, open.empty() ? 0 : open.back(), index + 1});
    if (a.has_children) open.push_back(index);
    if (open.empty()) break;  // the first one has no children
  }
  for (const std::uint32_t index : open) entries_[index].end = static_cast<std::uint32_t>(entries_.size());
}

const std::vector<Unit::Entry>& Unit::entries() const {
  if (parsed_ || MemoryShare::refused()) return entries_;
  forget_entries();
  parse_abbreviations();
  parse_entries();
  parsed_ = !MemoryShare::refused();
  if (!parsed_) file_->note_not_whole();
  return entries_;
}

void Unit::forget_entries() const {
  parsed_ = false;
  give_back(entries_);
  entry_charge_.reset();
}

// Without looking at all the others: units are looked through for what their first entries say.
const Unit::Abbreviation* Unit::abbreviation_of_first() const {
  parse_abbreviations();
  Cursor c(bytes(), first_);
  const auto known = by_code_.find(c.uleb());
  return c.good() && known != by_code_.end() ? &abbreviations_[known->second] : nullptr;
}

Die Unit::at(std::uint64_t offset) const {
  const auto& all = entries();
  const auto found = std::ranges::lower_bound(all, offset, {}, &Entry::offset);
  if (found == all.end() || found->offset != offset) return {};
  return {this, static_cast<std::uint32_t>(found - all.begin())};
}

std::uint16_t Unit::tag_of(std::uint32_t index) const {
  if (index == 0 && !parsed_) {
    const Abbreviation* a = abbreviation_of_first();
    return a ? a->tag : std::uint16_t{0};
  }
  const auto& all = entries();
  return index < all.size() ? abbreviations_[all[index].abbreviation].tag : std::uint16_t{0};
}

std::optional<Attribute> Unit::attribute(std::uint32_t index, std::uint16_t name) const {
  if (index == 0) {
    const Abbreviation* a = abbreviation_of_first();
    return a ? find(*a, first_, name) : std::nullopt;
  }
  const auto& all = entries();
  if (index >= all.size()) return std::nullopt;
  return find(abbreviations_[all[index].abbreviation], offset_ + all[index].offset, name);
}

std::optional<Attribute> Unit::find(const Abbreviation& a, std::uint64_t at, std::uint16_t name) const {
  const auto* first = specifications_.data() + a.first;
  const auto* last = first + a.count;
  const auto* wanted = std::find_if(first, last, [&](const Specification& s) { return s.name == name; });
  if (wanted == last) return std::nullopt;
  Cursor c(bytes(), at);
  c.uleb();
  for (const auto* s = first; s != wanted; ++s) read_value(c, s->form, s->constant);
  Attribute value = read_value(c, wanted->form, wanted->constant);
  if (!c.good()) return std::nullopt;
  return value;
}

Attribute Unit::read_value(Cursor& c, std::uint16_t form, std::int64_t constant) const {
  Attribute value;
  value.form = form;
  switch (form) {
    case FORM_addr: value.number = c.number(address_size_); break;
    case FORM_data1:
    case FORM_flag:
    case FORM_ref1:
    case FORM_strx1:
    case FORM_addrx1: value.number = c.number(1); break;
    case FORM_data2:
    case FORM_ref2:
    case FORM_strx2:
    case FORM_addrx2: value.number = c.number(2); break;
    case FORM_strx3:
    case FORM_addrx3: value.number = c.number(3); break;
    case FORM_data4:
    case FORM_ref4:
    case FORM_strx4:
    case FORM_addrx4:
    case FORM_ref_sup4: value.number = c.number(4); break;
    case FORM_data8:
    case FORM_ref8:
    case FORM_ref_sig8:
    case FORM_ref_sup8: value.number = c.number(8); break;
    case FORM_sdata: value.number = static_cast<std::uint64_t>(c.sleb()); break;
    case FORM_udata:
    case FORM_ref_udata:
    case FORM_strx:
    case FORM_addrx:
    case FORM_loclistx:
    case FORM_rnglistx:
    case FORM_GNU_addr_index:
    case FORM_GNU_str_index: value.number = c.uleb(); break;
    case FORM_strp:
    case FORM_line_strp:
    case FORM_strp_sup:
    case FORM_sec_offset:
    case FORM_GNU_ref_alt:
    case FORM_GNU_strp_alt: value.number = c.number(offset_size_); break;
    case FORM_ref_addr: value.number = c.number(version_ <= 2 ? address_size_ : offset_size_); break;
    case FORM_flag_present: value.number = 1; break;
    case FORM_implicit_const: value.number = static_cast<std::uint64_t>(constant); break;
    case FORM_string: value.text = c.string(); break;
    case FORM_block1: value.block = c.block(c.number(1)); break;
    case FORM_block2: value.block = c.block(c.number(2)); break;
    case FORM_block4: value.block = c.block(c.number(4)); break;
    case FORM_block:
    case FORM_exprloc: value.block = c.block(c.uleb()); break;
    case FORM_data16: value.block = c.block(16); break;
    case FORM_indirect: {
      const std::uint64_t real = c.uleb();
      // Itself, or a constant that stands elsewhere, makes no sense behind it.
      if (real == FORM_indirect || real == FORM_implicit_const || real > 0xffff) return c.fail(), value;
      return read_value(c, static_cast<std::uint16_t>(real), 0);
    }
    default: c.fail();
  }
  return value;
}

// ---- files ----

namespace {

// The rows of .debug_cu_index or .debug_tu_index by where their unit begins (DWARF 5, 7.3.5.3; version 2 is GNU's, of
// DWARF 4). Damaged ones are left out.
using Contributions = std::unordered_map<std::uint64_t, Contribution>;
Contributions read_package_index(Bytes bytes) {
  constexpr std::uint32_t kMostColumns = 8, kMostUnits = 1u << 20;
  enum Column : std::uint32_t { info = 1, types = 2, abbrev = 3, line = 4, loc = 5, str_offsets = 6, rnglists = 8 };
  Contributions out;
  Cursor c(bytes);
  const auto version = c.take<std::uint32_t>() & 0xffff;  // 5: two bytes, and two of padding
  const auto columns = c.take<std::uint32_t>(), units = c.take<std::uint32_t>(), slots = c.take<std::uint32_t>();
  if (!c.good() || (version != 2 && version != 5) || columns == 0 || columns > kMostColumns || units > kMostUnits)
    return out;
  if (slots > c.left() / 12) return out;
  c.skip(std::uint64_t{slots} * 12);  // the hash table: signatures, and numbers of rows
  std::array<std::uint32_t, kMostColumns> ids{};
  for (std::uint32_t i = 0; i < columns; ++i) ids[i] = c.take<std::uint32_t>();
  for (std::uint32_t row = 0; row < units; ++row) {
    Contribution contribution;
    std::uint64_t unit = 0;
    for (std::uint32_t i = 0; i < columns; ++i) {
      const std::uint64_t offset = c.take<std::uint32_t>();
      switch (ids[i]) {
        case info:
        case types: unit = offset; break;
        case abbrev: contribution.abbrev = offset; break;
        case line: contribution.line = offset; break;
        case loc: contribution.loc = offset; break;
        case str_offsets: contribution.str_offsets = offset; break;
        case rnglists: contribution.rnglists = offset; break;
        default: break;
      }
    }
    if (!c.good()) break;
    out.emplace(unit, contribution);
  }
  return out;
}

}  // namespace

File::File(Sections sections, std::unique_ptr<File> alternate, bool split)
    : sections_(std::move(sections)), alternate_(std::move(alternate)), split_(split) {
  find_units(Section::info);
  info_units_ = units_.size();
  find_units(Section::types);
  for (const auto& unit : units_)
    if (unit->is_type_) types_.emplace(unit->signature_, unit.get());
}

void File::find_units(Section section) {
  const Bytes bytes = sections_[section];
  Contributions contributions;
  if (split_) {
    contributions = read_package_index(sections_[section == Section::types ? Section::tu_index : Section::cu_index]);
    // DWARF 5 has its type units among the others.
    if (section == Section::info && sections_[Section::types].empty())
      contributions.merge(read_package_index(sections_[Section::tu_index]));
  }
  Cursor c(bytes);
  while (c.good() && c.left() > 11 && units_.size() < kMaxUnits) {
    auto unit = std::make_unique<Unit>();
    unit->file_ = this;
    unit->section_ = section;
    unit->offset_ = c.at();
    std::uint64_t length = c.take<std::uint32_t>();
    if (length == 0xffffffff) {
      length = c.take<std::uint64_t>();
      unit->offset_size_ = 8;
    }
    if (!c.good() || length > c.left()) return;
    unit->end_ = c.at() + length;
    unit->version_ = static_cast<std::uint8_t>(std::min<unsigned>(c.take<std::uint16_t>(), 255));
    std::uint8_t type = section == Section::types ? UT_type : UT_compile;
    if (unit->version_ >= 5) {
      type = c.take<std::uint8_t>();
      unit->address_size_ = c.take<std::uint8_t>();
      unit->abbreviations_at_ = c.number(unit->offset_size_);
    } else {
      unit->abbreviations_at_ = c.number(unit->offset_size_);
      unit->address_size_ = c.take<std::uint8_t>();
    }
    unit->is_type_ = type == UT_type || type == UT_split_type;
    if (unit->is_type_ || type == UT_skeleton || type == UT_split_compile) unit->signature_ = c.take<std::uint64_t>();
    if (unit->is_type_) unit->type_offset_ = c.number(unit->offset_size_);
    unit->first_ = c.at();
    unit->is_split_ = split_;
    if (const auto known = contributions.find(unit->offset_); known != contributions.end())
      unit->contribution_ = known->second;
    unit->abbreviations_at_ += unit->contribution_.abbrev;
    const std::uint64_t end = unit->end_;
    // Offsets in a unit are kept in 32 bits.
    const bool usable = c.good() && unit->version_ >= 2 && unit->version_ <= 5 && unit->first_ <= end &&
                        end - unit->offset_ <= 0xffffffff && unit->address_size_ <= 8 && unit->address_size_ > 0;
    if (usable && !unit_charge_.grow(sizeof(Unit))) return;
    if (usable) units_.push_back(std::move(unit));
    c.seek(end);
  }
}

const Unit* File::unit_at(std::uint64_t offset) const {
  const auto begin = units_.begin(), end = begin + static_cast<std::ptrdiff_t>(info_units_);
  const auto after =
      std::upper_bound(begin, end, offset, [](std::uint64_t o, const auto& unit) { return o < unit->offset(); });
  if (after == begin) return nullptr;
  const Unit* unit = std::prev(after)->get();
  return offset < unit->end() ? unit : nullptr;
}

Die File::type_by_signature(std::uint64_t signature) const {
  const auto found = types_.find(signature);
  return found == types_.end() ? Die{} : found->second->at(found->second->type_offset_);
}

std::size_t File::memory_bytes() const {
  std::size_t sum = sections_.memory_bytes() + (alternate_ ? alternate_->memory_bytes() : 0);
  for (const auto& unit : units_) sum += sizeof(Unit) + unit->entries_.capacity() * sizeof(Unit::Entry);
  return sum;
}

// ---- entries ----

std::uint16_t tag(Die die) { return die ? die.unit->tag_of(die.index) : std::uint16_t{0}; }

std::optional<Attribute> attribute(Die die, std::uint16_t name) {
  return die ? die.unit->attribute(die.index, name) : std::nullopt;
}

namespace {

Die follow(Die die, const Attribute& value) {
  const Unit& unit = *die.unit;
  if (is_unit_reference(value.form)) return unit.at(value.number);
  if (value.form == FORM_ref_sig8) return unit.file().type_by_signature(value.number);
  const bool elsewhere = value.form != FORM_ref_addr;
  const File* file = elsewhere ? unit.file().alternate() : &unit.file();
  const Unit* other = file && is_reference(value.form) ? file->unit_at(value.number) : nullptr;
  return other ? other->at(value.number - other->offset()) : Die{};
}

Die one_step_back(Die die) {
  for (const std::uint16_t name : {AT_abstract_origin, AT_specification})
    if (const auto value = attribute(die, name)) return follow(die, *value);
  return {};
}

}  // namespace

Die origin(Die die) {
  for (unsigned i = 0; i < kMaxReferences; ++i) {
    const Die before = one_step_back(die);
    if (!before) return die;
    die = before;
  }
  return die;
}

Die holder_of(Die die, std::uint16_t name) {
  for (unsigned i = 0; die && i < kMaxReferences; ++i) {
    if (attribute(die, name)) return die;
    die = one_step_back(die);
  }
  return {};
}

std::optional<Attribute> inherited(Die die, std::uint16_t name) { return attribute(holder_of(die, name), name); }

Die referenced(Die die, std::uint16_t name) {
  const Die from = holder_of(die, name);
  const auto value = attribute(from, name);
  return value ? follow(from, *value) : Die{};
}

std::uint64_t unit_base(const Unit& unit, std::uint16_t name, std::uint16_t gnu_name, std::uint64_t otherwise) {
  auto value = unit.attribute(0, name);
  if (!value && gnu_name != 0) value = unit.attribute(0, gnu_name);
  return value ? value->number : otherwise;
}

std::uint64_t base_address(const Unit& unit) {
  const Unit& home = unit.home();
  const auto low = home.attribute(0, AT_low_pc);
  return low ? address_of(home.root(), *low).value_or(0) : 0;
}

std::optional<std::uint64_t> address_by_index(const Unit& of, std::uint64_t index) {
  const Unit& unit = of.home();
  const std::uint64_t base = unit_base(unit, AT_addr_base, AT_GNU_addr_base, 8);
  if (index > 0xffffffff) return std::nullopt;
  Cursor c(unit.file().sections()[Section::addr], base + index * unit.address_size());
  const std::uint64_t address = c.number(unit.address_size());
  return c.good() ? std::optional(address) : std::nullopt;
}

std::string_view text_of(Die die, const Attribute& value) {
  const Unit& unit = *die.unit;
  const Sections& sections = unit.file().sections();
  switch (value.form) {
    case FORM_string: return value.text;
    case FORM_strp: return string_at(sections[Section::str], value.number);
    case FORM_line_strp: return string_at(sections[Section::line_str], value.number);
    case FORM_GNU_strp_alt:
    case FORM_strp_sup: {
      const File* other = unit.file().alternate();
      return other ? string_at(other->sections()[Section::str], value.number) : std::string_view();
    }
    case FORM_strx:
    case FORM_strx1:
    case FORM_strx2:
    case FORM_strx3:
    case FORM_strx4:
    case FORM_GNU_str_index: {
      // Behind the header of DWARF 5's table; GNU's split files have none.
      const std::uint64_t base =
          unit_base(unit, AT_str_offsets_base, 0, (unit.version() >= 5 ? 8 : 0) + unit.contribution().str_offsets);
      if (value.number > 0xffffffff) return {};
      Cursor c(sections[Section::str_offsets], base + value.number * 4);
      const std::uint64_t offset = c.number(4);
      return c.good() ? string_at(sections[Section::str], offset) : std::string_view();
    }
    default: return {};
  }
}

std::string_view name_of(Die die) {
  const Die from = holder_of(die, AT_name);
  const auto value = attribute(from, AT_name);
  return value ? text_of(from, *value) : std::string_view();
}

std::optional<std::uint64_t> address_of(Die die, const Attribute& value) {
  switch (value.form) {
    case FORM_addr: return value.number;
    case FORM_addrx:
    case FORM_addrx1:
    case FORM_addrx2:
    case FORM_addrx3:
    case FORM_addrx4:
    case FORM_GNU_addr_index: return address_by_index(*die.unit, value.number);
    default: return std::nullopt;
  }
}

std::optional<std::uint64_t> number_of(Die die, std::uint16_t name) {
  const auto value = inherited(die, name);
  if (!value || value->is_block() || is_reference(value->form)) return std::nullopt;
  return value->number;
}

std::uint64_t language_of(Die die) {
  const auto language = die.unit->attribute(0, AT_language);
  return language ? language->number : 0;
}

bool flag_of(Die die, std::uint16_t name) { return number_of(die, name).value_or(0) != 0; }

namespace {

std::optional<std::uint64_t> entry_pc(Die die) {
  const auto entry = attribute(die, AT_entry_pc);
  if (!entry) return std::nullopt;
  if (const auto address = address_of(die, *entry)) return address;
  // DWARF 5: as an offset from the lowest address.
  const auto low = attribute(die, AT_low_pc);
  const auto address = low ? address_of(die, *low) : std::nullopt;
  return address ? std::optional(*address + entry->number) : std::nullopt;
}

}  // namespace

std::optional<std::uint64_t> low_pc(Die die) {
  // Of an inlined instance GCC may name a place before its ranges begin, where the caller's variables are still meant.
  if (const auto entry = entry_pc(die); entry && covers(die, *entry)) return entry;
  if (const auto low = attribute(die, AT_low_pc)) return address_of(die, *low);
  const auto intervals = intervals_of(die);
  return intervals.empty() ? std::nullopt : std::optional(intervals.front().begin);
}

Die parent_of(Die die) {
  if (!die || die.index == 0) return {};
  return {die.unit, die.unit->entries()[die.index].parent};
}

Die first_child(Die die) {
  const auto& all = die.unit->entries();
  if (die.index >= all.size() || all[die.index].end <= die.index + 1) return {};
  return {die.unit, die.index + 1};
}

Die next_sibling(Die die) {
  const auto& all = die.unit->entries();
  if (die.index == 0 || die.index >= all.size()) return {};
  const std::uint32_t next = all[die.index].end;
  return next < all[all[die.index].parent].end ? Die{die.unit, next} : Die{};
}

}  // namespace probed::dwarf
