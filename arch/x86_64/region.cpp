// Placeholder: refuses.
#include "arch/x86_64/region.hpp"

namespace probed::arch::x86_64 {

CodeFlow analyse_code(const CodeSource&) { return {}; }

RegionResult plan_region(const CodeFlow&, const RegionRequest&) {
  return {RegionRefusal::unsupported, Refusal::none, {}};
}

std::array<std::uint8_t, kShortJumpSize> short_jump(std::uint64_t site, std::uint64_t island) {
  return {0xeb, static_cast<std::uint8_t>(island - (site + kShortJumpSize))};
}

}  // namespace probed::arch::x86_64
