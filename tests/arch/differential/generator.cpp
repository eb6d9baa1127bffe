// Drawing: family, mnemonic, form, encoding, state.
#include "tests/arch/differential/generator.hpp"

#include <bit>
#include <cstring>

#include "arch/x86_64/zydis.hpp"
#include "tests/arch/differential/aim.hpp"
#include "tests/arch/differential/cpu.hpp"
#include "tests/arch/differential/encode.hpp"
#include "tests/arch/differential/written_out.hpp"
#include "tests/arch/hex.hpp"

namespace probed::test {
namespace {

constexpr std::uint64_t kWrittenOutWeight = 14;

// Whether a written-out encoding is executed here, by the form that its mnemonic has.
bool executed(const std::vector<std::uint8_t>& bytes, ZydisMnemonic& mnemonic) {
  arch::x86_64::Decoded decoded;
  if (!arch::x86_64::decode_with_zydis(bytes, decoded)) return false;
  Form form;
  form.isa_set = decoded.insn.meta.isa_set;
  form.mnemonic = mnemonic = decoded.insn.mnemonic;
  return executed_here(form);
}

}  // namespace

std::vector<std::string_view> family_names() {
  std::vector<std::string_view> names;
  for (const Family& family : families()) names.push_back(family.name);
  names.push_back("written out");
  return names;
}

Generator::Generator(std::uint64_t seed, Places places) : random_(seed), places_(places) {
  ZydisMnemonic ignored{};
  for (const std::string_view text : kWrittenOut)
    if (std::vector<std::uint8_t> bytes = from_hex(text); executed(bytes, ignored)) written_out_.push_back(bytes);
  for (const Family& family : families()) total_weight_ += family.weight;
}

const Case& Generator::next() {
  do {
    while (!draw_bytes()) {
    }
  } while (!draw_state());
  return case_;
}

const Case* Generator::of_form(const Form& form, std::size_t family) {
  case_.family = family;
  for (int attempt = 0; attempt < 12; ++attempt)
    if (encode_form(form) && draw_state()) return &case_;
  return nullptr;
}

const Form* Generator::draw_form() {
  std::uint64_t weight = random_.below(total_weight_ + kWrittenOutWeight);
  case_.family = 0;
  for (const Family& family : families()) {
    if (weight < family.weight) return random_.pick(random_.pick(family.mnemonics));
    weight -= family.weight;
    ++case_.family;
  }
  return nullptr;
}

bool Generator::draw_bytes() {
  const Form* form = draw_form();
  if (form == nullptr) {
    case_.bytes = random_.pick(written_out_);
    executed(case_.bytes, case_.mnemonic);
    aim_displacements(case_.bytes, random_, places_);
    return true;
  }
  return encode_form(*form);
}

bool Generator::encode_form(const Form& form) {
  case_.mnemonic = form.mnemonic;
  for (int attempt = 0; attempt < 24; ++attempt) {
    case_.bytes = encode(form, random_, places_);
    if (!case_.bytes.empty()) return true;
  }
  return false;
}

bool Generator::draw_state() {
  if (drawn_++ % 16 == 0) fill_background();
  for (int attempt = 0; attempt < 8; ++attempt) {
    case_.start = background_;
    if (random_.chance(50)) fill_vectors(case_.start);
    if (random_.chance(50)) fill_fpu(case_.start);
    if (aim(case_.bytes, random_, places_, case_.start)) return true;
  }
  return false;
}

void Generator::fill_background() {
  background_ = Machine{};
  fill_words(background_.data);
  fill_words(background_.stack);
  fill_vectors(background_);
  fill_fpu(background_);
}

// Random, small, floating point numbers, and addresses.
void Generator::fill_words(std::span<std::uint8_t> memory) {
  for (std::size_t i = 0; i + 8 <= memory.size(); i += 8) {
    std::uint64_t word = random_.word();
    const std::uint64_t kind = random_.below(8);
    if (kind == 0) word &= 0xff;
    if (kind == 1) word = places_.landing + (word & (kPage - 1));
    if (kind == 2) word = std::bit_cast<std::uint64_t>(static_cast<double>(static_cast<std::int32_t>(word)) / 256);
    std::memcpy(memory.data() + i, &word, 8);
  }
}

void Generator::fill_vectors(Machine& machine) {
  for (auto& reg : machine.ymm) fill_words(reg);
  if (random_.chance(8)) machine.mxcsr &= ~(static_cast<std::uint32_t>(random_.word()) & 0x1f80);
  if (random_.chance(10)) machine.mxcsr |= static_cast<std::uint32_t>(random_.word()) & 0xe040;
  if (!Sandbox::has_wide_state()) return;
  fill_words(machine.wide.opmask);
  fill_words(machine.wide.zmm_high);
  fill_words(machine.wide.more_zmm);
}

void Generator::fill_fpu(Machine& machine) {
  if (random_.chance(10)) machine.fpu_control ^= static_cast<std::uint16_t>(random_.word() & 0xf00);
  machine.fpu_status = static_cast<std::uint16_t>(random_.word() & 0x7f00);
  for (std::size_t i = 0; i < 8; ++i) {
    if (!random_.chance(40)) continue;
    machine.fpu_tags |= static_cast<std::uint8_t>(1u << i);
    const std::uint64_t mantissa = random_.word() | 1ULL << 63;
    const auto exponent = static_cast<std::uint16_t>(0x3fe0 + random_.below(96));
    std::memcpy(machine.st[i].data(), &mantissa, 8);
    std::memcpy(machine.st[i].data() + 8, &exponent, 2);
  }
  // An unmasked exception, or one that is pending for the next waiting instruction.
  if (random_.chance(6)) machine.fpu_control &= static_cast<std::uint16_t>(~(random_.word() & 0x3f));
  if (random_.chance(3)) {
    machine.fpu_control &= static_cast<std::uint16_t>(~1u);
    machine.fpu_status |= 0x8081;
  }
}

}  // namespace probed::test
