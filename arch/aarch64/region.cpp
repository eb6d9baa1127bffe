// Placeholder of the port: refuses.
#include "arch/aarch64/region.hpp"

namespace probed::arch::aarch64 {

CodeFlow analyse_code(const CodeSource&) { return {}; }

RegionResult plan_region(const CodeFlow&, const RegionRequest&) {
  return {RegionRefusal::unsupported, Refusal::none, {}};
}

RegionResult plan_pun(const CodeFlow&, const RegionRequest&) { return {RegionRefusal::unsupported, Refusal::none, {}}; }

PunRange pun_range(std::uint64_t, std::span<const std::uint8_t>, std::size_t) { return {}; }

std::array<std::uint8_t, kShortJumpSize> short_jump(std::uint64_t, std::uint64_t) { return {}; }

}  // namespace probed::arch::aarch64
