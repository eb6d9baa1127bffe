// See dynamic.hpp. Layouts: System V ABI, "Dynamic Linking"; Linux Standard Base, "Symbol Versioning".
#include "daemon/symbols/dynamic.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "arch/arch.hpp"

namespace probed::symbols {
namespace {

namespace native = arch::native;

constexpr std::uint64_t kMaxDynamicEntries = 4096;
constexpr std::uint64_t kMaxStrings = 128u << 20;
constexpr std::uint64_t kMaxSymbols = 4u << 20;
constexpr std::size_t kMaxSlots = 1u << 20;
constexpr std::size_t kMaxVersions = 4096;

using Tags = DynamicTags;

std::optional<std::uint64_t> tag(const Tags& tags, std::int64_t which) {
  const auto it = tags.find(which);
  return it != tags.end() ? std::optional(it->second) : std::nullopt;
}

// The file offset of what an address-valued tag points at.
std::optional<std::uint64_t> tag_offset(const elf::Image& image, const Tags& tags, std::int64_t which) {
  const auto address = tag(tags, which);
  return address ? image.offset_of({*address}) : std::nullopt;
}

std::string text_at(std::span<const std::byte> strings, std::uint64_t offset) {
  if (offset >= strings.size()) return {};
  const char* begin = reinterpret_cast<const char*>(strings.data()) + offset;
  const std::size_t most = std::min<std::size_t>(strings.size() - offset, 4096);
  const std::size_t length = ::strnlen(begin, most);
  return length < most ? std::string(begin, length) : std::string();
}

// ---- how many symbols: the dynamic section doesn't say, but its hash tables do
// ----------------------------------------

std::uint64_t count_by_gnu_hash(const elf::Image& image, std::uint64_t at) {
  struct {
    std::uint32_t buckets, first, bloom_words, shift;
  } head{};
  if (!image.read(at, std::as_writable_bytes(std::span(&head, 1))) || head.buckets > kMaxSymbols) return 0;
  const std::uint64_t buckets_at = at + sizeof head + std::uint64_t{head.bloom_words} * 8;
  const std::uint64_t chains_at = buckets_at + std::uint64_t{head.buckets} * 4;
  std::vector<std::uint32_t> buckets(head.buckets);
  if (!image.read(buckets_at, std::as_writable_bytes(std::span(buckets)))) return 0;
  std::uint64_t last = buckets.empty() ? 0 : *std::max_element(buckets.begin(), buckets.end());
  if (last < head.first) return head.first;
  // The chain of the last bucket ends with the last symbol; bit 0 marks its end.
  for (; last < kMaxSymbols; ++last) {
    const auto value = image.read_as<std::uint32_t>(chains_at + (last - head.first) * 4);
    if (!value) return 0;
    if (*value & 1) return last + 1;
  }
  return 0;
}

std::uint64_t count_symbols(const elf::Image& image, const Tags& tags, std::uint64_t symbols_at) {
  for (const Elf64_Shdr& s : image.sections())
    if (s.sh_type == SHT_DYNSYM && s.sh_offset == symbols_at) return s.sh_size / sizeof(Elf64_Sym);
  if (const auto at = tag_offset(image, tags, DT_HASH))
    if (const auto chains = image.read_as<std::uint32_t>(*at + 4)) return *chains;
  if (const auto at = tag_offset(image, tags, DT_GNU_HASH)) return count_by_gnu_hash(image, *at);
  return 0;
}

std::optional<RawSymbols> dynamic_symbols(const elf::Image& image, const Tags& tags) {
  const auto symbols = tag_offset(image, tags, DT_SYMTAB), strings = tag_offset(image, tags, DT_STRTAB);
  const auto size = tag(tags, DT_STRSZ);
  if (!symbols || !strings || !size) return std::nullopt;
  const std::uint64_t count = count_symbols(image, tags, *symbols);
  if (count > kMaxSymbols || count > image.size() / sizeof(Elf64_Sym)) return std::nullopt;
  return RawSymbols{*symbols, count, *strings, *size};
}

std::vector<std::byte> dynamic_strings(const elf::Image& image, const Tags& tags) {
  const auto at = tag_offset(image, tags, DT_STRTAB);
  const auto size = tag(tags, DT_STRSZ);
  if (!at || !size) return {};
  return image.read_bytes(*at, *size, kMaxStrings).value_or(std::vector<std::byte>{});
}

// ---- versions -------------------------------------------------------------------------------------------------------

// The names of the versions that the module defines, by index. Index 1 is the module itself and stays empty.
std::vector<std::string> version_names(const elf::Image& image, const Tags& tags, std::span<const std::byte> strings) {
  std::vector<std::string> names;
  auto at = tag_offset(image, tags, DT_VERDEF);
  const std::uint64_t count = std::min<std::uint64_t>(tag(tags, DT_VERDEFNUM).value_or(0), kMaxVersions);
  for (std::uint64_t i = 0; at && i < count; ++i) {
    const auto def = image.read_as<Elf64_Verdef>(*at);
    if (!def) break;
    const auto aux = image.read_as<Elf64_Verdaux>(*at + def->vd_aux);
    const std::size_t index = def->vd_ndx & 0x7fff;
    if (aux && index < kMaxVersions && !(def->vd_flags & VER_FLG_BASE)) {
      if (index >= names.size()) names.resize(index + 1);
      names[index] = text_at(strings, aux->vda_name);
    }
    if (def->vd_next == 0) break;
    *at += def->vd_next;
  }
  return names;
}

RawVersions read_versions(const elf::Image& image, const Tags& tags, std::uint64_t count,
                          std::span<const std::byte> strings) {
  RawVersions versions;
  const auto at = tag_offset(image, tags, DT_VERSYM);
  if (!at) return versions;
  versions.of_symbol.resize(count);
  if (!image.read(*at, std::as_writable_bytes(std::span(versions.of_symbol)))) versions.of_symbol.clear();
  versions.name_of_index = version_names(image, tags, strings);
  return versions;
}

// ---- relocations ----------------------------------------------------------------------------------------------------

struct ByteRange {
  std::uint64_t offset = 0, size = 0;
};

std::vector<ByteRange> relocation_tables(const elf::Image& image, const Tags& tags) {
  std::vector<ByteRange> tables;
  const auto add = [&](std::int64_t where, std::int64_t size) {
    const auto at = tag_offset(image, tags, where);
    if (at) tables.push_back({*at, tag(tags, size).value_or(0)});
  };
  add(DT_JMPREL, DT_PLTRELSZ);
  add(DT_RELA, DT_RELASZ);
  for (const Elf64_Shdr& s : image.sections())
    if (tags.empty() && s.sh_type == SHT_RELA && (s.sh_flags & SHF_ALLOC)) tables.push_back({s.sh_offset, s.sh_size});
  return tables;
}

class SlotReader {
 public:
  SlotReader(const elf::Image& image, const Tags& tags) : image_(image), strings_(dynamic_strings(image, tags)) {
    const auto raw = dynamic_symbols(image, tags);
    if (!raw) return;
    symbols_.resize(raw->count);
    if (!image.read(raw->offset, std::as_writable_bytes(std::span(symbols_)))) symbols_.clear();
  }

  void read(ByteRange table, std::vector<LoaderSlot>& slots) const {
    const auto bytes = image_.read_bytes(table.offset, table.size, kMaxRelocationBytes);
    if (!bytes) return;
    for (std::size_t i = 0; i + sizeof(Elf64_Rela) <= bytes->size() && slots.size() < kMaxSlots;
         i += sizeof(Elf64_Rela)) {
      Elf64_Rela rela;
      std::memcpy(&rela, bytes->data() + i, sizeof rela);
      const auto type = static_cast<std::uint32_t>(ELF64_R_TYPE(rela.r_info));
      if (type == native::kRelocationByResolver)
        slots.push_back({{rela.r_offset}, {static_cast<std::uint64_t>(rela.r_addend)}, {}});
      if (std::ranges::find(native::kRelocationsBySymbol, type) != std::end(native::kRelocationsBySymbol))
        add_named(rela, slots);
    }
  }

  // Of the module's own variables: by no symbol, or by one it defines itself.
  void read_thread_slots(ByteRange table, std::vector<ThreadSlot>& slots) const {
    const auto bytes = image_.read_bytes(table.offset, table.size, kMaxRelocationBytes);
    if (!bytes) return;
    using Kind = ThreadSlot::Kind;
    const auto kind_of = [](std::uint32_t type) -> std::optional<Kind> {
      if (type == native::kRelocationOfThreadModule) return Kind::module_number;
      if (type == native::kRelocationOfThreadOffset) return Kind::offset;
      return type == native::kRelocationOfThreadDescriptor ? std::optional(Kind::descriptor) : std::nullopt;
    };
    for (std::size_t i = 0; i + sizeof(Elf64_Rela) <= bytes->size(); i += sizeof(Elf64_Rela)) {
      Elf64_Rela rela;
      std::memcpy(&rela, bytes->data() + i, sizeof rela);
      const auto type = static_cast<std::uint32_t>(ELF64_R_TYPE(rela.r_info));
      const auto kind = kind_of(type);
      if (!kind) continue;
      const std::uint64_t index = ELF64_R_SYM(rela.r_info);
      const auto found = std::ranges::find(slots, *kind, &ThreadSlot::kind);
      if (found != slots.end() && (index != 0 || !found->by_symbol)) continue;
      const bool own = index == 0 || (index < symbols_.size() && symbols_[index].st_shndx != SHN_UNDEF &&
                                      ELF64_ST_BIND(symbols_[index].st_info) != STB_WEAK);
      if (!own) continue;
      const std::uint64_t value = index == 0 ? 0 : symbols_[index].st_value;
      const std::uint64_t second = *kind == Kind::descriptor ? 8 : 0;  // of the two words
      const std::uint64_t addend = value + static_cast<std::uint64_t>(rela.r_addend);
      const ThreadSlot slot{{rela.r_offset + second}, *kind, addend, index != 0};
      if (found != slots.end())
        *found = slot;
      else
        slots.push_back(slot);
    }
  }

  void read_data_slots(ByteRange table, std::vector<DataSlot>& slots) const {
    const auto bytes = image_.read_bytes(table.offset, table.size, kMaxRelocationBytes);
    if (!bytes) return;
    for (std::size_t i = 0; i + sizeof(Elf64_Rela) <= bytes->size() && slots.size() < kMaxSlots;
         i += sizeof(Elf64_Rela)) {
      Elf64_Rela rela;
      std::memcpy(&rela, bytes->data() + i, sizeof rela);
      const std::uint64_t index = ELF64_R_SYM(rela.r_info);
      if (ELF64_R_TYPE(rela.r_info) != native::kRelocationOfData || rela.r_addend != 0 || index >= symbols_.size())
        continue;
      const Elf64_Sym& symbol = symbols_[index];
      const bool is_own = symbol.st_shndx != SHN_UNDEF && symbol.st_shndx != SHN_ABS;
      if (is_own && ELF64_ST_TYPE(symbol.st_info) == STT_OBJECT) slots.push_back({{symbol.st_value}, {rela.r_offset}});
    }
  }

 private:
  void add_named(const Elf64_Rela& rela, std::vector<LoaderSlot>& slots) const {
    const std::uint64_t index = ELF64_R_SYM(rela.r_info);
    if (index == 0 || index >= symbols_.size() || rela.r_addend != 0) return;
    const Elf64_Sym& symbol = symbols_[index];
    if (ELF64_ST_TYPE(symbol.st_info) == STT_OBJECT) return;
    if (std::string name = text_at(strings_, symbol.st_name); !name.empty())
      slots.push_back({{rela.r_offset}, {}, std::move(name)});
  }

  const elf::Image& image_;
  std::vector<Elf64_Sym> symbols_;
  std::vector<std::byte> strings_;
};

}  // namespace

DynamicTags read_dynamic_tags(const elf::Image& image) {
  DynamicTags tags;
  for (const Elf64_Phdr& p : image.segments()) {
    if (p.p_type != PT_DYNAMIC) continue;
    std::vector<Elf64_Dyn> entries(std::min(p.p_filesz / sizeof(Elf64_Dyn), kMaxDynamicEntries));
    if (!image.read(p.p_offset, std::as_writable_bytes(std::span(entries)))) break;
    for (const Elf64_Dyn& d : entries) {
      if (d.d_tag == DT_NULL) break;
      tags.try_emplace(d.d_tag, d.d_un.d_val);
    }
    break;
  }
  return tags;
}

DynamicInfo read_dynamic(const elf::Image& image) {
  const Tags tags = read_dynamic_tags(image);
  DynamicInfo info;
  if (tags.empty()) return info;
  const std::vector<std::byte> strings = dynamic_strings(image, tags);
  if (const auto soname = tag(tags, DT_SONAME)) info.soname = text_at(strings, *soname);
  info.symbols = dynamic_symbols(image, tags);
  if (info.symbols) info.versions = read_versions(image, tags, info.symbols->count, strings);
  return info;
}

std::vector<ThreadSlot> read_thread_slots(const elf::Image& image) {
  const Tags tags = read_dynamic_tags(image);
  const SlotReader reader(image, tags);
  std::vector<ThreadSlot> slots;
  for (const ByteRange& table : relocation_tables(image, tags)) reader.read_thread_slots(table, slots);
  return slots;
}

std::vector<DataSlot> read_data_slots(const elf::Image& image) {
  const Tags tags = read_dynamic_tags(image);
  const SlotReader reader(image, tags);
  std::vector<DataSlot> slots;
  for (const ByteRange& table : relocation_tables(image, tags)) reader.read_data_slots(table, slots);
  std::ranges::sort(slots, {}, [](const DataSlot& s) { return s.variable.value; });
  return slots;
}

std::vector<LoaderSlot> read_loader_slots(const elf::Image& image) {
  const Tags tags = read_dynamic_tags(image);
  const SlotReader reader(image, tags);
  std::vector<LoaderSlot> slots;
  for (const ByteRange& table : relocation_tables(image, tags)) reader.read(table, slots);
  return slots;
}

}  // namespace probed::symbols
