// Placeholder of the port: decode() never says emulable.
#include "arch/aarch64/emulate.hpp"

namespace probed::arch::aarch64 {

bool emulate(std::span<const std::uint8_t>, const Insn&, Registers&) {
  return false;
}

}  // namespace probed::arch::aarch64
