// One FETCHARG: [NAME=]EXPRESSION[:TYPE]. Pure.
//
// The order of checks is the kernel's (traceprobe_parse_probe_arg), so that of several faults the same one is reported:
// name, type and array, expression, then whether type and expression go together.
#include <algorithm>
#include <array>

#include "daemon/lang/parse.hpp"

namespace probed::lang {
namespace {

// Names of the kernel's own event fields (reserved_field_names in trace_probe.c).
constexpr std::array<std::string_view, 8> kReserved = {"common_type",    "common_flags", "common_preempt_count",
                                                       "common_pid",     "common_tgid",  "__probe_ip",
                                                       "__probe_ret_ip", "__probe_func"};

bool is_used(std::string_view name, const std::vector<FetchArg>& previous) {
  return std::find(kReserved.begin(), kReserved.end(), name) != kReserved.end() ||
         std::any_of(previous.begin(), previous.end(), [&](const FetchArg& arg) { return arg.name == name; });
}

bool is_quoted(std::string_view body) { return body.starts_with("\\\""); }

// Whether the "::" at i may be that of a global name: at the beginning, or behind an operator or a cast.
bool may_precede_scope(std::string_view body, std::size_t i) {
  if (i == 0 || std::string_view("*&(").find(body[i - 1]) != std::string_view::npos) return true;
  return body[i - 1] == ')' && cast_end(body, body.rfind('(', i)) == i;
}

// The ':' before the type. The kernel takes the first one; text in quotes and the "::" of C++ names are ours.
std::size_t type_colon(std::string_view body) {
  if (is_quoted(body)) {
    const std::size_t after_quote = body.find("\":", 2);
    if (after_quote != body.npos) return after_quote + 1;
    return body.size() > 2 && body.ends_with('"') ? body.npos : body.find(':');
  }
  for (std::size_t i = 0; i < body.size(); ++i) {
    if (body[i] != ':') continue;
    const bool scope = i + 2 < body.size() && body[i + 1] == ':' && is_letter(body[i + 2]) &&
                       (may_precede_scope(body, i) || is_ident(body[i - 1]));
    if (scope && cast_end(body, body.rfind('(', i)) != body.npos) {
      ++i;  // in a cast's type
      continue;
    }
    const std::size_t operand = body.find_first_not_of("+-u0123456789xabcdefABCDEF(");
    const bool named = operand != body.npos && body[operand] != '%' && body[operand] != '$' && body[operand] != '\\';
    if (!scope || !named) return i;
    ++i;
  }
  return body.npos;
}

// "b_id" of "a->b.id" for 2 parts; empty: it is no path of variables with so many.
std::string end_of_path(std::string_view path, std::size_t parts) {
  const std::size_t first = path.find_first_not_of("( ");
  const bool of_variable = first != path.npos && (is_letter(path[first]) || path.substr(first).starts_with("$retval") ||
                                                  path.substr(first).starts_with("$arg"));
  if (!of_variable || path.find_first_of(".>[:") == path.npos || path.find_first_of("+%\\@\"&") != path.npos ||
      path.find("[-") != path.npos)
    return {};
  std::string name;
  for (std::size_t end = path.size(); parts > 0 && end > first;) {
    if (!is_ident(path[end - 1])) {
      --end;
      continue;
    }
    std::size_t begin = end;
    while (begin > first && is_ident(path[begin - 1])) --begin;
    name.insert(0, std::string(path.substr(begin, end - begin)) + (name.empty() ? "" : "_"));
    if (!is_digit(name[0])) --parts;  // an element's number goes with its list
    end = begin;
  }
  return parts == 0 && is_identifier(name) && name.size() <= kMaxArgName ? name : std::string();
}

// Of its own: NAME=, or a variable's. Empty: it has none.
std::string_view own_name(std::string_view text) {
  if (is_quoted(text)) return {};
  if (const std::size_t equals = text.find('='); equals != text.npos) return text.substr(0, equals);
  const std::string_view body = text.substr(0, type_colon(text));
  return is_identifier(body) ? body : std::string_view();
}

std::string generated_arg_name(std::string_view expression, const std::vector<FetchArg>& previous,
                               std::span<const Word> others) {
  const auto is_another_s = [&](std::string_view name) {
    return std::ranges::any_of(others, [&](const Word& other) { return own_name(other.text) == name; });
  };
  if (is_identifier(expression)) return std::string(expression);
  for (const std::size_t parts : {1, 2, 3})
    if (std::string name = end_of_path(expression, parts);
        !name.empty() && !is_used(name, previous) && !is_another_s(name))
      return name;
  if (expression == "$retval" && !is_used(expression, previous)) return "$retval";
  if (expression == "$duration" && !is_used("duration", previous)) return "duration";
  return "arg" + std::to_string(previous.size() + 1);
}

class FetchArgParser {
 public:
  FetchArgParser(Word word, Kind kind, const std::vector<FetchArg>& previous, std::span<const Word> others)
      : word_(word), kind_(kind), previous_(previous), others_(others) {}

  Result<FetchArg> parse() {
    if (auto e = split_name()) return std::move(*e);
    if (auto e = split_type()) return std::move(*e);
    if (auto e = name()) return std::move(*e);
    if (auto e = type()) return std::move(*e);
    auto expr = parse_expression(body_, kind_);
    if (!expr) return std::move(expr).error();
    arg_.expr = std::move(*expr);
    if (auto e = match()) return std::move(*e);
    arg_.text = body_.text;
    arg_.column = word_.column;
    return std::move(arg_);
  }

 private:
  using Failure = std::optional<Error>;

  Failure split_name() {
    body_ = word_;
    const std::size_t equals = is_quoted(word_.text) ? word_.text.npos : word_.text.find('=');
    if (equals == word_.text.npos) return {};
    if (equals > kMaxArgName)
      return bad_definition(word_.column, "the argument's name is too long: at most 32 bytes before '='");
    if (equals == 0) return bad_definition(word_.column, "no argument name before '='", "write NAME=ARG, or ARG alone");
    arg_.name = word_.text.substr(0, equals);
    if (!is_identifier(arg_.name))
      return bad_definition(word_.column,
                            "bad argument name " + quoted(arg_.name) + ": letters, digits and _ only, no digit first");
    body_ = {word_.text.substr(equals + 1), word_.column + equals + 1};
    return {};
  }

  Failure split_type() {
    const std::size_t colon = type_colon(body_.text);
    if (colon == body_.text.npos) return {};
    type_ = Word{body_.text.substr(colon + 1), body_.column + colon + 1};
    body_.text = body_.text.substr(0, colon);
    arg_.type_given = true;
    return {};
  }

  Failure name() {
    if (arg_.name.empty()) arg_.name = generated_arg_name(body_.text, previous_, others_);
    if (is_used(arg_.name, previous_))
      return bad_definition(word_.column, "the argument name " + quoted(arg_.name) + " is already used",
                            "give each argument its own NAME=");
    if (body_.text.empty() && !arg_.type_given) return bad_definition(body_.column, "no argument after '='");
    return {};
  }

  Failure type() {
    const bool text = body_.text == "$comm" || body_.text == "$COMM" || is_quoted(body_.text);
    if (text) arg_.type.base = BaseType::string;
    if (body_.text == "$duration") arg_.type.base = BaseType::u64;
    if (!type_) return {};
    auto parsed = parse_type(*type_);
    if (text && type_->text != "string" && (parsed || is_type_error(parsed.error())))
      return bad_definition(type_->column, "$comm and text have the type string, not " + quoted(type_->text),
                            "leave the type out");
    if (!parsed) return std::move(parsed).error();
    arg_.type = parsed->type;
    bitfield_ = parsed->bitfield;
    return {};
  }

  // Array faults come first, as in the kernel; an unknown type of $comm is "not string".
  bool is_type_error(const Error& error) const { return error.column == type_->column; }

  // Does the type fit what the expression gives?
  Failure match() {
    const auto* const entry = std::get_if<EntryExpr>(&arg_.expr->node);
    const auto& node = entry ? entry->inner->node : arg_.expr->node;
    const bool memory = std::holds_alternative<DerefExpr>(node) || std::holds_alternative<AddressExpr>(node) ||
                        std::holds_alternative<SymbolExpr>(node) || std::holds_alternative<FileOffsetExpr>(node) ||
                        std::holds_alternative<VariableExpr>(node);
    const bool is_string = arg_.type.base == BaseType::string || arg_.type.base == BaseType::ustring;
    const bool text = std::holds_alternative<CommExpr>(node) || std::holds_alternative<TextExpr>(node);
    if (std::holds_alternative<AllArgumentsExpr>(node) && type_)
      return bad_definition(type_->column, "$args takes no type: every argument has its own");
    if (std::holds_alternative<DurationExpr>(node) && type_)
      return bad_definition(type_->column, "$duration takes no type: it is a number of nanoseconds");
    if (is_string && !memory && !text && !std::holds_alternative<ImmediateExpr>(node))
      return bad_definition(type_->column, "a string needs memory, and " + quoted(body_.text) + " is a value",
                            "for a pointer to a string write +0(" + std::string(body_.text) + "):string");
    if (!bitfield_.empty()) {
      auto bitfield = parse_bitfield(bitfield_, type_->column);
      if (!bitfield) return std::move(bitfield).error();
      arg_.type.bitfield = *bitfield;
    }
    if (arg_.type.array && !memory)
      return bad_definition(type_->column, "an array needs memory, and " + quoted(body_.text) + " is a value",
                            "for a pointer to an array write +0(" + std::string(body_.text) + "):TYPE[N]");
    return {};
  }

  Word word_, body_;
  Kind kind_;
  const std::vector<FetchArg>& previous_;
  std::span<const Word> others_;
  std::optional<Word> type_;
  std::string_view bitfield_;
  FetchArg arg_;
};

}  // namespace

Result<FetchArg> parse_fetch_arg(Word word, Kind kind, const std::vector<FetchArg>& previous,
                                 std::span<const Word> others) {
  return FetchArgParser(word, kind, previous, others).parse();
}

}  // namespace probed::lang
