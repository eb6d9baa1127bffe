// The definition as a whole: head, location, arguments. Pure.
//
// The order of checks is the kernel's: MAXACTIVE, location, event name, number of arguments, arguments.
#include "daemon/lang/definition.hpp"

#include <algorithm>
#include <span>

#include "daemon/lang/number.hpp"
#include "daemon/lang/parse.hpp"

namespace probed::lang {
namespace {

constexpr std::string_view kSpace = " \t\r\n\v\f";
constexpr std::size_t kShownBytes = 80;

// Length of the UTF-8 sequence of a printable character at text[i] (RFC 3629); 0: not printable, or no UTF-8.
std::size_t printable_length(std::string_view text, std::size_t i) {
  const auto byte = [&](std::size_t k) { return k < text.size() ? static_cast<unsigned char>(text[k]) : 0u; };
  const unsigned first = byte(i);
  if (first < 0x80) return (first >= 0x20 && first != 0x7f) || first == '\t' ? 1 : 0;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 0;
  unsigned point = first & (0x7fu >> length);
  for (std::size_t k = 1; k < length; ++k) {
    if ((byte(i + k) & 0xc0) != 0x80) return 0;
    point = point << 6 | (byte(i + k) & 0x3f);
  }
  const unsigned least = length == 4 ? 0x10000 : length == 3 ? 0x800 : 0xa0;  // U+0080..U+009F are controls
  return point >= least && point <= 0x10ffff && (point < 0xd800 || point > 0xdfff) ? length : 0;
}

std::optional<Error> check_characters(std::string_view text, std::size_t base) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = printable_length(text, i);
    if (length == 0) return bad_definition(base + i, "a byte that is not printable text (UTF-8)", "remove it");
    i += length;
  }
  return {};
}

bool is_group_name(std::string_view name) {
  return !name.empty() && is_letter(name[0]) &&
         std::all_of(name.begin(), name.end(), [](char c) { return is_ident(c) || c == '-'; });
}

// Behind "p", "r3" or "p:NAME" nothing follows: most likely the place was meant to be there.
std::string no_location_hint(std::string_view head, std::string_view name) {
  const std::string kind(head.substr(0, head.find(':')));
  if (name.empty()) return "write " + kind + " [MODULE:]LOCATION ARGS";
  const std::string place(name);
  return "behind the colon stands the event's name: write " + kind + ' ' + place + ", or " + kind + ":NAME " + place;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : all_(text) { out_.text = text; }

  Result<Definition> parse() {
    if (all_.size() > kMaxDefinition)
      return bad_definition(kMaxDefinition, "the definition is too long: at most 65536 bytes");
    end_ = all_.starts_with('#') ? 0 : all_.find_last_not_of(kSpace, comment_at()) + 1;
    i_ = std::min(all_.find_first_not_of(kSpace), all_.size());
    if (end_ == 0)
      return bad_definition(0, "the definition is empty", "write p:NAME LOCATION ARGS, or just a function's name");
    if (auto e = check_characters(all_.substr(i_, end_ - i_), i_)) return std::move(*e);
    const std::size_t head = i_;
    const std::string type_hint = mistyped_type();
    if (auto e = all_[i_] == '-' ? remove() : probe()) {
      // "rx:name /bin/true:0x1234": read as a location it is an argument that is wrong.
      const std::string_view word = text().substr(head, text().find_first_of(" \t", head) - head);
      if (!type_hint.empty() && word.find(':') != word.npos && e->column.value_or(head) >= head + word.size())
        return bad_definition(head, "unknown probe type in " + quoted(word) + ": a probe's type is p or r[MAXACTIVE]",
                              type_hint + "; as a location it is wrong, too: " + e->message);
      if (!type_hint.empty()) e->hint += (e->hint.empty() ? "" : "; ") + type_hint;
      return std::move(*e);
    }
    return std::move(out_);
  }

 private:
  using Failure = std::optional<Error>;

  // "rx f", "r-1:name f", "ret f": a probe's type that isn't one, before what would be a location. A location's name
  // looks like this too, so it is only said of what is wrong anyway. Empty: it doesn't look so.
  std::string mistyped_type() const {
    const std::string_view all = text().substr(i_);
    const std::string_view word = all.substr(0, all.find_first_of(" \t"));
    if ((word[0] != 'r' && word[0] != 'p') || is_kernel_form()) return {};
    const std::string_view type = word.substr(0, word.find(':'));
    const bool near = type.size() <= 3 || type == "return" || type == "probe" || !is_identifier(type);
    std::size_t next = word.size();
    while (next < all.size() && is_blank(all[next])) ++next;
    const std::string_view other = all.substr(next, all.find_first_of(" \t", next) - next);
    if (!near || other.empty() || (!is_letter(other[0]) && other[0] != '/') || other.find('=') != other.npos) return {};
    return "if " + quoted(type) + " is to be a probe's type: " +
           (word[0] == 'r' ? "r[MAXACTIVE][:[GROUP/]NAME] [MODULE:]FUNCTION ARGS"
                           : "p[:[GROUP/]NAME] [MODULE:]LOCATION ARGS");
  }

  // The last byte before " #", from which on the kernel takes a line for a comment: no name and no argument begins so,
  // but what stands in quotes in a filter may.
  std::size_t comment_at() const {
    const std::size_t filter = all_.find(" if ");
    char quote = 0;
    for (std::size_t at = 1; at < all_.size(); ++at) {
      const char c = all_[at];
      if (quote != 0)
        quote = c == quote ? '\0' : quote;
      else if (at > filter && (c == '"' || c == '\''))
        quote = c;
      else if (c == '#' && is_blank(all_[at - 1]))
        return at - 1;
    }
    return all_.npos;
  }

  std::string_view text() const { return all_.substr(0, end_); }
  void skip_blanks() {
    while (i_ < end_ && is_blank(all_[i_])) ++i_;
  }
  Word next_word() {
    const std::size_t start = i_;
    while (i_ < end_ && !is_blank(all_[i_])) ++i_;
    Word word{all_.substr(start, i_ - start), start};
    skip_blanks();
    return word;
  }

  // An argument. Blanks in the parentheses of a cast belong to it.
  Word next_argument() {
    const std::size_t start = i_;
    while (i_ < end_ && !is_blank(all_[i_])) {
      const std::size_t operand = cast_end(text(), i_);
      i_ = operand == all_.npos ? i_ + 1 : operand;
    }
    Word word{all_.substr(start, i_ - start), start};
    skip_blanks();
    return word;
  }

  Failure remove() {
    const Word head = next_word();
    out_.kind = Kind::remove;
    if (!head.text.starts_with("-:"))
      return bad_definition(head.column, "bad removal " + quoted(head.text) + ": expected -:NAME or -:GROUP/NAME");
    if (auto e = event_name({head.text.substr(2), head.column + 2})) return e;
    if (i_ < end_) return bad_definition(i_, "text after the name of the event to remove");
    return {};
  }

  // `p`, `r`, `r10`, each alone or before ':', make the kernel's form. Anything else is the short form's location, and
  // so is what begins with a namespace of that name.
  bool is_kernel_form() const {
    if (all_[i_] != 'p' && all_[i_] != 'r') return false;
    std::size_t k = i_ + 1;
    while (k < end_ && is_digit(all_[k])) ++k;
    return k == end_ || is_blank(all_[k]) || (all_[k] == ':' && !all_.substr(k).starts_with("::"));
  }

  Failure probe() {
    Word name;
    if (is_kernel_form()) {
      const Word head = next_word();
      if (auto e = kind(head)) return e;
      const std::size_t colon = head.text.find(':');
      if (colon != head.text.npos) name = {head.text.substr(colon + 1), head.column + colon + 1};
      if (i_ == end_)
        return bad_definition(end_, "no location after " + quoted(head.text), no_location_hint(head.text, name.text));
    }
    if (auto e = location()) return e;
    if (name.column > 0)
      if (auto e = event_name(name)) return e;
    return arguments();
  }

  Failure kind(Word head) {
    out_.kind = head.text[0] == 'r' ? Kind::return_probe : Kind::probe;
    const std::string_view digits = head.text.substr(1, std::min(head.text.find(':'), head.text.size()) - 1);
    if (digits.empty()) return {};
    if (out_.kind == Kind::probe)
      return bad_definition(head.column + 1, "MAXACTIVE is only for return probes",
                            "write p:NAME, or r" + std::string(digits) + ":NAME");
    const auto value = parse_unsigned(digits);
    if (!value) return bad_definition(head.column + 1, "bad MAXACTIVE " + quoted(digits) + ": not a number");
    if (*value > kMaxActive)
      return bad_definition(head.column + 1, "MAXACTIVE " + quoted(digits) + " is too big: at most 4294967295");
    out_.max_active = static_cast<std::uint32_t>(*value);
    return {};
  }

  // uprobe:MODULE:SYMBOL, uretprobe:MODULE:FUNCTION, usdt:MODULE:PROVIDER:NAME.
  Word without_bpftrace_prefix(Word word) {
    for (const std::string_view prefix : {"uprobe:", "uretprobe:", "usdt:"}) {
      const std::string_view rest = word.text.substr(std::min(prefix.size(), word.text.size()));
      if (!word.text.starts_with(prefix) || rest.starts_with(':') || rest.find(':') == rest.npos) continue;
      // A program may be called usdt, and have providers.
      const bool is_file = rest[0] == '/' || rest[0] == '.' || std::ranges::count(rest, ':') > 1;
      if (prefix == "usdt:" && !is_file) continue;
      if (prefix == "uretprobe:") out_.kind = Kind::return_probe;
      is_usdt_ = prefix == "usdt:";
      return {rest, word.column + prefix.size()};
    }
    return word;
  }

  Failure location() {
    const std::size_t start = i_;
    i_ = location_end(text(), start);
    const Word word = without_bpftrace_prefix({all_.substr(start, i_ - start), start});
    skip_blanks();
    auto parsed = parse_location(word, out_.kind == Kind::return_probe);
    if (!parsed) return std::move(parsed).error();
    if (parsed->is_return) out_.kind = Kind::return_probe;
    out_.location = std::move(parsed->location);
    const auto* const symbol = std::get_if<SymbolLocation>(&out_.location.where);
    if (is_usdt_ && symbol && symbol->offset == 0) out_.location.where = UsdtLocation{"*", std::string(symbol->name)};
    return {};
  }

  // [GROUP/]NAME or [GROUP.]NAME; the name may be missing behind a group.
  Failure event_name(Word word) {
    const std::size_t slash = word.text.find('/');
    const std::size_t separator = slash != word.text.npos ? slash : word.text.find('.');
    if (separator != word.text.npos) {
      const std::string_view group = word.text.substr(0, separator);
      if (group.empty())
        return bad_definition(word.column, "no group name before the separator", "write GROUP/NAME, or NAME alone");
      if (group.size() > kMaxEventName)
        return bad_definition(word.column, "the group name is too long: at most 63 bytes");
      if (!is_group_name(group))
        return bad_definition(
            word.column, "bad group name " + quoted(group) + ": letters, digits, _ and - only, a letter or _ first");
      out_.group = group;
      word = {word.text.substr(separator + 1), word.column + separator + 1};
      if (word.text.empty()) return {};
    }
    if (word.text.empty())
      return bad_definition(word.column, "no event name after ':'", "write p:NAME or p:GROUP/NAME");
    if (word.text.size() > kMaxEventName)
      return bad_definition(word.column, "the event name is too long: at most 63 bytes");
    if (!is_identifier(word.text))
      return bad_definition(word.column,
                            "bad event name " + quoted(word.text) + ": letters, digits and _ only, no digit first");
    out_.name = word.text;
    return {};
  }

  Failure arguments() {
    const std::size_t first = i_;
    std::vector<Word> words;
    while (i_ < end_) {
      words.push_back(next_argument());
      if (words.back().text != "if") continue;
      out_.filter = all_.substr(i_, end_ - i_);
      out_.filter_column = i_;
      if (i_ == end_)
        return bad_definition(words.back().column, "no filter behind \"if\"",
                              "write if FIELD OP VALUE, as in: if n > 5 && name == \"x\"");
      words.pop_back();
      break;
    }
    if (words.size() > kMaxFetchArgs)
      return bad_definition(first, "too many arguments: " + std::to_string(words.size()) + ", at most 128");
    for (std::size_t k = 0; k < words.size(); ++k) {
      auto arg = parse_fetch_arg(words[k], out_.kind, out_.args, std::span(words).subspan(k + 1));
      if (!arg) return std::move(arg).error();
      out_.args.push_back(std::move(*arg));
    }
    return what_is_compared();
  }

  // What only the filter names is an argument, too.
  Failure what_is_compared() {
    if (out_.filter.empty()) return {};
    for (const Word& field : filter_fields(text().substr(out_.filter_column))) {
      if (is_argument(field.text)) continue;
      if (out_.args.size() == kMaxFetchArgs)
        return bad_definition(out_.filter_column + field.column,
                              "too many arguments, with those of the filter: at most 128");
      auto arg = parse_fetch_arg({field.text, out_.filter_column + field.column}, out_.kind, out_.args);
      if (!arg) return std::move(arg).error();
      // Who hasn't listed $arg2 would look for it under that name, and not by its position.
      const std::string_view bare = std::string_view(arg->text).substr(arg->text.find_first_not_of("$%"));
      const auto is_taken = [&](const FetchArg& other) { return other.name == bare; };
      if (arg->name != "$retval" && is_identifier(bare) && std::ranges::none_of(out_.args, is_taken)) arg->name = bare;
      out_.args.push_back(std::move(*arg));
    }
    return {};
  }

  // Or a part of one.
  bool is_argument(std::string_view field) const {
    if (const std::size_t colon = field.rfind(':'); colon != field.npos && colon > 0 && field[colon - 1] != ':')
      field = field.substr(0, colon);
    return std::ranges::any_of(out_.args, [&](const FetchArg& arg) {
      const bool all = std::holds_alternative<AllArgumentsExpr>(arg.expr->node);
      if (all) return field.find("->") == field.npos && field[0] != '*' && field[0] != '%';
      const bool begins = field.starts_with(arg.name) && field.size() > arg.name.size();
      return field == arg.name || field == arg.text || (arg.name == "$retval" && field == "retval") ||
             (begins && (field[arg.name.size()] == '.' || field[arg.name.size()] == '['));
    });
  }

  std::string_view all_;
  std::size_t i_ = 0, end_ = 0;
  bool is_usdt_ = false;
  Definition out_;
};

// ---- generated names ----

std::string hex(std::uint64_t value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  do text.insert(text.begin(), kDigits[value % 16]);
  while ((value /= 16) != 0);
  return text.insert(0, "0x");
}

// What the kernel makes of a path: the base name up to its first '.', '-' or '_'.
std::string short_module(std::string_view path) {
  path.remove_prefix(path.rfind('/') + 1);
  return std::string(path.substr(0, path.find_first_of(".-_")));
}

struct RawName {
  const Location& location;
  std::string operator()(const SymbolLocation& at) const { return at.name + "_" + std::to_string(at.offset); }
  std::string operator()(const FileOffsetLocation& at) const {
    return short_module(location.module) + "_" + hex(at.offset);
  }
  std::string operator()(const AddressLocation& at) const { return hex(at.address); }
  std::string operator()(const LineLocation& at) const {
    if (!at.function.empty()) return at.function + "_0";
    return at.file.substr(at.file.rfind('/') + 1) + "_" + std::to_string(at.line);
  }
  std::string operator()(const UsdtLocation& at) const { return at.provider + "_" + at.name; }
};

}  // namespace

std::string quoted(std::string_view text) {
  std::string out(1, '"');
  std::size_t i = 0;
  while (i < text.size() && out.size() <= kShownBytes) {
    const std::size_t length = text[i] == '\t' ? 0 : printable_length(text, i);
    if (length > 0)
      out.append(text.substr(i, length));
    else
      out.push_back('?');
    i += length > 0 ? length : 1;
  }
  return out.append(i < text.size() ? "...\"" : "\"");
}

bool is_identifier(std::string_view name) {
  return !name.empty() && is_letter(name[0]) && std::all_of(name.begin(), name.end(), is_ident);
}

Result<Definition> parse_definition(std::string_view text) { return Parser(text).parse(); }

std::string generated_name(const Definition& definition) {
  const bool is_return = definition.kind == Kind::return_probe;
  std::string name = (is_return ? "r_" : "p_") + std::visit(RawName{definition.location}, definition.location.where);
  name.resize(std::min(name.size(), kMaxEventName));
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !is_ident(c); }, '_');
  return name;
}

}  // namespace probed::lang
