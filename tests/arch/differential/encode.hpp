// One random encoding of an instruction form: registers, addressing mode, displacement, immediate, spare prefixes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/arch/differential/forms.hpp"
#include "tests/arch/differential/places.hpp"
#include "tests/arch/differential/random.hpp"

namespace probed::test {

// At most 15 bytes, accepted by decode(), with displacements that lead somewhere. Empty: what was drawn doesn't go
// together; try again.
std::vector<std::uint8_t> encode(const Form& form, Random& random, const Places& places);

// Gives rip-relative operands and branches that stand at places.original a displacement that leads somewhere.
void aim_displacements(std::vector<std::uint8_t>& bytes, Random& random, const Places& places);

// An address to read and write, often at an odd place, seldom one that faults.
std::uint64_t random_data_address(Random& random, const Places& places);

// Disassembly, for messages.
std::string disassemble(const std::vector<std::uint8_t>& bytes, std::uint64_t address);

}  // namespace probed::test
