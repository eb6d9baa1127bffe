// The inside of a TargetSymbols; shared by the files that implement it (target_load, lookup, ifunc, resolve) only.
//
// Thread: any; const after load but for the IFUNC memo, which has its lock. Keeps one descriptor, /proc/PID/mem: it
// stays with the address space it was opened for (fs/proc/base.c mem_open), so memory of a reused pid or of the program
// after an exec is never read by mistake.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/base/fault_in.hpp"
#include "daemon/names/match.hpp"
#include "daemon/symbols/elf.hpp"
#include "daemon/symbols/module_cache.hpp"
#include "daemon/symbols/resolve.hpp"
#include "daemon/symbols/restartable.hpp"
#include "daemon/symbols/target_files.hpp"
#include "proto/base/fd.hpp"

namespace probed::symbols {

// One module at one place of the target's address space. A file mapped twice in full is two of these.
struct Instance {
  std::shared_ptr<const Module> module;
  std::uint64_t bias = 0;  // address in the target = address in the file's headers + bias, modulo 2^64
  Mapping mapping;         // one of its executable mappings: the way to its file
  std::string identity;    // file_identity() when it was opened; empty for the vdso
  std::uint64_t device = 0, inode = 0;
  bool main = false, vdso = false;

  RemoteAddr remote(ElfAddr a) const { return {a.value + bias}; }
  ElfAddr elf(RemoteAddr a) const { return {a.value - bias}; }
  std::string_view name() const { return base_name(module->path()); }
};

// One symbol of one instance.
struct Found {
  const Instance* in = nullptr;
  const Symbol* symbol = nullptr;
};

// What a symbol name of a definition asks for.
struct NameQuery {
  std::string_view text;     // as typed
  std::string_view name;     // without version
  std::string_view version;  // empty: the default one
};

class TargetSymbols::Impl {
 public:
  // ---- target_load.cpp
  Result<void> load(pid_t pid, ModuleCache& cache);
  bool is_current() const;

  // ---- resolve.cpp
  void spare_candidates() const { file_notations_left_.store(0, std::memory_order_relaxed); }
  bool knows_function(std::string_view name) const;
  Result<Places> places(const lang::Location& location) const;
  Result<RemoteAddr> resolve_data(std::string_view text) const;
  Result<Site> site_at(RemoteAddr address) const;
  std::optional<SymbolizedAddress> symbolize(RemoteAddr address) const;
  std::vector<Function> functions(std::string_view glob, std::size_t limit) const;
  Result<std::vector<Function>> list_functions(std::string_view pattern, std::size_t limit) const;
  Result<std::vector<UsdtProbe>> list_usdt(std::string_view pattern, std::size_t limit) const;
  Result<dwarf::Variables> variables_at(const Site& site) const;
  Result<std::vector<SourceLine>> list_lines(std::string_view file, std::size_t limit) const;
  Result<std::vector<dwarf::VisibleVariable>> list_variables(const lang::Location& location) const;
  const Mapping* mapping_at(RemoteAddr address) const;
  const std::vector<Mapping>& mappings() const { return mappings_; }
  bool restartable(RemoteAddr address) const;
  TargetSymbols::Code code_around(RemoteAddr address) const;
  TargetSymbols::Exits exits_of(RemoteAddr entry) const;

 private:
  // ---- target_load.cpp
  void add_files(ModuleCache& cache);
  void add_file(const Mapping& mapping, ModuleCache& cache);
  void add_vdso(const Mapping& mapping);
  void add_instances(const std::shared_ptr<const Module>& module, const Instance& like);
  void mark_main();
  void assign_mappings();
  void read_restartable_sequences();
  bool same_build_in_memory(const Mapping& mapping, int fd) const;
  Module::Source source_of(const Instance& in) const;
  // Reads the module's contents if nobody has yet. False: its file can't be opened any more.
  bool ready(const Instance& in) const;
  bool read_memory(RemoteAddr from, std::span<std::byte> out) const;
  // The module around an address; null: none.
  const Instance* instance_at(RemoteAddr address) const;

  // ---- lookup.cpp
  // The modules a MODULE names; all of them when it is empty. Errors: no_such_module, why a file couldn't be read.
  Result<std::vector<const Instance*>> select(std::string_view module) const;
  int fit(const Instance& in, std::string_view module) const;
  Error no_such_module(std::string_view module) const;
  // Groups of modules that are asked one after the other, until one knows the name: with a MODULE, those; else the main
  // program, the libraries, the vdso.
  std::vector<std::vector<const Instance*>> stages(std::span<const Instance* const> selected, bool any_module) const;
  enum class Want { code, data };
  // What a name that isn't a glob stands for in a group of modules: by its exact spelling, else by a clone of it, else
  // as a readable C++ or Rust name, else as most of one; each kind is looked for in all the modules before the next. No
  // place twice.
  std::vector<Found> literal(std::span<const Instance* const> stage, const NameQuery& query, Want want) const;
  std::vector<Found> exact(const Instance& in, const NameQuery& query, Want want) const;
  std::vector<Found> clones(const Instance& in, const NameQuery& query, Want want) const;
  std::vector<Found> readable(const Instance& in, const NameQuery& query, Want want) const;
  std::vector<Found> loosely(const Instance& in, const NameQuery& query, Want want) const;
  std::vector<Found> unnamed(const Instance& in, const NameQuery& query, Want want) const;
  std::vector<Found> readable_ones(const Instance& in, const std::vector<const Symbol*>& symbols, Want want) const;
  std::vector<Found> matching(const Instance& in, std::string_view glob) const;
  // Whether functions with code of their own have this name with more scopes in front: shop::Cart::add, of Cart::add.
  bool has_longer_names(std::span<const Instance* const> stage, const NameQuery& query) const;
  std::vector<Found> with_longer_names(std::span<const Instance* const> stage, const NameQuery& query) const;
  void note_own_ones(Site& site, std::span<const Found> found) const;
  std::vector<std::string> in_other_modules(std::string_view name, std::span<const Instance* const> asked,
                                            Want want) const;
  Error not_found(const NameQuery& query, std::string_view module, std::span<const Instance* const> asked,
                  Want want) const;
  Error ambiguous(const NameQuery& query, std::span<const Found> found) const;
  // Of very many the first few alone.
  std::vector<std::string> candidate_names(std::span<const Found> found) const;
  // FILE:FUNCTION of a function of which its file has no other; "": that isn't known.
  std::string by_file(const Found& found) const;
  // What is wrong with the module's debug file, for a message; "": it has one, or none lies where it would be.
  std::string unfit_debug_file(const Instance& in) const;
  Error undetermined_ifunc(const Found& found) const;
  // What to say of a module in which nothing but exported functions has a name; empty: it has a symbol table.
  std::string stripped(std::span<const Instance* const> asked) const;

  // ---- ifunc.cpp
  // The implementations that the target's loader has chosen for the IFUNC at this address; empty: unknown.
  std::vector<RemoteAddr> implementations(const Instance& in, ElfAddr resolver) const;
  std::vector<RemoteAddr> find_implementations(const Instance& in, ElfAddr resolver) const;
  std::optional<RemoteAddr> implementation_in_slot(const Instance& holder, const LoaderSlot& slot, const Instance& in,
                                                   ElfAddr resolver) const;

  // ---- resolve.cpp
  Result<Places> resolve_symbol(const lang::Location& location, const lang::SymbolLocation& where) const;
  Result<std::vector<Site>> resolve_offset(const lang::Location& location, const lang::FileOffsetLocation& where) const;
  Result<std::vector<Site>> sites_of_one(const NameQuery& query, std::vector<Found> found, std::uint64_t offset) const;
  Result<Places> places_of_glob(std::span<const Found> found, std::uint64_t offset) const;
  std::vector<Function> functions_of(std::span<const Instance* const> instances, std::string_view glob,
                                     std::size_t limit) const;
  Result<Site> site_of(const Found& found, RemoteAddr start, std::uint64_t offset) const;
  static bool begins_sized_function(const Instance& in, RemoteAddr at);
  Site place(RemoteAddr address, const Mapping& mapping, const Instance* in) const;

  // ---- resolve_debug.cpp
  Result<Places> resolve_line(const lang::Location& location, const lang::LineLocation& where) const;
  Error no_such_line(const lang::Location& location, const lang::LineLocation& where, bool file_known,
                     bool debug_info) const;
  Result<Places> resolve_functions_of_file(const lang::Location& location, const lang::LineLocation& where) const;
  // Where a function without a symbol has been inlined; empty: nowhere that is known.
  Result<Places> inlined_places(std::span<const Instance* const> selected, const lang::SymbolLocation& where) const;
  // What else is executed when the function is called.
  void add_further_instances(std::vector<Site>& sites, const Found& found) const;
  // Says at the first site of a glob which of the functions that it matches are inlined, too.
  void note_inlined(Site& site, std::span<const Found> matches) const;
  // Of functions that a glob fits, and that exist only inlined: "a and b exist only inlined, ..."; "": there are none.
  std::string only_inlined(std::span<const Instance* const> selected, std::string_view glob) const;
  // What is to be said of a glob that has matched in libraries alone.
  std::string libraries_note(std::span<const Instance* const> selected, std::string_view glob) const;
  std::shared_ptr<const dwarf::DebugInfo> debug_info(const Instance& in) const;
  values::Placement thread_block(const Instance& in) const;
  std::optional<values::Placement> thread_object(const Instance& in, std::string_view name, std::uint64_t size,
                                                 bool shared) const;

  // ---- resolve_usdt.cpp
  Result<Places> resolve_usdt(const lang::Location& location, const lang::UsdtLocation& where) const;
  // What A:SYMBOL of a definition may also be: provider A. nullopt: there is no such static probe.
  std::optional<Result<Places>> usdt_instead(const lang::Location& location, const lang::SymbolLocation& where) const;
  struct FoundNote {
    const Instance* in = nullptr;
    const elf::UsdtNote* note = nullptr;
  };
  std::vector<FoundNote> matching_notes(std::span<const Instance* const> instances, std::string_view provider,
                                        std::string_view name) const;
  Result<Places> places_of_notes(std::span<const FoundNote> found, bool by_glob) const;
  std::vector<elf::UsdtArgument> arguments_of(const Instance& in, const elf::UsdtNote& note) const;
  // The address of a counter by its offset in the file. Errors: unmapped_address.
  Result<RemoteAddr> counter_at(const Instance& in, std::uint64_t file_offset) const;

  pid_t pid_ = 0;
  std::optional<TargetFiles> files_;  // there once load() has begun
  UniqueFd memory_, maps_;
  PresentPages present_;                    // of memory_
  std::vector<std::string> program_names_;  // comm and the base name of argv[0]: what users call the main program
  std::vector<std::string> debug_roots_;
  FetchById fetch_;
  std::vector<Mapping> mappings_;  // by address
  std::vector<RestartableSequence> restartable_;
  std::vector<Instance> instances_;       // by address
  std::vector<int> instance_of_mapping_;  // index, or -1
  struct Failure {
    std::string path;
    Error error;
  };
  std::vector<Failure> failures_;  // files that couldn't be opened or aren't ELF
  // Each looks through the whole debug information: of thousands of ambiguous names nobody reads all the hints.
  mutable std::atomic<int> file_notations_left_{64};
  mutable std::mutex ifunc_mutex_;
  mutable std::unordered_map<RemoteAddr, std::vector<RemoteAddr>> ifuncs_;
};

}  // namespace probed::symbols
