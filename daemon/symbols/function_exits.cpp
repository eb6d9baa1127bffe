// See function_exits.hpp.
#include "daemon/symbols/function_exits.hpp"

#include <algorithm>

#include "arch/arch.hpp"

namespace probed::symbols {
namespace {

// gcc's and clang's name for the seldom executed part of a function, which they put elsewhere: NAME.cold, NAME.cold.1.
constexpr std::string_view kColdPart = ".cold";

bool is_function(const Symbol& symbol) {
  return symbol.listed() && symbol.name().find(kColdPart) == std::string_view::npos;
}

}  // namespace

arch::ExitPlan function_exits(const Module& module, const arch::CodeFlow& flow, ElfAddr entry) {
  const auto names_function = [all = module.symbols().all()](std::uint64_t address) {
    const auto at = [](const Symbol& s) { return s.address.value; };
    return std::ranges::any_of(std::ranges::equal_range(all, address, {}, at), is_function);
  };
  arch::ExitPlan plan = arch::native::plan_exits(flow, entry.value, names_function);
  // A call that longjmp has ended would be taken for the next one's beginning. In Go nothing but the check of the stack
  // leads back.
  if (plan && plan.loops_to_entry && !module.is_go()) plan.refusal = arch::ExitRefusal::loops;
  return plan;
}

}  // namespace probed::symbols
