#include "arch/aarch64/stack_use.hpp"

#include <bitset>

#include "arch/aarch64/word.hpp"
#include "arch/aarch64/written.hpp"

namespace probed::arch::aarch64 {
namespace {

constexpr unsigned kFramePointer = 29;

unsigned result(std::uint32_t word) { return field(word, 0, 5); }
unsigned operand(std::uint32_t word) { return field(word, 5, 5); }
// Where register 31 is sp, not xzr.
bool is_stack(unsigned reg) { return reg == kZeroRegister; }
bool is_frame(unsigned reg) { return is_stack(reg) || reg == kFramePointer; }

bool adds_number(std::uint32_t word) { return (word & 0xbf800000) == 0x91000000; }    // add, sub; mov from and to sp
bool adds_register(std::uint32_t word) { return (word & 0xbfe00000) == 0x8b200000; }  // extended
bool adds_tag(std::uint32_t word) { return (word & 0xbfc00000) == 0x91800000; }       // addg, subg
bool inserts_tag(std::uint32_t word) { return (word & 0xffe0fc00) == 0x9ac01000; }    // irg
// and, orr, eor with a number; 31 is xzr as their operand.
bool masks(std::uint32_t word) { return (word & 0x9f800000) == 0x92000000 && field(word, 29, 2) != 3; }
// addvl, addpl: a multiple of the vector length.
bool adds_vectors(std::uint32_t word) { return (word & 0xffa0f800) == 0x04205000; }

class Walk {
 public:
  // False: sp becomes something that nothing here says is a stack's.
  bool step(std::uint32_t word) {
    if (!sets_stack_pointer(word)) {
      note_sources(word);
      return true;
    }
    if (field(word, 31, 1) == 0 && !adds_vectors(word)) return false;  // wsp
    if (masks(word)) return known_elsewhere(operand(word));
    const unsigned from = adds_vectors(word) ? field(word, 16, 5) : operand(word);
    return is_frame(from) || known_elsewhere(from);
  }
  bool ends_well() const { return (needed_ & ~from_stack_).none(); }

 private:
  void note_sources(std::uint32_t word) {
    const bool sums = adds_number(word) || adds_register(word) || adds_tag(word) || inserts_tag(word);
    if (sums && is_frame(operand(word))) from_stack_.set(result(word));
    const auto access = word_access(word);
    if (!access || !access->is_load || !is_frame(access->base)) return;
    from_stack_.set(access->first);
    if (access->second) from_stack_.set(*access->second);
  }

  bool known_elsewhere(unsigned reg) {
    if (is_stack(reg)) return false;
    needed_.set(reg);
    return true;
  }

  std::bitset<32> from_stack_, needed_;
};

}  // namespace

bool sets_stack_pointer(std::uint32_t word) {
  if (!is_stack(result(word))) return false;
  const std::uint32_t wide = word | 1u << 31;
  return adds_number(wide) || adds_register(wide) || adds_tag(word) || inserts_tag(word) || masks(wide) ||
         adds_vectors(word);
}

bool keeps_stack(std::span<const std::uint8_t> bytes) {
  Walk walk;
  for (; bytes.size() >= kInsnSize; bytes = bytes.subspan(kInsnSize))
    if (!walk.step(load_word(bytes))) return false;
  return walk.ends_well();
}

}  // namespace probed::arch::aarch64
