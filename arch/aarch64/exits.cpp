// Placeholder of the port: refuses.
#include "arch/aarch64/exits.hpp"

namespace probed::arch::aarch64 {

ExitPlan plan_exits(const CodeFlow&, std::uint64_t, const NamedFunction&) {
  ExitPlan plan;
  plan.refusal = ExitRefusal::unsupported;
  return plan;
}

}  // namespace probed::arch::aarch64
