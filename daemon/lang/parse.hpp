// Private to the definition parser: characters, words, errors.
//
// A Word is a piece of the definition and where it stands in it; columns are 0-based byte offsets. Columns follow the
// kernel's trace_probe_log_err() calls (kernel/trace/trace_probe.c, trace_uprobe.c, trace_kprobe.c), which were checked
// against a running kernel's error_log.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/lang/definition.hpp"
#include "proto/base/characters.hpp"
#include "proto/base/result.hpp"

namespace probed::lang {

struct Word {
  std::string_view text;
  std::size_t column = 0;
};

constexpr bool is_blank(char c) { return c == ' ' || c == '\t'; }
constexpr bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
constexpr bool is_ident(char c) { return is_letter(c) || is_digit(c); }

inline Error bad_definition(std::size_t column, std::string message, std::string hint = {}) {
  return {Reason::bad_definition, std::move(message), std::move(hint), column};
}

// "text" in double quotes for a message: cut when long, one line of valid UTF-8 whatever it holds.
std::string quoted(std::string_view text);

// ---- the parts (each in its own file) ----

// One past the end of the location that starts at `start`: blanks inside C++ parameter lists, template arguments and
// after `operator` belong to it.
std::size_t location_end(std::string_view text, std::size_t start);

struct ParsedLocation {
  Location location;
  bool is_return = false;  // r, or ended in %return
};
// is_return: the definition began with r.
Result<ParsedLocation> parse_location(Word word, bool is_return);

struct ParsedType {
  Type type;
  std::string_view bitfield;  // b<w>@<o>/<c>, not checked yet: the kernel checks it after the expression
  std::size_t column = 0;     // of the type
};
// word: what follows the ':'.
Result<ParsedType> parse_type(Word word);
Result<Bitfield> parse_bitfield(std::string_view text, std::size_t column);

// Parses an expression without name and type. Error columns and the nodes' columns are the kernel's.
Result<FetchExprPtr> parse_expression(Word word, Kind kind);

// Parses one FETCHARG. For names: `previous`, those before it in the definition, and `others`, those behind.
Result<FetchArg> parse_fetch_arg(Word word, Kind kind, const std::vector<FetchArg>& previous,
                                 std::span<const Word> others = {});

// What a filter compares, as written and in its order, but for the common fields; of a filter that is wrong, what
// stands in front of the fault.
std::vector<Word> filter_fields(std::string_view filter);

}  // namespace probed::lang
