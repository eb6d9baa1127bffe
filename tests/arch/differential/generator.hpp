// Random test cases: one real instruction encoding and a machine state that makes it do something. Deterministic from
// the seed. One owner.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/arch/differential/sandbox.hpp"

namespace probed::test {

struct Case {
  std::vector<std::uint8_t> bytes;
  Machine start;  // rip is left to the caller
};

// Where things are; what addresses and branch targets are made of.
struct Places {
  std::uint64_t original, landing, data, stack;
};

class Generator {
 public:
  Generator(std::uint64_t seed, Places places) : random_(seed), places_(places) {}

  Case next();

 private:
  friend class Request;
  friend std::vector<std::uint8_t> encode_template(std::size_t number, Generator& generator);
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  bool chance(unsigned percent) { return below(100) < percent; }

  void aim(std::vector<std::uint8_t>& bytes);
  void fill(Machine& machine);
  std::uint64_t random_value();
  std::uint64_t data_address();
  void aim_registers(const std::vector<std::uint8_t>& bytes, Machine& machine);
  void place_target(std::uint64_t address, Machine& machine);

  std::mt19937_64 random_;
  Places places_;
};

// How many different instruction templates there are, and each one's name in messages.
std::size_t template_count();
std::string template_name(std::size_t number);
// One encoding of a template, with random operands. Empty: the operands drawn don't go together; try again.
std::vector<std::uint8_t> encode_template(std::size_t number, Generator& generator);
// Whether the instruction reads memory in the word below sp: the one operand a relocated call cannot have.
bool reads_below_sp(const Case& one, std::uint64_t address);
// Disassembly, for messages.
std::string disassemble(const std::vector<std::uint8_t>& bytes, std::uint64_t address);

}  // namespace probed::test
