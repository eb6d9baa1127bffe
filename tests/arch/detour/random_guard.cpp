// See random_guard.hpp.
#include "tests/arch/detour/random_guard.hpp"

#include <memory>
#include <variant>

#include "arch/arch.hpp"

namespace probed::test {
namespace {

using Step = values::PlaceStep::Code;

values::PlaceStep register_step(std::string_view name) {
  return {Step::load_register, 8, 0, *arch::native::register_offset(name)};
}

// False: the expression is of another kind.
bool add_steps(const lang::FetchExpr& expr, std::vector<values::PlaceStep>& steps) {
  if (const auto* reg = std::get_if<lang::RegisterExpr>(&expr.node))
    return steps.push_back(register_step(reg->name)), true;
  if (std::holds_alternative<lang::StackExpr>(expr.node)) return steps.push_back(register_step("sp")), true;
  const auto* deref = std::get_if<lang::DerefExpr>(&expr.node);
  if (deref == nullptr || !add_steps(*deref->inner, steps)) return false;
  steps.push_back({Step::dereference, 8, 0, static_cast<std::uint64_t>(deref->offset)});
  return true;
}

values::Placement number(const GuardRegisters& registers, Random& random) {
  values::Placement place;
  if (random.chance(20)) {
    place.steps.push_back({Step::load_immediate, 8, 0, random.word() >> random.below(64)});
    return place;
  }
  place.in_memory = random.chance(60);
  const bool fails = place.in_memory && random.chance(10);
  const auto& from = place.in_memory ? registers.pointers : registers.numbers;
  place.steps.push_back(register_step(fails ? registers.nowhere : from[random.below(from.size())]));
  place.offset = 8 * random.below(4);
  return place;
}

std::shared_ptr<const values::Guard> draw(const GuardRegisters& registers, Random& random) {
  values::Guard guard;
  if (random.chance(50)) {
    guard.place = number(registers, random);
    guard.size = 8;
    guard.value = random.chance(50) ? 0 : random.below(1 << 20);
    guard.begin = std::make_shared<const values::Placement>(number(registers, random));
  } else if (random.chance(70)) {
    guard.place.steps.push_back({Step::load_immediate, 8, 0, 1});
    guard.value = random.chance(20) ? 0 : 1;
  } else {
    guard.place = number(registers, random);
    guard.value = random.below(2);
  }
  return std::make_shared<const values::Guard>(std::move(guard));
}

std::shared_ptr<const values::Guard> behind(const std::shared_ptr<const values::Guard>& outer,
                                            const values::Guard& inner) {
  values::Guard guard = inner;
  guard.place.guard = outer;
  return std::make_shared<const values::Guard>(std::move(guard));
}

}  // namespace

void guard_at_random(lang::FetchArg& arg, const GuardRegisters& registers, Random& random) {
  lang::PlacedExpr node;
  values::Placement place;
  const auto* deref = std::get_if<lang::DerefExpr>(&arg.expr->node);
  if (!add_steps(deref != nullptr ? *deref->inner : *arg.expr, place.steps)) return;
  if (deref != nullptr) {
    place.in_memory = true;
    place.offset = static_cast<std::uint64_t>(deref->offset);
    node.what = lang::PlacedExpr::What::object;
  }
  place.guard = draw(registers, random);
  if (random.chance(30)) place.guard = behind(place.guard, *draw(registers, random));
  node.place = std::make_shared<const values::Placement>(std::move(place));
  arg.expr = std::make_shared<const lang::FetchExpr>(lang::FetchExpr{std::move(node), arg.expr->column});
}

}  // namespace probed::test
