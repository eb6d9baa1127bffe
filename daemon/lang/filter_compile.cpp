// From a filter's text to its program. Pure; any thread.
//
// A descent over the grammar
//   or: and (|| and)*     and: not (&& not)*     not: !* ( "(" or ")" | FIELD OP VALUE | FIELD )
// whose depth is bounded by kMaxFilterDepth. Predicates come out in the order of the text; every sub-expression leaves
// two lists of exits, true and false, which are patched when it is known where they lead.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "daemon/lang/filter_program.hpp"
#include "daemon/lang/number.hpp"
#include "daemon/lang/parse.hpp"
#include "daemon/values/packed.hpp"

namespace probed::lang {
namespace {

// "<=" stands before "<": the first that matches is the operator.
constexpr std::array<std::pair<std::string_view, FilterOp>, 8> kOps = {{{"==", FilterOp::eq},
                                                                        {"!=", FilterOp::ne},
                                                                        {"<=", FilterOp::le},
                                                                        {"<", FilterOp::lt},
                                                                        {">=", FilterOp::ge},
                                                                        {">", FilterOp::gt},
                                                                        {"&", FilterOp::band},
                                                                        {"~", FilterOp::glob}}};

struct CommonField {
  std::string_view name;
  FilterField field;
  bool is_signed;
  bool returns_only = false;
};
// What a kernel's event has besides, and why it can't be asked for here.
constexpr std::pair<std::string_view, const char*> kUnknownHere[] = {
    {"common_type", "it is the number that a kernel gives an event: probes have names and ids here"},
    {"common_flags", "it is a kernel's state at the hit, which nobody has outside of it"},
    {"common_preempt_count", "it is a kernel's state at the hit, which nobody has outside of it"},
    {"common_stacktrace", "events have no stack traces here"},
    {"stacktrace", "events have no stack traces here"},
    {"STACKTRACE", "events have no stack traces here"},
    {"__probe_ret_ip", "where a call returns to isn't kept for filters: compare an argument, caller=+0($stack)"},
};
// The kernel's common_pid is current->pid: the thread's id.
constexpr std::array<CommonField, 8> kCommonFields = {{{"pid", FilterField::pid, true},
                                                       {"tid", FilterField::tid, true},
                                                       {"common_pid", FilterField::tid, true},
                                                       {"cpu", FilterField::cpu, false},
                                                       {"CPU", FilterField::cpu, false},
                                                       {"comm", FilterField::comm, false},
                                                       {"COMM", FilterField::comm, false},
                                                       {"duration", FilterField::duration, false, true}}};

bool is_filter_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool ends_bare_word(char c) {
  return is_filter_space(c) || std::string_view("()&|!=<>~\"'").find(c) != std::string_view::npos;
}
bool is_text_op(FilterOp op) { return op == FilterOp::eq || op == FilterOp::ne || op == FilterOp::glob; }

struct Exit {
  std::uint32_t predicate = 0;
  bool when_true = false;
};
struct Exits {
  std::vector<Exit> yes, no;
};

void append(std::vector<Exit>& to, const std::vector<Exit>& from) { to.insert(to.end(), from.begin(), from.end()); }

class Compiler {
 public:
  Compiler(std::string_view text, std::span<const FetchArg> args, bool is_return, std::optional<std::uint64_t> address)
      : text_(text), args_(args), is_return_(is_return), address_(address) {}
  // Only gathers what is compared.
  Compiler(std::string_view text, std::vector<Word>& fields) : text_(text), is_return_(true), fields_(&fields) {}

  Result<FilterProgram> compile() {
    const auto exits = whole();
    if (!exits) return std::move(error_);
    patch(exits->yes, kFilterAccept);
    patch(exits->no, kFilterReject);
    return std::move(out_);
  }

 private:
  using Parsed = std::optional<Exits>;  // nullopt: error_ is set

  std::nullopt_t fail(std::size_t column, std::string message, std::string hint = {}) {
    error_ = {Reason::bad_filter, std::move(message), std::move(hint), column};
    return std::nullopt;
  }
  bool wrong(std::size_t column, std::string message, std::string hint = {}) {
    fail(column, std::move(message), std::move(hint));
    return false;
  }

  void skip_space() {
    while (i_ < text_.size() && is_filter_space(text_[i_])) ++i_;
  }
  bool at(std::string_view token) {
    skip_space();
    return text_.substr(i_).starts_with(token);
  }
  bool take(std::string_view token) {
    if (!at(token)) return false;
    i_ += token.size();
    return true;
  }
  std::string_view rest() const { return text_.substr(i_); }

  std::uint32_t here() const { return static_cast<std::uint32_t>(out_.predicates.size()); }
  void patch(const std::vector<Exit>& exits, std::uint32_t target) {
    for (const Exit& exit : exits) {
      Predicate& p = out_.predicates[exit.predicate];
      (exit.when_true ? p.on_true : p.on_false) = target;
    }
  }

  Parsed whole() {
    if (text_.size() > kMaxFilter) return fail(kMaxFilter, "the filter is too long: at most 65536 bytes");
    Parsed exits = disjunction(0);
    skip_space();
    if (!exits || i_ == text_.size()) return exits;
    if (text_[i_] == ')') return fail(i_, "this ')' closes nothing");
    return fail(i_, "expected && or || before " + quoted(rest()));
  }

  Parsed disjunction(std::size_t depth) {
    Parsed left = conjunction(depth);
    while (left && take("||")) {
      patch(left->no, here());
      Parsed right = conjunction(depth);
      if (!right) return std::nullopt;
      append(right->yes, left->yes);
      left = std::move(right);
    }
    return left;
  }

  Parsed conjunction(std::size_t depth) {
    Parsed left = negation(depth);
    while (left && take("&&")) {
      patch(left->yes, here());
      Parsed right = negation(depth);
      if (!right) return std::nullopt;
      append(right->no, left->no);
      left = std::move(right);
    }
    return left;
  }

  Parsed negation(std::size_t depth) {
    bool inverted = false;
    while (take("!")) inverted = !inverted;
    Parsed exits = at("(") ? parenthesis(depth) : comparison(inverted);
    if (exits && inverted) std::swap(exits->yes, exits->no);
    return exits;
  }

  Parsed parenthesis(std::size_t depth) {
    const std::size_t open = i_++;
    if (depth == kMaxFilterDepth) return fail(open, "parentheses are nested too deeply: at most 200");
    Parsed exits = disjunction(depth + 1);
    if (!exits || take(")")) return exits;
    if (i_ == text_.size()) return fail(open, "this '(' is not closed");
    return fail(i_, "expected && or || or ')' before " + quoted(rest()));
  }

  // inverted: a ! stands in front. A number alone is compared with 0 by itself, so that null is neither.
  Parsed comparison(bool& inverted) {
    Predicate p;
    if (!field(p)) return std::nullopt;
    if (!p.is_string && is_alone()) {
      p.op = std::exchange(inverted, false) ? FilterOp::eq : FilterOp::ne;
      return add(std::move(p));
    }
    if (!op(p)) return std::nullopt;
    if (at("CPUS{")) return cpus(p);
    if (!value(p)) return std::nullopt;
    return add(std::move(p));
  }

  bool is_alone() {
    skip_space();
    return rest().empty() || rest().starts_with(")") || rest().starts_with("&&") || rest().starts_with("||");
  }

  Parsed add(Predicate p) {
    if (here() == kMaxFilterComparisons) return fail(i_, "too many comparisons: at most 4096");
    if (constant_) {
      p.value = number_matches(p, *constant_) ? 1 : 0;
      p.field = FilterField::constant;
    }
    const std::uint32_t index = here();
    out_.predicates.push_back(std::move(p));
    return Exits{{{index, true}}, {{index, false}}};
  }

  // CPUS{0-3,5}: in it (&), it alone (==), or not that (!=).
  Parsed cpus(Predicate p) {
    const std::size_t start = i_, close = text_.find('}', i_);
    if (p.is_string || (p.op != FilterOp::eq && p.op != FilterOp::ne && p.op != FilterOp::band))
      return fail(start, "CPUS{} is for numbers, by & == and !=");
    if (close == text_.npos) return fail(start, "this '{' is not closed");
    const auto ranges = cpu_ranges(text_.substr(start + 5, close - start - 5));
    if (!ranges) return fail(start, "expected numbers of processors and ranges of them, as in CPUS{0-3,5}");
    for (const auto& [first, last] : *ranges)
      if (!fits(p, last, false)) return fail(start, std::to_string(last) + " is out of range for " + quoted(name_));
    i_ = close + 1;
    if (p.op == FilterOp::band) return in_ranges(p, *ranges);
    const std::uint64_t one = ranges->front().first;
    const bool is_one = std::ranges::all_of(*ranges, [&](const auto& r) { return r.first == one && r.second == one; });
    if (is_one) {
      p.value = one;
    } else {  // which one number never is: all are at least the least one
      p.value = p.is_signed ? cut(1ull << (8 * p.size - 1), p.size, true) : 0;
      p.op = p.op == FilterOp::eq ? FilterOp::lt : FilterOp::ge;
    }
    return add(std::move(p));
  }

  Parsed in_ranges(const Predicate& p, const std::vector<std::pair<std::uint64_t, std::uint64_t>>& ranges) {
    Exits out;
    for (const auto& [first, last] : ranges) {
      patch(std::exchange(out.no, {}), here());
      for (const auto& [op, value] : {std::pair(FilterOp::ge, first), std::pair(FilterOp::le, last)}) {
        Predicate bound = p;
        bound.op = op;
        bound.value = value;
        const Parsed exits = add(std::move(bound));
        if (!exits) return std::nullopt;
        append(out.no, exits->no);
        if (op == FilterOp::ge)
          patch(exits->yes, here());
        else
          append(out.yes, exits->yes);
      }
    }
    return out;
  }

  static std::optional<std::vector<std::pair<std::uint64_t, std::uint64_t>>> cpu_ranges(std::string_view list) {
    constexpr std::uint64_t kMostCpus = 8192;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> out;
    while (true) {
      const std::string_view part = list.substr(0, list.find(','));
      const std::size_t dash = std::min(part.find('-'), part.size());
      const auto first = parse_unsigned(part.substr(0, dash));
      const auto last = dash == part.size() ? first : parse_unsigned(part.substr(dash + 1));
      if (!first || !last || *first > *last || *last >= kMostCpus) return std::nullopt;
      out.emplace_back(*first, *last);
      if (part.size() == list.size()) return out;
      list.remove_prefix(part.size() + 1);
    }
  }

  // ---- FIELD ----

  bool field(Predicate& p) {
    skip_space();
    const std::size_t start = i_;
    const std::string_view path = path_at(start);
    if (fields_ && !path.empty()) {
      const std::size_t type = type_at(start + path.size()).size();
      gather({text_.substr(start, path.size() + type), start});
      i_ = start + path.size() + type;
      is_open_ = true;
      return true;
    }
    if (is_whole_structure(path))
      return wrong(start, quoted(path) + " is a structure, or holds several values",
                   "compare a part of it; " + field_hint());
    if (const auto written = argument_written(path)) {
      name_ = path;
      i_ = start + path.size() + type_at(start + path.size()).size();
      forget_field();
      is_open_ = may_be_part_of(args_[*written]);
      return is_open_ || use_argument(start, *written, p);
    }
    if (i_ < text_.size() && text_[i_] == '$') ++i_;
    // A part of a variable: p.x
    const auto is_dot = [&] { return text_[i_] == '.' && i_ + 1 < text_.size() && is_letter(text_[i_ + 1]); };
    while (i_ < text_.size() && (is_ident(text_[i_]) || (i_ > start && is_dot()))) ++i_;
    if (rest().starts_with('[')) i_ = start + element_name(text_.substr(start)).value_or(i_ - start);
    // Which lists a variable will have isn't known yet.
    for (std::size_t close = 0; rest().starts_with('[') && is_of_open(text_.substr(start, i_ - start));) {
      if ((close = text_.find(']', i_)) == text_.npos) return wrong(i_, "this '[' is not closed");
      for (i_ = close + 1; i_ < text_.size() && (is_ident(text_[i_]) || is_dot());) ++i_;
    }
    name_ = text_.substr(start, i_ - start);
    if (!type_at(i_).empty() && has_argument()) i_ += type_at(i_).size();
    if (!name_.empty() && is_digit(name_[0]))
      return wrong(start, "expected a field on the left of a comparison, and " + quoted(name_) + " is a number",
                   "write FIELD OP VALUE; " + field_hint());
    if (name_.empty())
      return wrong(start,
                   start == text_.size() ? "a comparison is expected at the end of the filter"
                                         : "expected a field before " + quoted(text_.substr(start)),
                   "write FIELD OP VALUE; " + field_hint());
    forget_field();
    return find_argument(start, p) || (!error_.column && find_common(start, p));
  }
  void forget_field() {
    is_char_ = is_bool_ = is_time_ = is_open_ = false;
    names_ = nullptr;
    constant_.reset();
  }

  // What may be an argument as it is written: %REG, $arg1, x, p->x, *p, a[2].x, ns::x, $entry(x). Empty: no such thing
  // stands there.
  std::string_view path_at(std::size_t start) const {
    std::size_t i = start;
    if (text_.substr(i).starts_with("$entry(")) {
      const std::size_t close = text_.find(')', i);
      return close == text_.npos ? std::string_view() : text_.substr(start, close + 1 - start);
    }
    const auto next_is = [&](std::string_view token) {
      return text_.substr(i).starts_with(token) && i + token.size() < text_.size() &&
             is_letter(text_[i + token.size()]);
    };
    const auto skip_name = [&] {
      while (i < text_.size() && is_ident(text_[i])) ++i;
    };
    while (i < text_.size() && text_[i] == '*') ++i;
    if (i < text_.size() && (text_[i] == '$' || text_[i] == '%')) ++i;
    if (i == text_.size() || !is_letter(text_[i])) return {};
    skip_name();
    while (true) {
      const std::size_t token = next_is("->") || next_is("::") ? 2 : next_is(".") ? 1 : 0;
      const std::size_t close = token == 0 && text_.substr(i).starts_with('[') ? text_.find(']', i) : text_.npos;
      if (token == 0 && close == text_.npos) return text_.substr(start, i - start);
      i = token == 0 ? close + 1 : i + token;
      if (token != 0) skip_name();
    }
  }
  // ":s64" behind an argument. Empty: there is none.
  std::string_view type_at(std::size_t start) const {
    std::size_t i = start + 1;
    if (start >= text_.size() || !text_.substr(start).starts_with(':') || i == text_.size() || !is_letter(text_[i]))
      return {};
    while (i < text_.size() && is_ident(text_[i])) ++i;
    return text_.substr(start, i - start);
  }

  // Whose text this is, where nothing has it for its name.
  std::optional<std::size_t> argument_written(std::string_view path) const {
    const auto named = std::ranges::find(args_, path, &FetchArg::name);
    // What a structure's parts were read from is no number.
    const auto written =
        std::ranges::find_if(args_, [&](const FetchArg& arg) { return arg.path.empty() && arg.text == path; });
    if (path.empty() || named != args_.end() || written == args_.end()) return std::nullopt;
    return static_cast<std::size_t>(written - args_.begin());
  }

  bool is_whole_structure(std::string_view path) const {
    return !path.empty() && std::ranges::none_of(args_, [&](const FetchArg& arg) { return arg.name == path; }) &&
           std::ranges::any_of(args_, [&](const FetchArg& arg) { return !arg.path.empty() && arg.text == path; });
  }

  void gather(Word field) {
    name_ =
        field.text == "$comm" || field.text == "$COMM" || field.text == "$duration" ? field.text.substr(1) : field.text;
    const auto is_named = [this](const auto& known) { return known.first == name_; };
    const bool is_kernels = name_.starts_with("__probe_") || std::ranges::any_of(kUnknownHere, is_named);
    if (!is_common() && !is_kernels) fields_->push_back(field);
  }

  // Of an argument that is a part of a list (p.list[1].x), and whose name the text begins with: its length.
  std::optional<std::size_t> element_name(std::string_view text) const {
    for (const FetchArg& arg : args_) {
      const std::string_view name = arg.name;
      if (name.find('[') == name.npos || !text.starts_with(name)) continue;
      if (text.size() == name.size() ||
          (!is_ident(text[name.size()]) && text[name.size()] != '.' && text[name.size()] != '['))
        return name.size();
    }
    return std::nullopt;
  }

  // False without an error: there is no such argument.
  bool find_argument(std::size_t start, Predicate& p) {
    const auto is_result = [this](std::size_t k) {
      return args_[k].name == "$retval" && (name_ == "retval" || name_ == "arg" + std::to_string(k + 1));
    };
    for (std::size_t k = 0; k < args_.size(); ++k) {
      if (is_result(k) && !has_argument()) name_ = args_[k].name;
      if (may_be_part_of(args_[k])) return is_open_ = true;
      if (args_[k].name == name_) return use_argument(start, k, p);
    }
    return false;
  }
  // Whether the field is, or is in, what has a type only once its code is there: it is looked at then.
  bool may_be_part_of(const FetchArg& arg) const {
    if (address_ || arg.type_given) return false;
    const FetchExpr* expr = arg.expr.get();
    if (const auto* entry = expr ? std::get_if<EntryExpr>(&expr->node) : nullptr) expr = entry->inner.get();
    if (!expr) return false;
    if (std::holds_alternative<AllArgumentsExpr>(expr->node)) return !has_argument() && !is_common();
    const bool is_typed_later = std::holds_alternative<VariableExpr>(expr->node) ||
                                (is_return_ && std::holds_alternative<RetvalExpr>(expr->node));
    const std::string_view behind = name_.starts_with(arg.name) ? name_.substr(arg.name.size()) : "?";
    return is_typed_later && (behind.empty() || behind[0] == '.' || behind[0] == '[');
  }
  bool is_of_open(std::string_view name) {
    name_ = name;
    return std::ranges::any_of(args_, [&](const FetchArg& arg) { return may_be_part_of(arg); });
  }
  bool is_common() const {
    return std::ranges::any_of(kCommonFields, [&](const CommonField& common) { return common.name == name_; });
  }
  bool has_argument() const {
    return std::any_of(args_.begin(), args_.end(), [&](const FetchArg& arg) { return arg.name == name_; });
  }

  bool use_argument(std::size_t start, std::size_t k, Predicate& p) {
    const Type& type = args_[k].type;
    const bool is_one_of_several = args_[k].chooser != 0 && std::ranges::count(args_, name_, &FetchArg::name) > 1;
    if (is_one_of_several)
      return wrong(start, quoted(name_) + " may be one of several alternatives",
                   "make the one that is meant an argument: NAME=VARIANT[N]");
    if (type.array)
      return wrong(start, "the argument " + quoted(name_) + " is an array, and arrays can't be compared",
                   "fetch the element as an argument of its own");
    if (values::is_floating(type.base))
      return wrong(start, "the argument " + quoted(name_) + " is a floating-point number, and those can't be compared");
    p.argument = static_cast<std::uint16_t>(k);
    p.is_string = values::is_string(type.base);
    p.is_signed = type.bitfield ? type.bitfield->is_signed : values::is_signed(type.base);
    p.size = values::size_of(type.base);
    is_char_ = type.base == BaseType::chr;
    is_bool_ = type.base == BaseType::boolean;
    is_time_ = args_[k].expr && std::holds_alternative<DurationExpr>(args_[k].expr->node);
    names_ = type.names.get();
    for (std::size_t n = out_.types.size(); n <= k; ++n) out_.types.push_back(args_[n].type);
    return true;
  }

  bool find_common(std::size_t start, Predicate& p) {
    const std::string_view plain = name_ == "$comm" || name_ == "$duration" ? name_.substr(1) : name_;
    for (const CommonField& common : kCommonFields) {
      if (common.name != plain) continue;
      if (common.returns_only && !is_return_)
        return wrong(start, quoted(name_) + " is a field of return probes only", "probe FUNCTION%return");
      p.field = common.field;
      p.is_string = common.field == FilterField::comm;
      p.is_signed = common.is_signed;
      is_time_ = common.field == FilterField::duration;
      p.size = is_time_ ? 8 : 4;
      return true;
    }
    if (name_ == (is_return_ ? "__probe_func" : "__probe_ip")) {
      constant_ = address_.value_or(0);
      return true;
    }
    for (const auto& [name, why] : kUnknownHere)
      if (name_ == name) return wrong(start, "the field " + quoted(name_) + " isn't there: " + why, field_hint());
    if (rest().starts_with("->") || rest().starts_with("[") || name_.find('.') != name_.npos)
      return not_an_expression(start);
    return wrong(start, "unknown field " + quoted(name_), field_hint());
  }

  bool not_an_expression(std::size_t column) {
    return wrong(column, "expected the name of an argument, not an expression",
                 "make it an argument, NAME=EXPRESSION, and compare NAME; " + field_hint());
  }

  std::string field_hint() const {
    std::string hint = "fields:";
    for (const FetchArg& arg : args_.first(std::min<std::size_t>(args_.size(), 16))) hint += " " + arg.name;
    hint += std::string(" pid tid cpu comm") + (is_return_ ? " duration" : "");
    return args_.empty() ? hint +
                               "; what else is to be compared has to be an argument of the probe, `FUNCTION n`, or to "
                               "stand in its definition, `FUNCTION if n > 5`"
                         : hint;
  }

  // ---- OP ----

  bool op(Predicate& p) {
    skip_space();
    const std::size_t start = i_;
    for (const auto& [spelling, code] : kOps) {
      if (!rest().starts_with(spelling) || rest().starts_with("&&")) continue;
      p.op = code;
      i_ += spelling.size();
      if (is_open_) return true;
      if (p.is_string && !is_text_op(code))
        return wrong(start,
                     "the operator " + std::string(spelling) + " is not for strings, and " + quoted(name_) + " is one",
                     "use == != or ~");
      if (!p.is_string && code == FilterOp::glob)
        return wrong(start, "the operator ~ is for strings, and " + quoted(name_) + " is a number",
                     "use == != < <= > >= or &");
      return true;
    }
    if (rest().starts_with("->")) return not_an_expression(start);
    if (start < text_.size() && std::string_view("+-*/%^|").find(text_[start]) != std::string_view::npos)
      return wrong(start, "a filter compares, it doesn't calculate",
                   "operators: == != < <= > >= & ~; what is to be calculated is done with what the events say");
    return wrong(start, "expected an operator behind " + quoted(name_),
                 rest().starts_with("=>")   ? "did you mean >=?"
                 : rest().starts_with("=<") ? "did you mean <=?"
                 : rest().starts_with('=')  ? "did you mean ==?"
                                            : "operators: == != < <= > >= & ~");
  }

  // ---- VALUE ----

  bool value(Predicate& p) {
    skip_space();
    const std::size_t start = i_;
    if (start < text_.size() && (text_[start] == '"' || text_[start] == '\'')) return quoted_value(p, start);
    while (i_ < text_.size() && !ends_bare_word(text_[i_])) ++i_;
    const std::string_view word = text_.substr(start, i_ - start);
    if (word.empty()) return wrong(start, "expected a value behind the operator of " + quoted(name_));
    if (is_open_) return true;
    if (!p.is_string) return number(p, start, word);
    if (is_digit(word[0]) || word[0] == '-')
      return wrong(start, quoted(name_) + " is a string, and " + quoted(word) + " looks like a number",
                   "put it in quotes");
    return text(p, start, word);
  }

  bool quoted_value(Predicate& p, std::size_t start) {
    const std::size_t close = text_.find(text_[start], start + 1);
    if (close == text_.npos) return wrong(start, "this quote is not closed");
    const std::string_view inner = text_.substr(start + 1, close - start - 1);
    i_ = close + 1;
    if (is_open_) return true;
    if (p.is_string) return text(p, start, inner);
    if (const auto value = named_value(inner)) return set_number(p, *value);
    const bool comparable = p.op == FilterOp::eq || p.op == FilterOp::ne;
    if (!is_char_ || inner.size() != 1 || !comparable)
      return wrong(start, quoted(name_) + " is a number, and " + quoted(inner) + " is text",
                   "write a decimal or 0x number without quotes");
    p.value = static_cast<unsigned char>(inner[0]);
    return true;
  }

  static bool is_number(std::string_view word, bool is_signed) {
    if (is_signed && word.starts_with('-')) word.remove_prefix(1);
    const bool is_hex = word.starts_with("0x");
    if (is_hex) word.remove_prefix(2);
    const char* const digits = is_hex ? "0123456789abcdefABCDEF" : word.starts_with("0") ? "01234567" : "0123456789";
    return !word.empty() && word.find_first_not_of(digits) == word.npos;
  }

  bool number(Predicate& p, std::size_t start, std::string_view word) {
    const char* const hint = p.is_signed ? "write a decimal, 0x or leading-0 octal number; - is allowed"
                                         : "write a decimal, 0x or leading-0 octal number; the field is unsigned, and "
                                           "an argument with the type :s64 is not";
    std::optional<std::uint64_t> parsed = named_value(word);
    if (parsed) return set_number(p, *parsed);
    if (word == "NULL" || word == "nullptr") return set_number(p, 0);
    parsed = is_time_ ? parse_time(word) : parse_size(word);
    if (!parsed && p.is_signed) {
      if (const auto v = parse_signed(word)) parsed = static_cast<std::uint64_t>(*v);
    } else if (!parsed) {
      parsed = parse_unsigned(word);
    }
    if (!parsed && is_number(word, p.is_signed))
      return wrong(start, quoted(word) + " is out of range: no " + (p.is_signed ? "signed" : "unsigned") +
                              " number of 8 bytes holds it");
    if (!parsed || word[0] == '+')
      return wrong(start, "bad number " + quoted(word) + " for " + quoted(name_),
                   names_     ? known_names()
                   : is_time_ ? "write nanoseconds, or a time as in 10ms, 1.5s, 200us"
                              : hint);
    if (!fits(p, *parsed, word.starts_with("0")))
      return wrong(start, quoted(word) + " is out of range: " + quoted(name_) +
                              (p.is_signed ? " is a signed" : " is an unsigned") + " number of " +
                              std::to_string(8 * p.size) + " bits");
    return set_number(p, *parsed);
  }

  // `is_bits`: written as the bits that it has, hexadecimal or octal.
  static bool fits(const Predicate& p, std::uint64_t value, bool is_bits) {
    return p.size >= 8 || cut(value, p.size, p.is_signed) == value || (is_bits && cut(value, p.size, false) == value);
  }

  static bool set_number(Predicate& p, std::uint64_t value) {
    p.value = cut(value, p.size, p.is_signed);
    return true;
  }

  // What events show in a number's place.
  std::optional<std::uint64_t> named_value(std::string_view word) const {
    if (is_bool_ && (word == "true" || word == "false")) return word == "true";
    if (!names_) return std::nullopt;
    for (const auto& [value, name] : names_->names)
      if (name == word) return static_cast<std::uint64_t>(value);
    return std::nullopt;
  }

  std::string known_names() const {
    std::string hint = "write a number, or one of";
    for (const auto& [value, name] : std::span(names_->names).first(std::min<std::size_t>(names_->names.size(), 16)))
      hint += " " + name;
    return hint;
  }

  bool text(Predicate& p, std::size_t start, std::string_view text) {
    if ((text == "NULL" || text == "nullptr") && text_[start] == text[0])
      return wrong(start, quoted(name_) + " is a string, and no string is equal to null",
                   "of the pointer write FIELD:x64 == 0; the text NULL goes in quotes");
    if (text.size() > kMaxText) return wrong(start, "the text is too long: at most 512 bytes");
    p.inverted = p.op == FilterOp::glob && text.starts_with('!');
    if (p.inverted) text.remove_prefix(1);
    p.text = text;
    return true;
  }

  std::string_view text_;
  std::span<const FetchArg> args_;
  bool is_return_;
  std::vector<Word>* fields_ = nullptr;  // to be gathered
  std::optional<std::uint64_t> address_;
  std::size_t i_ = 0;
  FilterProgram out_;
  std::string_view name_;  // of the field being compared
  bool is_char_ = false, is_bool_ = false, is_time_ = false;
  bool is_open_ = false;                   // its type isn't known yet
  const Enumeration* names_ = nullptr;     // null: its values have none
  std::optional<std::uint64_t> constant_;  // what it is at every hit
  Error error_;
};

}  // namespace

std::vector<Word> filter_fields(std::string_view filter) {
  std::vector<Word> fields;
  static_cast<void>(Compiler(filter, fields).compile());
  return fields;
}

Result<Filter> Condition::compile(std::span<const FetchArg> args, bool is_return,
                                  std::optional<std::uint64_t> address) const {
  if (own_.empty()) return Filter::compile(besides_, args, is_return, address);
  auto own = Filter::compile(own_, args, is_return, address);
  if (!own) {
    Error why = std::move(own).error();
    why.reason = Reason::bad_definition;
    why.column = column_ + why.column.value_or(0);
    return why;
  }
  if (besides_.empty()) return own;
  if (auto other = Filter::compile(besides_, args, is_return, address); !other) return other;
  auto both =
      Filter::compile("(" + std::string(own_) + ") && (" + std::string(besides_) + ")", args, is_return, address);
  if (both) return both;
  Error why = std::move(both).error();  // together they are too long or too deep
  why.column = 0;
  return why;
}

Result<Filter> Filter::compile(std::string_view text, std::span<const FetchArg> args, bool is_return,
                               std::optional<std::uint64_t> address) {
  auto program = Compiler(text, args, is_return, address).compile();
  if (!program) return std::move(program).error();
  Filter filter;
  filter.impl_ = std::make_shared<const Impl>(Impl{std::move(*program)});
  return filter;
}

}  // namespace probed::lang
