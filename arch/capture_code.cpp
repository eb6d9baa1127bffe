// See capture_code.hpp.
#include "arch/capture_code.hpp"

namespace probed::arch {

std::optional<std::size_t> ComparedItems::find(std::uint16_t item) const {
  const auto* end = items.begin() + count;
  const auto* at = std::find(items.begin(), end, item);
  if (at == end) return std::nullopt;
  return static_cast<std::size_t>(at - items.begin());
}

ComparedItems compared_items(const CapturePlan& plan) {
  ComparedItems compared;
  for (const CapturePredicate& p : plan.filter) {
    if (!plan.layout.items[p.item].can_be_absent || compared.find(p.item)) continue;
    if (compared.count == compared.items.size()) {
      compared.overflow = true;
      break;
    }
    compared.items[compared.count++] = p.item;
  }
  return compared;
}

}  // namespace probed::arch
