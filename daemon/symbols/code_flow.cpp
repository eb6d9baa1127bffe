// See code_flow.hpp.
#include "daemon/symbols/code_flow.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <tuple>
#include <vector>

#include "arch/arch.hpp"
#include "daemon/symbols/dynamic.hpp"
#include "daemon/symbols/eh_frame.hpp"

namespace probed::symbols {
namespace {

constexpr std::uint64_t kMaxText = 256u << 20, kMaxData = 256u << 20;  // bytes of one segment

struct LoadedSegment {
  std::uint64_t address = 0;
  std::vector<std::byte> bytes;
  bool executable = false;

  arch::CodeSegment view() const {
    return {address, {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}};
  }
};

// False: some of them aren't to be had. Data count as much as text, since they hold jump tables.
bool read_segments(const Module& module, const elf::Image& image, std::vector<LoadedSegment>& out) {
  for (const Segment& segment : module.segments()) {
    auto bytes = image.read_bytes(segment.file_offset, segment.file_size, segment.executable ? kMaxText : kMaxData);
    if (!bytes) return false;
    out.push_back({segment.address.value, std::move(*bytes), segment.executable});
  }
  std::ranges::sort(out, {}, &LoadedSegment::address);
  return true;
}

// Sized symbols and unwind table entries. Of those that begin together the longest counts; one that begins inside
// another ends it there.
std::vector<arch::CodeRange> functions_of(const Module& module) {
  std::vector<arch::CodeRange> all;
  for (const Symbol& symbol : module.symbols().all())
    if (symbol.code() && symbol.size != 0) all.push_back({symbol.address.value, symbol.address.value + symbol.size});
  for (const FrameRange& frame : module.frames()) all.push_back({frame.start.value, frame.start.value + frame.size});
  std::erase_if(all, [](const arch::CodeRange& r) { return r.end < r.begin; });
  std::ranges::sort(
      all, [](const auto& a, const auto& b) { return std::tuple(a.begin, ~a.end) < std::tuple(b.begin, ~b.end); });
  std::vector<arch::CodeRange> kept;
  for (const arch::CodeRange& range : all) {
    if (!kept.empty() && kept.back().begin == range.begin) continue;
    if (!kept.empty() && range.begin < kept.back().end) continue;
    kept.push_back(range);
  }
  return kept;
}

// ---- relocations ----------------------------------------------------------------------------------------------------

// The bytes of what two dynamic tags give the address and the size of.
std::vector<std::byte> tagged_bytes(const elf::Image& image, const DynamicTags& tags, std::int64_t where,
                                    std::int64_t size) {
  if (!tags.contains(where) || !tags.contains(size)) return {};
  const auto offset = image.offset_of({tags.at(where)});
  if (!offset) return {};
  return image.read_bytes(*offset, tags.at(size), kMaxRelocationBytes).value_or(std::vector<std::byte>{});
}

// Where relocations point to. Without a symbol the addend is the address; symbols themselves are entries anyway.
void add_rela(const elf::Image& image, std::optional<std::uint64_t> symbols, std::span<const std::byte> table,
              std::vector<std::uint64_t>& out) {
  for (; table.size() >= sizeof(Elf64_Rela); table = table.subspan(sizeof(Elf64_Rela))) {
    Elf64_Rela rela;
    std::memcpy(&rela, table.data(), sizeof rela);
    const auto addend = static_cast<std::uint64_t>(rela.r_addend);
    const std::uint64_t index = ELF64_R_SYM(rela.r_info);
    if (index == 0) out.push_back(addend);
    if (index == 0 || addend == 0 || !symbols) continue;
    const auto symbol = image.read_as<Elf64_Sym>(*symbols + index * sizeof(Elf64_Sym));
    if (symbol && symbol->st_shndx != SHN_UNDEF) out.push_back(symbol->st_value + addend);
  }
}

// The words that a program or the loader adds the load bias to hold what they are to point to, in place: RELR's all do,
// and so do those of older linkers. Taking every aligned word of writable data for one is simpler than decoding RELR,
// and finds the same.
void add_words(const arch::CodeSegment& data, std::vector<std::uint64_t>& out) {
  for (std::uint64_t at = -data.address % 8; at + 8 <= data.bytes.size(); at += 8) {
    std::uint64_t word;
    std::memcpy(&word, data.bytes.data() + at, sizeof word);
    if (word != 0) out.push_back(word);
  }
}

void add_relocated(const elf::Image& image, std::span<const LoadedSegment> segments, std::vector<std::uint64_t>& out) {
  const auto tags = read_dynamic_tags(image);
  const auto symbols = tags.contains(DT_SYMTAB) ? image.offset_of({tags.at(DT_SYMTAB)}) : std::nullopt;
  add_rela(image, symbols, tagged_bytes(image, tags, DT_RELA, DT_RELASZ), out);
  add_rela(image, symbols, tagged_bytes(image, tags, DT_JMPREL, DT_PLTRELSZ), out);
  if (tags.contains(DT_RELR))
    for (const LoadedSegment& segment : segments)
      if (!segment.executable) add_words(segment.view(), out);
  for (const std::int64_t tag : {DT_INIT, DT_FINI})
    if (tags.contains(tag)) out.push_back(tags.at(tag));
}

std::vector<std::uint64_t> entries_of(const Module& module, const elf::Image& image,
                                      std::span<const LoadedSegment> segments, const LandingPads& pads) {
  std::vector<std::uint64_t> out{image.header().e_entry};
  for (const Symbol& symbol : module.symbols().all())
    if (symbol.code()) out.push_back(symbol.address.value);
  for (const FrameRange& frame : module.frames()) out.push_back(frame.start.value);
  for (const ElfAddr pad : pads.addresses) out.push_back(pad.value);
  add_relocated(image, segments, out);
  return out;
}

// What linkers make for loaders and unwinders. Without section headers some of it isn't found, which costs a few jumps.
std::vector<arch::CodeRange> linkage_of(const elf::Image& image) {
  std::vector<arch::CodeRange> out;
  const auto add = [&out](std::uint64_t address, std::uint64_t size) {
    if (size != 0 && address + size > address) out.push_back({address, address + size});
  };
  for (const Elf64_Phdr& segment : image.segments()) {
    if (segment.p_type == PT_LOAD && segment.p_offset == 0) add(segment.p_vaddr, sizeof(Elf64_Ehdr));
    for (const std::uint32_t type : {PT_PHDR, PT_INTERP, PT_NOTE, PT_DYNAMIC, PT_GNU_EH_FRAME})
      if (segment.p_type == type) add(segment.p_vaddr, segment.p_filesz);
  }
  for (const Elf64_Shdr& section : image.sections())
    if ((section.sh_flags & SHF_ALLOC) != 0 && section.sh_type != SHT_PROGBITS && section.sh_type != SHT_NOBITS)
      add(section.sh_addr, section.sh_size);
  for (const char* name : {".eh_frame", ".gcc_except_table"})
    if (const Elf64_Shdr* const section = image.section(name)) add(section->sh_addr, section->sh_size);
  return out;
}

// ---- data in the text ----------------------------------------------------------------------------------------------

bool is_text(const Module& module, std::uint64_t address) {
  return std::ranges::any_of(module.segments(), [address](const Segment& s) {
    return s.executable && address >= s.address.value && address - s.address.value < s.file_size;
  });
}

// aarch64's mapping symbols: data from $d on, up to the next $x (ELF for the Arm 64-bit Architecture, "Mapping
// symbols"). The symbol table has left them out. No other architecture has such names.
void add_mapped(const Module& module, const elf::Image& image, std::vector<arch::CodeRange>& out) {
  const Elf64_Shdr* const table = image.section(".symtab");
  const auto sections = image.sections();
  if (table == nullptr || table->sh_link >= sections.size() || arch::native::kInsnAlignment == 1) return;
  const auto bytes = image.read_bytes(table->sh_offset, table->sh_size, kMaxData);
  const Elf64_Shdr& strings = sections[table->sh_link];
  const auto names = image.read_bytes(strings.sh_offset, strings.sh_size, kMaxData);
  if (!bytes || !names) return;
  std::vector<std::pair<std::uint64_t, bool>> marks;  // where data begin, or end
  for (std::size_t at = 0; at + sizeof(Elf64_Sym) <= bytes->size(); at += sizeof(Elf64_Sym)) {
    Elf64_Sym symbol;
    std::memcpy(&symbol, bytes->data() + at, sizeof symbol);
    if (symbol.st_name + 1ull >= names->size() || (*names)[symbol.st_name] != std::byte{'$'}) continue;
    const auto kind = static_cast<char>((*names)[symbol.st_name + 1]);
    if ((kind == 'd' || kind == 'x') && is_text(module, symbol.st_value))
      marks.emplace_back(symbol.st_value, kind == 'd');
  }
  std::ranges::sort(marks);
  for (std::size_t i = 0; i + 1 < marks.size(); ++i)
    if (marks[i].second && marks[i + 1].first > marks[i].first) out.push_back({marks[i].first, marks[i + 1].first});
}

void add_objects(const Module& module, std::vector<arch::CodeRange>& out) {
  for (const Symbol& symbol : module.symbols().all())
    if (symbol.kind == SymbolKind::object && symbol.size != 0 && is_text(module, symbol.address.value) &&
        symbol.address.value + symbol.size > symbol.address.value)
      out.push_back({symbol.address.value, symbol.address.value + symbol.size});
}

// ---- properties -----------------------------------------------------------------------------------------------------

// Whether the file asks for its code to be guarded (Linux Extensions to gABI, .note.gnu.property).
bool is_guarded(const elf::Image& image) {
  constexpr std::uint64_t kMostNotes = 4096;
  struct Property {
    std::uint32_t type, size, value;
  };
  for (const Elf64_Phdr& segment : image.segments()) {
    if (segment.p_type != PT_GNU_PROPERTY || !arch::native::kGuardProperty) continue;
    const auto bytes = image.read_bytes(segment.p_offset, segment.p_filesz, kMostNotes);
    if (!bytes) return true;  // nobody knows
    const std::span<const std::byte> note(*bytes);
    for (std::size_t at = sizeof(Elf64_Nhdr) + sizeof "GNU"; at + sizeof(Property) <= note.size();) {
      Property property;
      std::memcpy(&property, note.data() + at, sizeof property);
      if (property.type == arch::native::kGuardProperty->type)
        return (property.value & arch::native::kGuardProperty->bit) != 0;
      at += 8 + (std::size_t{property.size} + 7) / 8 * 8;
    }
  }
  return false;
}

}  // namespace

std::shared_ptr<const arch::CodeFlow> read_code_flow(const Module& module, const elf::Image& image) {
  std::vector<LoadedSegment> segments;
  if (!read_segments(module, image, segments)) return nullptr;
  const LandingPads pads = read_landing_pads(image);
  if (!pads.complete) return nullptr;
  std::vector<arch::CodeSegment> text, data;
  for (const LoadedSegment& segment : segments) (segment.executable ? text : data).push_back(segment.view());
  const auto functions = functions_of(module);
  const auto entries = entries_of(module, image, segments, pads);
  auto linkage = linkage_of(image);
  add_objects(module, linkage);
  add_mapped(module, image, linkage);
  return std::make_shared<arch::CodeFlow>(arch::native::analyse_code(
      {text, data, functions, entries, image.header().e_type == ET_EXEC, is_guarded(image), linkage}));
}

}  // namespace probed::symbols
