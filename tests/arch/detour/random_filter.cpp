#include "tests/arch/detour/random_filter.hpp"

#include <unistd.h>

#include <array>
#include <cstdio>

namespace probed::test {
namespace {

// One that the field can hold: the language refuses others.
std::string random_number(Random& random, const FilterField& field) {
  const std::uint64_t most = ~0ull >> (field.is_signed ? 65 - field.bits : 64 - field.bits);
  const std::uint64_t small = random.below(3), byte = random.below(256) & most, any = random.word() & most;
  switch (random.below(5)) {
    case 0: return std::to_string(small);
    case 1: return std::to_string(byte);
    case 2: return (field.is_signed ? "-" : "") + std::to_string(byte);
    case 3: {  // its bits; of a signed one of 64 bits the sign bit isn't taken for one
      std::array<char, 24> text{};
      const std::uint64_t bits = random.word() & (field.bits == 64 ? most : ~0ull >> (64 - field.bits));
      std::snprintf(text.data(), text.size(), "0x%llx", static_cast<unsigned long long>(bits));
      return text.data();
    }
    default: return (field.is_signed && random.chance(40) ? "-" : "") + std::to_string(any);
  }
}

}  // namespace

std::string random_filter(Random& random, std::span<const FilterField> fields, unsigned depth) {
  if (depth > 0 && random.chance(60)) {
    const std::string left = random_filter(random, fields, depth - 1), right = random_filter(random, fields, depth - 1);
    const std::string both = "(" + left + (random.chance(50) ? " && " : " || ") + right + ")";
    return random.chance(25) ? "!" + both : both;
  }
  if (random.chance(8)) return std::string("pid ") + (random.chance(50) ? "== " : "< ") + std::to_string(::getpid());
  static const char* const kOperators[] = {"==", "!=", "<", "<=", ">", ">=", "&"};
  const FilterField& field = random.pick(fields);
  return std::string(field.name) + " " + random.pick(kOperators) + " " + random_number(random, field);
}

}  // namespace probed::test
