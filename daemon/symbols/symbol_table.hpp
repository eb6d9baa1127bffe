// The symbols of one module, gathered from several ELF tables, sorted once and looked up by address and by name.
//
// Thread: built by one, then immutable but for the two name indices, which the first query builds under a lock of their
// own (call_once). Names are views into string tables that the table owns; nothing is copied or demangled before
// somebody asks.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/types.hpp"
#include "daemon/elf/image.hpp"

namespace probed::symbols {

enum class SymbolKind : std::uint8_t {
  function,
  ifunc,   // the address is the resolver's, which returns the implementation's
  label,   // no type, in code: assembly
  object,  // data
  tls,     // the address is an offset into the thread's block
};

enum class Binding : std::uint8_t { global, weak, local };  // in order of preference

struct Symbol {
  ElfAddr address;
  std::uint64_t size = 0;  // bytes; 0: not given
  const char* name_begin = nullptr;
  std::uint32_t name_length = 0;
  std::uint16_t version = 0;  // index into the table's versions; 0: none
  SymbolKind kind = SymbolKind::function;
  Binding binding = Binding::local;

  // Without its version.
  std::string_view name() const { return {name_begin, name_length}; }
  bool code() const { return kind <= SymbolKind::label; }
  // What a glob takes for a function: typed ones, and assembly's exported labels.
  bool listed() const { return kind < SymbolKind::label || (kind == SymbolKind::label && binding != Binding::local); }
};

// Where a table and its strings lie in a file.
struct RawSymbols {
  std::uint64_t offset = 0, count = 0;
  std::uint64_t strings_offset = 0, strings_size = 0;
};

// The version of each entry of a dynamic symbol table (.gnu.version with the names .gnu.version_d gives).
struct RawVersions {
  static constexpr std::uint16_t kHidden = 0x8000;
  std::vector<std::uint16_t> of_symbol;  // index | kHidden: only a program that asks for this version gets it
  std::vector<std::string> name_of_index;
};

// Half-open ranges of a module's address space.
struct AddressRange {
  std::uint64_t begin = 0, end = 0;
  bool contains(std::uint64_t a) const { return a >= begin && a < end; }
};

class SymbolTable {
 public:
  SymbolTable() = default;
  SymbolTable(const SymbolTable&) = delete;
  SymbolTable& operator=(const SymbolTable&) = delete;

  // Building: any number of add(), then seal() once. `code`, `data`: where the module's segments are; symbols elsewhere
  // are dropped. add() does nothing for tables that lie outside the image or are larger than any real one.
  void add(const elf::Image& image, const RawSymbols& raw, const RawVersions* versions,
           std::span<const AddressRange> code, std::span<const AddressRange> data);
  void seal();

  // By address; aliases of one address in order of preference: global, weak, local; without underscores; shorter.
  std::span<const Symbol> all() const { return symbols_; }

  struct Version {
    std::string name;
    bool hidden = false;
  };
  // Of a symbol; name empty when it has none.
  const Version& version(const Symbol& symbol) const { return versions_[symbol.version]; }

  // The preferred sized symbol that covers an address, innermost first; null: none. `code`: functions and labels only,
  // else objects too.
  const Symbol* covering(ElfAddr address, bool code) const;
  // The preferred code symbol without a size at or before an address and with no other symbol between; null: none.
  const Symbol* unsized_before(ElfAddr address) const;

  // Every symbol of exactly this name, without version, in address order.
  std::vector<const Symbol*> named(std::string_view name) const;
  // Every whole copy of a function (foo.constprop.0; not foo.cold) by the function's name, in address order.
  std::vector<const Symbol*> copies_of(std::string_view name) const;
  // Every C++ or Rust symbol that people could mean by this: with parameters, without, without template arguments; with
  // ABI tags or, where there are no parameters, without.
  std::vector<const Symbol*> demangled(std::string_view name) const;
  // Those with these parameters of which the name leaves out the ABI tags, or the const behind them.
  std::vector<const Symbol*> demangled_loosely(std::string_view name) const;
  // Those in namespaces without a name, of which the name leaves these out.
  std::vector<const Symbol*> demangled_unnamed(std::string_view name) const;
  // The readable form of a symbol's name, from the index, which is built if need be; empty for plain names.
  std::string_view readable(const Symbol& symbol) const;
  // What to show people: readable, or as in the table. Demangles this one name when the index isn't there yet.
  std::string display(const Symbol& symbol) const;

  std::size_t memory_bytes() const;

 private:
  struct NameIndex {
    std::vector<std::pair<std::uint64_t, std::uint32_t>> entries;  // hash of the name, index of the symbol; sorted
  };
  struct DemangledIndex {
    std::string text;                                                // all readable names, one after the other
    std::vector<std::pair<std::uint32_t, std::uint32_t>> of_symbol;  // offset and length in text; length 0: plain
    NameIndex names;
    NameIndex unnamed;  // of what is in namespaces without a name, by the name without these
  };
  std::uint16_t version_id(std::string_view name, bool hidden);
  bool add_one(const Elf64_Sym& raw, const elf::Image& image, std::string_view name, std::uint16_t version,
               std::span<const AddressRange> code, std::span<const AddressRange> data);
  bool may_have_readable(std::string_view name) const;
  const NameIndex& name_index() const;
  const NameIndex& copy_index() const;
  const DemangledIndex& demangled_index() const;

  std::vector<std::vector<std::byte>> strings_;  // own the names
  std::vector<Symbol> symbols_;
  std::vector<std::uint64_t> furthest_end_;  // of all symbols up to each: ends the backward search early
  std::vector<Version> versions_{1};
  std::uint64_t name_bytes_ = 0;  // looked at so far, against the limit

  mutable std::once_flag names_once_, copies_once_, demangled_once_;
  mutable NameIndex names_, copies_;
  mutable DemangledIndex demangled_;
  mutable std::atomic<bool> demangled_ready_ = false;
  mutable std::atomic<std::size_t> index_bytes_ = 0;
};

}  // namespace probed::symbols
