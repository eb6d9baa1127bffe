// Placeholder of the port: refuses.
#include "arch/aarch64/relocate.hpp"

namespace probed::arch::aarch64 {

RelocateResult relocate(std::span<const std::uint8_t>, const Insn& insn, std::uint64_t, std::uint64_t) {
  RelocateResult result;
  result.refusal = insn.refusal == Refusal::none ? Refusal::unsupported : insn.refusal;
  return result;
}

}  // namespace probed::arch::aarch64
