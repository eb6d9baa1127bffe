// From what a user wrote to addresses in a running process, and back. Reads /proc and ELF files only; no ptrace.
//
// Thread: any (the daemon resolves in a worker pool). A TargetSymbols is an immutable snapshot of one process's maps;
// modules are shared between snapshots and targets through the ModuleCache.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "arch/exits.hpp"
#include "daemon/base/types.hpp"
#include "daemon/dwarf/variables.hpp"
#include "daemon/lang/definition.hpp"
#include "daemon/symbols/maps.hpp"
#include "proto/base/result.hpp"

namespace probed::elf {
struct UsdtSite;
}

namespace probed::symbols {

class Module;       // one ELF file, parsed once: symbols, build-id, function table
class ModuleCache;  // shared, thread-safe; module_cache.hpp

// What is kept at one time, at most, of the names that one question is answered with: programs may have a hundred
// thousand functions, and names of some thousand bytes.
inline constexpr std::size_t kMostNames = 32 << 20;  // bytes

// One place to probe.
struct Site {
  RemoteAddr address;
  std::string symbol;             // demangled-or-plain name of the enclosing function; empty when unknown
  std::uint64_t offset = 0;       // of address from the function's start
  std::string module;             // base name of the module's file
  std::string module_path;        // as the target sees it
  std::uint64_t file_offset = 0;  // of address in the module's file; meaningless when module_path is empty
  // The enclosing function as the symbol table or .eh_frame gives it, for the instruction boundary check.
  // start == 0: unknown (nothing to decode from). size == 0: the table gives none.
  RemoteAddr function_start;
  std::uint64_t function_size = 0;
  // Its file says of all its other code where functions begin and end, but this is in none: data, or padding.
  bool between_functions = false;
  // Of a static probe: what it is, and the counter to raise while somebody listens (0: none). A location that names one
  // has all its places, which are one probe.
  std::shared_ptr<const elf::UsdtSite> usdt;
  RemoteAddr semaphore;
  // Sites that carry the same words here are one probe: "FILE:LINE" of a line with several places. Empty: it is one by
  // itself, or with the others of its static probe.
  std::string one_probe;
  // Of a function's places: its own code, a copy that the compiler has made of it for some callers, or where it has
  // been inlined.
  enum class Instance : std::uint8_t { own, copy, inlined };
  Instance instance = Instance::own;
  std::string inlined;  // the function that is inlined there, qualified
  std::string note;     // what the user should know of the place: the line asked for has no code
};

// A static probe, as listed: all its places in one module.
struct UsdtProbe {
  std::string provider, name;
  std::string module;                 // base name
  std::vector<RemoteAddr> addresses;  // ascending, never empty
  std::uint64_t arguments = 0;
  std::string argument_text;  // of the first place, as the compiler wrote it
  bool has_semaphore = false;
};

// A match of a glob that has no place, and why: an IFUNC nothing has been bound for yet, a function that is shorter
// than the offset.
struct LeftOut {
  std::string symbol;
  RemoteAddr address;
  Error why;
};

// What a location names.
struct Places {
  std::vector<Site> sites;        // never empty
  bool by_glob = false;           // found by a pattern: nobody has asked for each of them by name
  std::vector<LeftOut> left_out;  // of a glob only
};

// "symbol+0xoffset" (or "0xaddr" when there is no symbol); module is the base name, empty when anonymous.
struct SymbolizedAddress {
  std::string symbol;
  std::uint64_t offset = 0;
  std::string module;
};

// A line of a source file that has code.
struct SourceLine {
  std::string file;
  unsigned line = 0;
  RemoteAddr address;    // of its first instruction
  std::string function;  // qualified, without parameters
  std::string module;    // base name
};

struct Function {
  std::string name;  // demangled with parameters when the name is a C++/Rust one, else as in the table
  std::string linkage_name;
  std::string module;  // base name
  RemoteAddr address;
  std::uint64_t size = 0;
};

class TargetSymbols {
 public:
  ~TargetSymbols();
  TargetSymbols(const TargetSymbols&) = delete;
  TargetSymbols& operator=(const TargetSymbols&) = delete;

  // Takes a snapshot. Errors: no_such_process, permission_denied, unsupported_target (not an ELF of this machine's
  // kind).
  static Result<std::shared_ptr<const TargetSymbols>> load(pid_t pid, ModuleCache& cache);

  // Whether the program that this was read of still runs. False: its process has started another one, or has ended.
  // Asked after whether the process may be looked at: a privileged program that it ran for a moment is gone by then.
  bool is_current() const;

  // Every place the location names: one, or many for a glob. Errors: no_such_symbol (with near names in the hint),
  // no_such_module, ambiguous_symbol (hint lists the candidates), unmapped_address, unsupported; for a glob of which
  // everything is left out, why the first one is.
  // Only names and mappings are checked here; instruction boundaries and blacklists are the caller's.
  Result<Places> places(const lang::Location& location) const;
  // Whether there is a function of this very name, in the program or in what somebody has looked into before: for
  // hints.
  bool knows_function(std::string_view name) const;
  // From now on errors about ambiguous names don't look into debug information for better ones, which takes time:
  // nobody is going to read them.
  void spare_candidates() const;
  // Its sites alone.
  Result<std::vector<Site>> resolve(const lang::Location& location) const;

  // The address of a data or function symbol for @SYM. Errors: no_such_symbol, ambiguous_symbol.
  Result<RemoteAddr> resolve_data(std::string_view symbol) const;

  // The place of an arbitrary address. Errors: unmapped_address, not_executable.
  Result<Site> site_at(RemoteAddr address) const;

  // What is known of the code around a place, for the optimiser. Reads the whole file's text at the first need.
  struct Code {
    std::shared_ptr<const arch::CodeFlow> flow;  // null: nothing
    std::uint64_t bias = 0;                      // address in the target = address in the flow + bias
    const char* why_not = nullptr;               // set: it must not be optimised, and why; of static life time
    bool in_frame = false;                       // its file's unwind table covers it, or it is Go's
  };
  Code code_around(RemoteAddr address) const;

  // Where the function that begins at an address is left, for return probes. Reads the file's text likewise.
  struct Exits {
    arch::ExitPlan plan;  // addresses are the file's
    std::shared_ptr<const arch::CodeFlow> flow;
    std::uint64_t bias = 0;
    bool is_go = false;             // its stacks move
    const char* why_not = nullptr;  // set: there is no plan, and why; of static life time
  };
  Exits exits_of(RemoteAddr entry) const;

  // The symbol that covers an address; nullopt when no module or symbol does.
  std::optional<SymbolizedAddress> symbolize(RemoteAddr address) const;

  // What can be probed, in address order; glob matches plain and demangled names (empty: all); at most limit (0: all),
  // and none behind the one with whose names they are more than kMostNames.
  std::vector<Function> functions(std::string_view glob, std::size_t limit) const;
  // The same for [MODULE:]GLOB. Errors: no_such_module.
  Result<std::vector<Function>> list_functions(std::string_view pattern, std::size_t limit) const;

  // The static probes, by provider and name. pattern: [[MODULE:]PROVIDER:]NAME, globs; empty: all. Errors:
  // no_such_module.
  Result<std::vector<UsdtProbe>> list_usdt(std::string_view pattern, std::size_t limit) const;

  // The variables at an address, by name. Reads the module's debug information at the first need. Errors: unsupported,
  // when there is none. Valid as long as this snapshot.
  Result<dwarf::Variables> variables_at(const Site& site) const;
  // The lines of [MODULE:]FILE. Errors: no_such_module, no_such_symbol.
  Result<std::vector<SourceLine>> list_lines(std::string_view file, std::size_t limit) const;
  // What can be named at the first place of a location. Errors: as of places() and variables_at().
  Result<std::vector<dwarf::VisibleVariable>> list_variables(const lang::Location& location) const;

  const std::vector<Mapping>& mappings() const;
  // The mapping that holds address, or null.
  const Mapping* mapping_at(RemoteAddr address) const;
  // Whether the address is in a restartable sequence, or in the signature in front of its abort handler.
  bool restartable(RemoteAddr address) const;

 private:
  class Impl;
  explicit TargetSymbols(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace probed::symbols
