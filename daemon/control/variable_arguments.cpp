// See variable_arguments.hpp.
#include "daemon/control/variable_arguments.hpp"

#include <algorithm>
#include <optional>

#include "daemon/events/packed.hpp"

namespace probed::control {
namespace {

using dwarf::Shape;
using lang::FetchArg;
using lang::FetchExpr;
using lang::FetchExprPtr;
using What = lang::PlacedExpr::What;

constexpr std::size_t kMaxParts = 64;  // of one variable

const FetchExpr& innermost(const FetchExpr& expr) {
  const FetchExpr* at = &expr;
  while (const auto* deref = std::get_if<lang::DerefExpr>(&at->node)) at = deref->inner.get();
  return *at;
}

FetchExprPtr placed(lang::Placement place, What what, std::uint64_t size, bool is_signed, std::size_t column) {
  lang::PlacedExpr node;
  // An object that is in no memory can't be read as memory is.
  if (what == What::object && place.absent.empty() && !place.in_memory)
    place.absent = "it is in registers here, not in memory";
  node.place = std::make_shared<const lang::Placement>(std::move(place));
  node.what = what;
  node.size = static_cast<std::uint8_t>(size);
  node.is_signed = is_signed;
  return std::make_shared<const FetchExpr>(FetchExpr{std::move(node), column});
}

FetchExprPtr counted(const dwarf::CountedText& text, std::size_t column) {
  lang::PlacedExpr node;
  node.place = std::make_shared<const lang::Placement>(text.pointer);
  node.what = What::pointee;
  node.length = std::make_shared<const lang::Placement>(text.length);
  node.length_size = text.length_size;
  return std::make_shared<const FetchExpr>(FetchExpr{std::move(node), column});
}

bool is_one_number(const dwarf::Value& value) {
  return value.size == 1 || value.size == 2 || value.size == 4 || value.size == 8;
}

class Placer {
 public:
  Placer(const dwarf::Variables& variables, Notes& notes) : variables_(variables), notes_(notes) {}

  Result<std::vector<FetchArg>> place(std::span<const FetchArg> args) {
    for (const FetchArg& arg : args)
      if (auto e = add(arg)) {
        if (!e->column) e->column = arg.expr->column;
        return std::move(*e);
      }
    if (out_.size() > lang::kMaxFetchArgs)
      return Error{Reason::bad_definition,
                   "with the parts of its variables the probe has " + std::to_string(out_.size()) +
                       " arguments: at most 128",
                   "name the members that matter: p->field", args.front().column};
    return std::move(out_);
  }

 private:
  using Failure = std::optional<Error>;

  Failure add(const FetchArg& arg) {
    const FetchExpr& inner = innermost(*arg.expr);
    if (std::holds_alternative<lang::AllArgumentsExpr>(inner.node)) return add_all(arg);
    const auto* variable = std::get_if<lang::VariableExpr>(&inner.node);
    if (!variable) return out_.push_back(arg), Failure{};
    if (&inner != arg.expr.get()) return add_behind(arg, variable->path);
    return arg.type_given ? add_typed(arg, variable->path) : add_parts(arg, variable->path);
  }

  Failure add_all(const FetchArg& arg) {
    auto names = variables_.parameters();
    if (!names) return std::move(names).error();
    for (const std::string& name : *names) {
      FetchArg one = arg;
      one.name = one.text = name;
      if (name.starts_with('$')) one.name.erase(0, 1);
      const auto same = [&](const FetchArg& before) { return before.name == one.name; };
      if (std::ranges::any_of(out_, same))
        return Error{Reason::bad_definition, "the argument name \"" + one.name + "\" is used twice: $args has it, too",
                     "give the other one a NAME=", arg.column};
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
      if (part.text) one.type.base = lang::BaseType::string;
      one.expr = shown(part, arg.expr->column);
      note_absence(one);
      out_.push_back(std::move(one));
    }
    return {};
  }

  static FetchExprPtr shown(const dwarf::Value& value, std::size_t column) {
    if (value.text) return counted(*value.text, column);
    switch (value.shape) {
      case Shape::number:
      case Shape::pointer:
        if (value.type.bitfield) return placed(value.place, What::object, 8, false, column);
        return placed(value.place, What::value, value.size, value.is_signed, column);
      case Shape::text: return placed(value.place, What::pointee, 8, false, column);
      case Shape::characters:
      case Shape::array: return placed(value.place, What::object, 8, false, column);
      default: break;
    }
    lang::Placement none;
    none.absent = value.place.absent.empty() ? "a " + value.declared + " can't be shown" : value.place.absent;
    return placed(std::move(none), What::value, 8, false, column);
  }

  // As :TYPE says.
  Failure add_typed(const FetchArg& arg, const std::string& path) {
    auto value = variables_.find(path);
    if (!value) return std::move(value).error();
    const bool wants_memory = events::is_string(arg.type.base) || arg.type.array;
    const bool is_pointer = value->shape == Shape::pointer || value->shape == Shape::text;
    const bool is_memory = value->shape != Shape::number && !is_pointer;
    if (wants_memory && value->shape == Shape::number)
      return Error{Reason::bad_definition,
                   "\"" + path + "\" is a " + value->declared + ", and " + lang::to_string(arg.type) + " needs memory",
                   "for a number that is an address write +0(" + path + "):" + lang::to_string(arg.type), {}};
    FetchArg one = arg;
    const What what = is_memory ? What::object : wants_memory ? What::pointee : What::value;
    if (value->text && events::is_string(arg.type.base) && !arg.type.array)
      one.expr = counted(*value->text, arg.expr->column);
    else if (arg.type.bitfield && value->place.in_memory)
      one.expr = placed(value->place, What::object, 8, false, arg.expr->column);
    else
      one.expr = placed(value->place, what, is_memory ? 8 : value->size, value->is_signed, arg.expr->column);
    if (value->shape == Shape::characters && events::is_string(arg.type.base))
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
      return Error{Reason::bad_definition, "\"" + path + "\" is a " + value->declared + ", which is no address", "", {}};
    if (is_memory && value->place.absent.empty()) {
      if (!value->place.in_memory) value->place.absent = "it is in registers here, not in memory";
      value->place.in_memory = false;
    }
    FetchArg one = arg;
    one.expr = rebuilt(*arg.expr, placed(value->place, What::value, is_memory ? 8 : value->size, value->is_signed,
                                         arg.expr->column));
    note_absence(one);
    out_.push_back(std::move(one));
    return {};
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
    if (!node.place->absent.empty()) notes_.push_back(arg.name + " is null: " + node.place->absent);
  }

  const dwarf::Variables& variables_;
  Notes& notes_;
  std::vector<FetchArg> out_;
};

}  // namespace

bool needs_variables(std::span<const FetchArg> args, bool static_probe) {
  return std::ranges::any_of(args, [&](const FetchArg& arg) {
    const FetchExpr& inner = innermost(*arg.expr);
    return std::holds_alternative<lang::VariableExpr>(inner.node) ||
           (std::holds_alternative<lang::AllArgumentsExpr>(inner.node) && !static_probe);
  });
}

Result<std::vector<FetchArg>> with_variables(std::span<const FetchArg> args, const dwarf::Variables& variables,
                                             Notes& notes) {
  return Placer(variables, notes).place(args);
}

}  // namespace probed::control
