// Where a probe goes: [MODULE:]LOCATION[%return]. Pure.
//
// One scan finds the end of the location and the characters that could separate something; C++ spellings decide which
// of them do. Deciding what the pieces mean is a second step over the scan's result. The rules of disambiguation are
// written down in definition.hpp.
#include <algorithm>
#include <array>
#include <optional>

#include "daemon/lang/number.hpp"
#include "daemon/lang/parse.hpp"

namespace probed::lang {
namespace {

constexpr std::size_t kNone = std::string_view::npos;

// Longest first: the first that matches is the operator's spelling.
constexpr std::array<std::string_view, 42> kOperators = {
    "->*", "<=>", "<<=", ">>=", "()", "[]", "->", "<<", ">>", "<=", ">=", "==",   "!=", "&&",
    "||",  "++",  "--",  "+=",  "-=", "*=", "/=", "%=", "^=", "&=", "|=", "\"\"", "+",  "-",
    "*",   "/",   "%",   "^",   "&",  "|",  "~",  "!",  "=",  "<",  ">",  ",",    "@",  "#"};
constexpr std::array<std::string_view, 9> kTypeWords = {"unsigned", "signed", "long",  "short",   "int",
                                                        "char",     "double", "const", "volatile"};
constexpr std::array<std::string_view, 5> kSuffixes = {"const", "volatile", "noexcept", "&&", "&"};
// What a name in a source file's line table can end in.
constexpr std::array<std::string_view, 31> kSourceSuffixes = {
    ".c",   ".cc",  ".cpp", ".cxx", ".C",   ".c++", ".h", ".hh",  ".hpp",  ".hxx", ".h++",
    ".inl", ".ipp", ".tcc", ".rs",  ".go",  ".s",   ".S", ".asm", ".d",    ".m",   ".mm",
    ".f",   ".f90", ".F",   ".adb", ".zig", ".nim", ".y", ".l",   ".swift"};

std::string_view identifier_at(std::string_view text, std::size_t i) {
  std::size_t end = i;
  while (end < text.size() && is_ident(text[end])) ++end;
  return text.substr(i, end - i);
}

template <class Table>
bool contains(const Table& table, std::string_view word) {
  return std::find(table.begin(), table.end(), word) != table.end();
}

struct Scan {
  std::size_t end = 0;
  std::vector<std::size_t> colons;  // single ones outside brackets
  std::size_t plus = kNone;         // the last '+' outside brackets that is no operator
  std::size_t minus = kNone;
  std::size_t percent = kNone;  // the first such '%'
  std::size_t odd = kNone;      // the first character that is part of no name
  std::size_t open = kNone;     // a bracket that is never closed
  std::size_t stray = kNone;    // a closing one that was never opened, or a run of four colons
};

class Scanner {
 public:
  Scanner(std::string_view text, std::size_t start, bool brackets)
      : text_(text), i_(start), start_(start), brackets_(brackets) {}

  Scan run() {
    while (i_ < text_.size() && step()) {
    }
    scan_.end = i_;
    if (!open_.empty()) scan_.open = open_.front().at;
    return scan_;
  }

 private:
  struct Open {
    char closer;
    std::size_t at;
  };

  bool step() {
    if (is_blank(text_[i_])) return blank();
    if (operator_name()) return true;
    if (text_.substr(i_).starts_with("->")) return i_ += 2, true;
    if (brackets_ && bracket(text_[i_])) return ++i_, true;
    if (open_.empty() && text_[i_] == ':') return colons(), true;
    if (open_.empty()) note(text_[i_]);
    return ++i_, true;
  }

  // False: the location ends here.
  bool blank() {
    if (!open_.empty()) return ++i_, true;
    std::size_t next = i_;
    while (next < text_.size() && is_blank(text_[next])) ++next;
    const std::string_view rest = text_.substr(next);
    if (rest.starts_with("[clone ")) return i_ = next, true;
    const bool after_parameters = i_ > start_ && (text_[i_ - 1] == ')' || qualified_);
    for (const std::string_view suffix : kSuffixes) {
      if (!after_parameters || !rest.starts_with(suffix)) continue;
      const std::size_t end = next + suffix.size();
      if (end < text_.size() && is_ident(text_[end])) continue;
      i_ = end;
      qualified_ = true;
      return true;
    }
    return false;
  }

  // `operator` and what follows it up to the parameter list, as one unit.
  bool operator_name() {
    constexpr std::string_view kWord = "operator";
    if (!brackets_ || !text_.substr(i_).starts_with(kWord) || (i_ > start_ && is_ident(text_[i_ - 1]))) return false;
    const std::size_t after = i_ + kWord.size();
    if (after < text_.size() && is_ident(text_[after])) return false;
    i_ = after;
    if (i_ + 1 < text_.size() && text_[i_] == ' ' && (is_letter(text_[i_ + 1]) || text_[i_ + 1] == ':')) {
      conversion();
      return true;
    }
    for (const std::string_view symbol : kOperators) {
      if (!text_.substr(i_).starts_with(symbol)) continue;
      if (text_.substr(i_) == "%return") break;  // a function called `operator`: not C++
      i_ += symbol.size();
      if (symbol == "++" && i_ < text_.size() && is_digit(text_[i_])) --i_;  // operator+ and an offset
      break;
    }
    if (text_.substr(i_).starts_with(" <")) ++i_;  // operator< <int>: as demanglers write it
    if (text_[i_ - 1] == '"' && i_ < text_.size() && text_[i_] == ' ') ++i_;
    return true;
  }

  // operator new, operator delete[], operator unsigned long, operator char const*
  void conversion() {
    do {
      ++i_;
      const std::string_view word = identifier_at(text_, i_);
      i_ += word.size();
      if (!contains(kTypeWords, word)) return;
      while (i_ < text_.size() && (text_[i_] == '*' || text_[i_] == '&')) ++i_;
    } while (i_ + 1 < text_.size() && text_[i_] == ' ' && contains(kTypeWords, identifier_at(text_, i_ + 1)));
  }

  bool bracket(char c) {
    constexpr std::string_view kOpeners = "(<[{", kClosers = ")>]}";
    if (const std::size_t kind = kOpeners.find(c); kind != kNone) {
      open_.push_back({kClosers[kind], i_});
      return true;
    }
    if (kClosers.find(c) == kNone) return false;
    if (!open_.empty() && open_.back().closer == c)
      open_.pop_back();
    else if (scan_.stray == kNone && open_.empty())
      scan_.stray = i_;
    return true;
  }

  void colons() {
    std::size_t run = 0;
    while (i_ + run < text_.size() && text_[i_ + run] == ':') ++run;
    if (run % 2 == 1) scan_.colons.push_back(i_);  // ":::" separates, then opens the global scope
    if (run > 3 && scan_.stray == kNone) scan_.stray = i_;
    i_ += run;
  }

  void note(char c) {
    if (c == '+') scan_.plus = i_;
    if (c == '-') scan_.minus = i_;
    if (c == '%' && scan_.percent == kNone) scan_.percent = i_;
    if (std::string_view("=;\"`\\").find(c) != kNone && scan_.odd == kNone) scan_.odd = i_;
  }

  std::string_view text_;
  std::size_t i_, start_;
  bool brackets_;
  bool qualified_ = false;
  Scan scan_;
  std::vector<Open> open_;
};

// Brackets that don't balance can't be C++: the location is then a plain word (a glob such as std::vector<*, or an
// error which the second step reports).
Scan scan_location(std::string_view text, std::size_t start) {
  const Scan scan = Scanner(text, start, true).run();
  if (scan.open == kNone) return scan;
  Scan plain = Scanner(text, start, false).run();
  plain.open = scan.open < plain.end ? scan.open : kNone;
  return plain;
}

bool is_source_file(std::string_view name) {
  return std::any_of(kSourceSuffixes.begin(), kSourceSuffixes.end(),
                     [&](std::string_view suffix) { return name.size() > suffix.size() && name.ends_with(suffix); });
}

// An identifier, or a glob for some; "-" stands for "__", as tracers write these names.
bool is_usdt_word(std::string_view word) {
  const auto fits = [](char c) { return is_ident(c) || c == '*' || c == '?' || c == '-'; };
  return !word.empty() && !is_digit(word[0]) && word[0] != '-' && std::all_of(word.begin(), word.end(), fits);
}

bool all_digits(std::string_view text) { return !text.empty() && std::all_of(text.begin(), text.end(), is_digit); }

// ---- the second step ----

class LocationParser {
 public:
  LocationParser(Word word, bool is_return)
      : word_(word), text_(word.text), scan_(scan_location(word.text, 0)), is_return_(is_return) {}

  Result<ParsedLocation> parse() {
    if (auto e = strip_return()) return std::move(*e);
    ParsedLocation parsed;
    parsed.is_return = is_return_;
    parsed.location.text = std::string(text_);
    parsed.location.column = word_.column;
    if (auto e = split(parsed.location)) return std::move(*e);
    return parsed;
  }

 private:
  using Failure = std::optional<Error>;

  Error wrong(std::size_t at, std::string message, std::string hint = {}) const {
    return bad_definition(word_.column + at, std::move(message), std::move(hint));
  }

  // %return is the only thing a '%' may begin; the reference counter of a uprobe may stand behind it.
  Failure strip_return() {
    constexpr std::string_view kReturn = "%return";
    if (scan_.percent == kNone) return {};
    const std::string_view suffix = text_.substr(scan_.percent);
    if (suffix != kReturn && !suffix.starts_with("%return("))
      return wrong(scan_.percent, "bad suffix " + quoted(suffix) + " of the location: only %return may follow it",
                   "write LOCATION%return for a return probe; separate arguments from the location with a blank");
    is_return_ = true;
    if (suffix != kReturn) {  // the kernel strips it; what it would count at a return nobody knows
      std::optional<std::uint64_t> counter;
      if (auto e = reference_counter(scan_.percent + kReturn.size(), counter)) return e;
      counter_ = counter;
    }
    text_ = text_.substr(0, scan_.percent);
    return {};
  }

  Failure split(Location& location) {
    if (scan_.colons.empty()) {
      if (!text_.empty() && is_digit(text_[0])) return address(location);
      return symbol(location, 0);
    }
    const std::size_t colon = scan_.colons.back();
    if (colon == 0)
      return wrong(0, "no module before ':' in " + quoted(text_), "write MODULE:LOCATION, or LOCATION alone");
    if (colon + 1 >= text_.size())
      return wrong(text_.size(),
                   "nothing after ':' in " + quoted(text_) + ": a symbol, offset or line number is expected");
    if (is_digit(text_[colon + 1])) return number(location, colon);
    if (is_source_file(text_.substr(middle(), colon - middle()))) return function_of_file(location, colon);
    if (usdt(location, colon)) return {};
    location.module = text_.substr(0, colon);
    return symbol(location, colon + 1);
  }

  Failure address(Location& location) {
    const auto value = parse_unsigned(text_);
    if (!value)
      return wrong(0, "bad address " + quoted(text_) + ": not a number",
                   "write 0xADDR, MODULE:0xFILEOFFSET or SYMBOL+OFFS");
    location.where = AddressLocation{*value};
    return {};
  }

  // Where the part before `colon` begins when the one before it is a module.
  std::size_t middle() const { return scan_.colons.size() < 2 ? 0 : scan_.colons[scan_.colons.size() - 2] + 1; }

  Failure number(Location& location, std::size_t colon) {
    std::string_view tail = text_.substr(colon + 1);
    const std::string_view file = text_.substr(middle(), colon - middle());
    if (all_digits(tail) && is_source_file(file)) return line(location, file, tail, colon + 1);
    std::optional<std::uint64_t> counter = counter_;
    const std::size_t brace = tail.find('(');
    if (brace != kNone)
      if (auto e = reference_counter(colon + 1 + brace, counter)) return e;
    tail = tail.substr(0, brace);
    const auto offset = parse_unsigned(tail);
    if (!offset)
      return wrong(colon + 1, "bad offset " + quoted(tail) + " into the module's file: not a number",
                   "write MODULE:0xFILEOFFSET, MODULE:SYMBOL or FILE.c:LINE");
    location.module = text_.substr(0, colon);
    location.where = FileOffsetLocation{*offset, counter};
    return {};
  }

  Failure line(Location& location, std::string_view file, std::string_view digits, std::size_t at) {
    const auto value = parse_decimal(digits);
    if (!value || *value == 0 || *value > 0x7fffffff)
      return wrong(at, "bad line number " + quoted(digits) + ": lines count from 1");
    if (is_return_)
      return wrong(0, "a return probe needs a function, and " + quoted(text_) + " is a line", kReturnHint);
    if (middle() > 0) location.module = text_.substr(0, middle() - 1);
    location.where = LineLocation{std::string(file), static_cast<unsigned>(*value), {}};
    return {};
  }

  Failure function_of_file(Location& location, std::size_t colon) {
    if (auto e = symbol(location, colon + 1)) return e;
    const auto function = std::get<SymbolLocation>(location.where);
    if (function.offset != 0)
      return wrong(0, "an offset can't follow a function of a file: " + quoted(text_), "write [MODULE:]SYMBOL+OFFS");
    if (middle() > 0) location.module = text_.substr(0, middle() - 1);
    location.where = LineLocation{std::string(text_.substr(middle(), colon - middle())), 0, function.name};
    return {};
  }

  bool usdt(Location& location, std::size_t colon) const {
    if (middle() < 2) return false;
    const std::string_view provider = text_.substr(middle(), colon - middle());
    const std::string_view name = text_.substr(colon + 1);
    if (!is_usdt_word(provider) || !is_usdt_word(name)) return false;
    location.module = text_.substr(0, middle() - 1);
    location.where = UsdtLocation{std::string(provider), std::string(name)};
    return true;
  }

  // PATH:OFFS(REF_CTR) of uprobe_events: the file offset of the counter that is raised while the probe is armed.
  Failure reference_counter(std::size_t brace, std::optional<std::uint64_t>& out) const {
    const std::size_t close = word_.text.find(')', brace);
    if (close == kNone) return wrong(word_.text.size(), "the reference counter's '(' is not closed: expected ')'");
    if (close + 1 != word_.text.size())
      return wrong(close + 1, "text after the reference counter's ')' in " + quoted(word_.text));
    out = parse_unsigned(word_.text.substr(brace + 1, close - brace - 1));
    if (!out) return wrong(brace + 1, "bad reference counter in " + quoted(word_.text) + ": not a number");
    if (*out == 0) out.reset();  // as for the kernel: none
    return {};
  }

  Failure symbol(Location& location, std::size_t at) {
    SymbolLocation found;
    std::size_t end = text_.size();
    if (scan_.plus != kNone && scan_.plus > at) {
      const std::string_view digits = text_.substr(scan_.plus + 1);
      const auto offset = digits.starts_with('+') ? std::nullopt : parse_signed(digits);
      if (!offset || *offset < 0)
        return wrong(0, "bad offset " + quoted(digits) + " after the symbol in " + quoted(text_) + ": not a number",
                     "write SYMBOL+OFFS with a decimal or 0x offset");
      found.offset = static_cast<std::uint64_t>(*offset);
      end = scan_.plus;
    } else if (scan_.minus != kNone && scan_.minus > at && parse_unsigned(text_.substr(scan_.minus + 1)) &&
               text_[scan_.minus + 1] != '+') {
      return wrong(0, "negative offset in " + quoted(text_) + ": a probe can't be before its symbol");
    }
    found.name = text_.substr(at, end - at);
    if (found.name.starts_with("::")) found.name.erase(0, 2);
    if (auto e = check_name(found.name, at)) return e;
    if (is_return_ && found.offset != 0)
      return wrong(0, "a return probe must be at a function's entry, without an offset", kReturnHint);
    location.where = std::move(found);
    return {};
  }

  Failure check_name(std::string_view name, std::size_t at) const {
    if (name.empty())
      return wrong(0, "no symbol in " + quoted(word_.text) + ": a location is expected here", kLocationHint);
    if (scan_.stray != kNone)
      return wrong(scan_.stray, "unmatched " + quoted(word_.text.substr(scan_.stray, 1)) + " in the location");
    if (scan_.odd != kNone && scan_.odd >= at)
      return wrong(0,
                   quoted(word_.text) + " is no location: no symbol holds " + quoted(word_.text.substr(scan_.odd, 1)),
                   kLocationHint);
    const bool glob = name.find_first_of("*?") != kNone;
    if (scan_.open != kNone && !glob)
      return wrong(scan_.open, "the bracket here is never closed", "quote C++ names as a whole");
    if (std::string_view("@+-)>]}#,").find(name[0]) != kNone)
      return wrong(0, quoted(word_.text) + " is no location: a symbol doesn't begin like this", kLocationHint);
    if (name.ends_with("::")) return wrong(0, "nothing after '::' in " + quoted(word_.text));
    return {};
  }

  static constexpr const char* kLocationHint =
      "write [MODULE:]SYMBOL[+OFFS], MODULE:0xFILEOFFSET, 0xADDR or FILE.c:LINE first, then the arguments";
  static constexpr const char* kReturnHint = "name the function alone, or use a plain probe";

  Word word_;
  std::string_view text_;
  Scan scan_;
  bool is_return_;
  std::optional<std::uint64_t> counter_;  // written behind %return
};

}  // namespace

std::size_t location_end(std::string_view text, std::size_t start) { return scan_location(text, start).end; }

Result<ParsedLocation> parse_location(Word word, bool is_return) { return LocationParser(word, is_return).parse(); }

}  // namespace probed::lang
