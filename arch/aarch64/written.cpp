// By the encoding's groups (Arm ARM, C4.1): each has its results in its own fields.
#include "arch/aarch64/written.hpp"

#include "arch/aarch64/word.hpp"

namespace probed::arch::aarch64 {
namespace {

unsigned rt(std::uint32_t word) { return field(word, 0, 5); }
unsigned rn(std::uint32_t word) { return field(word, 5, 5); }
unsigned rt2(std::uint32_t word) { return field(word, 10, 5); }
unsigned rs(std::uint32_t word) { return field(word, 16, 5); }
bool bit(std::uint32_t word, unsigned n) { return field(word, n, 1) != 0; }
bool is_vector(std::uint32_t word) { return bit(word, 26); }

// bl, blr and their kin; mrs, mrrs, sysl.
bool system_writes(std::uint32_t word, unsigned reg) {
  const bool calls = (word & 0xfc000000) == 0x94000000;
  const bool calls_register = (word & 0xfee00000) == 0xd6200000;
  if (calls || calls_register) return reg == kLinkRegister;
  if ((word & 0xff200000) != 0xd5200000) return false;
  return reg == rt(word) || (bit(word, 22) && reg == rt(word) + 1);
}

// Not prfm.
bool is_single_load(std::uint32_t word) {
  const unsigned opc = field(word, 22, 2);
  return !is_vector(word) && opc != 0 && !(field(word, 30, 2) == 3 && opc == 2);
}

// One register, at a base and something.
bool single_writes(std::uint32_t word, unsigned reg) {
  if (bit(word, 24)) return is_single_load(word) && reg == rt(word);
  const unsigned how = field(word, 10, 2);
  if (!bit(word, 21)) {
    const bool moves_base = how == 1 || how == 3;
    return (is_single_load(word) && reg == rt(word)) || (moves_base && reg == rn(word));
  }
  if (how == 2) return is_single_load(word) && reg == rt(word);
  // Atomics, 64-byte accesses, authenticated loads.
  return reg == rt(word) || reg == rs(word) || (how != 0 && reg == rn(word));
}

bool pair_writes(std::uint32_t word, unsigned reg) {
  const bool moves_base = bit(word, 23);
  if (moves_base && reg == rn(word)) return true;
  return bit(word, 22) && !is_vector(word) && (reg == rt(word) || reg == rt2(word));
}

bool memory_writes(std::uint32_t word, unsigned reg) {
  if (is_vector(word) && (word & 0x3e000000) == 0x0c000000) return bit(word, 23) && reg == rn(word);
  switch (field(word, 27, 3)) {
    case 5: return pair_writes(word, reg);
    case 7: return single_writes(word, reg);
    default: break;
  }
  if ((word & 0x3f000000) == 0x18000000) return field(word, 30, 2) != 3 && reg == rt(word);  // literals
  if (is_vector(word)) return false;
  // Exclusives, ordered accesses, comparing and swapping, tags.
  return reg == rt(word) || reg == rt2(word) || reg == rs(word) || reg == rn(word);
}

bool data_writes(std::uint32_t word, unsigned reg) {
  const bool compares_only = (word & 0x1fe00000) == 0x1a400000;  // ccmp, ccmn
  return !compares_only && reg == rt(word);
}

// Moves and conversions to general registers.
bool vector_writes(std::uint32_t word, unsigned reg) {
  if (reg != rt(word)) return false;
  const bool converts = (word & 0x5f000000) == 0x1e000000 && (!bit(word, 21) || field(word, 10, 6) == 0);
  const bool copies = (word & 0x9fe08400) == 0x0e000400;  // umov, smov among others
  return converts || copies;
}

}  // namespace

bool may_write(std::uint32_t word, unsigned reg) {
  switch (field(word, 25, 4)) {
    case 0b1000:
    case 0b1001: return reg == rt(word);
    case 0b1010:
    case 0b1011: return system_writes(word, reg);
    case 0b0100:
    case 0b0110:
    case 0b1100:
    case 0b1110: return memory_writes(word, reg);
    case 0b0101:
    case 0b1101: return data_writes(word, reg);
    case 0b0111:
    case 0b1111: return vector_writes(word, reg);
    default: return reg == rt(word);
  }
}

bool loads_word(std::uint32_t word, unsigned reg) {
  const bool is_pair = (word & 0xfc400000) == 0xa8400000;
  if (is_pair) return reg == rt(word) || reg == rt2(word);
  const bool single = (word & 0xfec00000) == 0xf8400000;         // ldr, ldur, all ways to address
  const bool literal = (word & 0xff000000) == 0x58000000;        // ldr, literal
  const bool ordered = (word & 0xfffffc00) == 0xc8dffc00;        // ldar
  const bool consistent = (word & 0xfffffc00) == 0xf8bfc000;     // ldapr
  const bool authenticated = (word & 0xff200400) == 0xf8200400;  // ldraa, ldrab
  return (single || literal || ordered || consistent || authenticated) && reg == rt(word);
}

std::optional<WordAccess> word_access(std::uint32_t word) {
  if ((word & 0xff800000) == 0xf9000000)  // str, ldr: an unsigned distance
    return WordAccess{bit(word, 22), rn(word), std::int64_t{8} * field(word, 10, 12), rt(word)};
  if ((word & 0xffa00c00) == 0xf8000000)  // stur, ldur
    return WordAccess{bit(word, 22), rn(word), signed_field(word, 12, 9), rt(word)};
  if ((word & 0xff800000) == 0xa9000000)  // stp, ldp
    return WordAccess{bit(word, 22), rn(word), 8 * signed_field(word, 15, 7), rt(word), rt2(word)};
  return std::nullopt;
}

}  // namespace probed::arch::aarch64
