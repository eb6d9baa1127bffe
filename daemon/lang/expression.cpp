// Fetch expressions: registers, memory, $-variables, immediates, variables by name, and dereferences around them. Pure.
//
// Dereferences nest, but are parsed by a loop, not by recursion: each level is a prefix "+OFFS(" and the last ')'. So
// depth costs memory in proportion to the text and no stack. Their order of checks and columns are the kernel's
// (parse_probe_arg in kernel/trace/trace_probe.c): offsets from outside in, then the innermost operand, then from
// inside out what may not be dereferenced and how deep it goes.
#include <array>
#include <functional>

#include "daemon/lang/number.hpp"
#include "daemon/lang/parse.hpp"

namespace probed::lang {
namespace {

using Node = decltype(FetchExpr::node);

struct Level {
  std::int64_t offset = 0;
  bool user = false;
  std::size_t column = 0;        // of the dereference
  std::size_t inner_column = 0;  // of its operand
};

// ---- $-variables ----

Error bad_variable(Word word) {
  return bad_definition(
      word.column, "unknown variable " + quoted(word.text),
      "variables: $argN $stack $stackN $comm, of return probes also $retval, $duration and $entry(ARG)");
}

bool is_path_continuation(std::string_view text) {
  return text.starts_with("->") || text.starts_with('.') || text.starts_with('[');
}

// Checks what daemon/dwarf/variables.cpp will follow:
//   PATH: [*...|&](TYPE)PATH | [*...|&]BASE{->ident|.ident|[N]}...
//   BASE: ident(::ident)* | $argN | $retval | %REG | (PATH)
class PathChecker {
 public:
  explicit PathChecker(std::string_view text) : text_(text) {}

  // The offset of the first byte that doesn't fit; npos: all do.
  std::size_t fault() {
    if (!path(0)) return i_;
    return i_ == text_.size() ? text_.npos : i_;
  }

 private:
  static constexpr unsigned kMostNested = 16;

  bool at(char c) const { return i_ < text_.size() && text_[i_] == c; }
  bool take(std::string_view token) {
    if (!text_.substr(i_).starts_with(token)) return false;
    i_ += token.size();
    return true;
  }
  bool identifier() {
    const std::size_t start = i_;
    if (i_ < text_.size() && is_letter(text_[i_]))
      while (i_ < text_.size() && is_ident(text_[i_])) ++i_;
    return i_ > start;
  }

  bool path(unsigned depth) {
    if (depth > kMostNested) return false;
    if (!take("&"))
      while (take("*")) {
      }
    if (const std::size_t end = cast_end(text_, i_); end != text_.npos) return i_ = end, path(depth + 1);
    return base(depth) && steps();
  }

  bool base(unsigned depth) {
    if (take("(")) return path(depth + 1) && take(")");
    if (at('$') || at('%'))
      ++i_;
    else
      take("::");
    if (!identifier()) return false;
    while (take("::"))
      if (!identifier()) return false;
    return true;
  }

  bool steps() {
    while (true) {
      if (take("->") || take(".")) {
        if (!identifier()) return false;
      } else if (take("[")) {
        const std::size_t close = text_.find(']', i_);
        take("-");
        if (close == text_.npos || !parse_unsigned(text_.substr(i_, close - i_))) return false;
        i_ = close + 1;
      } else {
        return true;
      }
    }
  }

  std::string_view text_;
  std::size_t i_ = 0;
};

Result<Node> variable(Word word, std::size_t skip) {
  const std::size_t fault = PathChecker(word.text.substr(skip)).fault();
  if (fault != word.text.npos) {
    // The kernel's caret stands at the variable, but for a hyphen that is no arrow (BAD_HYPHEN).
    const bool hyphen = word.text.substr(skip + fault).starts_with('-');
    return bad_definition(word.column + (hyphen ? skip + fault : 0),
                          "bad variable " + quoted(word.text) + ": expected a name, ->, . or [N] at its byte " +
                              std::to_string(skip + fault),
                          "variables: x, p->field, s.field, a[2], *p, &x, ((TYPE*)x)->field");
  }
  return Node(VariableExpr{std::string(word.text)});
}

Result<Node> retval(Word word, std::string_view rest, Kind kind) {
  if (kind != Kind::return_probe)
    return bad_definition(word.column, "$retval is only there on return probes",
                          "write r:NAME FUNCTION, or FUNCTION%return");
  if (rest.empty()) return Node(RetvalExpr{});
  if (is_path_continuation(rest)) return variable(word, 1);
  return bad_variable(word);
}

Result<Node> duration(Word word, Kind kind) {
  if (kind != Kind::return_probe)
    return bad_definition(word.column, "$duration is only there on return probes, and not at the entry",
                          "write r:NAME FUNCTION, or FUNCTION%return");
  return Node(DurationExpr{});
}

Result<Node> stack(Word word, std::string_view rest) {
  if (rest.empty()) return Node(StackExpr{});
  const auto index = parse_decimal(rest);
  if (!index || *index > 0xffffffff) return bad_variable(word);
  return Node(StackEntryExpr{static_cast<std::uint32_t>(*index)});
}

Result<Node> argument(Word word, std::string_view rest) {
  if (rest == "s" || rest == "*") return Node(AllArgumentsExpr{});
  const std::size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  if (digits > 0 && is_path_continuation(rest.substr(digits))) return variable(word, 1);
  const auto number = parse_decimal(rest);
  if (!number) return bad_variable(word);
  if (*number == 0 || *number > kMaxArgument)
    return bad_definition(word.column,
                          "bad argument number in " + quoted(word.text) + ": arguments count from 1 to 2048");
  return Node(ArgumentExpr{static_cast<std::uint32_t>(*number)});
}

// $entry(ARG): everything up to the last ')' is an argument as of the function's entry.
Result<Node> entry(Word word, Kind kind) {
  constexpr std::string_view kOpen = "$entry(";
  if (kind != Kind::return_probe)
    return bad_definition(word.column, "$entry(ARG) is only there on return probes",
                          "on other probes write ARG alone, or r:NAME FUNCTION for a return probe");
  if (!word.text.ends_with(')'))
    return bad_definition(word.column + word.text.size(), "the '(' of $entry is not closed: expected ')'");
  word.text.remove_suffix(1);
  auto inner = parse_expression({word.text.substr(kOpen.size()), word.column + kOpen.size()}, Kind::probe);
  if (!inner) return std::move(inner).error();
  return Node(EntryExpr{std::move(*inner)});
}

Result<Node> dollar(Word word, Kind kind) {
  const std::string_view name = word.text.substr(1);
  if (name.starts_with("entry(")) return entry(word, kind);
  if (name == "comm" || name == "COMM") return Node(CommExpr{});
  if (name == "duration") return duration(word, kind);
  if (name.starts_with("retval")) return retval(word, name.substr(6), kind);
  if (name.starts_with("stack")) return stack(word, name.substr(5));
  if (name.starts_with("arg")) return argument(word, name.substr(3));
  return bad_variable(word);
}

// ---- the others ----

// Which names exist depends on the architecture: the fetch program's compiler decides.
Result<Node> register_(Word word, Kind) {
  const std::string_view name = word.text.substr(1);
  if (name.empty() || !std::all_of(name.begin(), name.end(), is_ident))
    return bad_definition(word.column, "bad register name " + quoted(word.text),
                          "write %REG, e.g. %sp; the first argument is $arg1 on every machine");
  return Node(RegisterExpr{std::string(name)});
}

Result<Node> symbol(Word word, std::string_view text) {
  const std::size_t sign = text.find_first_of("+-");
  const std::string_view name = text.substr(0, sign);
  std::optional<std::int64_t> offset = 0;
  if (sign != text.npos) offset = parse_signed(text.substr(sign));
  if (name.empty() || !offset)
    return bad_definition(word.column,
                          "bad memory address " + quoted(word.text) + ": expected a symbol, an address or +OFFS",
                          "write @SYMBOL, @SYMBOL+OFFS, @SYMBOL-OFFS, @0xADDR or @+FILEOFFSET");
  return Node(SymbolExpr{std::string(name), *offset});
}

Result<Node> memory(Word word, Kind) {
  const std::string_view text = word.text.substr(1);
  if (!text.empty() && is_digit(text[0])) {
    const auto address = parse_unsigned(text);
    if (!address) return bad_definition(word.column, "bad memory address " + quoted(word.text) + ": not a number");
    return Node(AddressExpr{*address});
  }
  if (!text.starts_with('+')) return symbol(word, text);
  const auto offset = parse_signed(text.substr(1));
  if (!offset) return bad_definition(word.column, "bad file offset " + quoted(word.text) + ": not a number");
  return Node(FileOffsetExpr{static_cast<std::uint64_t>(*offset)});
}

// str: behind \" up to and with the closing quote.
Result<Node> text(Word word, std::string_view str) {
  if (!str.ends_with('"'))
    return bad_definition(word.column + word.text.size(),
                          "the text is not closed: expected '\"' (blanks can't be part of it)");
  str.remove_suffix(1);
  if (str.size() > kMaxText) return bad_definition(word.column, "the text is too long: at most 512 bytes");
  return Node(TextExpr{std::string(str)});
}

Result<Node> immediate(Word word, Kind) {
  const std::string_view digits = word.text.substr(1);
  if (digits.starts_with('"')) return text(word, digits.substr(1));
  std::optional<std::int64_t> value;
  if (digits.starts_with('-') || digits.starts_with('+')) {
    value = parse_signed(digits.starts_with('+') ? digits.substr(1) : digits);
  } else if (const auto number = parse_unsigned(digits)) {
    value = static_cast<std::int64_t>(*number);
  }
  if (!value)
    return bad_definition(word.column + 1, "bad immediate value " + quoted(word.text) + ": not a number",
                          "write \\123, \\-1, \\0x7f or \\\"text\"");
  return Node(ImmediateExpr{*value});
}

Result<Node> operand(Word word, Kind kind) {
  const char first = word.text.empty() ? '\0' : word.text[0];
  if (first == '$') return dollar(word, kind);
  if (first == '%') return register_(word, kind);
  if (first == '@') return memory(word, kind);
  if (first == '\\') return immediate(word, kind);
  if (is_letter(first) || word.text.starts_with("::")) return variable(word, 0);
  if (first == '*' || first == '&' || first == '(') {
    if (kind != Kind::return_probe && word.text.find("$retval") != word.text.npos) return retval(word, "", kind);
    return variable(word, 0);
  }
  return bad_definition(word.column, "bad argument " + quoted(word.text) + ": expected a fetch argument",
                        "arguments: %REG @ADDR @SYM $argN $stack $stackN $comm +OFFS(ARG) \\IMM \\\"text\"");
}

// ---- dereferences ----

// The kernel's caret counts the operand from the sign it has normalised, so after +u and +- it stands one too far left.
// Peels one "+OFFS(" ... ")" off word.
Result<Level> peel(Word& word) {
  Level level;
  level.column = word.column;
  std::string_view arg = word.text;
  std::string number(1, arg[0]);
  arg.remove_prefix(1);
  if (arg.starts_with('u')) {
    level.user = true;
    arg.remove_prefix(1);
  }
  const std::size_t brace = arg.find('(');
  if (brace == arg.npos)
    return bad_definition(word.column, "a dereference needs a brace: expected '(' in " + quoted(word.text),
                          "write +OFFS(ARG) or -OFFS(ARG)");
  const std::string_view digits = arg.substr(0, brace);
  number.resize(number == "+" ? 0 : 1);
  number.append(digits);
  const auto offset = parse_signed(number);
  if (!offset)
    return bad_definition(
        word.column, "bad dereference offset " + quoted(word.text.substr(0, 1 + digits.size())) + ": not a number");
  level.offset = *offset;
  level.inner_column = word.column + number.size() + 1 + (number[0] != '-' ? 1 : 0);
  const std::string_view inner = arg.substr(brace + 1);
  const std::size_t close = inner.rfind(')');
  if (close == inner.npos)
    return bad_definition(level.inner_column + inner.size(), "the dereference's '(' is not closed: expected ')'");
  if (close + 1 != inner.size())
    return bad_definition(word.column + static_cast<std::size_t>(inner.data() - word.text.data()) + close + 1,
                          "text after the dereference's ')': " + quoted(inner.substr(close + 1)));
  word = {inner.substr(0, close), level.inner_column};
  return level;
}

bool can_be_dereferenced(const Node& node) {
  if (const auto* entry = std::get_if<EntryExpr>(&node)) return can_be_dereferenced(entry->inner->node);
  return !std::holds_alternative<CommExpr>(node) && !std::holds_alternative<TextExpr>(node) &&
         !std::holds_alternative<DurationExpr>(node) && !std::holds_alternative<AllArgumentsExpr>(node);
}

Result<FetchExprPtr> wrap(FetchExprPtr inner, const std::vector<Level>& levels) {
  for (std::size_t depth = 1; depth <= levels.size(); ++depth) {
    const Level& level = levels[levels.size() - depth];
    if (!can_be_dereferenced(inner->node))
      return bad_definition(level.inner_column, "$comm, $duration, $args and text can't be dereferenced");
    if (depth > kMaxDereferences)
      return bad_definition(level.inner_column, "dereferences are nested too deeply: at most 14");
    inner = std::make_shared<const FetchExpr>(
        FetchExpr{DerefExpr{level.offset, level.user, std::move(inner)}, level.column});
  }
  return inner;
}

}  // namespace

std::size_t cast_end(std::string_view text, std::size_t start) {
  if (start >= text.size() || text[start] != '(') return text.npos;
  std::size_t i = start + 1;
  bool has_name = false, has_star = false;
  const auto skip_blanks = [&] {
    while (i < text.size() && is_blank(text[i])) ++i;
  };
  for (skip_blanks(); i < text.size() && is_letter(text[i]); skip_blanks()) {
    if (has_star) return text.npos;
    has_name = true;
    while (i < text.size() && (is_ident(text[i]) || text.substr(i).starts_with("::"))) i += text[i] == ':' ? 2 : 1;
  }
  for (; i < text.size() && (text[i] == '*' || is_blank(text[i])); ++i) has_star |= text[i] == '*';
  if (!has_name || i >= text.size() || text[i] != ')') return text.npos;
  ++i;
  // (x)->y and (x) are paths in parentheses.
  const bool is_operand =
      i < text.size() &&
      (is_letter(text[i]) || std::string_view("($%*&").find(text[i]) != text.npos || text.substr(i).starts_with("::"));
  return is_operand ? i : text.npos;
}

Result<FetchExprPtr> parse_expression(Word word, Kind kind) {
  std::vector<Level> levels;
  while (word.text.starts_with('+') || word.text.starts_with('-')) {
    auto level = peel(word);
    if (!level) return std::move(level).error();
    levels.push_back(*level);
  }
  auto node = operand(word, kind);
  if (!node) return std::move(node).error();
  return wrap(std::make_shared<const FetchExpr>(FetchExpr{std::move(*node), word.column}), levels);
}

}  // namespace probed::lang
