// The code that an entry stands for: AT_low_pc and AT_high_pc, .debug_ranges (DWARF 2 to 4), .debug_rnglists (5). See
// die.hpp.
#include "daemon/dwarf/die.hpp"

namespace probed::dwarf {
namespace {

constexpr std::size_t kMaxIntervals = 1u << 20;

enum RangeEntry : std::uint8_t {
  RLE_end_of_list = 0,
  RLE_base_addressx = 1,
  RLE_startx_endx = 2,
  RLE_startx_length = 3,
  RLE_offset_pair = 4,
  RLE_base_address = 5,
  RLE_start_end = 6,
  RLE_start_length = 7,
};

void add(std::vector<AddressInterval>& out, std::uint64_t begin, std::uint64_t end) {
  // What the linker has dropped is at 0, or at -1 (LLVM's "tombstone").
  if (begin < end && begin != 0 && begin < ~0ull - 1) out.push_back({begin, end});
}

std::vector<AddressInterval> old_list(const Unit& unit, std::uint64_t offset) {
  std::vector<AddressInterval> out;
  // Those of a split unit are the linker's, counted from where the skeleton says.
  if (unit.skeleton()) offset += unit_base(unit.home(), AT_GNU_ranges_base, 0, 0);
  Cursor c(unit.home().file().sections()[Section::ranges], offset);
  std::uint64_t base = base_address(unit);
  while (c.good() && out.size() < kMaxIntervals) {
    const std::uint64_t begin = c.number(unit.address_size()), end = c.number(unit.address_size());
    if (!c.good() || (begin == 0 && end == 0)) break;
    if (begin == ~0ull)
      base = end;
    else
      add(out, base + begin, base + end);
  }
  return out;
}

std::vector<AddressInterval> new_list(const Unit& unit, std::uint64_t offset) {
  std::vector<AddressInterval> out;
  Cursor c(unit.file().sections()[Section::rnglists], offset);
  std::uint64_t base = base_address(unit);
  const auto indexed = [&] { return address_by_index(unit, c.uleb()).value_or(0); };
  while (c.good() && out.size() < kMaxIntervals) {
    std::uint64_t begin = 0;
    switch (c.take<std::uint8_t>()) {
      case RLE_base_addressx: base = indexed(); break;
      case RLE_base_address: base = c.number(unit.address_size()); break;
      case RLE_startx_endx:
        begin = indexed();
        add(out, begin, indexed());
        break;
      case RLE_startx_length:
        begin = indexed();
        add(out, begin, begin + c.uleb());
        break;
      case RLE_offset_pair:
        begin = c.uleb();
        add(out, base + begin, base + c.uleb());
        break;
      case RLE_start_end:
        begin = c.number(unit.address_size());
        add(out, begin, c.number(unit.address_size()));
        break;
      case RLE_start_length:
        begin = c.number(unit.address_size());
        add(out, begin, begin + c.uleb());
        break;
      default: return out;  // the end, or damage
    }
  }
  return out;
}

// FORM_rnglistx: an index into the table of offsets behind the header of the unit's part of .debug_rnglists.
std::uint64_t listed_offset(const Unit& unit, const Attribute& ranges) {
  if (ranges.form != FORM_rnglistx) return ranges.number;
  const std::uint64_t base = unit_base(unit, AT_rnglists_base, 0, 12 + unit.contribution().rnglists);
  Cursor c(unit.file().sections()[Section::rnglists], base + (ranges.number & 0xffffffff) * 4);
  return base + c.number(4);
}

}  // namespace

std::vector<AddressInterval> intervals_of(Die die) {
  if (const auto ranges = attribute(die, AT_ranges)) {
    const Unit& unit = *die.unit;
    return unit.version() >= 5 ? new_list(unit, listed_offset(unit, *ranges)) : old_list(unit, ranges->number);
  }
  const auto low = attribute(die, AT_low_pc), high = attribute(die, AT_high_pc);
  if (!low || !high) return {};
  const auto begin = address_of(die, *low);
  if (!begin) return {};
  const auto end = address_of(die, *high);  // else it is a length (DWARF 4)
  std::vector<AddressInterval> out;
  add(out, *begin, end ? *end : *begin + high->number);
  return out;
}

bool covers(Die die, std::uint64_t address) {
  for (const AddressInterval& interval : intervals_of(die))
    if (interval.contains(address)) return true;
  return false;
}

}  // namespace probed::dwarf
