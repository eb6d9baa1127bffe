// See usdt_arguments.hpp.
#include "daemon/events/usdt_arguments.hpp"

#include <algorithm>
#include <array>

namespace probed::events {
namespace {

using values::BaseType;

struct Row {
  std::uint8_t size;
  BaseType as_unsigned, as_signed, as_bits;
};
constexpr std::array<Row, 4> kTypes = {{{1, BaseType::u8, BaseType::s8, BaseType::x8},
                                        {2, BaseType::u16, BaseType::s16, BaseType::x16},
                                        {4, BaseType::u32, BaseType::s32, BaseType::x32},
                                        {8, BaseType::u64, BaseType::s64, BaseType::x64}}};

// Floating-point numbers of other sizes are shown as the bits they are.
BaseType type_of(const elf::UsdtArgument& argument) {
  const auto row = std::ranges::find(kTypes, argument.size, &Row::size);
  if (row == kTypes.end()) return BaseType::x64;
  if (argument.is_float && argument.size >= 4) return argument.size == 4 ? BaseType::f32 : BaseType::f64;
  return argument.is_float ? row->as_bits : argument.is_signed ? row->as_signed : row->as_unsigned;
}

lang::FetchArg one(std::size_t number, const elf::UsdtArgument& argument, const lang::FetchArg& written) {
  lang::FetchArg arg;
  arg.name = "arg" + std::to_string(number);
  arg.text = "$" + arg.name;
  arg.column = written.column;
  arg.expr = std::make_shared<const lang::FetchExpr>(
      lang::FetchExpr{lang::ArgumentExpr{static_cast<std::uint32_t>(number)}, written.column});
  arg.type.base = type_of(argument);
  return arg;
}

// Whether the definition has this very argument beside $args, under the same name: then it stands there alone.
bool is_written(std::span<const lang::FetchArg> args, const lang::FetchArg& one) {
  return std::ranges::any_of(args, [&](const lang::FetchArg& arg) {
    const auto* number = std::get_if<lang::ArgumentExpr>(&arg.expr->node);
    return number && arg.name == one.name && number->number == std::get<lang::ArgumentExpr>(one.expr->node).number;
  });
}

}  // namespace

Result<std::vector<lang::FetchArg>> with_usdt_arguments(std::span<const lang::FetchArg> args,
                                                        const elf::UsdtSite& usdt) {
  std::vector<lang::FetchArg> out;
  for (const lang::FetchArg& arg : args) {
    if (std::holds_alternative<lang::AllArgumentsExpr>(arg.expr->node)) {
      for (std::size_t i = 0; i < usdt.arguments.size(); ++i)
        if (lang::FetchArg all = one(i + 1, usdt.arguments[i], arg); !is_written(args, all))
          out.push_back(std::move(all));
      continue;
    }
    out.push_back(arg);
    const auto* number = std::get_if<lang::ArgumentExpr>(&arg.expr->node);
    if (number && !arg.type_given && number->number <= usdt.arguments.size())
      out.back().type.base = type_of(usdt.arguments[number->number - 1]);
  }
  if (out.size() > lang::kMaxFetchArgs)
    return Error{Reason::bad_definition, "with $args there are more than 128 arguments", "", args.front().column};
  for (auto arg = out.begin(); arg != out.end(); ++arg)
    if (std::any_of(out.begin(), arg, [&](const lang::FetchArg& before) { return before.name == arg->name; }))
      return Error{Reason::bad_definition, "the argument name \"" + arg->name + "\" is used twice: $args has it, too",
                   "give the other one a NAME=", arg->column};
  return out;
}

}  // namespace probed::events
