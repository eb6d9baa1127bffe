// The probe definition language: what a user typed, parsed. Pure: no target, no symbols, no ptrace.
//
//   p[:[GROUP/]NAME] [MODULE:]LOCATION [FETCHARG]...            probe
//   r[MAXACTIVE][:[GROUP/]NAME] [MODULE:]FUNCTION [FETCHARG]... return probe
//   -:[GROUP/]NAME                                              remove
//   [MODULE:]LOCATION [FETCHARG]...                             short for p;  LOCATION%return  short for r
//   uprobe:MODULE:LOCATION, uretprobe:MODULE:FUNCTION, usdt:MODULE:PROVIDER:NAME: bpftrace's, without the prefix
//   any of these but a removal: ... if FILTER                   counts and tells of hits that the filter lets pass
//
// The grammar is the kernel's (Documentation/trace/kprobetrace.rst, uprobetracer.rst), plus the short form and `if`.
// Every node keeps its column (0-based byte offset in the definition) so that later stages can point at it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "daemon/values/place.hpp"
#include "daemon/values/type.hpp"
#include "proto/base/result.hpp"

namespace probed::lang {

inline constexpr std::size_t kMaxFetchArgs = 128;        // the kernel's MAX_TRACE_ARGS
inline constexpr std::size_t kMaxEventName = 63;         // the kernel's MAX_EVENT_NAME_LEN without the NUL
inline constexpr std::size_t kMaxArgName = 32;           // the kernel's MAX_ARG_NAME_LEN
inline constexpr std::uint16_t kMaxArray = 64;           // the kernel's MAX_ARRAY_LEN
inline constexpr std::uint32_t kMaxActive = UINT32_MAX;  // as uprobe_events takes it; kprobes have 4096 at most
inline constexpr std::uint32_t kMaxArgument = 2048;      // N of $argN: the kernel's PARAM_MAX_STACK
inline constexpr std::size_t kMaxDereferences = 14;      // in one argument, as FETCH_INSN_MAX allows
inline constexpr std::size_t kMaxText = 512;             // bytes of \"text"
inline constexpr std::size_t kMaxDefinition = 64 << 10;  // bytes of one definition

// ---- where ----------------------------------------------------------------------------------------------------------

struct SymbolLocation {  // SYMBOL[+OFFS]; SYMBOL may be a glob or a C++ name with or without parameters
  std::string name;
  std::uint64_t offset = 0;
};
struct FileOffsetLocation {  // MODULE:0xFILEOFFSET[(REF_CTR_OFFSET)], as in uprobe_events
  std::uint64_t offset = 0;
  std::optional<std::uint64_t> reference_counter = std::nullopt;  // file offset of a USDT probe's semaphore
};
struct AddressLocation {  // a bare 0xADDR: a virtual address of the target
  std::uint64_t address = 0;
};
struct LineLocation {  // FILE.c:LINE, or FILE.c:FUNCTION; FILE and FUNCTION may be globs then
  std::string file;
  unsigned line = 0;
  std::string function;  // empty: the line
};
struct UsdtLocation {  // sdt_provider:sdt_name; either may be a glob
  std::string provider;
  std::string name;
};

struct Location {
  std::string module;  // path, base name or soname without version; empty: main program first, then every module
  std::variant<SymbolLocation, FileOffsetLocation, AddressLocation, LineLocation, UsdtLocation> where;
  std::string text;  // as written, without %return
  std::size_t column = 0;
};

// How MODULE, FILE, provider and SYMBOL are told apart. Colons inside brackets and "::" never separate.
//   no colon                      a digit first: a bare address; else SYMBOL[+OFFS]
//   A:DIGITS, A a source file     FILE:LINE        (A ends in .c .cc .cpp .h .rs .go ...); M:A:DIGITS adds a module
//   A:F, A a source file          FILE:FUNCTION, either may be a glob
//   A:number                      file offset in module A (0x hex, leading-0 octal, decimal); A may hold colons
//   M:P:N, P and N identifiers    USDT provider P, name N in module M; both may be globs
//   A:SYMBOL[+OFFS]               symbol in module A, the last colon separating; a USDT A:N also parses to this: the
//                                 resolver tries it when A is no loaded module, or has no such symbol

// ---- what -----------------------------------------------------------------------------------------------------------

using values::BaseType;
using values::Bitfield;
using values::Enumeration;
using values::Placement;
using values::Type;

struct FetchExpr;
using FetchExprPtr = std::shared_ptr<const FetchExpr>;

// %REG
struct RegisterExpr {
  std::string name;
};
// @ADDR
struct AddressExpr {
  std::uint64_t address = 0;
};
// @SYM[+|-offs]
struct SymbolExpr {
  std::string name;
  std::int64_t offset = 0;
};
// @+OFFS: in the probed module's file
struct FileOffsetExpr {
  std::uint64_t offset = 0;
};
// $stackN
struct StackEntryExpr {
  std::uint32_t index = 0;
};
struct StackExpr {};
struct RetvalExpr {};
struct CommExpr {};
// $duration, of a return probe: ns from the function's entry to its exit
struct DurationExpr {};
// $argN, 1-based
struct ArgumentExpr {
  std::uint32_t number = 0;
};
// $args or $arg*: of a USDT probe, or by debug information
struct AllArgumentsExpr {};
// +|-[u]OFFS(FETCHARG)
struct DerefExpr {
  std::int64_t offset = 0;
  bool user = false;
  FetchExprPtr inner;
};
// \IMM
struct ImmediateExpr {
  std::int64_t value = 0;
};
// \"text"
struct TextExpr {
  std::string text;
};
// x, p->field, a[2], $retval->field, ((TYPE*)x)->field (needs debug information)
struct VariableExpr {
  std::string path;
};

// $entry(FETCHARG), of a return probe: as it was when the function was entered
struct EntryExpr {
  FetchExprPtr inner;
};
// What debug information has made of a VariableExpr; never parsed.
struct PlacedExpr {
  enum class What : std::uint8_t {
    value,    // the number at the place
    object,   // the memory at the place, of which the type says what to read
    pointee,  // the memory that the pointer at the place leads to
  };
  std::shared_ptr<const Placement> place;
  What what = What::value;
  std::uint8_t size = 8;  // bytes of the number, or of the pointer
  bool is_signed = false;
  std::shared_ptr<const Placement> length;  // of a pointee that is a text: its bytes; null: a zero ends it
  std::uint8_t length_size = 8;             // bytes of the length
  // Its registers are those at a function's return; on return probes all others are those at the entry.
  bool of_result = false;
};

struct FetchExpr {
  std::variant<RegisterExpr, AddressExpr, SymbolExpr, StackEntryExpr, StackExpr, RetvalExpr, CommExpr, DurationExpr,
               ArgumentExpr, AllArgumentsExpr, DerefExpr, ImmediateExpr, TextExpr, VariableExpr, FileOffsetExpr,
               EntryExpr, PlacedExpr>
      node;
  std::size_t column = 0;  // where the kernel's error_log would put its caret
};

struct FetchArg {
  // NAME=; else a plain variable's own name, what a path of variables ends with (`id` of o->id, `b_id` if there is one
  // already, v_2 of v[2]), "$retval" and "duration" for the first unnamed one of these, and by position arg1, arg2, ...
  // for all others, as the kernel does. Unique within a definition.
  std::string name;
  FetchExprPtr expr;
  Type type;
  bool type_given = false;
  std::string text;  // as written, without NAME= and :TYPE
  std::size_t column = 0;
  // Of a part of a variable: the names that lead to it in an event, the variable's own first; "[N]" is an element of a
  // list. Empty: `name` alone. Parts of one variable stand one behind the other.
  std::vector<std::string> path;
  // Of one of several alternatives that are shown in the same place: how many arguments further in front the number
  // stands that says which one it is, and what it is for this one. 0: it is no alternative.
  std::uint16_t chooser = 0;
  std::uint64_t choice = 0;
};

enum class Kind : std::uint8_t { probe, return_probe, remove };

struct Definition {
  Kind kind = Kind::probe;       // remove: only group and name are set; an empty name means every event of the group
  std::uint32_t max_active = 0;  // r[MAXACTIVE]; 0: the default
  std::string group;             // empty: the default group
  std::string name;              // empty: generated
  Location location;
  std::vector<FetchArg> args;     // those written, and behind them what only the filter names
  std::string filter;             // what stands behind "if" (filter.hpp); empty: none
  std::size_t filter_column = 0;  // of its first byte
  std::string text;               // the whole definition as written
};

// Parses one definition. Errors: Reason::bad_definition with the column of the fault.
// At most kMaxDefinition bytes.
//
// Stricter than the kernel where it silently ignores text: junk after a dereference's closing brace, after
// r[MAXACTIVE], after -:NAME. Wider: `if`, C++ names, %return on symbols, arguments longer than 63 bytes, ':' and '='
// inside
// \"text".
Result<Definition> parse_definition(std::string_view text);

// The event name for a definition that gives none, by the kernel's recipes: p_SYMBOL_OFFS (decimal), r_..., p_0xADDR,
// p_MODULE_0xFILEOFFS, p_FILE_LINE, p_PROVIDER_NAME. Always a valid event name; not necessarily unique.
std::string generated_name(const Definition& definition);

// "(TYPE *)x": where the operand of a cast begins whose '(' is at `start`; npos: there is none. TYPE: words and scopes,
// then any number of '*'.
std::size_t cast_end(std::string_view text, std::size_t start);

// Group names are C identifiers that may also hold '-'; event and argument names are C identifiers.
bool is_identifier(std::string_view name);

}  // namespace probed::lang
