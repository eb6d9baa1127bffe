// See symbol_table.hpp.
#include "daemon/symbols/symbol_table.hpp"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <tuple>

#include "daemon/names/demangle.hpp"

namespace probed::symbols {
namespace {

// The largest symbol tables met: chromium with symbols, 1.5 million entries, 250 MB of names.
constexpr std::uint64_t kMaxSymbols = 4u << 20;
constexpr std::uint64_t kMaxStrings = 384u << 20;
constexpr std::size_t kMaxName = 4096;
// Names may share bytes, so four million entries could all name the same long string.
constexpr std::uint64_t kMaxNameBytes = 1u << 30;
constexpr std::size_t kMaxVersions = 4096;
constexpr std::size_t kMaxBackward = 64;
// All readable names of a module together; demangling stops there. libLLVM needs 30 MB.
constexpr std::size_t kMaxReadable = 256u << 20;

bool in_any(std::span<const AddressRange> ranges, std::uint64_t address) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const AddressRange& r) { return r.contains(address); });
}

// The name at an offset of a string table, empty when it is unterminated or too long.
std::string_view string_at(std::span<const std::byte> strings, std::uint32_t offset) {
  if (offset >= strings.size()) return {};
  const char* begin = reinterpret_cast<const char*>(strings.data()) + offset;
  const std::size_t most = std::min(strings.size() - offset, kMaxName + 1);
  const void* end = std::memchr(begin, '\0', most);
  return end ? std::string_view(begin, static_cast<std::size_t>(static_cast<const char*>(end) - begin))
             : std::string_view();
}

std::optional<SymbolKind> kind_of(const Elf64_Sym& s, bool in_code) {
  switch (ELF64_ST_TYPE(s.st_info)) {
    case STT_FUNC: return in_code ? SymbolKind::function : SymbolKind::object;
    case STT_GNU_IFUNC: return in_code ? std::optional(SymbolKind::ifunc) : std::nullopt;
    case STT_OBJECT:
    case STT_COMMON: return SymbolKind::object;
    case STT_TLS: return SymbolKind::tls;
    case STT_NOTYPE: return in_code ? SymbolKind::label : SymbolKind::object;
    default: return std::nullopt;
  }
}

Binding binding_of(const Elf64_Sym& s) {
  switch (ELF64_ST_BIND(s.st_info)) {
    case STB_LOCAL: return Binding::local;
    case STB_WEAK: return Binding::weak;
    default: return Binding::global;  // STB_GNU_UNIQUE too
  }
}

// Labels in code that are not where code begins: the linker's section marks, and aarch64's mapping symbols ($x, $d).
bool is_mark(std::string_view name) {
  constexpr std::string_view kMarks[] = {
      "_etext",      "etext", "__etext", "_end", "_edata", "__bss_start", "__executable_start", "_GLOBAL_OFFSET_TABLE_",
      "__ehdr_start"};
  return name.starts_with('$') || std::find(std::begin(kMarks), std::end(kMarks), name) != std::end(kMarks);
}

bool section_is_code(const elf::Image& image, unsigned index) {
  const auto sections = image.sections();
  return index >= sections.size() || (sections[index].sh_flags & SHF_EXECINSTR) != 0;
}

auto preference(const Symbol& s) {
  return std::tuple(s.address.value, s.binding, s.name().starts_with('_'), s.kind, s.name_length, s.name());
}

std::uint64_t hash_of(std::string_view text) { return std::hash<std::string_view>{}(text); }

// Every entry with this hash.
template <class Visit>
void visit_hash(const std::vector<std::pair<std::uint64_t, std::uint32_t>>& entries, std::uint64_t hash, Visit visit) {
  auto it = std::lower_bound(entries.begin(), entries.end(), std::pair<std::uint64_t, std::uint32_t>{hash, 0});
  for (; it != entries.end() && it->first == hash; ++it) visit(it->second);
}

}  // namespace

std::uint16_t SymbolTable::version_id(std::string_view name, bool hidden) {
  if (name.empty()) return 0;
  for (std::size_t i = 1; i < versions_.size(); ++i)
    if (versions_[i].name == name && versions_[i].hidden == hidden) return static_cast<std::uint16_t>(i);
  if (versions_.size() >= kMaxVersions) return 0;
  versions_.push_back({std::string(name), hidden});
  return static_cast<std::uint16_t>(versions_.size() - 1);
}

void SymbolTable::add(const elf::Image& image, const RawSymbols& raw, const RawVersions* versions,
                      std::span<const AddressRange> code, std::span<const AddressRange> data) {
  if (raw.count > kMaxSymbols) return;
  auto strings = image.read_bytes(raw.strings_offset, raw.strings_size, kMaxStrings);
  if (!strings) return;
  const auto& owned = strings_.emplace_back(*std::move(strings));
  // Dynamic entries have one version each; the ids are looked up once per version, not once per symbol.
  std::vector<std::uint16_t> plain_ids, hidden_ids;
  if (versions) {
    for (const std::string& name : versions->name_of_index) {
      plain_ids.push_back(version_id(name, false));
      hidden_ids.push_back(version_id(name, true));
    }
  }
  constexpr std::uint64_t kChunk = 16384;
  std::vector<Elf64_Sym> chunk;
  for (std::uint64_t first = 0; first < raw.count; first += kChunk) {
    chunk.resize(std::min(kChunk, raw.count - first));
    if (!image.read(raw.offset + first * sizeof(Elf64_Sym), std::as_writable_bytes(std::span(chunk)))) return;
    for (std::uint64_t i = 0; i < chunk.size(); ++i) {
      const std::uint16_t v = versions && first + i < versions->of_symbol.size() ? versions->of_symbol[first + i] : 0;
      const auto& ids = (v & RawVersions::kHidden) ? hidden_ids : plain_ids;
      const std::size_t index = v & ~RawVersions::kHidden;
      const std::string_view name = string_at(owned, chunk[i].st_name);
      if (!add_one(chunk[i], image, name, index < ids.size() ? ids[index] : std::uint16_t{0}, code, data)) return;
    }
  }
}

// False: the limit on names is reached, stop.
bool SymbolTable::add_one(const Elf64_Sym& raw, const elf::Image& image, std::string_view name, std::uint16_t version,
                          std::span<const AddressRange> code, std::span<const AddressRange> data) {
  if (raw.st_shndx == SHN_UNDEF || raw.st_shndx == SHN_ABS || name.empty()) return true;
  const bool in_code = in_any(code, raw.st_value);
  const auto kind = kind_of(raw, in_code);
  if (!kind) return true;
  if (*kind == SymbolKind::label && (is_mark(name) || !section_is_code(image, raw.st_shndx))) return true;
  if (*kind != SymbolKind::tls && !in_code && !in_any(data, raw.st_value)) return true;
  name_bytes_ += name.size();
  if (name_bytes_ > kMaxNameBytes) return false;
  // In .symtab the assembler's .symver leaves "name@VERSION" and "name@@VERSION" as they are.
  if (const std::size_t at = name.find('@'); at != std::string_view::npos && at > 0) {
    const bool is_default = name.substr(at).starts_with("@@");
    version = version_id(name.substr(at + (is_default ? 2 : 1)), !is_default);
    name = name.substr(0, at);
  }
  symbols_.push_back({{raw.st_value},
                      raw.st_size,
                      name.data(),
                      static_cast<std::uint32_t>(name.size()),
                      version,
                      *kind,
                      binding_of(raw)});
  return true;
}

void SymbolTable::seal() {
  std::sort(symbols_.begin(), symbols_.end(),
            [](const Symbol& a, const Symbol& b) { return preference(a) < preference(b); });
  // .symtab repeats what .dynsym has; the latter knows the version. A table may give the same address one name twice.
  std::size_t kept = 0;
  for (const Symbol& s : symbols_) {
    Symbol* last = kept > 0 ? &symbols_[kept - 1] : nullptr;
    const bool same = last && last->address == s.address && last->kind == s.kind && last->name() == s.name() &&
                      (last->version == s.version || last->version == 0 || s.version == 0);
    if (!same) {
      symbols_[kept++] = s;
    } else {
      last->size = std::max(last->size, s.size);
      last->version = std::max(last->version, s.version);
    }
  }
  symbols_.resize(kept);
  symbols_.shrink_to_fit();
  furthest_end_.reserve(kept);
  std::uint64_t furthest = 0;
  for (const Symbol& s : symbols_) {
    std::uint64_t end = 0;
    if (s.kind != SymbolKind::tls && !__builtin_add_overflow(s.address.value, s.size, &end))
      furthest = std::max(furthest, end);
    furthest_end_.push_back(furthest);
  }
}

const Symbol* SymbolTable::covering(ElfAddr address, bool code) const {
  const auto after = std::upper_bound(symbols_.begin(), symbols_.end(), address,
                                      [](ElfAddr a, const Symbol& s) { return a < s.address; });
  const Symbol* best = nullptr;
  std::size_t steps = 0;
  for (auto i = static_cast<std::size_t>(after - symbols_.begin()); i-- > 0;) {
    const Symbol& s = symbols_[i];
    if (best ? s.address != best->address : (furthest_end_[i] <= address.value || ++steps > kMaxBackward)) break;
    const bool wanted = s.code() || (!code && s.kind == SymbolKind::object);
    if (wanted && address.value - s.address.value < s.size) best = &s;
  }
  return best;
}

const Symbol* SymbolTable::unsized_before(ElfAddr address) const {
  const auto after = std::upper_bound(symbols_.begin(), symbols_.end(), address,
                                      [](ElfAddr a, const Symbol& s) { return a < s.address; });
  const Symbol* best = nullptr;
  for (auto it = after; it != symbols_.begin();) {
    const Symbol& s = *--it;
    if (s.address != std::prev(after)->address) break;
    if (s.size == 0 && s.code()) best = &s;
  }
  return best;
}

const SymbolTable::NameIndex& SymbolTable::name_index() const {
  std::call_once(names_once_, [this] {
    names_.entries.reserve(symbols_.size());
    for (std::uint32_t i = 0; i < symbols_.size(); ++i) names_.entries.emplace_back(hash_of(symbols_[i].name()), i);
    std::sort(names_.entries.begin(), names_.entries.end());
    index_bytes_ += names_.entries.capacity() * sizeof(names_.entries[0]);
  });
  return names_;
}

const SymbolTable::NameIndex& SymbolTable::copy_index() const {
  std::call_once(copies_once_, [this] {
    for (std::uint32_t i = 0; i < symbols_.size(); ++i) {
      const std::string_view name = symbols_[i].name(), whole = names::without_clone_suffix(name);
      if (symbols_[i].code() && whole.size() < name.size() && !names::is_fragment(name))
        copies_.entries.emplace_back(hash_of(whole), i);
    }
    std::sort(copies_.entries.begin(), copies_.entries.end());
    index_bytes_ += copies_.entries.capacity() * sizeof(copies_.entries[0]);
  });
  return copies_;
}

const SymbolTable::DemangledIndex& SymbolTable::demangled_index() const {
  std::call_once(demangled_once_, [this] {
    DemangledIndex& d = demangled_;
    d.of_symbol.resize(symbols_.size());
    for (std::uint32_t i = 0; i < symbols_.size(); ++i) {
      // Data and code may bear the same mangled name only under different addresses, so no two are merged here.
      const std::string text = names::demangle(symbols_[i].name());
      if (text.empty()) continue;
      if (d.text.size() + text.size() > kMaxReadable) break;
      d.of_symbol[i] = {static_cast<std::uint32_t>(d.text.size()), static_cast<std::uint32_t>(text.size())};
      d.text += text;
      const names::NameParts parts = names::split_name(text);
      d.names.entries.emplace_back(hash_of(names::without_blanks(parts.full)), i);
      if (parts.name != parts.full) d.names.entries.emplace_back(hash_of(names::without_blanks(parts.name)), i);
      if (parts.bare != parts.name) d.names.entries.emplace_back(hash_of(names::without_blanks(parts.bare)), i);
      if (const std::string named = names::without_unnamed(parts.bare); named != parts.bare)
        d.unnamed.entries.emplace_back(hash_of(names::without_blanks(named)), i);
      if (!names::has_abi_tag(parts.name)) continue;
      const std::string untagged = names::without_abi_tags(parts.name);
      const std::string_view bare = names::split_name(untagged).bare;
      d.names.entries.emplace_back(hash_of(names::without_blanks(untagged)), i);
      if (bare != untagged) d.names.entries.emplace_back(hash_of(names::without_blanks(bare)), i);
    }
    std::sort(d.names.entries.begin(), d.names.entries.end());
    std::sort(d.unnamed.entries.begin(), d.unnamed.entries.end());
    index_bytes_ += d.text.capacity() + d.of_symbol.capacity() * sizeof(d.of_symbol[0]) +
                    (d.names.entries.capacity() + d.unnamed.entries.capacity()) * sizeof(d.names.entries[0]);
    demangled_ready_.store(true, std::memory_order_release);
  });
  return demangled_;
}

std::vector<const Symbol*> SymbolTable::named(std::string_view name) const {
  std::vector<const Symbol*> found;
  visit_hash(name_index().entries, hash_of(name), [&](std::uint32_t i) {
    if (symbols_[i].name() == name) found.push_back(&symbols_[i]);
  });
  return found;
}

std::vector<const Symbol*> SymbolTable::copies_of(std::string_view name) const {
  std::vector<const Symbol*> found;
  visit_hash(copy_index().entries, hash_of(name), [&](std::uint32_t i) {
    const std::string_view full = symbols_[i].name();
    if (full.size() > name.size() && names::without_clone_suffix(full) == name) found.push_back(&symbols_[i]);
  });
  return found;
}

// Demangling a large C++ program takes half a second, and most names asked for are other modules' or C. A mangled name
// spells the last identifier of the readable one with its length before it ("ns::add(int)" has "3add"), but for
// operators and the standard library's abbreviations ("Ss").
bool SymbolTable::may_have_readable(std::string_view name) const {
  const std::string_view bare = names::split_name(name).bare;
  if (bare.starts_with("std::") || bare.find("operator") != std::string_view::npos) return true;
  const auto in_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$'; };
  const auto word = std::find_if_not(bare.rbegin(), bare.rend(), in_word);
  const auto length = static_cast<std::size_t>(word - bare.rbegin());
  if (length == 0) return !bare.empty();
  const std::string spelled = std::to_string(length) + std::string(bare.substr(bare.size() - length));
  return std::any_of(symbols_.begin(), symbols_.end(), [&](const Symbol& s) {
    return names::is_mangled(s.name()) && s.name().find(spelled) != std::string_view::npos;
  });
}

std::vector<const Symbol*> SymbolTable::demangled(std::string_view name) const {
  const std::string wanted = names::without_blanks(names::split_name(name).full);
  std::vector<const Symbol*> found;
  if (!demangled_ready_.load(std::memory_order_acquire) && !may_have_readable(name)) return found;
  visit_hash(demangled_index().names.entries, hash_of(wanted), [&](std::uint32_t i) {
    const names::NameParts parts = names::split_name(readable(symbols_[i]));
    bool match = names::without_blanks(parts.full) == wanted || names::without_blanks(parts.name) == wanted ||
                 names::without_blanks(parts.bare) == wanted;
    if (!match && names::has_abi_tag(parts.name)) {
      const std::string untagged = names::without_blanks(names::without_abi_tags(parts.name));
      match = untagged == wanted || names::split_name(untagged).bare == wanted;
    }
    if (match) found.push_back(&symbols_[i]);
  });
  return found;
}

std::vector<const Symbol*> SymbolTable::demangled_loosely(std::string_view name) const {
  const names::NameParts typed = names::split_name(name);
  std::vector<const Symbol*> found;
  if (typed.full == typed.name) return found;
  const std::string wanted = names::without_blanks(typed.full), in_source = names::in_one_spelling(typed.full);
  const auto parameters = names::parameters_in(typed.full);
  for (const Symbol* s : demangled(typed.name)) {
    const std::string_view full = names::split_name(readable(*s)).full;
    const std::string_view bare = names::without_qualifiers(full);
    const bool may_be_spelled = names::parameters_in(full) == parameters;  // spelling takes long, of long names
    const auto is_meant = [&](std::string_view text) {
      return names::without_blanks(text) == wanted || (may_be_spelled && names::in_one_spelling(text) == in_source);
    };
    if (is_meant(bare) || is_meant(names::without_abi_tags(full)) || is_meant(names::without_abi_tags(bare)))
      found.push_back(s);
  }
  return found;
}

std::vector<const Symbol*> SymbolTable::demangled_unnamed(std::string_view name) const {
  const names::NameParts typed = names::split_name(name);
  const std::string wanted = names::without_blanks(names::without_unnamed(typed.full));
  std::vector<const Symbol*> found;
  // A plain name is rather one of another module's: the nearest names show those that are meant.
  if (typed.bare.find("::") == typed.bare.npos) return found;
  if (!demangled_ready_.load(std::memory_order_acquire) && !may_have_readable(name)) return found;
  visit_hash(demangled_index().unnamed.entries, hash_of(names::without_blanks(names::without_unnamed(typed.bare))),
             [&](auto i) {
               const names::NameParts parts = names::split_name(readable(symbols_[i]));
               for (const std::string_view part :
                    {parts.full, names::without_qualifiers(parts.full), parts.name, parts.bare}) {
                 if (names::without_blanks(names::without_unnamed(part)) != wanted) continue;
                 found.push_back(&symbols_[i]);
                 break;
               }
             });
  return found;
}

std::string_view SymbolTable::readable(const Symbol& symbol) const {
  const DemangledIndex& d = demangled_index();
  const auto [offset, length] = d.of_symbol[static_cast<std::size_t>(&symbol - symbols_.data())];
  return std::string_view(d.text).substr(offset, length);
}

std::string SymbolTable::display(const Symbol& symbol) const {
  const std::string_view name = symbol.name();
  if (!names::is_mangled(name)) return std::string(name);
  std::string text =
      demangled_ready_.load(std::memory_order_acquire) ? std::string(readable(symbol)) : names::demangle(name);
  if (text.empty()) return std::string(name);
  const std::string_view suffix = name.substr(names::without_clone_suffix(name).size());
  if (!suffix.empty()) text.append(" [clone ").append(suffix).append("]");  // as c++filt writes it
  return text;
}

std::size_t SymbolTable::memory_bytes() const {
  std::size_t bytes = symbols_.capacity() * sizeof(Symbol) + furthest_end_.capacity() * sizeof(furthest_end_[0]);
  for (const auto& s : strings_) bytes += s.size();
  return bytes + index_bytes_.load();
}

}  // namespace probed::symbols
