// Random test cases: one real instruction encoding and a machine state that makes it do something. Deterministic from
// the seed. One owner.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tests/arch/differential/forms.hpp"
#include "tests/arch/differential/places.hpp"
#include "tests/arch/differential/random.hpp"
#include "tests/arch/differential/sandbox.hpp"

namespace probed::test {

struct Case {
  std::vector<std::uint8_t> bytes;
  Machine start;           // rip is left to the caller
  std::size_t family = 0;  // index into family_names()
  ZydisMnemonic mnemonic = ZYDIS_MNEMONIC_INVALID;
};

// The families' names, and one for the encodings written out.
std::vector<std::string_view> family_names();

class Generator {
 public:
  Generator(std::uint64_t seed, Places places);

  const Case& next();
  // A case of this form; null: none could be made.
  const Case* of_form(const Form& form, std::size_t family);

 private:
  const Form* draw_form();
  bool draw_bytes();
  bool encode_form(const Form& form);
  bool draw_state();
  void fill_background();
  void fill_vectors(Machine& machine);
  void fill_fpu(Machine& machine);
  void fill_words(std::span<std::uint8_t> memory);

  Random random_;
  Places places_;
  std::vector<std::vector<std::uint8_t>> written_out_;
  std::uint64_t total_weight_ = 0;
  std::uint64_t drawn_ = 0;
  Machine background_;  // memory and vectors, renewed now and then
  Case case_;
};

}  // namespace probed::test
