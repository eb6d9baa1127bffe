// See variable_arguments.hpp.
#include "daemon/control/variable_arguments.hpp"

#include <algorithm>
#include <optional>

#include "arch/arch.hpp"
#include "daemon/dwarf/types.hpp"
#include "daemon/values/packed.hpp"

namespace probed::control {
namespace {

using dwarf::Shape;
using lang::FetchArg;
using lang::FetchExpr;
using lang::FetchExprPtr;
using What = lang::PlacedExpr::What;

constexpr std::size_t kMaxParts = 64;  // of one variable

// What dereferences and $entry(...) stand around.
const FetchExpr& innermost(const FetchExpr& expr) {
  const FetchExpr* at = &expr;
  while (true) {
    if (const auto* deref = std::get_if<lang::DerefExpr>(&at->node))
      at = deref->inner.get();
    else if (const auto* entry = std::get_if<lang::EntryExpr>(&at->node))
      at = entry->inner.get();
    else
      return *at;
  }
}

FetchExprPtr at_entry(FetchExprPtr inner) {
  const std::size_t column = inner->column;
  return std::make_shared<const FetchExpr>(FetchExpr{lang::EntryExpr{std::move(inner)}, column});
}

constexpr std::string_view kResult = "$retval";

bool is_plain_result(const FetchArg& arg) {
  return !arg.type_given && std::holds_alternative<lang::RetvalExpr>(arg.expr->node);
}

// $retval->x, *$retval, ((T*)%ax)->x: by the registers at the return.
bool is_of_return(std::string_view path) { return path.find(kResult) != path.npos || path.find('%') != path.npos; }

bool is_plain_name(std::string_view path) {
  return path.find_first_of("*&.[(") == path.npos && path.find("->") == path.npos;
}

// Whether registers tell where it is, as of parameters; an object that is always there has an address.
bool has_base(const values::Placement& place) {
  return !place.steps.empty() && place.steps[0].code != values::PlaceStep::Code::load_immediate;
}

// +0($entry(x))
bool is_inside_entry(const FetchExpr& expr) {
  const FetchExpr* at = &expr;
  while (const auto* deref = std::get_if<lang::DerefExpr>(&at->node)) at = deref->inner.get();
  return std::holds_alternative<lang::EntryExpr>(at->node);
}

// Whether all of it is in what the caller has handed over, and none behind a pointer.
bool is_in_hand(const values::Placement& place) {
  using Step = values::PlaceStep::Code;
  if (!has_base(place)) return false;
  if (std::ranges::any_of(place.steps, [](const auto& s) { return s.code == Step::dereference; })) return false;
  return !place.in_memory || place.steps[0].operand == arch::native::register_offset("sp");
}

lang::PlacedExpr placed_node(values::Placement place, What what, std::uint64_t size, bool is_signed) {
  lang::PlacedExpr node;
  // An object that is in no memory can't be read as memory is.
  if (what == What::object && place.absent.empty() && !place.in_memory)
    place.absent = "it is in registers here, not in memory";
  node.place = std::make_shared<const values::Placement>(std::move(place));
  node.what = what;
  node.size = static_cast<std::uint8_t>(size);
  node.is_signed = is_signed;
  return node;
}

bool is_one_number(const dwarf::Value& value) {
  return value.size == 1 || value.size == 2 || value.size == 4 || value.size == 8;
}

class Placer {
 public:
  Placer(const dwarf::Variables& variables, At at, Notes& notes)
      : variables_(variables), at_return_(at == At::function_return), notes_(notes) {}

  Result<std::vector<FetchArg>> place(std::span<const FetchArg> args) {
    written_ = args;
    for (const FetchArg& arg : args)
      if (auto e = add(arg)) {
        if (!e->column) e->column = arg.expr->column;
        return std::move(*e);
      }
    say_remarks();
    if (out_.size() > lang::kMaxFetchArgs)
      return Error{
          Reason::bad_definition,
          "with the parts of its variables the probe has " + std::to_string(out_.size()) + " arguments: at most 128",
          "name the members that matter: p->field", args.front().column};
    return std::move(out_);
  }

 private:
  using Failure = std::optional<Error>;

  Failure add(const FetchArg& arg) {
    if (at_return_ && is_plain_result(arg)) return add_result(arg);
    if (const auto* entry = std::get_if<lang::EntryExpr>(&arg.expr->node)) return add_of_entry(arg, entry->inner);
    const std::size_t first = out_.size();
    if (auto e = add_read_here(arg)) return e;
    if (at_return_)
      for (std::size_t i = first; i < out_.size(); ++i) settle_time(out_[i]);
    return {};
  }

  // A number where no type is known; null, and said to be, where the type says that it can't be had.
  Failure add_result(const FetchArg& arg) {
    if (variables_.result_is_plain_word()) return out_.push_back(arg), Failure{};
    FetchArg one = arg;
    one.expr = std::make_shared<const FetchExpr>(FetchExpr{lang::VariableExpr{std::string(kResult)}, arg.expr->column});
    const auto parts = variables_.parts(kResult, kMaxParts);
    const auto is_there = [](const dwarf::Value& p) {
      return p.text ? p.text->pointer.absent.empty() : p.place.absent.empty();
    };
    if (!parts || parts->empty() || std::ranges::any_of(*parts, is_there)) return add(one);
    dwarf::Value none;
    none.place.absent = parts->front().place.absent;
    one.expr = shown(none, arg.expr->column);
    note_absence(one);
    out_.push_back(std::move(one));
    return {};
  }

  Failure add_of_entry(const FetchArg& arg, const FetchExprPtr& inner) {
    FetchArg one = arg;
    one.expr = inner;
    const std::size_t first = out_.size();
    if (auto e = add_read_here(one)) return e;
    for (std::size_t i = first; i < out_.size(); ++i) out_[i].expr = at_entry(out_[i].expr);
    return {};
  }

  // When a variable of a return probe is read. path: as the definition has it.
  void settle_time(FetchArg& arg) const {
    const auto* placed = std::get_if<lang::PlacedExpr>(&arg.expr->node);
    if (!placed || placed->of_result || !placed->place->absent.empty()) return;
    if ((plain_ && has_base(*placed->place)) || is_in_hand(*placed->place)) arg.expr = at_entry(arg.expr);
  }

  Failure add_read_here(const FetchArg& arg) {
    const FetchExpr& inner = innermost(*arg.expr);
    plain_ = false;
    of_result_ = false;
    if (std::holds_alternative<lang::AllArgumentsExpr>(inner.node)) return add_all(arg);
    if (has(arg.name)) return used_twice(arg.name, arg.column);
    const auto* variable = std::get_if<lang::VariableExpr>(&inner.node);
    if (!variable) return out_.push_back(arg), Failure{};
    plain_ = is_plain_name(variable->path);
    of_result_ = at_return_ && is_of_return(variable->path);
    if (&inner != arg.expr.get()) return add_behind(arg, variable->path);
    return arg.type_given ? add_typed(arg, variable->path) : add_parts(arg, variable->path);
  }

  // Whether an event has a member of that name already.
  bool has(const std::string& name) const {
    return std::ranges::any_of(out_, [&](const FetchArg& before) {
      return (before.path.empty() ? before.name : before.path.front()) == name;
    });
  }
  // Whether the definition names this very variable beside $args, by its own name: then it stands there alone.
  bool is_written(const std::string& name) const {
    return std::ranges::any_of(written_, [&](const FetchArg& arg) {
      const auto* variable = std::get_if<lang::VariableExpr>(&arg.expr->node);
      return variable && variable->path == name && arg.name == name;
    });
  }
  static Error used_twice(const std::string& name, std::size_t column) {
    return {Reason::bad_definition, "the argument name \"" + name + "\" is used twice: $args has it, too",
            "give the other one a NAME=", column};
  }

  Failure add_all(const FetchArg& arg) {
    auto names = variables_.parameters();
    if (!names) return std::move(names).error();
    std::erase_if(*names, [&](const std::string& name) {
      if (!name.starts_with('.')) return false;  // Go's .dict
      notes_.push_back(name + " is left out: it is the compiler's own");
      return true;
    });
    if (names->size() > lang::kMaxFetchArgs)
      return Error{Reason::bad_definition,
                   "the function has " + std::to_string(names->size()) + " parameters, and a probe at most " +
                       std::to_string(lang::kMaxFetchArgs) + " arguments",
                   "name those that matter", arg.column};
    plain_ = true;
    for (const std::string& name : *names) {
      FetchArg one = arg;
      one.name = one.text = name;
      if (name.starts_with('$')) one.name.erase(0, 1);
      if (is_written(name)) continue;
      if (has(one.name)) return used_twice(one.name, arg.column);
      if (auto e = add_parts(one, name)) return e;
    }
    return {};
  }

  // As its type says.
  Failure add_parts(const FetchArg& arg, const std::string& path) {
    auto parts = variables_.parts(path, kMaxParts);
    if (!parts) return std::move(parts).error();
    for (const dwarf::Value& part : *parts) {
      FetchArg one = arg;
      if (!part.path.empty()) one.path.push_back(arg.name);
      for (const std::string& key : part.path) {
        one.name.append(key.starts_with('[') ? "" : ".").append(key);
        one.path.push_back(key);
      }
      one.type = part.type;
      one.chooser = static_cast<std::uint16_t>(part.chooser);
      one.choice = part.choice;
      if (part.text) one.type.base = values::BaseType::string;
      one.expr = shown(part, arg.expr->column);
      note_absence(one);
      if (!part.note.empty() && part.place.absent.empty()) notes_.push_back(one.name + " is " + part.note);
      out_.push_back(std::move(one));
    }
    return {};
  }

  FetchExprPtr shown(const dwarf::Value& value, std::size_t column) const {
    if (value.text) return counted(*value.text, column);
    switch (value.shape) {
      case Shape::number:
      case Shape::pointer:
        if (value.type.bitfield && value.place.in_memory) return placed(value.place, What::object, 8, false, column);
        return placed(value.place, What::value, value.size, value.is_signed, column);
      case Shape::text: return placed(value.place, What::pointee, 8, false, column);
      case Shape::characters:
      case Shape::array: return placed(value.place, What::object, 8, false, column);
      default: break;
    }
    values::Placement none;
    none.absent = value.place.absent;
    if (none.absent.empty()) none.absent = dwarf::with_article(value.declared) + " can't be shown";
    return placed(std::move(none), What::value, 8, false, column);
  }

  // As :TYPE says.
  Failure add_typed(const FetchArg& arg, const std::string& path) {
    auto value = variables_.find(path);
    if (!value) return std::move(value).error();
    const bool wants_memory = values::is_string(arg.type.base) || arg.type.array;
    const bool is_pointer = value->shape == Shape::pointer || value->shape == Shape::text;
    const bool is_memory = value->shape != Shape::number && !is_pointer;
    if (wants_memory && value->shape == Shape::number)
      return Error{Reason::bad_definition,
                   "\"" + path + "\" is " + dwarf::with_article(value->declared) + ", and " +
                       values::to_string(arg.type) + " needs memory",
                   "for a number that is an address write +0(" + path + "):" + values::to_string(arg.type),
                   {}};
    FetchArg one = arg;
    const What what = is_memory ? What::object : wants_memory ? What::pointee : What::value;
    if (value->text && values::is_string(arg.type.base) && !arg.type.array)
      one.expr = counted(*value->text, arg.expr->column);
    else if (arg.type.bitfield && value->place.in_memory)
      one.expr = placed(value->place, What::object, 8, false, arg.expr->column);
    else
      one.expr = placed(value->place, what, is_memory ? 8 : value->size, value->is_signed, arg.expr->column);
    if (value->shape == Shape::characters && values::is_string(arg.type.base))
      one.type.text_limit = static_cast<std::uint16_t>(std::min<std::uint64_t>(value->size, 0xffff));
    note_absence(one);
    out_.push_back(std::move(one));
    return {};
  }

  // +OFFS(x): of the value of numbers and pointers, of the address of all else.
  Failure add_behind(const FetchArg& arg, const std::string& path) {
    auto value = variables_.find(path);
    if (!value) return std::move(value).error();
    const bool is_memory =
        value->shape == Shape::characters || value->shape == Shape::array || value->shape == Shape::structure;
    if (!is_memory && !is_one_number(*value))
      return Error{Reason::bad_definition,
                   "\"" + path + "\" is " + dwarf::with_article(value->declared) + ", which is no address",
                   "",
                   {}};
    if (is_memory && value->place.absent.empty()) {
      if (!value->place.in_memory) value->place.absent = "it is in registers here, not in memory";
      value->place.in_memory = false;
    }
    FetchArg one = arg;
    FetchExprPtr operand =
        placed(value->place, What::value, is_memory ? 8 : value->size, value->is_signed, arg.expr->column);
    if (at_return_ && !of_result_ && (is_inside_entry(*arg.expr) || (plain_ && has_base(value->place))))
      operand = at_entry(std::move(operand));
    one.expr = rebuilt(*arg.expr, std::move(operand));
    note_absence(one);
    out_.push_back(std::move(one));
    return {};
  }

  FetchExprPtr placed(values::Placement place, What what, std::uint64_t size, bool is_signed,
                      std::size_t column) const {
    lang::PlacedExpr node = placed_node(std::move(place), what, size, is_signed);
    node.of_result = of_result_;
    return std::make_shared<const FetchExpr>(FetchExpr{std::move(node), column});
  }

  FetchExprPtr counted(const dwarf::CountedText& text, std::size_t column) const {
    lang::PlacedExpr node;
    node.place = std::make_shared<const values::Placement>(text.pointer);
    node.what = What::pointee;
    node.length = std::make_shared<const values::Placement>(text.length);
    node.length_size = text.length_size;
    node.of_result = of_result_;
    return std::make_shared<const FetchExpr>(FetchExpr{std::move(node), column});
  }

  static FetchExprPtr rebuilt(const FetchExpr& expr, FetchExprPtr operand) {
    std::vector<const FetchExpr*> levels;
    for (const FetchExpr* at = &expr; const auto* deref = std::get_if<lang::DerefExpr>(&at->node);
         at = deref->inner.get())
      levels.push_back(at);
    for (auto level = levels.rbegin(); level != levels.rend(); ++level) {
      lang::DerefExpr deref = std::get<lang::DerefExpr>((*level)->node);
      deref.inner = std::move(operand);
      operand = std::make_shared<const FetchExpr>(FetchExpr{std::move(deref), (*level)->column});
    }
    return operand;
  }

  void note_absence(const FetchArg& arg) {
    const auto& node = std::get<lang::PlacedExpr>(innermost(*arg.expr).node);
    if (!node.place->absent.empty()) return say_of(arg.name, "null", node.place->absent);
    const std::string& whole = arg.path.empty() ? arg.name : arg.path.front();
    if (!node.place->doubt.empty()) say_of(whole, "what was there before, perhaps", node.place->doubt);
  }

  void say_of(const std::string& name, const char* what, const std::string& why) {
    const auto is_same = [&](const Remark& r) { return r.what == what && r.why == why; };
    auto same = std::ranges::find_if(remarks_, is_same);
    if (same == remarks_.end()) same = remarks_.insert(same, {what, why, {}});
    if (same->names.empty() || same->names.back() != name) same->names.push_back(name);
  }

  // What many share is said once.
  void say_remarks() {
    constexpr std::size_t kMostNamed = 3;
    for (const auto& [what, why, names] : remarks_) {
      const std::string rest = what + ": " + why;
      if (names.size() <= kMostNamed) {
        for (const std::string& name : names) notes_.push_back(name + " is " + rest);
        continue;
      }
      std::string list;
      for (std::size_t i = 0; i < kMostNamed; ++i) list.append(names[i]).append(", ");
      notes_.push_back(list + "and " + std::to_string(names.size() - kMostNamed) + " more are " + rest);
    }
  }

  struct Remark {
    std::string what, why;
    std::vector<std::string> names;
  };

  const dwarf::Variables& variables_;
  const bool at_return_;
  Notes& notes_;
  std::span<const FetchArg> written_;
  std::vector<Remark> remarks_;
  // Of the argument being added:
  bool plain_ = false;      // a variable by its name alone
  bool of_result_ = false;  // $retval, or what it leads to
  std::vector<FetchArg> out_;
};

}  // namespace

bool wants_result_type(std::span<const FetchArg> args) { return std::ranges::any_of(args, is_plain_result); }

bool reads_by_convention(std::span<const lang::FetchArg> args) {
  return std::ranges::any_of(args, [](const lang::FetchArg& arg) {
    const auto& node = innermost(*arg.expr).node;
    if (const auto* variable = std::get_if<lang::VariableExpr>(&node))
      return variable->path.find('%') != std::string::npos;
    return std::holds_alternative<lang::RegisterExpr>(node) || std::holds_alternative<lang::StackExpr>(node) ||
           std::holds_alternative<lang::StackEntryExpr>(node) || std::holds_alternative<lang::ArgumentExpr>(node);
  });
}

bool needs_variables(std::span<const FetchArg> args, bool static_probe) {
  return std::ranges::any_of(args, [&](const FetchArg& arg) {
    const FetchExpr& inner = innermost(*arg.expr);
    return std::holds_alternative<lang::VariableExpr>(inner.node) ||
           (std::holds_alternative<lang::AllArgumentsExpr>(inner.node) && !static_probe);
  });
}

Result<std::vector<FetchArg>> with_variables(std::span<const FetchArg> args, const dwarf::Variables& variables, At at,
                                             Notes& notes) {
  return Placer(variables, at, notes).place(args);
}

}  // namespace probed::control
